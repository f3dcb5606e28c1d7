"""The gradient of attention in the compute dtype; each result is rounded to the dtype of what it is the gradient of."""

from __future__ import annotations

from typing import Any

import numpy as np

from rocmkern.ops.attention.backward import reference
from rocmkern.ops.precision import compute_dtype, rounded

__all__ = ["flash_attention_backward"]


def flash_attention_backward(
    dout: np.ndarray, q: np.ndarray, k: np.ndarray, v: np.ndarray, o: np.ndarray, lse: np.ndarray, **options: Any
) -> tuple[np.ndarray, ...]:
    """`rocmkern.reference.flash_attention_backward` in float32."""
    results = reference.flash_attention_backward(dout, q, k, v, o, lse, compute=compute_dtype(q), **options)
    asked = [name for name in ("bias", "sinks", "alibi_slopes") if options.get(f"return_d{name}")]
    like = [q, k, v, *(options[name] for name in asked)]
    return tuple(rounded(result, x.dtype) for result, x in zip(results, like, strict=True))
