"""flash-attn's attention over a cache, to which new keys and values are appended in place.

Keys and values are rows of a batch element, or lie in pages; batch elements that `cache_batch_idx` names are pages as
long as the cache, one for each sequence. Launches: the new keys, rotated, and the new values into the cache; the
queries, rotated, into inner memory; attention.
"""

from __future__ import annotations

import numbers
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any, Literal, overload

import numpy as np

from rocmkern.calls import arguments as _arguments
from rocmkern.calls import checks as _checks
from rocmkern.calls import overlaps as _overlaps
from rocmkern.calls.arguments import FLOATS, INT32, Argument, accept, accept_out
from rocmkern.calls.plan import planned
from rocmkern.calls.types import Array, ArrayLike
from rocmkern.calls.values import look
from rocmkern.calls.view import View, describe
from rocmkern.flash_attn.options import options_of
from rocmkern.ops.attention.api import attend
from rocmkern.ops.attention.problem import Attention, Pages, Scores, Sequences, Tensors, Visibility, beside
from rocmkern.ops.paged.problem import caches, pages
from rocmkern.runtime.errors import ArgumentError


@overload
def flash_attn_with_kvcache(
    q: Array,
    k_cache: Array,
    v_cache: Array,
    k: ArrayLike | None = ...,
    v: ArrayLike | None = ...,
    rotary_cos: ArrayLike | None = ...,
    rotary_sin: ArrayLike | None = ...,
    cache_seqlens: int | ArrayLike | None = ...,
    cache_batch_idx: ArrayLike | None = ...,
    cache_leftpad: ArrayLike | None = ...,
    block_table: ArrayLike | None = ...,
    softmax_scale: float | None = ...,
    causal: bool = ...,
    window_size: tuple[int, int] = ...,
    softcap: float = ...,
    rotary_interleaved: bool = ...,
    alibi_slopes: ArrayLike | None = ...,
    num_splits: int = ...,
    return_softmax_lse: Literal[False] = ...,
) -> Array: ...
@overload
def flash_attn_with_kvcache(
    q: Array,
    k_cache: Array,
    v_cache: Array,
    k: ArrayLike | None = ...,
    v: ArrayLike | None = ...,
    rotary_cos: ArrayLike | None = ...,
    rotary_sin: ArrayLike | None = ...,
    cache_seqlens: int | ArrayLike | None = ...,
    cache_batch_idx: ArrayLike | None = ...,
    cache_leftpad: ArrayLike | None = ...,
    block_table: ArrayLike | None = ...,
    softmax_scale: float | None = ...,
    causal: bool = ...,
    window_size: tuple[int, int] = ...,
    softcap: float = ...,
    rotary_interleaved: bool = ...,
    alibi_slopes: ArrayLike | None = ...,
    num_splits: int = ...,
    *,
    return_softmax_lse: Literal[True],
) -> tuple[Array, Array]: ...
@overload
def flash_attn_with_kvcache(
    q: Array,
    k_cache: Array,
    v_cache: Array,
    k: ArrayLike | None = ...,
    v: ArrayLike | None = ...,
    rotary_cos: ArrayLike | None = ...,
    rotary_sin: ArrayLike | None = ...,
    cache_seqlens: int | ArrayLike | None = ...,
    cache_batch_idx: ArrayLike | None = ...,
    cache_leftpad: ArrayLike | None = ...,
    block_table: ArrayLike | None = ...,
    softmax_scale: float | None = ...,
    causal: bool = ...,
    window_size: tuple[int, int] = ...,
    softcap: float = ...,
    rotary_interleaved: bool = ...,
    alibi_slopes: ArrayLike | None = ...,
    num_splits: int = ...,
    return_softmax_lse: bool = ...,
) -> Array | tuple[Array, Array]: ...
@planned
def flash_attn_with_kvcache(
    q: Array,
    k_cache: Array,
    v_cache: Array,
    k: ArrayLike | None = None,
    v: ArrayLike | None = None,
    rotary_cos: ArrayLike | None = None,
    rotary_sin: ArrayLike | None = None,
    cache_seqlens: int | ArrayLike | None = None,
    cache_batch_idx: ArrayLike | None = None,
    cache_leftpad: ArrayLike | None = None,
    block_table: ArrayLike | None = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    rotary_interleaved: bool = True,
    alibi_slopes: ArrayLike | None = None,
    num_splits: int = 0,
    return_softmax_lse: bool = False,
) -> Array | tuple[Array, Array]:
    """Append new keys and values to a cache in place, and attend to what it has then.

    With ``L = cache_seqlens[n]``, the keys of sequence n are rows ``cache_leftpad[n]`` to ``L + seqlen_new`` of its
    cache, the last of which are the new ones; Sk, their number, aligns `causal` and windows at the bottom right.

    Parameters
    ----------
    q : array, ``[batch, seqlen_q, nheads, headdim]``
        float16, bfloat16 or float32, with any strides; headdim is 1 to 256.
    k_cache, v_cache : array, ``[batch_cache, seqlen_cache, nheads_k, headdim]``
        Of the dtype of q, or, with `block_table`, ``[num_blocks, page_size, nheads_k, headdim]``, pages of any size.
        Sequence n has batch element n of at least as many, or ``cache_batch_idx[n]``. Written in place where there are
        k and v, which must fit.
    k, v : array, ``[batch, seqlen_new, nheads_k, headdim]``, optional
        What is appended: row s becomes row ``L + s`` of the cache.
    rotary_cos, rotary_sin : array, ``[positions, rotary_dim / 2]``, optional
        By these the first rotary_dim elements of q and k are rotated: row s of k by row ``L + s``, row s of q by the
        same if it is causal or has a window, otherwise by row L. Only with k and v.
    cache_seqlens : int or array, int32, ``[batch]``, optional
        Rows that the cache has of each sequence, without the new ones; all by default. It may lie in host memory
        whatever q does, as may the three that follow.
    cache_batch_idx : array, int32, ``[batch]``, optional
        Batch element of the cache of each sequence. Not with `block_table`.
    cache_leftpad : array, int32, ``[batch]``, optional
        Rows of the cache before the first key of each sequence; 0 by default.
    block_table : array, int32, ``[batch, max_blocks]``, optional
        Pages of each sequence, in order.
    softmax_scale, causal, window_size, softcap, alibi_slopes
        As in `flash_attn_func`.
    rotary_interleaved : bool
        Whether the elements 2 i and 2 i + 1 are a pair of the rotation, or i and ``i + rotary_dim / 2``.
    num_splits : int
        Parts of the keys that different blocks of the device work on; 0: as many as suit it.
    return_softmax_lse : bool
        Whether the log-sum-exps are returned too.

    Returns
    -------
    out : array, ``[batch, seqlen_q, nheads, headdim]``
        Of the kind and the dtype of q.
    softmax_lse : array, float32, ``[batch, nheads, seqlen_q]``
        Only with ``return_softmax_lse=True``.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        An argument is not as above; ``error.argument`` names it, and nothing has been written then. Numbers in device
        memory are not copied back to be checked: rows without a place in the cache are not written, rows without one in
        the tables become 0, keys of pages that do not exist count as 0, and the next wait raises
        `IndexOutOfRangeError`.
    TargetError
        The arrays lie on a device that no target here can reach.

    Examples
    --------
    >>> import numpy as np
    >>> from rocmkern.flash_attn import flash_attn_with_kvcache
    >>> k_cache, v_cache = np.zeros((2, 1, 32, 2, 64), np.float16)
    >>> q, k, v = np.ones((1, 1, 8, 64), np.float16), *np.ones((2, 1, 1, 2, 64), np.float16)
    >>> flash_attn_with_kvcache(q, k_cache, v_cache, k, v, cache_seqlens=5, causal=True).shape
    (1, 1, 8, 64)
    >>> k_cache[0, :, 0, 0].nonzero()
    (array([5]),)
    """
    # Checks
    options = options_of(softmax_scale, causal, window_size, softcap, alibi_slopes)
    interleaved = _checks.flag("rotary_interleaved", rotary_interleaved)
    with_lse = _checks.flag("return_softmax_lse", return_softmax_lse)
    parts = _checks.integer("num_splits", num_splits, 0) or None
    cache = _Cache.of(q, k_cache, v_cache, block_table, cache_batch_idx)
    tensors = cache.tensors
    new = _new_rows(tensors, k, v, cache_seqlens)
    lengths = _lengths(cache_seqlens, tensors.q.shape[0])
    sequences, table = cache.sequences(lengths, cache_leftpad, new[0].shape[1] if new else 0)
    scores = Scores.of(
        tensors,
        sequences,
        scale=options["scale"],
        softcap=options["softcap"],
        alibi_slopes=options["alibi_slopes"],
        sinks=None,
    )
    visibility = Visibility.of(options["causal"], options["window"])
    advances = int(visibility.left < cache.room or visibility.right < cache.room)
    tables = _tables(tensors, new, (rotary_cos, rotary_sin), sequences, advances)
    if new:
        _written_in_place(tensors, (k_cache, v_cache), [tensors.q, *new, *tables])
    problem = Attention(tensors, visibility, scores, sequences, table, parts)

    # Launches
    with ExitStack() as inner:
        queries = None
        if new:
            assert sequences.seqlens_k is not None
            queries = _append(tensors, new, tables, interleaved, sequences.seqlens_k.aligned(), table, advances, inner)
        return attend(problem, with_lse, None, None, queries)


