"""What an operation does, noted while it does it, so that a plan can do it again (see `plan`).

A `Recorder` is active in one thread during one call. It is told of the launches by `rocmkern.targets.launches`, and by
the functions of this package about what they allocate and compare. Whatever it is not told of, or cannot repeat, must
reach `refuse`: then there is no plan.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from rocmkern.calls.notes import thread
from rocmkern.calls.view import View
from rocmkern.runtime import transfer
from rocmkern.runtime.error_word import ErrorWord
from rocmkern.runtime.interface import PER_THREAD_STREAM
from rocmkern.runtime.views import memory_view
from rocmkern.tile.language.kernel import Kernel


class Fresh(NamedTuple):
    """Memory that a call makes.

    Attributes
    ----------
    shape, dtype
        Of the `DeviceTensor`.
    like : int
        Number of the argument beside which a result lies, if it matters.
    result : bool
        Whether the caller gets it, as an object of the library of that argument.
    zeros : bool
        Whether it is filled with zeros; undefined otherwise.
    begin : int
        Launches before it is used.
    make : callable, optional
        Makes it of ``values``.
    values : Values, optional
    """

    shape: tuple[int, ...]
    dtype: Any
    like: int
    result: bool
    zeros: bool = False
    begin: int = 0
    make: Callable[[np.ndarray], np.ndarray] | None = None
    values: Values | None = None


class Values(NamedTuple):
    """The elements of an argument in host memory: its number, and its layout."""

    number: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: Any

    def read(self, arrays: Sequence[Any], addresses: Sequence[int]) -> np.ndarray:
        """Those of the arguments of a call, as an array."""
        array = arrays[self.number]
        if type(array) is np.ndarray:
            return array
        return memory_view(addresses[self.number], self.shape, self.strides, self.dtype, array)


class Look(NamedTuple):
    """A question that a call has about the values of arguments, and the answer; see `values.look`."""

    question: Callable[..., Any]
    values: tuple[Values, ...]
    answer: Any


class Launch(NamedTuple):
    """One launch; arrays are numbered: the arguments in their order, then what the call makes.

    Attributes
    ----------
    name : str
        Of the kernel.
    prepared : PreparedLaunch
        Everything but the addresses.
    pointers : tuple of (int, int, int)
        For each address: its place among the words, the number of its array, the offset from the array's element 0.
    """

    name: str
    prepared: Any
    pointers: tuple[tuple[int, int, int], ...]


@dataclass
class Recorder:
    """Notes of one call.

    Parameters
    ----------
    arrays : sequence of object
        The arguments that are arrays.
    addresses : sequence of int
        Of their elements 0.

    Attributes
    ----------
    target, stream
        Where everything was launched.
    instead_of : int or None
        Handle of the stream that `stream` stood for, where it was another one.
    launches : list of Launch
    fresh : list of Fresh
    ends : dict of int to int
        By numbers of inner results, the launches before they were given back.
    apart : set of (int, int)
        Pairs of arguments that were found not to overlap.
    looks : list of Look
    written : list of int
        Numbers of the arguments that were accepted to be written.
    constants : list of object
        Owners of memory that stays where it is as long as the plan has them.
    counts : bool
        Whether some of it are the counters of the stream: a graph that it records has its own.
    copies : int
        Copies between host and device before the call, and those that a later call will not need.
    refused : str or None
        Why there is no plan.
    """

    arrays: Sequence[Any]
    addresses: Sequence[int]
    target: Any = None
    stream: int | None = None
    instead_of: int | None = None
    launches: list[Launch] = field(default_factory=list)
    fresh: list[Fresh] = field(default_factory=list)
    ends: dict[int, int] = field(default_factory=dict)
    apart: set[tuple[int, int]] = field(default_factory=set)
    looks: list[Look] = field(default_factory=list)
    written: list[int] = field(default_factory=list)
    constants: list[Any] = field(default_factory=list)
    counts: bool = False
    refused: str | None = None

    def __post_init__(self) -> None:
        self._bases = list(self.addresses)
        self._numbers: dict[int, int] = {}
        self._wholes: dict[int, View] = {}
        for number, array in enumerate(self.arrays):
            self._numbers.setdefault(id(array), number)
        self._unviewed = {id(array) for array in self.arrays}
        self._alive: dict[int, Any] = {}  # so that no other object gets the id of one that was noted
        self.copies: int = transfer.copies()

    def writes(self, x: Any) -> None:
        """Note an array that is accepted to be written, if it is an argument."""
        number = self._numbers.get(id(x))
        if number is not None and number < len(self.arrays):
            self.written.append(number)

    def refuse(self, reason: str) -> None:
        """There will be no plan."""
        self.refused = self.refused or reason

    def viewed(self, x: Any, view: View) -> None:
        """Note that the call takes an argument for memory, and all of it as it is viewed."""
        self._unviewed.discard(id(x))
        number = self._numbers.get(id(x))
        if number is not None:
            self._wholes[number] = view

    def launched(self, target: Any, kernel: Kernel, args: Sequence[Any], stream: int, prepared: Any) -> None:
        """Note a launch (an observer of `rocmkern.targets.launches`)."""
        # deferred: start-up
        from rocmkern.targets.words import tensors

        if self.launches and (target is not self.target or stream != self.stream):
            self.refuse("launches on several streams")
        self.target, self.stream = target, stream
        pointers = []
        for at, view, _ in tensors(kernel, args):
            if not view.address:
                continue  # it has no elements
            number = self._number_of(view)
            if number is None:
                if self._stays(view) or (view.on_device and isinstance(view.owner.keep_alive(), ErrorWord)):
                    continue  # an error word stays where it is as long as the process lives
                self.refuse(f"{kernel.__name__} reads memory that is neither an argument nor made by the call")
                return
            pointers.append((at, number, prepared.words[at] - self._bases[number]))
        self.launches.append(Launch(kernel.__name__, prepared, tuple(pointers)))

    def allocated(self, made: View, like: View | None, source: Any = None, *, zeros: bool = False) -> None:
        """Note new memory of the call, and whether it is zeros; `source` is what the caller gets of it, if anything."""
        beside = None if like is None else self._number_of(like)
        if source is None or like is None:
            beside = 0  # inner results may lie beside inner results, and NumPy's arrays anywhere
        elif beside is None or beside >= len(self.arrays):
            self.refuse("memory that lies beside no argument")
            return
        begin = 0 if zeros else len(self.launches)  # they are filled before the first launch
        fresh = Fresh(made.shape, made.dtype, beside, source is not None, zeros, begin)
        self._made(fresh, made.address, made.owner, source)

    def released(self, made: View) -> None:
        """Note that an inner result is not used any more."""
        known = id(made.owner)
        if self._alive.pop(known, None) is not None:  # its memory may be handed out again, in this call too
            self.ends[self._numbers.pop(known)] = len(self.launches)

    def found_apart(self, a: View, b: View) -> None:
        """Note that two operands do not overlap."""
        if self._stays(a) or self._stays(b):
            return  # memory that no caller has
        numbers: list[Any] = [self._number_of(x) for x in (a, b)]
        if None in numbers:
            self.refuse("a comparison of memory of unknown origin")
        elif all(number < len(self.arrays) for number in numbers):  # new memory overlaps with nothing
            self.apart.add((numbers[0], numbers[1]))

    def looked(self, views: Sequence[View], question: Callable[..., Any], answer: Any) -> None:
        """Note a question about values of arguments, and its answer."""
        values: list[Any] = [self._values_of(view) for view in views]
        if None not in values:
            self.looks.append(Look(question, tuple(values), answer))

    def converted(self, view: View, make: Callable[[np.ndarray], np.ndarray], made: View) -> None:
        """Note a new array that was made of the values of an argument."""
        values = self._values_of(view)
        if values is not None:
            fresh = Fresh(made.shape, made.dtype, values.number, False, make=make, values=values)
            self._made(fresh, made.address, made.owner)

    def number_of_result(self, x: Any) -> int | None:
        """Number of an array that the call returned; None if it is none of those that were noted."""
        return self._numbers.get(id(x))

    def finish(self) -> None:
        """Look back at the whole call."""
        if not self.launches:
            self.refuse("no launch that can be made again")
        if self._unviewed:
            self.refuse("an array that may have been taken for numbers")
        if transfer.copies() != self.copies:
            self.refuse("copies between host and device")

    @property
    def graph_stream(self) -> int | None:
        """The stream whose graphs have the call done in another way; None if there is no such stream.

        A graph has counters of its own, and the default stream of a thread records it itself (`_streams.launched_on`).
        """
        # deferred: start-up
        from rocmkern.runtime.manager import default_manager

        if PER_THREAD_STREAM in (self.instead_of, self.stream):
            return PER_THREAD_STREAM
        if not self.counts or not self.launches or self.stream in (0, default_manager(self.target.device).stream):
            return None  # on those two no graph is ever recorded
        return self.stream

    def _stays(self, view: View) -> bool:
        return any(view.owner is owner for owner in self.constants)

    def _made(self, fresh: Fresh, address: int, *known_as: Any) -> None:
        number = len(self._bases)
        self.fresh.append(fresh)
        self._bases.append(address)
        for known in known_as:
            if known is not None:
                self._alive[id(known)] = known
                self._numbers[id(known)] = number

    def _values_of(self, view: View) -> Values | None:
        """What a view of an argument is of it, if that is all of it; otherwise None, and there is no plan."""
        number = self._number_of(view)
        whole = None if number is None else self._wholes.get(number)
        if whole is None or (whole.address, whole.dtype, whole.shape, whole.strides) != (
            view.address,
            view.dtype,
            view.shape,
            view.strides,
        ):
            self.refuse("the call looks at values that are not those of an argument")
            return None
        assert number is not None
        return Values(number, view.shape, view.strides, view.dtype)

    def _number_of(self, view: View) -> int | None:
        number = self._numbers.get(id(view.owner))
        if number is None and view.on_device:
            # An array of another library is wrapped anew in each call; the wrapper keeps the array itself.
            return self._numbers.get(id(view.owner.keep_alive()))
        return number


def active() -> Recorder | None:
    """The recorder of this thread's call, if it is recorded."""
    recorder: Recorder | None = thread.recorder
    return recorder


