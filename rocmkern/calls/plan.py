"""Plans: what a call did is done again, for arrays elsewhere, without asking the same questions again.

An operation is checks, choice of a configuration, and launches. All of it follows from *what* the arguments are: for an
array its device, element type, shape, strides and alignment (its layout); for anything else its value. It does not
follow from *where* the arrays are. So `planned`, the decorator of public operations,

1. makes a key of the layouts and values of the arguments, the target, the stream, and whether it is batch-invariant;
2. on the first call with a key runs the operation and notes its launches (`recording`): kernel, grid, all launch
   words, and which words are addresses, as "argument number n plus so many bytes". That is the plan;
3. on later calls puts the new addresses in and launches (`replay`).

A plan is a record of what the ordinary way did, so the two cannot disagree, and an operation needs no code for it. In
return an operation has to depend on nothing but its arguments. What cannot be noted has no plan and goes the ordinary
way each time: NumPy arrays whose values are read (`View.numpy` says so) or copied to a device, arrays taken for numbers
(axes, a window: no view of them is made), arrays of libraries other than PyTorch, other objects, calls that launch
nothing, or that use memory of unknown origin. Errors are found and raised by the ordinary way; those of values that an
operation asks about (`values`), by the question, in both ways.

What depends on addresses, or may change between two calls with the same key, is looked at in every call:

* whether outputs overlap with inputs: where their extents meet, the ordinary way decides;
* answers to what the operation asks about values in host memory: where one differs, the ordinary way is gone;
* which arguments are the same array, and the same object (part of the key);
* which streams used the arrays: the order between streams is that of the ordinary way;
* whether tensors and managers were closed;
* memory for results and inner results comes from the pool as ever, under cap, ledger, guard bands and poison.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from rocmkern.calls import invariance as _invariance
from rocmkern.calls import notes as _notes
from rocmkern.calls import recording as _recording
from rocmkern.calls import routing as _routing
from rocmkern.calls import spellings as _spellings
from rocmkern.calls import streams as _streams
from rocmkern.calls.adapters import torch_tensors as _torch_tensors
from rocmkern.calls.replay import Plan, PlannedCall, plan_of
from rocmkern.calls.view import HOST
from rocmkern.runtime.errors import ReentryError
from rocmkern.runtime.layout import ALIGNMENT, StridedLayout, layout_of
from rocmkern.runtime.manager import DeviceTensor
from rocmkern.runtime.target_choice import state as target_state
from rocmkern.runtime.torch_tensors import note_write, outside_of_transforms
from rocmkern.targets import sent_to

#: Plans of one operation that are kept at least; twice as many at most.
LIMIT = 128
_KNOWN_LAYOUTS = 4096

_BY_VALUE = frozenset((int, bool, str, type(None)))
_launch: Any = None  # imported by the first call that needs it: `import rocmkern` stays cheap
_by_repr: set[type] = set()
# Filled when PyTorch is first seen: a process without it does not import it.
_torch_kinds: set[type] = set()
_torch_streams: set[type] = set()
_torch: Any = None
_outside: Any = None
_host_layouts: dict[tuple[Any, ...], StridedLayout] = {}
_torch_layouts: dict[tuple[Any, ...], StridedLayout | None] = {}
Function = TypeVar("Function", bound=Callable[..., Any])
_all_plans: list[Plans] = []


class _Untried:
    """Stands for a plan that nobody has tried to make."""


UNTRIED = _Untried()


class Plans:
    """The plans of one operation. What is not used while `LIMIT` others are made is forgotten.

    Two generations: a plan that is used in the old one moves to the young one, and when the young one is full it
    becomes the old one. Threads may share it; at worst a plan is made twice.
    """

    def __init__(self) -> None:
        self._young: dict[tuple[Any, ...], Plan | None] = {}
        self._old: dict[tuple[Any, ...], Plan | None] = {}
        _all_plans.append(self)

    def __len__(self) -> int:
        return len(self._young.keys() | self._old.keys())

    def get(self, key: tuple[Any, ...]) -> Plan | _Untried | None:
        """The plan of a key; None where a call cannot be planned, `UNTRIED` where that is not known."""
        plan = self._young.get(key, UNTRIED)
        if plan is UNTRIED:
            plan = self._old.get(key, UNTRIED)
            if not isinstance(plan, _Untried):
                self.keep(key, plan)
        return plan

    def keep(self, key: tuple[Any, ...], plan: Plan | None) -> None:
        """Remember a plan, or that there is none."""
        if len(self._young) >= LIMIT:
            self._old, self._young = self._young, {}
        self._young[key] = plan

    def forget(self) -> None:
        """Forget all of them."""
        self._young, self._old = {}, {}


def planned(operation: Function) -> Function:
    """Decorate a public operation: calls on arrays in device memory, or on NumPy arrays, are planned (see this module).

    The launches of the operation must follow from its arguments, and memory that it needs between launches must come
    from `_launch.temporary`.
    """
    plans, thread = Plans(), _notes.thread

    @functools.wraps(operation)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            # A step of an operation that is being recorded is recorded too.
            found = _read(args, kwargs) if thread.recorder is None else None
            if found is None:
                return _routing.ordinary(operation, args, kwargs)
            key, arrays, addresses, owners, _ = found
            plan = plans.get(key)
            if plan is None:
                return operation(*args, **kwargs)
            if isinstance(plan, _Untried) or plan.ended:
                return _record(plans, operation, PlannedCall(*found), args, kwargs)
            if not plan.applies(addresses) or (plan.looks and not plan.agrees(arrays, addresses)):
                return operation(*args, **kwargs)
            for number in plan.written:
                note_write(arrays[number])
            return plan.run(arrays, addresses, owners)
        except TypeError as error:
            _spellings.explain(operation, kwargs, error)
            raise
        except (AttributeError, ImportError) as error:
            _refuse_within_import(operation, error)
            raise

    call.plans = plans  # type: ignore[attr-defined]
    _routing.OPERATIONS[operation.__name__] = call
    return call  # type: ignore[return-value]


def unplanned(operation: Function) -> Function:
    """Decorate a public operation whose calls are not planned."""

    @functools.wraps(operation)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return _routing.ordinary(operation, args, kwargs)
        except TypeError as error:
            _spellings.explain(operation, kwargs, error)
            raise
        except (AttributeError, ImportError) as error:
            _refuse_within_import(operation, error)
            raise

    _routing.OPERATIONS[operation.__name__] = call
    return call  # type: ignore[return-value]


def _refuse_within_import(operation: Callable[..., Any], error: Exception) -> None:
    """Say so where a call interrupted, in its own thread, the import of what it needs."""
    if "partially initialized module" in str(error):
        raise ReentryError(
            f"{operation.__name__}: a signal handler or a finalizer (__del__) called it while the same thread "
            "prepared its first call of a kind. Let the handler set a flag, and do the work when that call has returned"
        ) from error


def _record(
    plans: Plans, operation: Callable[..., Any], call: PlannedCall, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Run an operation the ordinary way, and make a plan of what it did."""
    recorder = _recording.Recorder(call.arrays, call.addresses)
    result = _recording.record(recorder, functools.partial(operation, *args, **kwargs))
    stream = recorder.graph_stream
    if stream is not None and recorder.target.device.is_capturing(stream):
        return result  # what was noted holds in that graph only: the first call outside is where the plan is made
    plans.keep(call.key, plan_of(call, recorder, result))
    return result


