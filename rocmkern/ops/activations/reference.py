"""Gated activations in plain NumPy."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

__all__ = ["geglu", "swiglu"]


def swiglu(gate: Any, up: Any = None, *, order: str = "gate_up", compute: Any = np.float64) -> Any:
    """``silu(gate) * up``; without `up` gate holds both halves; "up_gate" swaps them."""
    first, second = (x.astype(compute) for x in halves(gate, up))
    if order == "up_gate":
        first, second = second, first
    with np.errstate(all="ignore"):
        return silu(first) * second


def geglu(gate: Any, up: Any = None, *, approximate: str = "none", compute: Any = np.float64) -> Any:
    """``gelu(gate) * up``; without `up` gate holds both halves."""
    first, second = (x.astype(compute) for x in halves(gate, up))
    with np.errstate(all="ignore"):
        return gelu(first, approximate) * second


def halves(gate: Any, up: Any) -> tuple[Any, Any]:
    """Gate and up, which may lie side by side in one array."""
    if up is not None:
        return gate, up
    width = gate.shape[-1] // 2
    return gate[..., :width], gate[..., width:]


def silu(x: Any) -> Any:
    """``x / (1 + exp(-x))``, with the limit 0 at minus infinity."""
    with np.errstate(all="ignore"):
        return np.where(x == -np.inf, -0.0 * np.ones_like(x), x / (1 + np.exp(-x)))


def gelu(x: Any, approximate: str = "none") -> Any:
    """``x / 2 * (1 + erf(x / sqrt(2)))`` or its form with tanh, with the limit 0 at minus infinity."""
    with np.errstate(all="ignore"):
        if approximate == "tanh":
            z = x.dtype.type(math.sqrt(2 / math.pi)) * (x + x.dtype.type(0.044715) * x * x * x)
            result = x / 2 * (1 + np.tanh(z)) if x.dtype != np.float64 else x / (1 + np.exp(-2 * z))
        else:
            result = x / 2 * np.vectorize(math.erfc, otypes=[x.dtype])(-x / math.sqrt(2))
        return np.where(x == -np.inf, -0.0 * np.ones_like(x), result)