@dataclass(frozen=True)
class _Cache:
    """Queries and a cache.

    Attributes
    ----------
    tensors : Tensors
    table : Argument, optional
        Pages of each sequence.
    room : int
        Rows that a sequence may have.
    """

    tensors: Tensors
    table: Argument | None
    room: int

    @classmethod
    def of(cls, q: Any, k_cache: Any, v_cache: Any, block_table: Any, cache_batch_idx: Any) -> _Cache:
        queries = accept("q", q)
        _checks.rank(queries, "batch seqlen_q nheads headdim")
        found = caches(q, k_cache, v_cache, packed=False, names=("k_cache", "v_cache"))
        _arguments.same_dtype(queries, [found.k, found.v])
        batch, rows = queries.shape[0], found.k.shape[1]
        if block_table is not None:
            if cache_batch_idx is not None:
                raise ArgumentError("cache_batch_idx", describe(cache_batch_idx), "None where there is a block_table")
            table = beside(queries, accept("block_table", block_table, INT32))
            _checks.rank(table, "batch max_blocks")
            return cls(found, table, table.shape[1] * rows)
        if cache_batch_idx is not None:
            index = beside(queries, accept("cache_batch_idx", cache_batch_idx, INT32))
            _checks.same_shape(index, (batch,), "one for each sequence")
            return cls(found, replace(index, view=index.aligned()[:, None]), rows)
        if found.k.shape[0] < batch:
            raise ArgumentError("k_cache", f"{found.k.shape[0]} batch elements", f"at least {batch}, those of q")
        k, v = (replace(x, view=x.view[:batch]) for x in (found.k, found.v))
        return cls(Tensors(queries, k, v, "bshd", "bshd"), None, rows)

    def sequences(self, lengths: Any, leftpad: Any, appended: int) -> tuple[Sequences, Pages | None]:
        """The sequences with the rows that are appended, and their pages."""
        batch, queries = self.tensors.q.shape[:2]
        whole = Sequences(batch, queries, self.room)
        if lengths is None and self.table is not None:
            lengths = np.full(batch, self.room, np.int32)
        given = ("cache_seqlens", lengths), ("cache_leftpad", leftpad)
        # Of pages the table says how many rows there can be.
        room = None if self.table is not None and self.table.name == "block_table" else self.room
        found = whole.padded(self.tensors, *given, room=room, appended=appended)
        return (found, None) if self.table is None else pages(self.tensors, found, self.table, ("", None))