def _read(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...] | None:
    """The fields of a `PlannedCall`; None where it is none for a plan. Each call comes here: it counts nanoseconds."""
    key: list[Any] = [_invariance.active(), len(args), *kwargs]
    arrays: list[Any] = []
    addresses: list[int] = []
    owners: list[Any] = []
    stream = layout = None
    on_host = of_torch = False
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
            if value.is_neg() or (value.requires_grad and _torch.is_grad_enabled()):
                return None
            if not of_torch:
                if not _outside() and not _notes.thread.in_operator:
                    return None
                of_torch = True
            if value.is_cuda:
                index = value.get_device()
                if stream is None:
                    stream = _streams.current_stream_of_torch(index)
            elif value.is_cpu:
                index, on_host = -1, True
            else:
                return None
            try:
                address = value.data_ptr()
                known = index, value.dtype, value.shape, value.stride(), address % ALIGNMENT
            except RuntimeError:  # sparse or nested: it has none of these
                return None
            layout = (_torch_layouts.get(known) or _torch_layout(value, known)) if address else None
            if layout is None:
                return None
            addresses.append(address)
        elif kind in _by_repr:
            key += (kind, repr(value))
            continue
        elif kind is np.ndarray:
            address = value.__array_interface__["data"][0]
            known = address % ALIGNMENT, value.dtype, value.shape, value.strides, value.flags.writeable
            layout = _host_layouts.get(known) or _host_layout(value, address, known)
            on_host = True
            addresses.append(address)
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
    if layout is None:
        on_host = True  # no array at all: results are NumPy's
    elif not on_host and layout.device.host_accessible:
        return None
    if on_host:
        if of_torch:
            if not all([type(array) in _torch_kinds and array.is_cpu for array in arrays]):
                return None  # a mixture
            key.append(_torch)  # their layouts are those of NumPy's arrays
        elif not all([type(array) is np.ndarray for array in arrays]):
            return None
    if len(set(addresses)) != len(addresses):
        # Also which are one object: one of them may be the result.
        objects = [*map(id, arrays)]
        key += (tuple, *map(addresses.index, addresses), *map(objects.index, objects))
    if stream is not None:
        key.append(stream)
    if on_host:
        # What the target follows from: it need not be looked up.
        key += (sent_to.get(), target_state())
    else:
        assert layout is not None
        key.append((_launch or _import_launch()).target_of(layout.device))
    return tuple(key), arrays, addresses, owners, stream


