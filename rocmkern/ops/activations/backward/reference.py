"""Gradients of the gated activations in plain NumPy."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from rocmkern.ops.activations.reference import gelu, halves, silu

__all__ = ["geglu_backward", "swiglu_backward"]


def swiglu_backward(dout: Any, gate: Any, up: Any = None, *, order: str = "gate_up", compute: Any = np.float64) -> Any:
    """Gradients of `swiglu` for gate and up; without `up` one array with both halves."""
    return _gated(dout, gate, up, silu, silu_slope, order == "up_gate", compute)


def geglu_backward(
    dout: Any, gate: Any, up: Any = None, *, approximate: str = "none", compute: Any = np.float64
) -> Any:
    """Gradients of `geglu` for gate and up; without `up` one array with both halves."""
    function, slope = ((lambda x, of=of: of(x, approximate)) for of in (gelu, gelu_slope))
    return _gated(dout, gate, up, function, slope, False, compute)


def silu_slope(x: Any) -> Any:
    """``s * (1 + x * (1 - s))`` with ``s = 1 / (1 + exp(-x))``, and its limits 0 and 1."""
    with np.errstate(all="ignore"):
        x = np.clip(x, -700, 700)
        s = 1 / (1 + np.exp(-x))
        return s * (1 + x / (1 + np.exp(x)))


def gelu_slope(x: Any, approximate: str = "none") -> Any:
    """``Phi(x) + x * phi(x)`` or the slope of the form with tanh, and their limits 0 and 1."""
    number = x.dtype.type
    with np.errstate(all="ignore"):
        x = np.clip(x, -60, 60)
        if approximate == "tanh":
            c, a = number(math.sqrt(2 / math.pi)), number(0.044715)
            z = c * (x + a * x * x * x)
            s = 1 / (1 + np.exp(-2 * z))
            return s + 2 * x * s / (1 + np.exp(2 * z)) * c * (1 + 3 * a * x * x)
        normal = np.vectorize(math.erfc, otypes=[x.dtype])(-x / math.sqrt(2)) / 2
        return normal + x * np.exp(-x * x / 2) / number(math.sqrt(2 * math.pi))


def _gated(dout: Any, gate: Any, up: Any, function: Any, slope: Any, up_first: bool, compute: Any) -> Any:
    pair = [x.astype(compute) for x in halves(gate, up)]
    acted, factor = pair[::-1] if up_first else pair
    dout = dout.astype(compute)
    with np.errstate(all="ignore"):
        gradients = [dout * factor * slope(acted), dout * function(acted)]
    gradients = gradients[::-1] if up_first else gradients
    return np.concatenate(gradients, axis=-1) if up is None else tuple(gradients)