def viewed(x: Any, view: View) -> None:
    """Say that this thread's call takes an argument for memory: nothing but its layout matters."""
    if thread.recorder is not None:
        thread.recorder.viewed(x, view)


def released(made: View) -> None:
    """Say that this thread's call does not use an inner result any more."""
    if thread.recorder is not None:
        thread.recorder.released(made)


def keep(owner: Any) -> None:
    """Note memory that this thread's call uses and that stays where it is as long as somebody has its owner."""
    if thread.recorder is not None:
        thread.recorder.constants.append(owner)


def count_with(tensor: Any) -> None:
    """Note the counters of the stream that this thread's call uses."""
    keep(tensor)
    if thread.recorder is not None:
        thread.recorder.counts = True


def instead_of(stream: int) -> None:
    """Note the stream that this thread's call was asked to use, where it launches on another one."""
    if thread.recorder is not None:
        thread.recorder.instead_of = stream


@contextmanager
def constant_made() -> Iterator[None]:
    """The block may copy to the device what later calls will find there."""
    before = transfer.copies()
    yield
    if thread.recorder is not None:
        thread.recorder.copies += transfer.copies() - before


def record(recorder: Recorder, operation: Callable[[], Any]) -> Any:
    """Call an operation, and note what this thread does meanwhile."""
    # deferred: start-up
    from rocmkern.targets.launches import thread as launching

    thread.recorder = recorder
    before, launching.observer = launching.observer, recorder.launched
    try:
        result = operation()
    finally:
        thread.recorder, launching.observer = None, before
    recorder.finish()
    return result