def describe_by_repr(*kinds: type) -> None:
    """Let calls with arguments of these types be planned: what they mean is their ``repr``, whole and exact."""
    _by_repr.update(kinds)


def _import_launch() -> Any:
    global _launch
    # deferred: start-up
    from rocmkern.calls import launch as module

    _launch = module
    return module


def _learn(kind: type) -> bool:
    """Look whether a type is PyTorch's; whether it was not known before."""
    global _torch, _outside
    torch: Any = sys.modules.get("torch")
    if torch is None or _torch_kinds or kind not in (torch.Tensor, torch.nn.Parameter, torch.cuda.Stream):
        return False
    _torch, _outside = torch, outside_of_transforms(torch)
    _torch_streams.add(torch.cuda.Stream)
    _torch_kinds.update((torch.Tensor, torch.nn.Parameter))
    return True


def _host_layout(x: np.ndarray, address: int, key: tuple[Any, ...]) -> StridedLayout:
    """StridedLayout of an array in host memory, remembered."""
    if len(_host_layouts) >= _KNOWN_LAYOUTS:
        _host_layouts.clear()
    layout = layout_of(HOST, address, x.dtype, x.shape, x.strides, not x.flags.writeable)
    return _host_layouts.setdefault(key, layout)


def _torch_layout(x: Any, key: tuple[Any, ...]) -> StridedLayout | None:
    """StridedLayout of a torch tensor, remembered; None where operations do not take its element type."""
    layout = _torch_layouts.get(key, UNTRIED)
    if isinstance(layout, _Untried):
        if len(_torch_layouts) >= _KNOWN_LAYOUTS:
            _torch_layouts.clear()
        layout = _torch_layouts[key] = _torch_tensors.layout(x)
    return layout


def _no_plan(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """What PyTorch's tracer sees of `_read`: a call that goes the way of `routing`."""
    return


_routing.for_dynamo(_read, _no_plan)


def forget_all() -> None:
    """Forget the plans of all operations: where what they follow from changes, such as the tables of block sizes."""
    for plans in _all_plans:
        plans.forget()


if hasattr(os, "register_at_fork"):
    # The ordinary way says that a GPU context does not survive a fork.
    os.register_at_fork(after_in_child=forget_all)
