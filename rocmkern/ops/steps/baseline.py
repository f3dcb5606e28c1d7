"""The steps of attention in the compute dtype."""

from __future__ import annotations

import numpy as np

from rocmkern.ops.precision import compute_dtype, rounded
from rocmkern.ops.steps import reference as _steps

__all__ = ["apply_mask", "causal_mask", "qk_scores", "repeat_kv", "scale", "softmax", "weighted_values"]


def qk_scores(q, k, *, scale=None, layout="bhsd"):
    """`rocmkern.reference.qk_scores` in the compute dtype."""
    return rounded(_steps._qk_scores(q, k, scale, layout, compute_dtype(q)), q.dtype)


def causal_mask(sq, sk, *, causal="bottom_right", window=None, dtype=np.float32):
    """`rocmkern.reference.causal_mask` in `dtype`."""
    return _steps.causal_mask(sq, sk, causal=causal, window=window).astype(dtype)


def apply_mask(scores, mask):
    """`rocmkern.reference.apply_mask` in the compute dtype."""
    return rounded(_steps._apply_mask(scores, mask, compute_dtype(scores)), scores.dtype)


def softmax(x):
    """`rocmkern.reference.softmax` in the compute dtype."""
    return rounded(_steps._softmax(x, compute_dtype(x)), x.dtype)


def weighted_values(p, v, *, layout="bhsd"):
    """`rocmkern.reference.weighted_values` in the compute dtype."""
    return rounded(_steps._weighted_values(p, v, layout, compute_dtype(p)), p.dtype)


def scale(x, factor):
    """`rocmkern.reference.scale` in the compute dtype."""
    return rounded(_steps._scale(x, factor, compute_dtype(x)), x.dtype)


def repeat_kv(x, n_rep, *, layout="bhsd"):
    """`rocmkern.reference.repeat_kv`, in the dtype of x."""
    return _steps.repeat_kv(x, n_rep, layout=layout).astype(x.dtype)
