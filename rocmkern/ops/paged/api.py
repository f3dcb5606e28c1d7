"""Attention over keys and values that lie in pages: `paged_attention`.

What it means is `rocmkern.reference.paged_attention`; how it is computed, the kernel of `attention`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypedDict, overload

from rocmkern.calls.arguments import INT32, accept
from rocmkern.calls.plan import planned
from rocmkern.calls.types import Array, ArrayLike, Causal, Stream, Window
from rocmkern.ops.attention.api import attend
from rocmkern.ops.attention.problem import Attention, Scores, Sequences, Visibility, beside, parts_of_keys
from rocmkern.ops.paged.problem import caches, pages

if TYPE_CHECKING:
    from typing_extensions import Unpack


class PagedAttentionOptions(TypedDict, total=False):
    """Options of `paged_attention`, for type checkers."""

    cu_seqlens_q: ArrayLike | None
    max_seqlen_q: int | None
    max_context_len: int | None
    leftpad_k: ArrayLike | None
    causal: Causal
    window: Window
    scale: float | None
    softcap: float | None
    alibi_slopes: ArrayLike | None
    sinks: ArrayLike | None
    key_scale: ArrayLike | None
    value_scale: ArrayLike | None
    num_splits: int | None
    stream: Stream


@overload
def paged_attention(
    q: Array,
    key_cache: ArrayLike,
    value_cache: ArrayLike,
    block_table: ArrayLike,
    context_lens: ArrayLike,
    *,
    return_lse: Literal[False] = False,
    out: Array | None = None,
    **options: Unpack[PagedAttentionOptions],
) -> Array: ...
@overload
def paged_attention(
    q: Array,
    key_cache: ArrayLike,
    value_cache: ArrayLike,
    block_table: ArrayLike,
    context_lens: ArrayLike,
    *,
    return_lse: Literal[True],
    out: Array | tuple[Array, Array] | None = None,
    **options: Unpack[PagedAttentionOptions],
) -> tuple[Array, Array]: ...
@overload
def paged_attention(
    q: Array,
    key_cache: ArrayLike,
    value_cache: ArrayLike,
    block_table: ArrayLike,
    context_lens: ArrayLike,
    *,
    return_lse: bool,
    out: Array | tuple[Array, Array] | None = None,
    **options: Unpack[PagedAttentionOptions],
) -> Array | tuple[Array, Array]: ...
@planned
def paged_attention(
    q: Array,
    key_cache: ArrayLike,
    value_cache: ArrayLike,
    block_table: ArrayLike,
    context_lens: ArrayLike,
    *,
    cu_seqlens_q: ArrayLike | None = None,
    max_seqlen_q: int | None = None,
    max_context_len: int | None = None,
    leftpad_k: ArrayLike | None = None,
    causal: Causal = True,
    window: Window = None,
    scale: float | None = None,
    softcap: float | None = None,
    alibi_slopes: ArrayLike | None = None,
    sinks: ArrayLike | None = None,
    key_scale: ArrayLike | None = None,
    value_scale: ArrayLike | None = None,
    return_lse: bool = False,
    num_splits: int | None = None,
    out: Array | tuple[Array, Array] | None = None,
    stream: Stream = None,
) -> Array | tuple[Array, Array]:
    """Attention of sequences whose keys and values lie in the blocks of a cache.

    Key j of sequence n is row ``j % block_size`` of block ``block_table[n, j // block_size]``. The result is that of
    `flash_attention` over the ``context_lens[n]`` keys of each sequence. By default it is causal: query i of Sq sees
    the keys up to ``i + context_lens[n] - Sq``. One query a sequence (decoding) sees all of them.

    Parameters
    ----------
    q : array, ``[n_seq, Hq, D]``, ``[n_seq, Sq, Hq, D]``, or packed ``[total_q, Hq, D]``
        Queries: float32, float16 or bfloat16, with any strides; one of each sequence, Sq of each, or those that
        `cu_seqlens_q` says. D is 1 to 256.
    key_cache : array, ``[n_blocks, block_size, Hkv, D]``
        Keys, of the dtype of q, or int8, float8_e4m3fn or float8_e5m2 (``ml_dtypes``). block_size is any number
        from 1 on.
    value_cache : array, ``[n_blocks, block_size, Hkv, Dv]``
        Values, of the dtype of the keys.
    block_table : array, int32, ``[n_seq, max_blocks]``
        Blocks of each sequence, in order; what lies behind the last one that it needs is not looked at.
    context_lens : array, int32, ``[n_seq]``
        Tokens of each sequence that are in the cache, those of q included. 0 is allowed: nothing is seen.
    cu_seqlens_q : array, int32, ``[n_seq + 1]``, optional
        Sequence n has queries ``cu[n]`` to ``cu[n + 1]`` of q.
    max_seqlen_q, max_context_len : int, optional
        Bounds of the lengths. Found out by default; where the lengths lie in device memory, from the shapes of q and of
        the table.
    leftpad_k : array, int32, ``[n_seq]``, optional
        Tokens at the beginning of each sequence that are padding: it is as if they and their rows of the cache were not
        there.
    causal : {True, False, "bottom_right", "top_left"}
        As in `flash_attention`, of the queries and the keys of a sequence.
    window : (left, right), optional
        Keys that a row sees on either side of its diagonal key, see `flash_attention`.
    scale : float, optional
        ``1 / sqrt(D)`` by default.
    softcap : float, optional
        Bound of the scores, positive.
    alibi_slopes : array, ``[Hq]`` or ``[n_seq, Hq]``, optional
        Slopes of linear biases.
    sinks : array, ``[Hq]``, optional
        One more logit for each head, in the denominator only.
    key_scale, value_scale : array, float32, ``[Hkv]``, optional
        What the numbers of quantized caches are multiplied by; positive. 1 by default.
    return_lse : bool
        Also return the natural-log log-sum-exp of the scores, sink included.
    num_splits : int, optional
        Number of parts of the keys that different blocks of the device work on; chosen from the shapes by default. See
        `decode_attention`.
    out : array, or (array, array) with ``return_lse=True``, optional
        Where to write the result (and the lse).
    stream : optional
        Stream that orders the work.

    Returns
    -------
    out : array, ``[n_seq, Hq, Dv]``, ``[n_seq, Sq, Hq, Dv]`` or ``[total_q, Hq, Dv]``
        Of the kind and the dtype of q. Computed in float32, rounded once.
    lse : array, float32, ``[Hq, n_seq]``, ``[n_seq, Hq, Sq]`` or ``[Hq, total_q]``
        Only with ``return_lse=True``.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        An argument is not as above, a table is too short or names a block that does not exist; ``error.argument`` names
        it. A table in device memory is not copied back to be checked: keys and values of blocks that do not exist count
        as 0, and the next wait raises `IndexOutOfRangeError`.
    TargetError
        The arrays lie on a device that no target here can reach.

    References
    ----------
    Kwon, Li, Zhuang, Sheng, Zheng, Yu, Gonzalez, Zhang, Stoica: PagedAttention (2023).

    Examples
    --------
    >>> import numpy as np, rocmkern
    >>> cache = np.random.default_rng(0).standard_normal((8, 16, 2, 64), dtype=np.float32)
    >>> q = np.ones((1, 8, 64), np.float32)
    >>> table, lens = np.array([[5, 2]], np.int32), np.array([20], np.int32)
    >>> rocmkern.paged_attention(q, cache, cache, table, lens).shape
    (1, 8, 64)
    """
    # Checks
    visibility = Visibility.of(causal, window)
    tensors = caches(q, key_cache, value_cache, packed=cu_seqlens_q is not None)
    sequences = Sequences.of_queries(tensors, cu_seqlens_q, max_seqlen_q)
    accept("context_lens", context_lens, INT32)  # None, too, is refused
    sequences = sequences.padded(tensors, ("context_lens", context_lens), ("leftpad_k", leftpad_k))
    table = beside(tensors.q, accept("block_table", block_table, INT32))
    longest = ("max_context_len", max_context_len)
    sequences, found = pages(tensors, sequences, table, longest, key_scale, value_scale)
    scores = Scores.of(tensors, sequences, scale=scale, softcap=softcap, alibi_slopes=alibi_slopes, sinks=sinks)
    parts = parts_of_keys(num_splits)
    return attend(Attention(tensors, visibility, scores, sequences, found, parts), return_lse, out, stream)
