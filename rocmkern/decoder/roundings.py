"""What the roundings of a decoder cost; see `rocmkern.reference.roundings`."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from rocmkern.decoder import reference as _decoder
from rocmkern.reference.costs import UNITS, finite

__all__ = ["decoder_logits"]

#: Operations in a row of a layer, and around the layers.
_STEPS_OF_LAYER, _STEPS_AROUND = 13, 3


def decoder_logits(
    tokens: np.ndarray,
    *,
    config: Any,
    prefill: int | None = None,
    block_size: int | None = None,
    **weights: np.ndarray,
) -> np.ndarray:
    """`rocmkern.reference.decoder_logits`: the last product, of numbers that have been through many operations.

    Their roundings are independent of each other: k of them cost as much as sqrt(k), by the second line there.
    """
    embedding = weights["embedding"]
    last = np.abs(np.asarray(weights.get("output", embedding)).astype(np.float64))
    with np.errstate(all="ignore"):
        hidden = _decoder.logits_in(np.float64, tokens, config, weights | {"output": np.eye(last.shape[1])})
        steps = _STEPS_AROUND + _STEPS_OF_LAYER * config.num_layers
        return finite(UNITS[embedding.dtype.name] * math.sqrt(steps) * (np.abs(hidden) @ last.T))
