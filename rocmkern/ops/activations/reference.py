"""Gated activations in plain NumPy, computed in float64 (other precisions: `rocmkern.reference.baseline`)."""

from __future__ import annotations

import math

import numpy as np


def swiglu(gate, up=None, *, order="gate_up"):
    """``silu(gate) * up`` in float64; without `up` gate holds both halves; "up_gate" swaps them."""
    return _swiglu(gate, up, order, np.float64)


def geglu(gate, up=None, *, approximate="none"):
    """``gelu(gate) * up`` in float64; without `up` gate holds both halves."""
    return _geglu(gate, up, approximate, np.float64)


def silu(x):
    """``x / (1 + exp(-x))``, with the limit 0 at minus infinity."""
    with np.errstate(all="ignore"):
        return np.where(x == -np.inf, -0.0 * np.ones_like(x), x / (1 + np.exp(-x)))


def gelu(x, approximate="none"):
    """``x / 2 * (1 + erf(x / sqrt(2)))`` or its form with tanh, with the limit 0 at minus infinity."""
    with np.errstate(all="ignore"):
        if approximate == "tanh":
            z = x.dtype.type(math.sqrt(2 / math.pi)) * (x + x.dtype.type(0.044715) * x * x * x)
            result = x / 2 * (1 + np.tanh(z)) if x.dtype != np.float64 else x / (1 + np.exp(-2 * z))
        else:
            result = x / 2 * np.vectorize(math.erfc, otypes=[x.dtype])(-x / math.sqrt(2))
        return np.where(x == -np.inf, -0.0 * np.ones_like(x), result)


def _halves(gate, up):
    if up is not None:
        return gate, up
    width = gate.shape[-1] // 2
    return gate[..., :width], gate[..., width:]


def _swiglu(gate, up, order, compute):
    first, second = (x.astype(compute) for x in _halves(gate, up))
    if order == "up_gate":
        first, second = second, first
    with np.errstate(all="ignore"):
        return silu(first) * second


def _geglu(gate, up, approximate, compute):
    first, second = (x.astype(compute) for x in _halves(gate, up))
    with np.errstate(all="ignore"):
        return gelu(first, approximate) * second
