"""What the roundings of the steps of attention cost; see `rocmkern.reference.roundings`."""

from __future__ import annotations

import numpy as np

from rocmkern.ops.steps import reference as _steps
from rocmkern.reference.costs import STEPS, UNIT, finite, wide

__all__ = ["qk_scores", "softmax", "weighted_values"]


def qk_scores(q: np.ndarray, k: np.ndarray, *, scale: float | None = None, layout: str = "bhsd") -> np.ndarray:
    """`rocmkern.reference.qk_scores`: a sum."""
    q, k = wide(q, k)
    return finite(UNIT * np.abs(_steps.qk_scores(np.abs(q), np.abs(k), scale=scale, layout=layout)))


def weighted_values(p: np.ndarray, v: np.ndarray, *, layout: str = "bhsd") -> np.ndarray:
    """`rocmkern.reference.weighted_values`: a sum; the weights are given."""
    p, v = wide(p, v)
    return finite(UNIT * _steps.weighted_values(np.abs(p), np.abs(v), layout=layout))


def softmax(x: np.ndarray) -> np.ndarray:
    """`rocmkern.reference.softmax`: the rounding of an exponent is one of a factor."""
    (x,) = wide(x)
    with np.errstate(all="ignore"):
        below = np.abs(x - x.max(axis=-1, keepdims=True, initial=-np.inf))
        return finite(UNIT * _steps.softmax(x) * (STEPS + 2 * np.where(np.isfinite(below), below, 0.0)))
