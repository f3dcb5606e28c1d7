"""What `flash_attn_with_kvcache` means, in float64 and plain NumPy: rotate, append, gather, attend."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from rocmkern.ops.attention.reference import dense

__all__ = ["flash_attn_with_kvcache"]


def flash_attn_with_kvcache(
    q: np.ndarray,
    k_cache: np.ndarray,
    v_cache: np.ndarray,
    k: np.ndarray | None = None,
    v: np.ndarray | None = None,
    rotary_cos: np.ndarray | None = None,
    rotary_sin: np.ndarray | None = None,
    cache_seqlens: int | np.ndarray | None = None,
    cache_batch_idx: np.ndarray | None = None,
    cache_leftpad: np.ndarray | None = None,
    block_table: np.ndarray | None = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    rotary_interleaved: bool = True,
    alibi_slopes: np.ndarray | None = None,
    num_splits: int = 0,
    return_softmax_lse: bool = False,
    compute: Any = np.float64,
) -> Any:
    """The arguments are those of `rocmkern.flash_attn.flash_attn_with_kvcache`; they are left alone.

    Returns
    -------
    out, lse : numpy.ndarray
        Of the precision `compute`; both, whatever `return_softmax_lse` says.
    key_cache, value_cache : numpy.ndarray
        The caches as they are then.
    """
    rows, keys, values, cache = appended(
        q, k_cache, v_cache, k, v, rotary_cos, rotary_sin, cache_seqlens, cache_batch_idx, cache_leftpad, block_table,
        causal, window_size, rotary_interleaved, compute,
    )  # fmt: skip
    options = {"causal": causal, "window": cache.window, "scale": softmax_scale}
    options |= {"softcap": softcap if softcap > 0 else None, "alibi_slopes": alibi_slopes}
    out, lse = cache.attended(rows, keys, values, compute=compute, **options)
    return out, lse, keys, values


@dataclass(frozen=True)
class Cache:
    """Where the keys of each sequence are: pages ``[B, entries]``, and the first one and the end of each."""

    pages: np.ndarray
    starts: np.ndarray
    ends: np.ndarray
    window: tuple[int | None, ...]

    def places(self, n: int, rows: np.ndarray, page_rows: int) -> tuple[np.ndarray, np.ndarray]:
        """Page of each row of a sequence, and row in it."""
        return self.pages[n, rows // page_rows], rows % page_rows

    def attended(self, q, keys, values, *, compute=np.float64, alibi_slopes=None, **options):
        """Attention of each sequence over its keys: ``[B, Sq, Hq, Dv]`` and ``[B, Hq, Sq]``."""
        batch, queries, heads = q.shape[:3]
        slopes = None if alibi_slopes is None else np.broadcast_to(alibi_slopes, (batch, heads))
        out = np.zeros((batch, queries, heads, values.shape[-1]), compute)
        lse = np.zeros((batch, heads, queries), compute)
        for n in range(batch):
            at = self.places(n, np.arange(self.starts[n], self.ends[n]), keys.shape[1])
            some = None if slopes is None else slopes[n : n + 1]
            one = (q[n : n + 1], keys[at][None], values[at][None])
            found, found_lse = dense(*one, "bshd", compute, alibi_slopes=some, **options)
            out[n], lse[n] = found[0], found_lse[0]
        return out, lse


def appended(
    q, k_cache, v_cache, k, v, rotary_cos, rotary_sin, cache_seqlens, cache_batch_idx, cache_leftpad, block_table,
    causal, window_size, rotary_interleaved, compute,
):  # fmt: skip
    """The rotated queries, both caches with the new rows, and where the keys are then."""
    batch, queries = q.shape[:2]
    rows, keys, values = (x.astype(compute) for x in (q, k_cache, v_cache))
    pages = block_table if block_table is not None else cache_batch_idx
    pages = np.arange(batch) if pages is None else pages
    pages = pages[:, None] if pages.ndim == 1 else pages
    room = pages.shape[1] * keys.shape[1]
    starts = np.zeros(batch, np.int64) if cache_leftpad is None else cache_leftpad
    ends = np.broadcast_to(room if cache_seqlens is None else cache_seqlens, batch).astype(np.int64)
    window = tuple(side if 0 <= side < room else None for side in window_size)
    cache = Cache(pages, starts, ends + (0 if k is None else k.shape[1]), window)
    if k is None:
        return rows, keys, values, cache
    table, advances = (rotary_cos, rotary_sin, rotary_interleaved), causal or window != (None, None)
    for n in range(batch):
        new = ends[n] + np.arange(k.shape[1])
        at = cache.places(n, new, keys.shape[1])
        keys[at], values[at] = _turned(k[n].astype(compute), new, *table), v[n].astype(compute)
        rows[n] = _turned(rows[n], ends[n] + np.arange(queries) * advances, *table)
    return rows, keys, values, cache


def _turned(x, positions, cos, sin, interleaved):
    """Rows ``[S, H, D]`` rotated by rows of the tables, as far as these reach."""
    if cos is None or sin is None:
        return x
    out, pairs = x.copy(), cos.shape[1]
    first, second = slice(0, pairs), slice(pairs, 2 * pairs)
    if interleaved:
        first, second = slice(0, 2 * pairs, 2), slice(1, 2 * pairs, 2)
    c, s = (table[positions].astype(x.dtype)[:, None] for table in (cos, sin))
    out[..., first] = x[..., first] * c - x[..., second] * s
    out[..., second] = x[..., second] * c + x[..., first] * s
    return out
