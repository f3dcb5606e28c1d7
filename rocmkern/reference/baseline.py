"""The straightforward algorithm in the compute dtype: what an ordinary float32 implementation would return.

Half inputs are widened to float32, all arithmetic is float32 (float64 for float64 inputs), and the result is rounded
once to the dtype of the first argument; log-sum-exps stay in the compute dtype. Its error against the float64 functions
of `rocmkern.reference` is the unit in which the error of a kernel is measured. Same arguments as there.
"""

from __future__ import annotations

import numpy as np

from rocmkern.reference import attention as _attention
from rocmkern.reference import steps as _steps


def _compute_dtype(x):
    return np.float64 if x.dtype == np.float64 else np.float32


def _rounded(result, dtype):
    with np.errstate(all="ignore"):
        return result.astype(dtype)


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
    compute = _compute_dtype(q)
    if cu_seqlens_q is not None:
        out, lse = _attention._packed(q, k, v, cu_seqlens_q, cu_seqlens_k, alibi_slopes, features, compute)
    else:
        out, lse = _attention._dense(q, k, v, layout, alibi_slopes, bias, mask, features, compute)
    out = _rounded(out, q.dtype)
    return (out, lse) if return_lse else out


def decode_attention(q, k, v, *, num_splits=None, **options):
    """`rocmkern.reference.decode_attention` in the compute dtype, without a split."""
    return flash_attention(q, k, v, **options)


def merge_attention(o1, lse1, o2, lse2, *, layout="bhsd"):
    """`rocmkern.reference.merge_attention` in the compute dtype."""
    out, lse = _attention._merge(o1, lse1, o2, lse2, layout, _compute_dtype(o1))
    return _rounded(out, o1.dtype), lse


def qk_scores(q, k, *, scale=None, layout="bhsd"):
    """`rocmkern.reference.qk_scores` in the compute dtype."""
    return _rounded(_steps._qk_scores(q, k, scale, layout, _compute_dtype(q)), q.dtype)


def causal_mask(sq, sk, *, causal="bottom_right", window=None, dtype=np.float32):
    """`rocmkern.reference.causal_mask` in `dtype`."""
    return _steps.causal_mask(sq, sk, causal=causal, window=window).astype(dtype)


def apply_mask(scores, mask):
    """`rocmkern.reference.apply_mask` in the compute dtype."""
    return _rounded(_steps._apply_mask(scores, mask, _compute_dtype(scores)), scores.dtype)


def softmax(x):
    """`rocmkern.reference.softmax` in the compute dtype."""
    return _rounded(_steps._softmax(x, _compute_dtype(x)), x.dtype)


def weighted_values(p, v, *, layout="bhsd"):
    """`rocmkern.reference.weighted_values` in the compute dtype."""
    return _rounded(_steps._weighted_values(p, v, layout, _compute_dtype(p)), p.dtype)


def scale(x, factor):
    """`rocmkern.reference.scale` in the compute dtype."""
    return _rounded(_steps._scale(x, factor, _compute_dtype(x)), x.dtype)


def repeat_kv(x, n_rep, *, layout="bhsd"):
    """`rocmkern.reference.repeat_kv`, in the dtype of x."""
    return _steps.repeat_kv(x, n_rep, layout=layout).astype(x.dtype)