def _lengths(cache_seqlens: Any, batch: int) -> Any:
    """The lengths as an array: a number is that of all sequences."""
    if isinstance(cache_seqlens, numbers.Integral):
        return np.full(batch, min(_checks.integer("cache_seqlens", cache_seqlens, 0), 2**31 - 1), np.int32)
    return cache_seqlens


def _new_rows(tensors: Tensors, k: Any, v: Any, cache_seqlens: Any) -> tuple[Argument, ...]:
    """New keys and values: both or none."""
    if k is None and v is None:
        return ()
    for name, value, needed in (("k", k, "v is"), ("v", v, "k is"), ("cache_seqlens", cache_seqlens, "k and v are")):
        if value is None:
            raise ArgumentError(name, "None", f"an array, as {needed} given")
    new = accept("k", k), accept("v", v)
    _arguments.same_dtype(tensors.q, new)
    _arguments.same_place(tensors.q, new)
    for x, cache in zip(new, (tensors.k, tensors.v), strict=True):
        _checks.rank(x, "batch seqlen_new nheads_k headdim")
        _checks.extent(x, 0, tensors.q.shape[0], "the batch size of q")
        for axis, meaning in ((2, "heads"), (3, "head dimension")):
            _checks.extent(x, axis, cache.shape[axis], f"the {meaning} of {cache.name}")
    _checks.extent(new[1], 1, new[0].shape[1], "the rows of k")
    return new


