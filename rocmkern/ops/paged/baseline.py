"""Attention over pages in the compute dtype."""

from __future__ import annotations

from rocmkern.ops.paged import reference as _paging
from rocmkern.ops.precision import compute_dtype, rounded

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
    """`rocmkern.reference.paged_attention` in the compute dtype."""
    features = dict(window=window, scale=scale, softcap=softcap, sinks=sinks)
    compute = compute_dtype(q)
    keys, values = (
        _paging._dequantized(cache, factor, compute)
        for cache, factor in ((key_cache, key_scale), (value_cache, value_scale))
    )
    out, lse = _paging._paged(q, keys, values, block_table, context_lens, cu_seqlens_q, alibi_slopes, features, compute)
    out = rounded(out, q.dtype)
    return (out, lse) if return_lse else out
