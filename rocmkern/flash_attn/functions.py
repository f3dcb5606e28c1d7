"""flash-attn's attention over queries, keys and values: dense, and stacked in one array.

The result is that of `rocmkern.flash_attention`; see there what it is computed in, and what NaN and infinities do. Rows
come before heads, as everywhere in flash-attn::

    out = softmax(softmax_scale * q @ k^T, masked) @ v      [batch, seqlen, heads, headdim]
    lse = the log of the softmax's denominator              [batch, heads, seqlen]

``causal`` and windows are aligned at the bottom right: query i of Sq sees the keys up to ``i + Sk - Sq``.
"""

from __future__ import annotations

from typing import Literal, overload

from rocmkern.calls import checks as _checks
from rocmkern.calls.types import Array, ArrayLike
from rocmkern.flash_attn.options import options_of, unstacked, without_dropout
from rocmkern.ops.attention.api import flash_attention

#: What `return_attn_probs` returns: the result, its log-sum-exps, and the mask of the dropout, which there is none of.
WithProbs = tuple[Array, Array, None]


@overload
def flash_attn_func(
    q: Array,
    k: ArrayLike,
    v: ArrayLike,
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
def flash_attn_func(
    q: Array,
    k: ArrayLike,
    v: ArrayLike,
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
def flash_attn_func(
    q: Array,
    k: ArrayLike,
    v: ArrayLike,
    dropout_p: float = ...,
    softmax_scale: float | None = ...,
    causal: bool = ...,
    window_size: tuple[int, int] = ...,
    softcap: float = ...,
    alibi_slopes: ArrayLike | None = ...,
    deterministic: bool = ...,
    return_attn_probs: bool = ...,
) -> Array | WithProbs[Array]: ...
def flash_attn_func(
    q: Array,
    k: ArrayLike,
    v: ArrayLike,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: ArrayLike | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Array | WithProbs[Array]:
    """Attention of queries over keys and values.

    Parameters
    ----------
    q : array, ``[batch, seqlen_q, nheads, headdim]``
        float16, bfloat16 or float32, with any strides; headdim is 1 to 256.
    k, v : array, ``[batch, seqlen_k, nheads_k, headdim]``
        Of the dtype of q; nheads is a multiple of nheads_k.
    dropout_p : float
        0.0; anything else is an error.
    softmax_scale : float, optional
        ``1 / sqrt(headdim)`` by default.
    causal : bool
        Whether query i sees no key behind ``i + seqlen_k - seqlen_q``. A row that sees nothing is 0.
    window_size : (int, int)
        Keys that a query sees on either side of that key; negative: no limit.
    softcap : float
        Bound of the scores; none where it is not positive.
    alibi_slopes : array, ``[nheads]`` or ``[batch, nheads]``, optional
        ``slope * |i + seqlen_k - seqlen_q - j|`` is taken from the score of query i and key j.
    deterministic : bool
        Without effect: results are deterministic.
    return_attn_probs : bool
        Whether the log-sum-exps are returned too.

    Returns
    -------
    out : array, ``[batch, seqlen_q, nheads, headdim]``
        Of the kind and the dtype of q.
    softmax_lse : array, float32, ``[batch, nheads, seqlen_q]``
        Only with ``return_attn_probs=True``, as is what follows.
    S_dmask : None
        flash-attn gives an empty tensor without dropout.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        An argument is not as above; ``error.argument`` names it.
    TargetError
        The arrays lie on a device that no target here can reach.

    Examples
    --------
    >>> import numpy as np
    >>> from rocmkern.flash_attn import flash_attn_func
    >>> q = np.ones((1, 5, 8, 64), np.float16)
    >>> flash_attn_func(q, q[:, :, :2], q[:, :, :2], causal=True).shape
    (1, 5, 8, 64)
    """
    without_dropout(dropout_p, deterministic)
    options = options_of(softmax_scale, causal, window_size, softcap, alibi_slopes)
    with_lse = _checks.flag("return_attn_probs", return_attn_probs)
    if not with_lse:
        return flash_attention(q, k, v, layout="bshd", **options)
    return (*flash_attention(q, k, v, layout="bshd", return_lse=True, **options), None)


@overload
def flash_attn_qkvpacked_func(
    qkv: Array,
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
def flash_attn_qkvpacked_func(
    qkv: Array,
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
def flash_attn_qkvpacked_func(
    qkv: Array,
    dropout_p: float = ...,
    softmax_scale: float | None = ...,
    causal: bool = ...,
    window_size: tuple[int, int] = ...,
    softcap: float = ...,
    alibi_slopes: ArrayLike | None = ...,
    deterministic: bool = ...,
    return_attn_probs: bool = ...,
) -> Array | WithProbs[Array]: ...
def flash_attn_qkvpacked_func(
    qkv: Array,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: ArrayLike | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Array | WithProbs[Array]:
    """`flash_attn_func` of queries, keys and values that are stacked in one array.

    Parameters
    ----------
    qkv : array, ``[batch, seqlen, 3, nheads, headdim]``
        Read where it lies: nothing is copied.
    dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic, return_attn_probs
        As in `flash_attn_func`.

    Returns
    -------
    array, or (array, array, None)
        As `flash_attn_func`.

    Raises
    ------
    ArgumentError, ArgumentTypeError, TargetError
        As `flash_attn_func`.
    """
    q, k, v = unstacked("qkv", qkv, "batch seqlen 3 nheads headdim")
    return flash_attn_func(
        q,
        k,
        v,
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
def flash_attn_kvpacked_func(
    q: Array,
    kv: ArrayLike,
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
def flash_attn_kvpacked_func(
    q: Array,
    kv: ArrayLike,
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
def flash_attn_kvpacked_func(
    q: Array,
    kv: ArrayLike,
    dropout_p: float = ...,
    softmax_scale: float | None = ...,
    causal: bool = ...,
    window_size: tuple[int, int] = ...,
    softcap: float = ...,
    alibi_slopes: ArrayLike | None = ...,
    deterministic: bool = ...,
    return_attn_probs: bool = ...,
) -> Array | WithProbs[Array]: ...
def flash_attn_kvpacked_func(
    q: Array,
    kv: ArrayLike,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: ArrayLike | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Array | WithProbs[Array]:
    """`flash_attn_func` of keys and values that are stacked in one array.

    Parameters
    ----------
    q : array, ``[batch, seqlen_q, nheads, headdim]``
    kv : array, ``[batch, seqlen_k, 2, nheads_k, headdim]``
        Read where it lies: nothing is copied.
    dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic, return_attn_probs
        As in `flash_attn_func`.

    Returns
    -------
    array, or (array, array, None)
        As `flash_attn_func`.

    Raises
    ------
    ArgumentError, ArgumentTypeError, TargetError
        As `flash_attn_func`.
    """
    k, v = unstacked("kv", kv, "batch seqlen 2 nheads_k headdim")
    return flash_attn_func(
        q,
        k,
        v,
        dropout_p,
        softmax_scale,
        causal,
        window_size,
        softcap,
        alibi_slopes,
        deterministic,
        return_attn_probs,
    )