def _tables(
    tensors: Tensors, new: tuple[Argument, ...], given: tuple[Any, Any], sequences: Sequences, advances: int
) -> tuple[Argument, ...]:
    """Tables of cosines and sines: both or none, with a row for every position that host memory knows of."""
    names = ("rotary_cos", "rotary_sin")
    if all(x is None for x in given):
        return ()
    for name, value in zip(names, given, strict=True):
        if value is None:
            raise ArgumentError(name, "None", "an array, as the other table is given")
    if not new:
        raise ArgumentError(names[0], describe(given[0]), "None where there are no k and v to append")
    cos, sin = (accept(name, value, FLOATS) for name, value in zip(names, given, strict=True))
    _checks.rank(cos, "positions pairs")
    _checks.same_shape(sin, cos.shape, "that of rotary_cos")
    _arguments.same_dtype(cos, [sin])
    _arguments.same_place(tensors.q, [cos, sin])
    if 2 * cos.shape[1] > tensors.q.shape[-1]:
        allowed = f"at most {tensors.q.shape[-1] // 2}, half the head dimension"
        raise ArgumentError("rotary_cos", f"{cos.shape[1]} pairs", allowed)
    ends = sequences.seqlens_k
    if ends is not None and not ends.on_device:
        rows, queries = cos.shape[0], tensors.q.shape[1] if advances else min(tensors.q.shape[1], 1)

        def check_positions(array: np.ndarray) -> None:
            needed = int(array.max(initial=0)) + max(sequences.appended, queries)
            if array.size and rows < needed:
                raise ArgumentError("rotary_cos", f"{rows} positions", f"at least {needed}, as cache_seqlens asks for")

        look(check_positions, ends.view)
    return cos, sin


def _written_in_place(tensors: Tensors, given: tuple[Any, Any], inputs: list[Argument]) -> None:
    """Refuse caches that cannot be written, or that share memory with each other or with what is read."""
    for x, cache in zip((tensors.k, tensors.v), given, strict=True):
        accept_out(cache, tuple(cache.shape), x.dtype, inputs, name=x.name)
    if _overlaps.overlap(tensors.k.view, tensors.v.view):
        raise ArgumentError("v_cache", "memory that overlaps with k_cache", "memory apart from it")


def _append(
    tensors: Tensors,
    new: tuple[Argument, ...],
    rotation: tuple[Argument, ...],
    interleaved: bool,
    starts: View,
    table: Pages | None,
    advances: int,
    inner: ExitStack,
) -> View | None:
    """Write the new rows into the cache; the rotated queries, if they are to be rotated, in memory of `inner`."""
    # deferred: start-up
    from rocmkern.calls.launch import inner_result, target_for
    from rocmkern.ops.rotary.launch import Tables, launch_rope_by_table
    from rocmkern.ops.rotary.pairs import Pairs

    words = ("flash_attn_with_kvcache", "cache_seqlens", "k_cache", "its token was not written")
    plain = Tables(Pairs(False, 0), None, None, words)
    tables = plain
    if rotation:
        cos, sin = (x.aligned() for x in rotation)
        tables = Tables(Pairs(interleaved, 2 * cos.shape[1]), cos, sin, words)
    pages_of = None if table is None else table.block_table.aligned()
    for x, cache, how in ((new[0], tensors.k, tables), (new[1], tensors.v, plain)):
        launch_rope_by_table(x.aligned(), cache.view, how, starts, 1, pages_of, True, None)
    q = tensors.q.aligned()
    if not rotation or not q.size:
        return None
    turned = inner.enter_context(inner_result(q.shape, q.dtype, q, target_for(q), None))
    launch_rope_by_table(q, turned, tables, starts, advances, None, False, None)
    return turned
