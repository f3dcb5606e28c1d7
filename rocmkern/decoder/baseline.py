"""The decoder in float32."""

from __future__ import annotations

from typing import Any

import numpy as np

from rocmkern.decoder.reference import logits_in

__all__ = ["decoder_logits"]


def decoder_logits(tokens: Any, *, config: Any, prefill: Any = None, block_size: Any = None, **weights: Any) -> Any:
    """As `reference.decoder_logits`, in float32, rounded once to the dtype of the weights."""
    return logits_in(np.float32, tokens, config, weights).astype(weights["norm"].dtype)
