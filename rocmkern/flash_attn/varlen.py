"""flash-attn's attention over sequences of different lengths, packed behind one another: see `functions`."""

from __future__ import annotations

from typing import Any, Literal, overload

from rocmkern.calls import checks as _checks
from rocmkern.calls.types import Array, ArrayLike
from rocmkern.flash_attn.functions import WithProbs
from rocmkern.flash_attn.options import options_of, unstacked, without_dropout
from rocmkern.flash_attn.pages import attend_to_pages
from rocmkern.ops.attention.api import flash_attention


@overload
def flash_attn_varlen_func(
    q: Array,
    k: ArrayLike,
    v: ArrayLike,
    cu_seqlens_q: ArrayLike,
    cu_seqlens_k: ArrayLike,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float = ...,
    softmax_scale: float | None = ...,
    causal: bool = ...,
    window_size: tuple[int, int] = ...,
    softcap: float = ...,
    alibi_slopes: ArrayLike | None = ...,
    deterministic: bool = ...,
    return_attn_probs: Literal[False] = ...,
    block_table: ArrayLike | None = ...,
) -> Array: ...
@overload
def flash_attn_varlen_func(
    q: Array,
    k: ArrayLike,
    v: ArrayLike,
    cu_seqlens_q: ArrayLike,
    cu_seqlens_k: ArrayLike,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float = ...,
    softmax_scale: float | None = ...,
    causal: bool = ...,
    window_size: tuple[int, int] = ...,
    softcap: float = ...,
    alibi_slopes: ArrayLike | None = ...,
    deterministic: bool = ...,
    *,
    return_attn_probs: Literal[True],
    block_table: ArrayLike | None = ...,
) -> WithProbs[Array]: ...
@overload
def flash_attn_varlen_func(
    q: Array,
    k: ArrayLike,
    v: ArrayLike,
    cu_seqlens_q: ArrayLike,
    cu_seqlens_k: ArrayLike,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float = ...,
    softmax_scale: float | None = ...,
    causal: bool = ...,
    window_size: tuple[int, int] = ...,
    softcap: float = ...,
    alibi_slopes: ArrayLike | None = ...,
    deterministic: bool = ...,
    return_attn_probs: bool = ...,
    block_table: ArrayLike | None = ...,
) -> Array | WithProbs[Array]: ...
def flash_attn_varlen_func(
    q: Array,
    k: ArrayLike,
    v: ArrayLike,
    cu_seqlens_q: ArrayLike,
    cu_seqlens_k: ArrayLike,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: ArrayLike | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
    block_table: ArrayLike | None = None,
) -> Array | WithProbs[Array]:
    """`flash_attn_func` of sequences of different lengths, packed behind one another.

    Parameters
    ----------
    q : array, ``[total_q, nheads, headdim]``
        Sequence n has the rows ``cu_seqlens_q[n]`` to ``cu_seqlens_q[n + 1]``.
    k, v : array, ``[total_k, nheads_k, headdim]``
        Or, with `block_table`, ``[num_blocks, page_size, nheads_k, headdim]``, pages of any size.
    cu_seqlens_q, cu_seqlens_k : array, int32, ``[n + 1]``
        Where sequences begin and end, from 0. With `block_table` the differences of `cu_seqlens_k` are their numbers
        of keys. They may lie in host memory whatever q does.
    max_seqlen_q, max_seqlen_k : int
        Lengths of the longest sequences, or more.
    dropout_p, softmax_scale, causal, window_size, softcap, deterministic, return_attn_probs
        As in `flash_attn_func`.
    alibi_slopes : array, ``[nheads]`` or ``[n, nheads]``, optional
        As in `flash_attn_func`.
    block_table : array, int32, ``[n, max_blocks]``, optional
        Pages of each sequence, in order.

    Returns
    -------
    out : array, ``[total_q, nheads, headdim]``
    softmax_lse : array, float32, ``[nheads, total_q]``
        Only with ``return_attn_probs=True``, as is what follows.
    S_dmask : None

    Raises
    ------
    ArgumentError, ArgumentTypeError, TargetError
        As `flash_attn_func`. A table in device memory is not looked at, see `rocmkern.paged_attention`.
    """
    without_dropout(dropout_p, deterministic)
    options = options_of(softmax_scale, causal, window_size, softcap, alibi_slopes)
    with_lse = _checks.flag("return_attn_probs", return_attn_probs)
    lengths = (cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k)
    if block_table is not None:
        found = attend_to_pages(q, k, v, block_table, *lengths, **options, return_lse=with_lse)
    else:
        names = ("cu_seqlens_q", "cu_seqlens_k", "max_seqlen_q", "max_seqlen_k")
        given: Any = dict(zip(names, lengths, strict=True))
        found = flash_attention(q, k, v, **given, **options, return_lse=with_lse)
    return (*found, None) if with_lse else found


