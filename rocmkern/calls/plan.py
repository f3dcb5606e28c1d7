"""Plans: what a call did is done again, for arrays elsewhere, without asking the same questions again.

An operation on the GPU is checks, choice of a configuration, and launches. All of it follows from *what* the arguments
are: for an array its device, element type, shape, strides and alignment (its layout); for anything else its value. It
does not follow from *where* the arrays are. So `planned`, the decorator of public operations,

1. makes a key of the layouts and values of the arguments, the target and the stream;
2. on the first call with a key runs the operation and notes its launches (`_recording`): kernel, grid, all launch
   words, and which words are addresses, as "argument number n plus so many bytes". That is the plan;
3. on later calls puts the new addresses in and launches.

A plan is a record of what the ordinary way did, so the two cannot disagree, and an operation needs no code for it. In
return an operation has to depend on nothing but its arguments. What cannot be noted has no plan and goes the ordinary
way each time: host arrays (they are copied, or their values are checked), arrays of libraries other than PyTorch, other
objects, calls that copy, that launch nothing, or that use memory of unknown origin. Errors are found and raised by the
ordinary way only.

What depends on addresses, or may change between two calls with the same key, is looked at in every call:

* whether outputs overlap with inputs: where their extents meet, the ordinary way decides;
* which arguments are the same array (part of the key);
* which streams used the arrays: the order between streams is that of the ordinary way;
* whether tensors and managers were closed;
* memory for results and inner results comes from the pool as ever, under cap, ledger, guard bands and poison.
"""

from __future__ import annotations

import functools
import math
import os
import sys
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import numpy as np

from rocmkern.calls import arrays as _arrays
from rocmkern.calls import graph_break as _graph_break
from rocmkern.calls import recording as _recording
from rocmkern.calls import spellings as _spellings
from rocmkern.calls import streams as _streams
from rocmkern.runtime.layout import ALIGNMENT, StridedLayout
from rocmkern.runtime.manager import DeviceTensor
from rocmkern.runtime.memory import Buffer
from rocmkern.runtime.mutex import Mutex, alone
from rocmkern.runtime.torch_tensors import outside_of_transforms

#: Plans of one operation that are kept at least; twice as many at most.
LIMIT = 128
_KNOWN_LAYOUTS = 4096
_SCRATCH_ALIGNMENT = 256  # as that of an allocation

_BY_VALUE = frozenset((int, bool, str, type(None)))
_launch: Any = None  # imported by the first call that needs it: `import rocmkern` stays cheap
_by_repr: set[type] = set()
# Filled when PyTorch is first seen: a process without it does not import it.
_torch_kinds: set[type] = set()
_torch_streams: set[type] = set()
_torch: Any = None
_strided: Any = None
_torch_layouts: dict[tuple, StridedLayout | None] = {}
Function = TypeVar("Function", bound=Callable[..., Any])
_all_plans: list[Plans] = []


#: Two arguments whose extents must not meet: number, first byte and end of one (from its element 0), then of the other.
Pair = tuple[int, int, int, int, int, int]


class PlannedCall(NamedTuple):
    """The arguments of a call as a plan sees them.

    Attributes
    ----------
    key : tuple
        Equal for calls that do the same.
    arrays, addresses : list
        The array arguments, and where their elements 0 are.
    owners : list
        What holds the memory of those that are our own.
    stream : int or None
        On which PyTorch goes on with its arrays; None where there are none.
    """

    key: tuple
    arrays: list[Any]
    addresses: list[int]
    owners: list[Any]
    stream: int | None


