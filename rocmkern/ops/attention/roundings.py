"""What the roundings of attention cost; see `rocmkern.reference.roundings`."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from rocmkern.ops.attention import reference as _attention
from rocmkern.reference.costs import STEPS, UNIT, UNITS, finite, wide

__all__ = ["decode_attention", "flash_attention", "merge_attention"]


def flash_attention(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, *, return_lse: bool = False, **options: Any
) -> np.ndarray | tuple[np.ndarray, np.ndarray]:
    """`rocmkern.reference.flash_attention`: weights are rounded to the dtype of q before they meet the values."""
    rows_first = q.ndim == 3 or options.get("layout") == "bshd"
    return attended(_attention.flash_attention, q, k, v, options, return_lse, rows_first)


def decode_attention(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, *, num_splits: int | None = None, **options: Any
) -> np.ndarray | tuple[np.ndarray, np.ndarray]:
    """`rocmkern.reference.decode_attention`, as `flash_attention`."""
    return flash_attention(q, k, v, **options)


def merge_attention(
    o1: np.ndarray, lse1: np.ndarray, o2: np.ndarray, lse2: np.ndarray, *, layout: str = "bhsd"
) -> tuple[np.ndarray, np.ndarray]:
    """`rocmkern.reference.merge_attention`: two terms, whose weights are exponentials."""
    first, second = wide(o1, o2)
    with np.errstate(all="ignore"):
        sums, lse = _attention.merge_attention(np.abs(first), lse1, np.abs(second), lse2, layout=layout)
        largest = np.maximum(*(np.where(np.isfinite(x), np.abs(x), 0.0) for x in wide(lse1, lse2)))
        relative = UNIT * (STEPS + largest)
        rows_first = o1.ndim == 3 or layout == "bshd"
        own = (np.swapaxes(relative, -1, -2) if rows_first else relative)[..., None]
        return finite(own * sums), finite(relative + UNIT * np.abs(lse))


def attended(
    attention: Callable[..., Any],
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    options: dict[str, Any],
    return_lse: bool,
    rows_first: bool,
    rounded: float = 0.0,
) -> np.ndarray | tuple[np.ndarray, np.ndarray]:
    """Costs of an attention with weights p_j: of their scores, of themselves, and of the sums of p_j v_j.

    A log-sum-exp is [..., heads, rows]; ``rows_first`` says that results are not. ``rounded`` is what roundings of
    queries and keys do to their products.
    """
    unit, scale = UNITS[q.dtype.name], options.get("scale")
    q, k, v = wide(q, k, v)
    options = {name: value for name, value in options.items() if name not in ("max_seqlen_q", "max_seqlen_k")}
    factor = abs(1.0 / math.sqrt(q.shape[-1]) if scale is None else scale)
    with np.errstate(all="ignore"):
        # Scores are sums too: their magnitude, as the weights have it.
        keys, lse = attention(q, k, np.abs(k), return_lse=True, **options)
        scores = factor * (np.abs(q) * keys).sum(axis=-1)
        relative = (UNIT * (STEPS + scores) + rounded * scores)[..., None]
        sums = attention(q, k, np.abs(v), **options)
        # exp(2 s) are the weights of doubled scores, whose denominators are known: so come sums of (p_j v_j)^2.
        doubled = dict(options, scale=2 * factor if scale is None else 2 * scale)
        for name in ("softcap", "alibi_slopes", "bias", "sinks"):
            if doubled.get(name) is not None:
                doubled[name] = 2 * np.asarray(doubled[name], np.float64)[()]
        squares, lse_doubled = attention(q, k, v**2, return_lse=True, **doubled)
        share = np.exp(lse_doubled - 2 * lse)
        share = np.swapaxes(share, -1, -2) if rows_first else share
        out = UNIT * sums + (unit + relative) * np.sqrt(squares * share[..., None])
        if not return_lse:
            return finite(out)
        scores = np.swapaxes(scores, -1, -2) if rows_first else scores
        return finite(out), finite(UNIT * (np.abs(lse) + STEPS + scores) + rounded * scores)