@overload
def flash_attn_varlen_qkvpacked_func(
    qkv: Array,
    cu_seqlens: ArrayLike,
    max_seqlen: int,
    dropout_p: float = ...,
    softmax_scale: float | None = ...,
    causal: bool = ...,
    window_size: tuple[int, int] = ...,
    softcap: float = ...,
    alibi_slopes: ArrayLike | None = ...,
    deterministic: bool = ...,
    return_attn_probs: Literal[False] = ...,
) -> Array: ...
@overload
def flash_attn_varlen_qkvpacked_func(
    qkv: Array,
    cu_seqlens: ArrayLike,
    max_seqlen: int,
    dropout_p: float = ...,
    softmax_scale: float | None = ...,
    causal: bool = ...,
    window_size: tuple[int, int] = ...,
    softcap: float = ...,
    alibi_slopes: ArrayLike | None = ...,
    deterministic: bool = ...,
    *,
    return_attn_probs: Literal[True],
) -> WithProbs[Array]: ...
@overload
def flash_attn_varlen_qkvpacked_func(
    qkv: Array,
    cu_seqlens: ArrayLike,
    max_seqlen: int,
    dropout_p: float = ...,
    softmax_scale: float | None = ...,
    causal: bool = ...,
    window_size: tuple[int, int] = ...,
    softcap: float = ...,
    alibi_slopes: ArrayLike | None = ...,
    deterministic: bool = ...,
    return_attn_probs: bool = ...,
) -> Array | WithProbs[Array]: ...
def flash_attn_varlen_qkvpacked_func(
    qkv: Array,
    cu_seqlens: ArrayLike,
    max_seqlen: int,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: ArrayLike | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Array | WithProbs[Array]:
    """`flash_attn_varlen_func` of queries, keys and values that are stacked in one array.

    Parameters
    ----------
    qkv : array, ``[total, 3, nheads, headdim]``
        Read where it lies: nothing is copied.
    cu_seqlens : array, int32, ``[n + 1]``
        Sequence n has the rows ``cu_seqlens[n]`` to ``cu_seqlens[n + 1]``.
    max_seqlen : int
        Length of the longest sequence, or more.
    dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic, return_attn_probs
        As in `flash_attn_varlen_func`.

    Returns
    -------
    array, or (array, array, None)
        As `flash_attn_varlen_func`.

    Raises
    ------
    ArgumentError, ArgumentTypeError, TargetError
        As `flash_attn_func`.
    """
    q, k, v = unstacked("qkv", qkv, "total 3 nheads headdim")
    longest = _checks.integer("max_seqlen", max_seqlen, 0)
    return flash_attn_varlen_func(
        q,
        k,
        v,
        cu_seqlens,
        cu_seqlens,
        longest,
        longest,
        dropout_p,
        softmax_scale,
        causal,
        window_size,
        softcap,
        alibi_slopes,
        deterministic,
        return_attn_probs,
    )


@overload
def flash_attn_varlen_kvpacked_func(
    q: Array,
    kv: ArrayLike,
    cu_seqlens_q: ArrayLike,
    cu_seqlens_k: ArrayLike,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float = ...,
    softmax_scale: float | None = ...,
    causal: bool = ...,
    window_size: tuple[int, int] = ...,
    softcap: float = ...,
    alibi_slopes: ArrayLike | None = ...,
    deterministic: bool = ...,
    return_attn_probs: Literal[False] = ...,
) -> Array: ...
@overload
def flash_attn_varlen_kvpacked_func(
    q: Array,
    kv: ArrayLike,
    cu_seqlens_q: ArrayLike,
    cu_seqlens_k: ArrayLike,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float = ...,
    softmax_scale: float | None = ...,
    causal: bool = ...,
    window_size: tuple[int, int] = ...,
    softcap: float = ...,
    alibi_slopes: ArrayLike | None = ...,
    deterministic: bool = ...,
    *,
    return_attn_probs: Literal[True],
) -> WithProbs[Array]: ...
@overload
def flash_attn_varlen_kvpacked_func(
    q: Array,
    kv: ArrayLike,
    cu_seqlens_q: ArrayLike,
    cu_seqlens_k: ArrayLike,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float = ...,
    softmax_scale: float | None = ...,
    causal: bool = ...,
    window_size: tuple[int, int] = ...,
    softcap: float = ...,
    alibi_slopes: ArrayLike | None = ...,
    deterministic: bool = ...,
    return_attn_probs: bool = ...,
) -> Array | WithProbs[Array]: ...
def flash_attn_varlen_kvpacked_func(
    q: Array,
    kv: ArrayLike,
    cu_seqlens_q: ArrayLike,
    cu_seqlens_k: ArrayLike,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: ArrayLike | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Array | WithProbs[Array]:
    """`flash_attn_varlen_func` of keys and values that are stacked in one array.

    Parameters
    ----------
    q : array, ``[total_q, nheads, headdim]``
    kv : array, ``[total_k, 2, nheads_k, headdim]``
        Read where it lies: nothing is copied.
    cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k
        As in `flash_attn_varlen_func`.
    dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic, return_attn_probs
        As in `flash_attn_varlen_func`.

    Returns
    -------
    array, or (array, array, None)
        As `flash_attn_varlen_func`.

    Raises
    ------
    ArgumentError, ArgumentTypeError, TargetError
        As `flash_attn_func`.
    """
    k, v = unstacked("kv", kv, "total 2 nheads_k headdim")
    return flash_attn_varlen_func(
        q,
        k,
        v,
        cu_seqlens_q,
        cu_seqlens_k,
        max_seqlen_q,
        max_seqlen_k,
        dropout_p,
        softmax_scale,
        causal,
        window_size,
        softcap,
        alibi_slopes,
        deterministic,
        return_attn_probs,
    )
