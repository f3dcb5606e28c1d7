"""Attention over pages in plain NumPy: gather, then dense attention; computed in float64, or in ``compute``."""

from __future__ import annotations

from typing import Any

import numpy as np

from rocmkern.ops.attention.reference import dense

__all__ = ["paged_attention"]


def paged_attention(
    q: np.ndarray,
    key_cache: np.ndarray,
    value_cache: np.ndarray,
    block_table: np.ndarray,
    context_lens: np.ndarray,
    *,
    cu_seqlens_q: np.ndarray | None = None,
    max_seqlen_q: int | None = None,
    max_context_len: int | None = None,
    leftpad_k: np.ndarray | None = None,
    key_scale: np.ndarray | None = None,
    value_scale: np.ndarray | None = None,
    alibi_slopes: np.ndarray | None = None,
    causal: bool | str = True,
    return_lse: bool = False,
    num_splits: int | None = None,
    compute: Any = np.float64,
    **options: Any,
) -> Any:
    """Attention of each sequence over the keys that its row of the table names.

    Parameters
    ----------
    q : numpy.ndarray
        ``[n_seq, Hq, D]``, ``[n_seq, Sq, Hq, D]``, or packed ``[total_q, Hq, D]`` with `cu_seqlens_q`.
    key_cache, value_cache : numpy.ndarray
        ``[n_blocks, block_size, Hkv, D]``.
    block_table, context_lens : numpy.ndarray
        ``[n_seq, max_blocks]`` and ``[n_seq]``.
    leftpad_k : numpy.ndarray, optional
        ``[n_seq]``: tokens at the beginning that are not looked at.
    key_scale, value_scale : numpy.ndarray, optional
        ``[Hkv]``, factors of keys and values.
    alibi_slopes, causal, return_lse, **options
        window, scale, softcap, sinks: as in `flash_attention`.
    max_seqlen_q, max_context_len, num_splits : int, optional
        Without effect on the result.

    Returns
    -------
    out, lse : numpy.ndarray
        float64, of the shape of q with the head dimension of v; ``[Hq, tokens]`` or ``[n_seq, Hq, Sq]``, only with
        ``return_lse=True``.
    """
    keys, values = _dequantized(key_cache, key_scale, compute), _dequantized(value_cache, value_scale, compute)
    sequences, heads = len(context_lens), q.shape[-2]
    queries = q.shape[1] if q.ndim == 4 else 1
    offsets = np.arange(sequences + 1) * queries if cu_seqlens_q is None else cu_seqlens_q
    shape, q = q.shape, q.reshape(-1, heads, q.shape[-1])
    slopes = None if alibi_slopes is None else np.broadcast_to(alibi_slopes, (sequences, heads))
    out, lse = np.zeros((*q.shape[:2], values.shape[-1]), compute), np.zeros((heads, len(q)), compute)
    for n in range(sequences):
        rows, length = slice(int(offsets[n]), int(offsets[n + 1])), int(context_lens[n])
        first = 0 if leftpad_k is None else int(leftpad_k[n])
        k, v = (gather(cache, block_table[n], length, first)[None] for cache in (keys, values))
        some = None if slopes is None else slopes[n]
        o, l = dense(q[rows][None], k, v, "bshd", compute, alibi_slopes=some, causal=causal, **options)
        out[rows], lse[:, rows] = o[0], l[0]
    if len(shape) == 4:
        out, lse = out.reshape(*shape[:3], -1), lse.reshape(heads, sequences, queries).swapaxes(0, 1)
    return (out, lse) if return_lse else out


def gather(cache: np.ndarray, blocks: np.ndarray, length: int, first: int = 0) -> np.ndarray:
    """Rows ``[length - first, H, D]`` of one sequence."""
    rows = [cache[blocks[j // cache.shape[1]], j % cache.shape[1]] for j in range(first, length)]
    return np.array(rows, cache.dtype).reshape(max(length - first, 0), *cache.shape[2:])


def _dequantized(cache: np.ndarray, scale: np.ndarray | None, compute: Any) -> np.ndarray:
    cache = cache.astype(compute)
    return cache if scale is None else cache * scale.astype(compute)[:, None]
