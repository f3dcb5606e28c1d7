"""Matrix products and linear layers in plain NumPy."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

__all__ = ["linear", "matmul"]

_ERF = np.vectorize(math.erf, otypes=[np.float64])
_ERFC = np.vectorize(math.erfc, otypes=[np.float64])


def matmul(
    a: Any,
    b: Any,
    *,
    transpose_b: bool = False,
    bias: Any = None,
    activation: str | None = None,
    compute: Any = np.float64,
) -> Any:
    """``activation(a @ b + bias)``, as `numpy.matmul`; with `transpose_b` b is ``[..., N, K]``."""
    a, b = a.astype(compute), b.astype(compute)
    if transpose_b and b.ndim > 1:
        b = b.swapaxes(-1, -2)
    with np.errstate(all="ignore"):
        total = np.matmul(a, b)
        if bias is not None:
            total = total + bias.astype(compute)
        return activated(np.asarray(total), activation)


def linear(x: Any, weight: Any, bias: Any = None, activation: str | None = None, *, compute: Any = np.float64) -> Any:
    """``activation(x @ weight^T + bias)``."""
    return matmul(x, weight, transpose_b=True, bias=bias, activation=activation, compute=compute)


def activated(x: Any, name: str | None) -> Any:
    """An activation of x, in the dtype of x."""
    if name is None:
        return x
    one = x.dtype.type(1)
    if name == "silu":
        return x / (one + np.exp(-x))
    if name == "relu":
        return np.where(x <= 0, x.dtype.type(0), x)
    # The float64 forms lose nothing where the result is small; 1 + erf(-9) would be 0.
    if name == "gelu":
        if x.dtype == np.float64:
            return x / 2 * _ERFC(-x / math.sqrt(2))
        return (x / 2 * (1 + _ERF(x / math.sqrt(2)))).astype(x.dtype)
    inner = x.dtype.type(math.sqrt(2 / math.pi)) * (x + x.dtype.type(0.044715) * x**3)
    return x / (one + np.exp(-2 * inner)) if x.dtype == np.float64 else x / 2 * (one + np.tanh(inner))
