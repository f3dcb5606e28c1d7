"""Calls that have some rows of another call, and whether these are the same bits: batch-invariance of a case.

A case of a row with ``invariant: true`` is called once more within `rocmkern.batch_invariant`, and so is each of its
excerpts, which the declaration of its operation makes: single rows, pieces, other orders, rows more than once, and
where there is another function for the same row, that one. Every row of an excerpt must be the bits of the whole call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rocmkern.calls.invariance import batch_invariant
from rocmkern.matrix.registry import Call, Function, resolve

#: Rows of an excerpt with rows again and again: more than most blocks have.
_MANY = 200
Index = tuple[Any, ...]


@dataclass(frozen=True)
class Excerpt:
    """A call with some rows of another one.

    Attributes
    ----------
    name : str
        Which rows, for messages.
    arguments : dict
        Of the call.
    places : tuple of index
        For each output the index of these rows in that of the whole call.
    own : tuple of index, optional
        The same in the outputs of the excerpt; all of each by default.
    function : callable or str, optional
        That of the operation by default.
    """

    name: str
    arguments: Mapping[str, Any]
    places: tuple[Index, ...]
    own: tuple[Index, ...] | None = None
    function: Function | None = None


#: What a declaration says: the excerpts of a call.
Excerpts = Callable[[Call], Iterator[Excerpt]]


def orders(count: int, many: int = _MANY) -> dict[str, np.ndarray]:
    """Some rows out of ``count``, up to ``many`` or all: names and numbers of rows."""
    rows = np.arange(count)
    found = {f"row {n} alone": rows[n : n + 1] for n in sorted({0, count // 2, count - 1})} if count else {}
    if count > 1:
        found |= {"the last two thirds": rows[count // 3 :], "all backwards": rows[::-1]}
    if many > count > 1:
        found["all again and again"] = np.resize(rows, many)
    return found


def along(axes: Mapping[str, int], *outputs: int, many: int = _MANY) -> Excerpts:
    """Excerpts of an operation whose rows lie along an axis: that of each array that has them, and of each output.

    Negative axes count from the end. Arrays that the call does not have, or have too few axes, are left alone.
    """

    def excerpts(call: Call) -> Iterator[Excerpt]:
        arrays = {name: call.arrays.get(name) for name in axes}
        given = {
            name: (x, axes[name])
            for name, x in arrays.items()
            if x is not None and x.ndim > (axes[name] if axes[name] >= 0 else -axes[name] - 1)
        }
        if not given:
            return
        counts = {x.shape[axis] for x, axis in given.values()}
        (count,) = counts
        for name, order in orders(count, many).items():
            some = {each: np.take(x, order, axis) for each, (x, axis) in given.items()}
            places = tuple(at(order, outputs[min(i, len(outputs) - 1)], len(s)) for i, s in enumerate(call.out_shapes))
            yield Excerpt(f"{name} of {count}", call.arguments | some, places)

    return excerpts


def joined(*several: Excerpts) -> Excerpts:
    """The excerpts of all of them."""

    def excerpts(call: Call) -> Iterator[Excerpt]:
        for each in several:
            yield from each(call)

    return excerpts


def at(rows: Any, axis: int, ndim: int) -> Index:
    """The index of rows along an axis of an array with so many axes."""
    return (*(slice(None),) * (axis % ndim), rows)


def difference(function: Function, excerpts: Function, call: Call, whole: Sequence[np.ndarray]) -> str | None:
    """What is not the same bits in an excerpt of a call, whose outputs within `batch_invariant` are ``whole``."""
    count = 0
    for excerpt in resolve(excerpts)(call):
        count += 1
        with batch_invariant():
            outputs = resolve(excerpt.function or function)(**excerpt.arguments)
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        own = excerpt.own or ((...,),) * len(outputs)
        for number, (output, mine, place) in enumerate(zip(outputs, own, excerpt.places, strict=True)):
            got, expected = np.asarray(output)[mine], np.asarray(whole[number])[place]
            if got.shape != expected.shape:
                return f"{excerpt.name}: output {number} has shape {got.shape}, expected {expected.shape}"
            if got.tobytes() != expected.tobytes():
                bits = f"u{got.itemsize}"
                differ = np.ascontiguousarray(got).view(bits) != np.ascontiguousarray(expected).view(bits)
                first = tuple(int(i) for i in np.argwhere(differ)[0])
                return f"{excerpt.name}: output {number} differs in {differ.sum()} elements, the first {first}"
    return None if count else "the call has no rows that could be taken out of it"
