"""Gradients of the unfused steps of attention in plain NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["softmax_backward"]


def softmax_backward(dout: np.ndarray, y: np.ndarray, *, scale: float = 1.0, compute: Any = np.float64) -> np.ndarray:
    """``scale * y * (dout - sum(dout * y))``, y being the result of `softmax`."""
    dout, y = dout.astype(compute), y.astype(compute)
    with np.errstate(all="ignore"):
        gradient: np.ndarray = compute(scale) * y * (dout - (dout * y).sum(axis=-1, keepdims=True))
    return gradient
