"""What the roundings of operations on quantized weights cost; see `rocmkern.reference.roundings`."""

from __future__ import annotations

import numpy as np

from rocmkern.ops.linear import reference as _linear
from rocmkern.ops.linear.roundings import activated
from rocmkern.ops.norm.roundings import normed
from rocmkern.ops.quantized.reference import BLOCKS, dequantize
from rocmkern.reference.costs import UNIT, UNITS, finite, wide

__all__ = ["dequantize_rms_norm", "quantized_linear"]

#: Elements of a block that a quantized number shares its scale with; a minimum is read beside the scale.
_SHARED = 32


def quantized_linear(
    x: np.ndarray,
    blocks: np.ndarray,
    format: str = "q4_0",
    bias: np.ndarray | None = None,
    activation: str | None = None,
    *,
    order: str = "ggml",
) -> np.ndarray:
    """`rocmkern.reference.quantized_linear`: weights may be rounded to the dtype of x when they are decoded.

    A number is the difference of two where a format has minima or an offset; its magnitude is that of the largest one
    that it shares its scale with.
    """
    unit, weights = UNITS[x.dtype.name], dequantize(blocks, format, order=order)
    (numbers,) = wide(x)
    with np.errstate(all="ignore"):
        cost = UNIT * (np.abs(numbers) @ largest_shared(weights, format).T) + unit * np.sqrt(
            numbers**2 @ (weights**2).T
        )
        if bias is not None:
            cost = cost + UNIT * np.abs(bias.astype(np.float64))
        if activation is not None:
            cost = activated(_linear.linear(numbers, weights, *wide(bias)), cost, activation)
        return finite(cost)


def largest_shared(weights: np.ndarray, format: str) -> np.ndarray:
    """For each number the magnitude of the largest one that it shares its scale with."""
    own = min(_SHARED, BLOCKS[format][0])
    shared = np.abs(weights).reshape(*weights.shape[:-1], weights.shape[-1] // own, own)
    return np.broadcast_to(shared.max(axis=-1, keepdims=True), shared.shape).reshape(weights.shape)


def dequantize_rms_norm(
    blocks: np.ndarray,
    weight: np.ndarray,
    format: str = "q4_0",
    eps: float = 1e-6,
    *,
    weight_offset: float = 0.0,
    order: str = "ggml",
) -> np.ndarray:
    """`rocmkern.reference.dequantize_rms_norm`, as `rms_norm`."""
    return normed(dequantize(blocks, format, order=order), weight, eps, weight_offset)
