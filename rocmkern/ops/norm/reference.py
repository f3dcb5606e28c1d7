"""The norms and the residual sum, in plain NumPy."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

__all__ = ["add_residual", "layer_norm", "rms_norm"]


def rms_norm(
    x: Any,
    weight: Any,
    eps: float = 1e-6,
    *,
    residual: Any = None,
    weight_offset: float = 0.0,
    compute: Any = np.float64,
) -> Any:
    """``x / sqrt(mean(x^2) + eps) * (weight + weight_offset)`` over the last axis.

    With a residual x is ``x + residual``, rounded to the dtype of x, and the result is a pair with that sum.
    """
    if residual is None:
        return _normed(x.astype(compute), weight, eps, weight_offset)
    with np.errstate(all="ignore"):
        total = add_residual(x, residual, compute=compute).astype(x.dtype).astype(compute)
    return _normed(total, weight, eps, weight_offset), total


def layer_norm(x: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5, *, compute: Any = np.float64) -> Any:
    """``(x - mean(x)) / sqrt(var(x) + eps) * weight + bias`` over the last axis."""
    x = x.astype(compute)
    with np.errstate(all="ignore"):
        x = x - mean(x)
        root = np.sqrt(mean(x * x) + compute(eps))
        x = x / np.where(root == 0, compute(1), root)
        x = x if weight is None else x * weight.astype(compute)
        return x if bias is None else x + bias.astype(compute)


def add_residual(x: Any, residual: Any, *, compute: Any = np.float64) -> Any:
    """``x + residual``."""
    with np.errstate(all="ignore"):
        return x.astype(compute) + residual.astype(compute)


def mean(x: Any) -> Any:
    """Mean of each row; of no numbers it is 0."""
    return x.sum(axis=-1, keepdims=True) / max(x.shape[-1], 1)


def _normed(x: Any, weight: Any, eps: float, weight_offset: float) -> Any:
    compute = x.dtype.type
    with np.errstate(all="ignore"):
        # float32 does not hold the square of everything that it holds; in float64 this changes nothing.
        unit = np.maximum(np.abs(x).max(axis=-1, keepdims=True, initial=0), compute(math.sqrt(eps)))
        unit = np.where(np.isfinite(unit) & (unit > 0), unit, compute(1))
        root = np.sqrt(mean((x / unit) ** 2) + (compute(math.sqrt(eps)) / unit) ** 2)
        # A row of zeros with an epsilon of 0.
        root = np.where(root == 0, compute(1), root)
        return x / unit / root * (weight.astype(compute) + compute(weight_offset))
