"""The unfused steps of attention in plain NumPy, computed in float64, or in the dtype ``compute``.

``weighted_values(softmax(apply_mask(qk_scores(q, k), mask)), v)`` is ``flash_attention(q, k, v, mask=mask)``.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from rocmkern.ops.attention.reference import exponentials, visible_keys

__all__ = ["apply_mask", "causal_mask", "qk_scores", "repeat_kv", "scale", "softmax", "weighted_values"]


def qk_scores(
    q: np.ndarray, k: np.ndarray, *, scale: float | None = None, layout: str = "bhsd", compute: Any = np.float64
) -> np.ndarray:
    """``scale * q @ k^T``: float64 ``[B, Hq, Sq, Sk]``; `scale` is ``1 / sqrt(D)`` by default."""
    q, k = (_heads_second(x, layout).astype(compute) for x in (q, k))
    factor = 1.0 / math.sqrt(q.shape[-1]) if scale is None else scale
    with np.errstate(all="ignore"):
        scores: np.ndarray = (q @ _shared_heads(k, q.shape[1]).swapaxes(-1, -2)) * compute(factor)
    return scores


def causal_mask(
    sq: int,
    sk: int,
    *,
    causal: bool | str = "bottom_right",
    window: tuple[int | None, int | None] | None = None,
    dtype: Any = np.float32,
) -> np.ndarray:
    """Additive mask ``[sq, sk]``: 0 where key j is visible to query i, minus infinity elsewhere; float64.

    The values are exact in every floating dtype, so `dtype` has no effect here.
    """
    return np.where(visible_keys(sq, sk, causal, window)[0], 0.0, -np.inf)


def apply_mask(scores: np.ndarray, mask: np.ndarray, *, compute: Any = np.float64) -> np.ndarray:
    """``scores + mask``, or minus infinity where a boolean mask is False; float64."""
    scores = scores.astype(compute)
    if mask.dtype == np.bool_:
        return np.where(mask, scores, compute(-np.inf))
    with np.errstate(all="ignore"):
        masked: np.ndarray = scores + mask.astype(compute)
    return masked


def softmax(x: np.ndarray, *, compute: Any = np.float64) -> np.ndarray:
    """Softmax over the last axis, float64; a row of minus infinities gives zeros."""
    with np.errstate(all="ignore"):
        weights, total, _ = exponentials(x.astype(compute))
        return weights / np.where(total == 0, compute(1), total)[..., None]


def weighted_values(p: np.ndarray, v: np.ndarray, *, layout: str = "bhsd", compute: Any = np.float64) -> np.ndarray:
    """``p @ v`` with p ``[B, Hq, Sq, Sk]`` and v in `layout`: float64, in `layout`."""
    v = _shared_heads(_heads_second(v, layout).astype(compute), p.shape[1])
    with np.errstate(all="ignore"):
        return _heads_second(p.astype(compute) @ v, layout)


def scale(x: np.ndarray, factor: float, *, compute: Any = np.float64) -> np.ndarray:
    """``x * factor`` in float64."""
    with np.errstate(all="ignore"):
        scaled: np.ndarray = x.astype(compute) * compute(factor)
    return scaled


def repeat_kv(x: np.ndarray, n_rep: int, *, layout: str = "bhsd", compute: Any = np.float64) -> np.ndarray:
    """Each head `n_rep` times in a row; exact, returned in float64."""
    return np.repeat(x, n_rep, axis=2 if layout == "bshd" else 1).astype(compute)


def _heads_second(x: np.ndarray, layout: str) -> np.ndarray:
    """``[B, H, S, D]`` view of x."""
    return x.transpose(0, 2, 1, 3) if layout == "bshd" else x


def _shared_heads(x: np.ndarray, num_heads: int) -> np.ndarray:
    """Key-value heads repeated to `num_heads`: query head h reads head ``h // (num_heads // num_kv_heads)``."""
    return np.repeat(x, num_heads // x.shape[1], axis=1)
