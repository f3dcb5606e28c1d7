"""Attention over pages in plain NumPy: gather, then dense attention; computed in float64."""

from __future__ import annotations

import numpy as np

from rocmkern.ops.attention import reference as _attention

__all__ = ["paged_attention"]


def paged_attention(
    q,
    key_cache,
    value_cache,
    block_table,
    context_lens,
    *,
    cu_seqlens_q=None,
    max_seqlen_q=None,
    max_context_len=None,
    window=None,
    scale=None,
    softcap=None,
    alibi_slopes=None,
    sinks=None,
    key_scale=None,
    value_scale=None,
    return_lse=False,
    num_splits=None,
):
    """Causal attention, bottom right, of each sequence over the keys that its row of the table names.

    Parameters
    ----------
    q : numpy.ndarray
        ``[n_seq, Hq, D]``, or packed ``[total_q, Hq, D]`` with `cu_seqlens_q`.
    key_cache, value_cache : numpy.ndarray
        ``[n_blocks, block_size, Hkv, D]``.
    block_table, context_lens : numpy.ndarray
        ``[n_seq, max_blocks]`` and ``[n_seq]``.
    window, scale, softcap, alibi_slopes, sinks, return_lse
        As in `flash_attention`.
    key_scale, value_scale : numpy.ndarray, optional
        ``[Hkv]``, factors of keys and values.

    Returns
    -------
    out, lse : numpy.ndarray
        float64 ``[tokens, Hq, Dv]`` and ``[Hq, tokens]``; the latter only with ``return_lse=True``.
    """
    features = dict(window=window, scale=scale, softcap=softcap, sinks=sinks)
    caches = _dequantized(key_cache, key_scale, np.float64), _dequantized(value_cache, value_scale, np.float64)
    out, lse = _paged(q, *caches, block_table, context_lens, cu_seqlens_q, alibi_slopes, features, np.float64)
    return (out, lse) if return_lse else out


def gather(cache, blocks, length):
    """Rows ``[length, H, D]`` of one sequence."""
    rows = [cache[blocks[j // cache.shape[1]], j % cache.shape[1]] for j in range(length)]
    return np.array(rows, cache.dtype).reshape(length, *cache.shape[2:])


def _dequantized(cache, scale, compute):
    cache = cache.astype(compute)
    return cache if scale is None else cache * scale.astype(compute)[:, None]


def _paged(q, keys, values, block_table, context_lens, cu_seqlens_q, alibi_slopes, features, compute):
    sequences, heads = len(context_lens), q.shape[1]
    offsets = np.arange(sequences + 1) if cu_seqlens_q is None else cu_seqlens_q
    slopes = None if alibi_slopes is None else np.broadcast_to(alibi_slopes, (sequences, heads))
    out, lse = np.zeros((*q.shape[:2], values.shape[-1]), compute), np.zeros((heads, len(q)), compute)
    for n in range(sequences):
        rows, length = slice(int(offsets[n]), int(offsets[n + 1])), int(context_lens[n])
        k, v = (gather(cache, block_table[n], length) for cache in (keys, values))
        some = None if slopes is None else slopes[n]
        o, l = _attention._dense(
            q[rows][None], k[None], v[None], "bshd", some, None, None, dict(features, causal=True), compute
        )
        out[rows], lse[:, rows] = o[0], l[0]
    return out, lse
