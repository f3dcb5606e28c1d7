"""Gradients of the norms in plain NumPy."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from rocmkern.ops.norm.reference import mean

__all__ = ["layer_norm_backward", "rms_norm_backward"]


def rms_norm_backward(
    dout: Any,
    x: Any,
    weight: Any,
    eps: float = 1e-6,
    *,
    dresidual: Any = None,
    weight_offset: float = 0.0,
    compute: Any = np.float64,
) -> Any:
    """Gradients of `rms_norm` for x and weight; `dresidual` is added to the first one."""
    dout, x = dout.astype(compute), x.astype(compute)
    with np.errstate(all="ignore"):
        # float32 does not hold the square of everything that it holds; in float64 this changes nothing.
        unit = np.maximum(np.abs(x).max(axis=-1, keepdims=True, initial=0), compute(math.sqrt(eps)))
        unit = np.where(np.isfinite(unit) & (unit > 0), unit, compute(1))
        root = np.sqrt(mean((x / unit) ** 2) + (compute(math.sqrt(eps)) / unit) ** 2)
        normed = x / unit / np.where(root == 0, compute(1), root)
        g = dout * (weight.astype(compute) + compute(weight_offset))
        # A row of zeros with an epsilon of 0 has no slope.
        dx = np.where(root == 0, compute(0), (g - normed * mean(g * normed)) / unit / root)
        dx = dx if dresidual is None else dx + dresidual.astype(compute)
        return dx, _over_rows(dout * normed)


def layer_norm_backward(
    dout: Any, x: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5, *, compute: Any = np.float64
) -> Any:
    """Gradients of `layer_norm` for x and for those of weight and bias that are given."""
    dout, x = dout.astype(compute), x.astype(compute)
    with np.errstate(all="ignore"):
        x = x - mean(x)
        root = np.sqrt(mean(x * x) + compute(eps))
        normed = x / np.where(root == 0, compute(1), root)
        g = dout if weight is None else dout * weight.astype(compute)
        dx = np.where(root == 0, compute(0), (g - mean(g) - normed * mean(g * normed)) / root)
        found = [dx]
        if weight is not None:
            found.append(_over_rows(dout * normed))
        if bias is not None:
            found.append(_over_rows(dout))
    return tuple(found) if len(found) > 1 else dx


def _over_rows(x: Any) -> Any:
    """Sum over all axes but the last one."""
    return x.reshape(-1, x.shape[-1]).sum(axis=0) if x.size else np.zeros(x.shape[-1], x.dtype)
