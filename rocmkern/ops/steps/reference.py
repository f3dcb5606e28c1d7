"""The unfused steps of attention in plain NumPy, computed in float64 (other precisions: `rocmkern.reference.baseline`).

``weighted_values(softmax(apply_mask(qk_scores(q, k), mask)), v)`` is ``flash_attention(q, k, v, mask=mask)``.
"""

from __future__ import annotations

import math

import numpy as np

from rocmkern.ops.attention.reference import exponentials, visible_keys

__all__ = ["apply_mask", "causal_mask", "qk_scores", "repeat_kv", "scale", "softmax", "weighted_values"]


def qk_scores(q, k, *, scale=None, layout="bhsd"):
    """``scale * q @ k^T``: float64 ``[B, Hq, Sq, Sk]``; `scale` is ``1 / sqrt(D)`` by default."""
    return _qk_scores(q, k, scale, layout, np.float64)


def causal_mask(sq, sk, *, causal="bottom_right", window=None, dtype=np.float32):
    """Additive mask ``[sq, sk]``: 0 where key j is visible to query i, minus infinity elsewhere; float64.

    The values are exact in every floating dtype, so `dtype` has no effect here.
    """
    return np.where(visible_keys(sq, sk, causal, window)[0], 0.0, -np.inf)


def apply_mask(scores, mask):
    """``scores + mask``, or minus infinity where a boolean mask is False; float64."""
    return _apply_mask(scores, mask, np.float64)


def softmax(x):
    """Softmax over the last axis, float64; a row of minus infinities gives zeros."""
    return _softmax(x, np.float64)


def weighted_values(p, v, *, layout="bhsd"):
    """``p @ v`` with p ``[B, Hq, Sq, Sk]`` and v in `layout`: float64, in `layout`."""
    return _weighted_values(p, v, layout, np.float64)


def scale(x, factor):
    """``x * factor`` in float64."""
    return _scale(x, factor, np.float64)


def repeat_kv(x, n_rep, *, layout="bhsd"):
    """Each head `n_rep` times in a row; exact, returned in float64."""
    return np.repeat(x, n_rep, axis=_head_axis(layout)).astype(np.float64)


def _head_axis(layout):
    return 2 if layout == "bshd" else 1


def _heads_second(x, layout):
    """``[B, H, S, D]`` view of x."""
    return x.transpose(0, 2, 1, 3) if layout == "bshd" else x


def _shared_heads(x, num_heads):
    """Key-value heads repeated to `num_heads`: query head h reads head ``h // (num_heads // num_kv_heads)``."""
    return np.repeat(x, num_heads // x.shape[1], axis=1)


def _qk_scores(q, k, factor, layout, compute):
    q, k = (_heads_second(x, layout).astype(compute) for x in (q, k))
    factor = 1.0 / math.sqrt(q.shape[-1]) if factor is None else factor
    with np.errstate(all="ignore"):
        return (q @ _shared_heads(k, q.shape[1]).swapaxes(-1, -2)) * compute(factor)


def _apply_mask(scores, mask, compute):
    scores = scores.astype(compute)
    if mask.dtype == np.bool_:
        return np.where(mask, scores, compute(-np.inf))
    with np.errstate(all="ignore"):
        return scores + mask.astype(compute)


def _softmax(x, compute):
    with np.errstate(all="ignore"):
        weights, total, _ = exponentials(x.astype(compute))
        return weights / np.where(total == 0, compute(1), total)[..., None]


def _weighted_values(p, v, layout, compute):
    v = _shared_heads(_heads_second(v, layout).astype(compute), p.shape[1])
    with np.errstate(all="ignore"):
        return _heads_second(p.astype(compute) @ v, layout)


def _scale(x, factor, compute):
    with np.errstate(all="ignore"):
        return x.astype(compute) * compute(factor)
