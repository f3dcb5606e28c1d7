"""Matrix products, linear layers and the MLP in plain NumPy, computed in float64.

Other precisions: `rocmkern.reference.baseline`.
"""

from __future__ import annotations

import math

import numpy as np

_ERF = np.vectorize(math.erf, otypes=[np.float64])
_ERFC = np.vectorize(math.erfc, otypes=[np.float64])


def matmul(a, b, *, transpose_b=False, bias=None, activation=None):
    """``activation(a @ b + bias)`` in float64, as `numpy.matmul`; with `transpose_b` b is ``[..., N, K]``."""
    return _matmul(a, b, transpose_b, bias, activation, np.float64)


def linear(x, weight, bias=None, activation=None):
    """``activation(x @ weight^T + bias)`` in float64."""
    return _matmul(x, weight, True, bias, activation, np.float64)


def mlp(x, w_gate, w_up, w_down, *, activation="silu", b_gate=None, b_up=None, b_down=None):
    """``(activation(x @ w_gate^T + b_gate) * (x @ w_up^T + b_up)) @ w_down^T + b_down`` in float64.

    Without ``w_gate`` it is ``activation(x @ w_up^T + b_up) @ w_down^T + b_down``.
    """
    hidden = _hidden(x, w_gate, w_up, activation, b_gate, b_up, np.float64)
    return _matmul(hidden, w_down, True, b_down, None, np.float64)


def _matmul(a, b, transpose_b, bias, activation, compute):
    a, b = a.astype(compute), b.astype(compute)
    if transpose_b and b.ndim > 1:
        b = b.swapaxes(-1, -2)
    with np.errstate(all="ignore"):
        total = np.matmul(a, b)
        if bias is not None:
            total = total + bias.astype(compute)
        return _activated(np.asarray(total), activation)


def _hidden(x, w_gate, w_up, activation, b_gate, b_up, compute):
    if w_gate is None:
        return _matmul(x, w_up, True, b_up, activation, compute)
    gate = _matmul(x, w_gate, True, b_gate, activation, compute)
    with np.errstate(all="ignore"):
        return gate * _matmul(x, w_up, True, b_up, None, compute)


def _activated(x, name):
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