class Plan:
    """The launches of one kind of call. Threads may share it.

    Parameters
    ----------
    call : PlannedCall
        That was recorded.
    recorder : Recorder
        Its notes.
    returned : int, tuple of int or None
        Numbers of the arrays that the operation returns.
    apart : list of Pair
        Arguments whose extents must not meet.
    """

    def __init__(self, call: PlannedCall, recorder: _recording.Recorder, returned: Any, apart: list[Pair]):
        from rocmkern.runtime.manager import default_manager

        assert recorder.stream is not None
        self._device, self._stream = recorder.target.device, recorder.stream
        self._manager = default_manager(self._device)
        others = {stream for stream in (call.stream, recorder.instead_of) if stream is not None}
        self._origins = tuple(map(_streams.Origin, others))
        # Whether PyTorch's arrays, if any, need no order with another stream.
        self._simple = all(origin.stream == self._stream for origin in self._origins)
        self._names = [launch.name for launch in recorder.launches]
        self._launches = [(launch.prepared, launch.pointers) for launch in recorder.launches]
        self._allowed: list[int] = []  # addresses of arguments that were found to allow them the last time
        self._fresh, self._returned, self._apart = recorder.fresh, returned, apart
        self._makes_results = any(fresh.result for fresh in self._fresh)
        self._no_addresses = [0] * len(self._fresh)
        self._constants = recorder.constants  # the launches have their addresses
        self._graph_stream = recorder.graph_stream
        # Inner results lie one after another in one piece of memory: (number of the array, offset).
        self._inner: list[tuple[int, int]] = []
        scratch_bytes = 0
        for number, fresh in enumerate(self._fresh, len(call.arrays)):
            if not fresh.result:
                self._inner.append((number, scratch_bytes))
                nbytes = math.prod(fresh.shape) * fresh.dtype.itemsize
                scratch_bytes += -(-nbytes // _SCRATCH_ALIGNMENT) * _SCRATCH_ALIGNMENT
        self._scratch = self._manager.scratch(scratch_bytes, self._stream) if scratch_bytes else None
        if self._scratch is not None:
            # So that there is room in the pool from now on, and later calls allocate nothing.
            self._scratch.lend(lambda _: None)
        self._lock = Mutex()
        self._addresses: list[int] = []  # whose are in the launch words

    def applies(self, addresses: list[int]) -> bool:
        """Whether the addresses allow what was recorded."""
        if addresses != self._allowed:
            for a, a_first, a_end, b, b_first, b_end in self._apart:
                at, other = addresses[a], addresses[b]
                if at + a_first < other + b_end and other + b_first < at + a_end:
                    return False
            self._allowed = addresses.copy()
        if self._graph_stream is not None and self._device.is_capturing(self._graph_stream):
            return False
        return not self._manager.closed

    @property
    def ended(self) -> bool:
        """Whether the manager was closed from which it takes memory, so that it never applies again."""
        return self._manager.closed

    def run(self, arrays: list[Any], addresses: list[int], owners: list[Any]) -> Any:
        """Launch for these arguments (see `PlannedCall`; the lists may change): what the operation returns."""
        if self._fresh:
            if self._makes_results:
                self._allocate(arrays, addresses)
            else:
                addresses += self._no_addresses
        if self._scratch is not None:
            self._scratch.lend(self._submit_with, addresses, owners)
        else:
            self._submit(addresses, owners)
        returned = self._returned
        if type(returned) is int:
            return arrays[returned]
        return None if returned is None else tuple([arrays[number] for number in returned])

    def _allocate(self, arrays: list[Any], addresses: list[int]) -> None:
        """Append the results to the lists, and places for the inner results."""
        for fresh in self._fresh:
            array, address = None, 0
            if fresh.result:
                beside = arrays[fresh.like]
                own = isinstance(beside, DeviceTensor)
                manager = beside.manager if own else self._manager
                library = None if own else _streams.library_of(beside)
                tensor, array = _arrays.new_result(fresh.shape, fresh.dtype, manager, self._stream, library)
                address = tensor.data_ptr
            arrays.append(array)
            addresses.append(address)

    def _submit_with(self, scratch: int, addresses: list[int], owners: list[Any]) -> None:
        for number, offset in self._inner:
            addresses[number] = scratch + offset
        self._submit(addresses, owners)

    def _submit(self, addresses: list[int], owners: list[Any]) -> None:
        stream, simple = self._stream, self._simple
        for owner in owners:
            if type(owner) is not Buffer or owner.only_stream != stream:
                simple = False
        if simple:
            self._device.call_current(self._start, addresses)
        else:
            _streams.between_uses(
                lambda: self._device.call_current(self._start, addresses),
                self._manager, self._origins, owners, stream, self._names[-1],
            )  # fmt: skip
        self._manager.note(self._names, stream)

    def _start(self, addresses: list[int]) -> None:
        with alone(self._lock):
            if addresses != self._addresses:
                self._addresses = []  # an exception on the way leaves words of two calls
                for launch, pointers in self._launches:
                    words = launch.words
                    for at, number, offset in pointers:
                        words[at] = addresses[number] + offset
                self._addresses = addresses
            for launch, _ in self._launches:
                launch()


class _Untried:
    """Stands for a plan that nobody has tried to make."""


UNTRIED = _Untried()


class Plans:
    """The plans of one operation. What is not used while `LIMIT` others are made is forgotten.

    Two generations: a plan that is used in the old one moves to the young one, and when the young one is full it
    becomes the old one. Threads may share it; at worst a plan is made twice.
    """

    def __init__(self) -> None:
        self._young: dict[tuple, Plan | None] = {}
        self._old: dict[tuple, Plan | None] = {}
        _all_plans.append(self)

    def __len__(self) -> int:
        return len(self._young.keys() | self._old.keys())

    def get(self, key: tuple) -> Plan | _Untried | None:
        """The plan of a key; None where a call cannot be planned, `UNTRIED` where that is not known."""
        plan = self._young.get(key, UNTRIED)
        if plan is UNTRIED:
            plan = self._old.get(key, UNTRIED)
            if not isinstance(plan, _Untried):
                self.keep(key, plan)
        return plan

    def keep(self, key: tuple, plan: Plan | None) -> None:
        """Remember a plan, or that there is none."""
        if len(self._young) >= LIMIT:
            self._old, self._young = self._young, {}
        self._young[key] = plan

    def forget(self) -> None:
        """Forget all of them."""
        self._young, self._old = {}, {}


def planned(operation: Function) -> Function:
    """Decorate a public operation: calls on arrays in device memory are planned (see this module).

    The launches of the operation must follow from its arguments, and memory that it needs between launches must come
    from `_launch.temporary`.
    """
    plans, thread = Plans(), _recording.thread

    @functools.wraps(operation)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            # A step of an operation that is being recorded is recorded too.
            found = _read(args, kwargs) if thread.recorder is None else None
            if found is None:
                return operation(*args, **kwargs)
            key, arrays, addresses, owners, _ = found
            plan = plans.get(key)
            if plan is None:
                return operation(*args, **kwargs)
            if isinstance(plan, _Untried) or plan.ended:
                return _record(plans, operation, PlannedCall(*found), args, kwargs)
            if not plan.applies(addresses):
                return operation(*args, **kwargs)
            return plan.run(arrays, addresses, owners)
        except TypeError as error:
            _spellings.explain(operation, kwargs, error)
            raise

    call.plans = plans  # type: ignore[attr-defined]
    for function in (operation, call):
        _graph_break.end_graphs_before(function)
    return call  # type: ignore[return-value]


def unplanned(operation: Function) -> Function:
    """Decorate a public operation whose calls are not planned."""

    @functools.wraps(operation)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return operation(*args, **kwargs)
        except TypeError as error:
            _spellings.explain(operation, kwargs, error)
            raise

    for function in (operation, call):
        _graph_break.end_graphs_before(function)
    return call  # type: ignore[return-value]


def _record(plans: Plans, operation: Callable, call: PlannedCall, args: tuple, kwargs: dict[str, Any]) -> Any:
    """Run an operation the ordinary way, and make a plan of what it did."""
    recorder = _recording.Recorder(call.arrays, call.addresses)
    with _recording.recording(recorder):
        result = operation(*args, **kwargs)
    stream = recorder.graph_stream
    if stream is not None and recorder.target.device.is_capturing(stream):
        return result  # what was noted holds in that graph only: the first call outside is where the plan is made
    plans.keep(call.key, _plan_of(call, recorder, result))
    return result


def _plan_of(call: PlannedCall, recorder: _recording.Recorder, result: Any) -> Plan | None:
    """The plan of a recorded call; None where it cannot be repeated."""
    returned: Any = None
    if isinstance(result, tuple):
        returned = tuple([recorder.number_of_result(x) for x in result])
        if None in returned:
            recorder.refuse("a result of unknown origin")
    elif result is not None:
        returned = recorder.number_of_result(result)
        if returned is None:
            recorder.refuse("a result of unknown origin")
    if recorder.refused is not None:
        return None
    layouts = [part for part in call.key if type(part) is StridedLayout]
    apart: list[Pair] = []
    for a, b in recorder.apart:
        one, other = layouts[a], layouts[b]
        apart.append((a, one.first, one.end, b, other.first, other.end))
    plan = Plan(call, recorder, returned, apart)
    # Arrays that interleave were told apart by their strides, which a plan does not do.
    return plan if plan.applies(call.addresses) else None


def _read(args: tuple, kwargs: dict[str, Any]) -> tuple | None:
    """The fields of a `PlannedCall`; None where it is none for a plan. Each call comes here: it counts nanoseconds."""
    key: list[Any] = [len(args), *kwargs]
    arrays: list[Any] = []
    addresses: list[int] = []
    owners: list[Any] = []
    stream = layout = None
    values = [*args, *kwargs.values()]
    for value in values:  # a tuple adds its items at the end
        kind = type(value)
        if kind is DeviceTensor:
            storage = value._storage
            owner = None if storage is None else storage.owner
            if owner is None:
                return None  # closed
            layout = value._layout or value.layout
            owners.append(owner)
            addresses.append(value._address)
        elif kind in _BY_VALUE:
            # The type too: 1, 1.0 and True are equal.
            key += (kind, value)
            continue
        elif kind is tuple:
            key += (kind, len(value))
            values += value
            continue
        elif kind is float:
            key += (kind, value or str(value))  # 0.0 and -0.0 are equal too
            continue
        elif kind in _torch_kinds:
            if not value.is_cuda or value.layout is not _strided or value.is_neg():
                return None
            if value.requires_grad and _torch.is_grad_enabled():
                return None
            if stream is None:
                if not outside_of_transforms(_torch):
                    return None
                stream = _streams.current_stream_of_torch(value.get_device())
            address = value.data_ptr()
            layout = _torch_layout(value, address) if address else None
            if layout is None:
                return None
            addresses.append(address)
        elif kind in _by_repr:
            key += (kind, repr(value))
            continue
        elif isinstance(value, (np.dtype, type)):
            key += (kind, value)
            continue
        elif isinstance(value, np.generic):
            key += (kind, value.tobytes())
            continue
        elif kind in _torch_streams:
            key += (kind, value.cuda_stream)
            continue
        else:
            return _read(args, kwargs) if _learn(kind) else None
        key.append(layout)
        arrays.append(value)
    if layout is None or layout.device.host_accessible:
        return None
    if len(set(addresses)) != len(addresses):
        key += (tuple, *map(addresses.index, addresses))
    if stream is not None:
        key.append(stream)
    key.append((_launch or _import_launch()).target_of(layout.device))
    return tuple(key), arrays, addresses, owners, stream


def describe_by_repr(*kinds: type) -> None:
    """Let calls with arguments of these types be planned: what they mean is their ``repr``, whole and exact."""
    _by_repr.update(kinds)


def _import_launch() -> Any:
    global _launch
    from rocmkern.calls import launch as module

    _launch = module
    return module


def _learn(kind: type) -> bool:
    """Look whether a type is PyTorch's; whether it was not known before."""
    global _torch, _strided
    torch: Any = sys.modules.get("torch")
    if torch is None or _torch_kinds or kind not in (torch.Tensor, torch.nn.Parameter, torch.cuda.Stream):
        return False
    _torch, _strided = torch, torch.strided
    _graph_break.hide_frames(torch)
    _torch_streams.add(torch.cuda.Stream)
    _torch_kinds.update((torch.Tensor, torch.nn.Parameter))
    return True


def _torch_layout(x: Any, address: int) -> StridedLayout | None:
    """StridedLayout of a torch tensor in device memory; None where operations do not take its element type."""
    key = x.get_device(), x.dtype, x.shape, x.stride(), address % ALIGNMENT
    layout = _torch_layouts.get(key, UNTRIED)
    if isinstance(layout, _Untried):
        if len(_torch_layouts) >= _KNOWN_LAYOUTS:
            _torch_layouts.clear()
        layout = _torch_layouts[key] = _arrays.torch_layout(x)
    return layout


# Where PyTorch was imported after us, these see the first of its tensors, and then hide the rest of our frames.
for _function in (_read, _learn):
    _graph_break.end_graphs_before(_function)


def forget_all() -> None:
    """Forget the plans of all operations: where what they follow from changes, such as the tables of block sizes."""
    for plans in _all_plans:
        plans.forget()


if hasattr(os, "register_at_fork"):
    # The ordinary way says that a GPU context does not survive a fork.
    os.register_at_fork(after_in_child=forget_all)
