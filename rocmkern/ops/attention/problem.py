"""What a call of attention is: records that its checks make, for the launch and for the matrix.

    Tensors      queries, keys and values, and the order of their axes
    Visibility   which keys a query sees: causal mask and window
    Scores       what becomes of a product before its softmax: scale, softcap, ALiBi, bias, mask, sinks
    Sequences    which rows belong together
    Pages        where keys and values lie in a cache; its checks are those of `rocmkern.ops.paged.problem`

Others have their checks in ``of``, which takes the public arguments. Fields that the kernel takes have its parameters'
names, so that a new one is a field here, a parameter there, and the line that uses it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np

from rocmkern.calls import arguments as _arguments
from rocmkern.calls import checks as _checks
from rocmkern.calls import invariance as _invariance
from rocmkern.calls.arguments import FLOAT32, INT32, Argument, accept, accept_out
from rocmkern.calls.axes import heads_second
from rocmkern.calls.types import ArrayLike, Causal, Window
from rocmkern.calls.values import look
from rocmkern.calls.view import View, describe
from rocmkern.runtime.errors import ArgumentError

UNLIMITED = 1 << 30  # no sequence is as long; sums of two still fit into 32 bits

#: An array argument, or None, under the name that it has for the caller.
Named: TypeAlias = tuple[str, Any]

# Axes of q, k and v, and where heads and rows are among them.
_AXES = {
    "bhsd": ("B Hq Sq D", "B Hkv Sk D", "B Hkv Sk Dv"),
    "bshd": ("B Sq Hq D", "B Sk Hkv D", "B Sk Hkv Dv"),
    "packed": ("total_q Hq D", "total_k Hkv D", "total_k Hkv Dv"),
}
_HEAD_AXIS = {"bhsd": 1, "bshd": 2, "packed": 1, "tokens": 1}
_ROW_AXIS = {"bhsd": 2, "bshd": 1, "packed": 0}


def heads_before_rows(x: View, layout: str) -> View:
    """View ``[B, H, S, D]`` of queries or results: packed rows are one batch, tokens one of each sequence."""
    return x[:, :, None] if layout == "tokens" else heads_second(x, layout)


def lse_shape(shape: tuple[int, ...], layout: str) -> tuple[int, ...]:
    """Shape of the log-sum-exp for queries or results of `shape`: heads before rows in every layout."""
    if layout in ("packed", "tokens"):
        return shape[1], shape[0]
    return shape[:3] if layout == "bhsd" else (shape[0], shape[2], shape[1])


def lse_with_batch(lse: View, layout: str) -> View:
    """View ``[B, H, S]`` of a log-sum-exp."""
    if layout == "tokens":
        return lse.T[..., None]
    return lse[None] if layout == "packed" else lse


@dataclass(frozen=True)
class Tensors:
    """Queries, keys and values.

    Attributes
    ----------
    q, k, v : Argument
    layout : {"bhsd", "bshd", "packed", "tokens"}
        Of q: rows of several sequences in one axis (packed), or one row of each (tokens), ``[rows, H, D]``.
    kv_layout : {"bhsd", "bshd", "packed"}
        Of k and v; of a cache, whose batch axis counts pages, "bshd".
    """

    q: Argument
    k: Argument
    v: Argument
    layout: str
    kv_layout: str

    @classmethod
    def of(cls, q: ArrayLike, k: ArrayLike, v: ArrayLike, layout: str, packed: bool = False) -> Tensors:
        """Those of `flash_attention`."""
        layout = "packed" if _checks.layout(layout) and packed else layout
        tensors = cls(accept("q", q), accept("k", k), accept("v", v), layout, layout)
        tensors._check()
        return tensors

    @property
    def heads(self) -> int:
        """Number of query heads."""
        return self.q.shape[_HEAD_AXIS[self.layout]]

    @property
    def keys(self) -> int:
        """Rows of k: keys of a batch element, of all packed sequences, or of a page."""
        return self.k.shape[_ROW_AXIS[self.kv_layout]]

    @property
    def out_shape(self) -> tuple[int, ...]:
        """Shape of the result."""
        return (*self.q.shape[:-1], self.v.shape[-1])

    @property
    def lse_shape(self) -> tuple[int, ...]:
        """Shape of its log-sum-exps."""
        return lse_shape(self.q.shape, self.layout)

    def views(self) -> tuple[View, View, View]:
        """``[B, H, S, D]`` of q, k and v."""
        keys, values = (heads_second(x.aligned(), self.kv_layout) for x in (self.k, self.v))
        return heads_before_rows(self.q.aligned(), self.layout), keys, values

    def _check(self) -> None:
        q, k, v, layout = self.q, self.k, self.v, self.layout
        _arguments.same_dtype(q, [k, v])
        for x, axes in zip((q, k, v), _AXES[layout], strict=True):
            _checks.rank(x, axes)
        head_axis = _HEAD_AXIS[layout]
        _checks.head_dim(q)
        _checks.head_dim(v)
        _checks.extent(k, -1, q.shape[-1], "the head dimension of q")
        _checks.grouped_heads(k, k.shape[head_axis], q.shape[head_axis])
        _checks.extent(v, head_axis, k.shape[head_axis], "the heads of k")
        _checks.extent(v, _ROW_AXIS[layout], k.shape[_ROW_AXIS[layout]], "the length of k")
        if layout != "packed":
            _checks.extent(k, 0, q.shape[0], "the batch size of q")
            _checks.extent(v, 0, q.shape[0], "the batch size of q")
        _arguments.same_place(q, [k, v])


@dataclass(frozen=True)
class Visibility:
    """Key j is visible to query i iff ``i + o - left <= j <= i + o + right``, where o aligns the diagonal.

    Attributes
    ----------
    left, right : int
        Keys on either side of the diagonal, `UNLIMITED` at most; a causal mask is a window with nothing on its right.
    bottom_right : bool
        Whether o is ``Sk - Sq``, so that the diagonal ends in the bottom right corner; it is 0 otherwise.
    """

    left: int
    right: int
    bottom_right: bool

    @classmethod
    def of(cls, causal: Causal, window: Window) -> Visibility:
        """That of a causal mask and a window."""
        named = isinstance(causal, str) and causal in ("bottom_right", "top_left")
        if not named and not isinstance(causal, (bool, np.bool_)):
            raise ArgumentError("causal", repr(causal), 'False, True, "bottom_right" or "top_left"')
        left, right = _window(window)
        return cls(left, 0 if causal else right, not (named and causal == "top_left"))

    def offset(self, queries: int, keys: int) -> int:
        """The key on the diagonal of query 0."""
        return keys - queries if self.bottom_right else 0


def _window(window: Window) -> tuple[int, int]:
    if window is None:
        return UNLIMITED, UNLIMITED
    if not isinstance(window, (tuple, list)) or len(window) != 2:
        raise ArgumentError("window", repr(window), "None or a pair (left, right)")
    for side in window:
        if side is None:
            continue
        try:
            _checks.integer("window", side, 0)
        except ArgumentError:
            allowed = (
                "counts of keys of at least 0 (a model's sliding_window = W is left = W - 1), or None for no limit, "
                "which is -1 elsewhere"
            )
            raise ArgumentError("window", repr(window), allowed) from None
    left, right = (UNLIMITED if side is None else min(int(side), UNLIMITED) for side in window)
    return left, right


@dataclass(frozen=True)
class Sequences:
    """Which rows of q and k belong together.

    Attributes
    ----------
    count : int
        Number of sequences.
    max_q, max_k : int
        Bounds of the lengths of their queries and of their keys.
    cu_seqlens_q, cu_seqlens_k : Argument, optional
        int32 ``[count + 1]``: where the rows of each begin and end, if they are packed. Of keys in pages, which are not
        packed, the differences count.
    seqlens_k : Argument, optional
        int32 ``[count]``: rows of k up to the end of each, if not all are its own.
    leftpad_k : Argument, optional
        int32 ``[count]``: rows of k before its first key.
    appended : int
        Rows that each has beyond `seqlens_k`.
    """

    count: int
    max_q: int
    max_k: int = 0
    cu_seqlens_q: Argument | None = None
    cu_seqlens_k: Argument | None = None
    seqlens_k: Argument | None = None
    leftpad_k: Argument | None = None
    appended: int = 0

    @classmethod
    def of(cls, tensors: Tensors, seqlens_k: ArrayLike | None = None, leftpad_k: ArrayLike | None = None) -> Sequences:
        """One of each batch element, with all of its keys or those from ``leftpad_k[n]`` to ``seqlens_k[n]``."""
        axis = _ROW_AXIS[tensors.layout]
        whole = cls(tensors.q.shape[0], tensors.q.shape[axis], tensors.keys)
        lengths, padding = ("seqlens_k", seqlens_k), ("leftpad_k", leftpad_k)
        return whole.padded(tensors, lengths, padding, tensors.keys)

    def padded(
        self, tensors: Tensors, lengths: Named, padding: Named, room: int | None = None, appended: int = 0
    ) -> Sequences:
        """These with the keys from ``padding[n]`` to ``lengths[n] + appended`` of each, within `room` if it is known.

        Parameters
        ----------
        tensors : Tensors
        lengths, padding : (str, array or None)
            Names for errors, and int32 ``[count]``. What lies in host memory is checked.
        room, appended : int
        """
        ends, starts = (
            None if x is None else beside(tensors.q, accept(name, x, INT32)) for name, x in (lengths, padding)
        )
        for x in (ends, starts):
            if x is not None:
                _checks.same_shape(x, (self.count,), "one for each sequence")
        found = replace(self, seqlens_k=ends, leftpad_k=starts, appended=appended)
        if ends is not None and not ends.on_device:
            new = f" but the {appended} that are appended" if appended else ""

            def longest_of(array: np.ndarray) -> int:
                _within(ends.name, array, None if room is None else room - appended, f"the rows of k{new}")
                return int(array.max(initial=-appended)) + appended

            found = replace(found, max_k=look(longest_of, ends.view))
        if starts is not None and not starts.on_device:

            def check_starts(first: np.ndarray, *array: np.ndarray) -> None:
                most = found.numbers_of_keys(*array) if array else room
                _within(starts.name, first, most, "the rows up to the last key")

            known = [ends.view] if ends is not None and not ends.on_device else []
            look(check_starts, starts.view, *known)
        return found

    @property
    def ends_of_keys(self) -> Argument | None:
        """What says where the keys of each end, if not the rows of k."""
        return self.cu_seqlens_k if self.seqlens_k is None else self.seqlens_k

    def numbers_of_keys(self, ends: np.ndarray) -> np.ndarray:
        """Rows of k up to the end of each sequence, from the elements of `ends_of_keys`."""
        return ends[1:] - ends[:-1] if self.seqlens_k is None else ends + self.appended

    @classmethod
    def packed(
        cls,
        tensors: Tensors,
        cu_seqlens_q: ArrayLike | None,
        cu_seqlens_k: ArrayLike | None,
        max_seqlen_q: int | None,
        max_seqlen_k: int | None,
        seqlens_k: ArrayLike | None = None,
        leftpad_k: ArrayLike | None = None,
    ) -> Sequences:
        """Several, one behind the other, if cumulative lengths are given: both or neither. Else those of `of`."""
        if cu_seqlens_q is None and cu_seqlens_k is None:
            for name, value in (("max_seqlen_q", max_seqlen_q), ("max_seqlen_k", max_seqlen_k)):
                if value is not None:
                    raise ArgumentError(name, repr(value), "None where there are no cu_seqlens_q and cu_seqlens_k")
            return cls.of(tensors, seqlens_k, leftpad_k)
        if cu_seqlens_q is None or cu_seqlens_k is None:
            missing, other = ("cu_seqlens_q", "cu_seqlens_k")[:: 1 if cu_seqlens_q is None else -1]
            raise ArgumentError(missing, "None", f"an int32 array, as {other} is given")
        for name, given in (("seqlens_k", seqlens_k), ("leftpad_k", leftpad_k)):
            if given is not None:
                raise ArgumentError(name, describe(given), "None where there are cu_seqlens_q and cu_seqlens_k")
        q, k = tensors.q, tensors.k
        cu_q, max_q = cumulative("q", cu_seqlens_q, max_seqlen_q, q, q)
        cu_k, max_k = cumulative("k", cu_seqlens_k, max_seqlen_k, q, k)
        if cu_k.shape != cu_q.shape:
            allowed = f"length {cu_q.shape[0]}, that of cu_seqlens_q"
            raise ArgumentError("cu_seqlens_k", f"length {cu_k.shape[0]}", allowed)
        return cls(cu_q.shape[0] - 1, max_q, max_k, cu_q, cu_k)

    @classmethod
    def of_queries(cls, tensors: Tensors, cu_seqlens_q: ArrayLike | None, max_seqlen_q: int | None) -> Sequences:
        """Those of `paged_attention`, whose keys are not here: as many of each, or as cumulative lengths say."""
        total = tensors.q.shape[0]
        if cu_seqlens_q is None:
            if max_seqlen_q is not None:
                raise ArgumentError("max_seqlen_q", repr(max_seqlen_q), "None where there is no cu_seqlens_q")
            return cls(total, tensors.q.shape[1] if tensors.layout == "bshd" else 1)
        cu_q, max_q = cumulative("q", cu_seqlens_q, max_seqlen_q, tensors.q, tensors.q)
        return cls(cu_q.shape[0] - 1, max_q, cu_seqlens_q=cu_q)


def _within(name: str, numbers: np.ndarray, most: Any, meaning: str) -> None:
    """Refuse numbers that are not from 0 to `most`: a bound for all, one for each, or none."""
    wrong = np.flatnonzero((numbers < 0) if most is None else (numbers < 0) | (numbers > most))
    if wrong.size:
        n = int(wrong[0])
        allowed = "numbers of at least 0"
        if most is not None:
            allowed = f"numbers from 0 to {int(np.broadcast_to(most, numbers.shape)[n])}, {meaning}"
        raise ArgumentError(name, f"{numbers[n]} for sequence {n}", allowed)


def cumulative(of: str, value: ArrayLike, longest: int | None, q: Argument, x: Argument | None) -> tuple[Argument, int]:
    """Cumulative lengths of sequences, and a bound of the longest; `of` is what they are called after.

    They are int32 ``[n + 1]`` from 0 to the number of rows of x, if they are packed in one, in host memory whatever q
    does, or beside it. The bound is the length of the longest sequence where `longest` is None, and at least that
    otherwise; it is at most the number of rows, as no sequence has more than all have. Numbers in device memory are not
    copied back to be checked: there, None stands for the number of rows.
    """
    name, bound, total = f"cu_seqlens_{of}", f"max_seqlen_{of}", UNLIMITED if x is None else x.shape[0]
    lengths = beside(q, accept(name, value, INT32))
    if len(lengths.shape) != 1 or lengths.shape[0] == 0:
        raise ArgumentError(name, f"shape {lengths.shape}", "one axis of length n + 1 for n sequences")
    if lengths.on_device:
        return lengths, total if longest is None else min(_checks.integer(bound, longest, 0), total)

    def longest_of(array: np.ndarray) -> int:
        if array[0] != 0:
            raise ArgumentError(name, f"{array[0]} as the first element", "0 as the first element")
        falls = np.flatnonzero(array[1:] < array[:-1])
        if falls.size:
            i = int(falls[0])
            given = f"{array[i]} followed by {array[i + 1]} at index {i + 1}"
            raise ArgumentError(name, given, "numbers that do not decrease")
        if x is not None and array[-1] != total:
            raise ArgumentError(name, f"{array[-1]} as the last element", f"{total}, the number of rows of {x.name}")
        found = int((array[1:] - array[:-1]).max(initial=0))
        return found if longest is None else min(_checks.integer(bound, longest, found), total)

    return lengths, look(longest_of, lengths.view)


def beside(q: Argument, x: Argument) -> Argument:
    """Numbers that may lie in host memory whatever q does, or beside it."""
    if x.on_device:
        _arguments.same_place(q, [x])
    return x


@dataclass(frozen=True)
class Scores:
    """What becomes of a product ``q_i . k_j`` before its softmax, in the order of the fields; the sink joins the sum.

    Attributes
    ----------
    scale : float
    softcap : float
        0: none.
    alibi_slopes : Argument, optional
        ``[Hq]`` or ``[sequences, Hq]``.
    bias, mask : Argument, optional
        ``[B, Hq, Sq, Sk]``, stride 0 where they repeat.
    sinks : Argument, optional
        ``[Hq]``.
    """

    scale: float
    softcap: float
    alibi_slopes: Argument | None
    bias: Argument | None
    mask: Argument | None
    sinks: Argument | None

    @classmethod
    def of(
        cls,
        tensors: Tensors,
        sequences: Sequences,
        *,
        scale: float | None,
        softcap: float | None,
        alibi_slopes: ArrayLike | None,
        sinks: ArrayLike | None,
        bias: ArrayLike | None = None,
        mask: ArrayLike | None = None,
    ) -> Scores:
        """Those of the public arguments."""
        heads, packed = tensors.heads, sequences.cu_seqlens_q is not None
        factor = _checks.softmax_scale(scale, tensors.q.shape[-1])
        cap = 0.0 if softcap is None else _checks.number("softcap", softcap, positive=True)
        if packed:
            for name, value in (("bias", bias), ("mask", mask)):
                if value is not None:
                    raise ArgumentError(name, "an array", "None where there are cu_seqlens_q and cu_seqlens_k")
        full = (sequences.count, heads, sequences.max_q, tensors.keys)
        given = cls(
            factor,
            cap,
            None if alibi_slopes is None else accept("alibi_slopes", alibi_slopes),
            None if bias is None else _broadcast(accept("bias", bias), full),
            None if mask is None else _broadcast(_checks.accept_mask("mask", mask), full),
            None if sinks is None else accept("sinks", sinks),
        )
        _arguments.same_place(tensors.q, given.arrays)
        if given.sinks is not None:
            _checks.same_shape(given.sinks, (heads,), "one for each query head")
        slopes, shapes = given.alibi_slopes, ((heads,), (sequences.count, heads))
        if slopes is not None and slopes.shape not in shapes:
            raise ArgumentError("alibi_slopes", f"shape {slopes.shape}", f"shape {shapes[0]} or {shapes[1]}")
        return given

    @property
    def arrays(self) -> tuple[Argument | None, ...]:
        """The arrays among the fields."""
        return self.alibi_slopes, self.bias, self.mask, self.sinks

    @property
    def modified(self) -> bool:
        """Whether anything but a factor is asked for."""
        return self.softcap > 0 or any(x is not None for x in (self.alibi_slopes, self.bias, self.mask))


def _broadcast(x: Argument, shape: tuple[int, ...]) -> Argument:
    return replace(x, view=_checks.broadcastable(x, shape, "[B, Hq, Sq, Sk]"), original=x.view)


@dataclass(frozen=True)
class Pages:
    """Where the keys and values of sequences lie in a cache.

    Attributes
    ----------
    block_table : Argument
        int32 ``[sequences, entries]``: the pages of each.
    key_scale, value_scale : Argument, optional
        float32 ``[Hkv]``: factors of quantized keys and values.
    """

    block_table: Argument
    key_scale: Argument | None = None
    value_scale: Argument | None = None


@dataclass(frozen=True)
class Attention:
    """All of a call but where its result goes, and on which stream; ``num_splits`` is a number or None for any."""

    tensors: Tensors
    visibility: Visibility
    scores: Scores
    sequences: Sequences
    pages: Pages | None = None
    num_splits: int | None = None

    @property
    def inputs(self) -> list[Argument | None]:
        """What a result must not overlap with."""
        tensors, sequences, pages = self.tensors, self.sequences, self.pages
        paged = (pages.key_scale, pages.value_scale, pages.block_table) if pages else ()
        lengths = (sequences.cu_seqlens_q, sequences.cu_seqlens_k, sequences.seqlens_k, sequences.leftpad_k)
        return [tensors.q, tensors.k, tensors.v, *self.scores.arrays, *lengths, *paged]


def parts_of_keys(num_splits: int | None) -> int | None:
    """The argument ``num_splits``."""
    if num_splits is None:
        return None
    parts = _checks.integer("num_splits", num_splits, 1)
    if parts > 1 and _invariance.active():
        raise ArgumentError("num_splits", f"{parts} within batch_invariant()", "None or 1 there")
    return parts


def checked_outputs(
    out: ArrayLike | tuple[ArrayLike, ArrayLike] | None,
    with_lse: bool,
    shape: tuple[int, ...],
    dtype: np.dtype,
    shape_of_lse: tuple[int, ...],
    inputs: Sequence[Argument | None],
    *,
    elementwise: bool = False,
) -> tuple[Argument | None, Argument | None]:
    """The arguments of ``out=``: a result, or a pair (result, lse).

    The result may be float32, which is what it is computed in, whatever the inputs are.
    With ``elementwise`` it may be one of the inputs; the lse may not.
    """
    if out is None:
        return None, None
    given: Any = out
    pair = isinstance(out, (tuple, list) if with_lse else tuple)
    if pair and (not with_lse or len(given) != 2):
        allowed = "an array, or a pair (out, lse)" if with_lse else "an array, as no lse is returned"
        raise ArgumentError("out", f"a {type(out).__name__} of {len(given)}", allowed)
    first, name = (given[0], "out[0]") if pair else (given, "out")
    wanted = accept(name, first, (dtype,) if dtype == FLOAT32 else (dtype, FLOAT32)).dtype
    result = accept_out(first, shape, wanted, inputs, elementwise=elementwise, name=name)
    if not pair:
        return result, None
    return result, accept_out(given[1], shape_of_lse, FLOAT32, [*inputs, result], name="out[1]")
