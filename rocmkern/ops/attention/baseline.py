"""Attention in the compute dtype."""

from __future__ import annotations

from rocmkern.ops.attention import reference as _attention
from rocmkern.ops.precision import compute_dtype, rounded

__all__ = ["decode_attention", "flash_attention", "merge_attention"]


def flash_attention(
    q,
    k,
    v,
    *,
    layout="bhsd",
    causal=False,
    window=None,
    scale=None,
    softcap=None,
    alibi_slopes=None,
    bias=None,
    mask=None,
    sinks=None,
    return_lse=False,
    cu_seqlens_q=None,
    cu_seqlens_k=None,
    max_seqlen_q=None,
    max_seqlen_k=None,
):
    """`rocmkern.reference.flash_attention` in the compute dtype."""
    features = dict(causal=causal, window=window, scale=scale, softcap=softcap, sinks=sinks)
    compute = compute_dtype(q)
    if cu_seqlens_q is not None:
        out, lse = _attention._packed(q, k, v, cu_seqlens_q, cu_seqlens_k, alibi_slopes, features, compute)
    else:
        out, lse = _attention._dense(q, k, v, layout, alibi_slopes, bias, mask, features, compute)
    out = rounded(out, q.dtype)
    return (out, lse) if return_lse else out


def decode_attention(q, k, v, *, num_splits=None, **options):
    """`rocmkern.reference.decode_attention` in the compute dtype, without a split."""
    return flash_attention(q, k, v, **options)


def merge_attention(o1, lse1, o2, lse2, *, layout="bhsd"):
    """`rocmkern.reference.merge_attention` in the compute dtype."""
    out, lse = _attention._merge(o1, lse1, o2, lse2, layout, compute_dtype(o1))
    return rounded(out, o1.dtype), lse
