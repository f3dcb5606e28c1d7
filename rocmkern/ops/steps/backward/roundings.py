"""What the roundings of the gradients of the steps of attention cost; see `rocmkern.reference.roundings`."""

from __future__ import annotations

import numpy as np

from rocmkern.reference.costs import STEPS, UNIT, finite, wide

__all__ = ["softmax_backward"]


def softmax_backward(dout: np.ndarray, y: np.ndarray, *, scale: float = 1.0) -> np.ndarray:
    """`rocmkern.reference.softmax_backward`: a sum is taken away."""
    dout, y = wide(dout, y)
    with np.errstate(all="ignore"):
        terms = np.abs(dout) + np.abs(dout * y).sum(axis=-1, keepdims=True)
        return finite(STEPS * UNIT * abs(scale) * np.abs(y) * terms)
