"""What a plan does: the launches of a call, made again with other addresses."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from rocmkern.calls import recording as _recording
from rocmkern.calls import results as _results
from rocmkern.calls import streams as _streams
from rocmkern.calls.rooms import Room, places
from rocmkern.runtime.layout import StridedLayout
from rocmkern.runtime.manager import DeviceTensor, default_manager
from rocmkern.runtime.memory import Buffer
from rocmkern.runtime.mutex import Mutex, alone
from rocmkern.runtime.torch_tensors import torch_of

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

    key: tuple[Any, ...]
    arrays: list[Any]
    addresses: list[int]
    owners: list[Any]
    stream: int | None


class Plan:
    """The launches of one kind of call. Threads may share it.

    Parameters
    ----------
    recorder : Recorder
        Notes of the call.
    returned : int, tuple of int or None
        Numbers of the arrays that the operation returns.
    apart : list of Pair
        Arguments whose extents must not meet.
    """

    def __init__(self, recorder: _recording.Recorder, returned: Any, apart: list[Pair]):
        self._launches = [(launch.prepared, launch.pointers) for launch in recorder.launches]
        self._allowed: list[int] = []  # addresses of arguments that were found to allow them the last time
        self._fresh, self._returned, self._apart = recorder.fresh, returned, apart
        self._constants = recorder.constants  # the launches have their addresses
        #: Arguments that are written and that PyTorch has to know that of.
        self.written = [number for number in recorder.written if torch_of(recorder.arrays[number]) is not None]
        #: What is asked about values.
        self.looks: list[_recording.Look] = recorder.looks
        last, ends = len(recorder.launches), recorder.ends
        rooms = [
            Room(number, math.prod(fresh.shape) * fresh.dtype.itemsize, fresh.begin, ends.get(number, last))
            for number, fresh in enumerate(self._fresh, len(recorder.arrays))
            if not fresh.result and fresh.make is None
        ]
        self._inner, self._inner_bytes = places(rooms)

    def applies(self, addresses: list[int]) -> bool:
        """Whether the addresses allow what was recorded."""
        if addresses != self._allowed:
            for a, a_first, a_end, b, b_first, b_end in self._apart:
                at, other = addresses[a], addresses[b]
                if at + a_first < other + b_end and other + b_first < at + a_end:
                    return False
            self._allowed = addresses.copy()
        return True

    def agrees(self, arrays: list[Any], addresses: list[int]) -> bool:
        """Whether values of the arguments are as they were, in all that was asked; raises what a question raises."""
        for question, values, answer in self.looks:
            if question(*[each.read(arrays, addresses) for each in values]) != answer:
                return False
        return True

    @property
    def ended(self) -> bool:
        """Whether it never applies again."""
        return False

    def run(self, arrays: list[Any], addresses: list[int], owners: list[Any]) -> Any:
        """Launch for these arguments (see `PlannedCall`; the lists may change): what the operation returns."""
        raise NotImplementedError

    def _result(self, arrays: list[Any]) -> Any:
        """What the operation returns, of its arguments and what it has made."""
        returned = self._returned
        if type(returned) is int:
            return arrays[returned]
        return None if returned is None else tuple([arrays[number] for number in returned])


class HostPlan(Plan):
    """Launches of the cpu target, on arrays in host memory: of NumPy, or of PyTorch.

    Parameters
    ----------
    of_torch : bool
        Whether they are PyTorch's.
    recorder, returned, apart
        See `Plan`.
    """

    def __init__(self, of_torch: bool, recorder: _recording.Recorder, returned: Any, apart: list[Pair]):
        super().__init__(recorder, returned, apart)
        self._of_torch = of_torch
        made = dict(enumerate(self._fresh, len(recorder.arrays)))
        self._zeros = [
            slice(offset, offset + math.prod(made[number].shape) * made[number].dtype.itemsize)
            for number, offset in self._inner
            if made[number].zeros
        ]

    def run(self, arrays: list[Any], addresses: list[int], owners: list[Any]) -> Any:
        for fresh in self._fresh:
            array: Any = None
            address = 0
            if fresh.result and self._of_torch:
                array = _results.new_tensor(fresh.shape, fresh.dtype, arrays[fresh.like])
                address = array.data_ptr()
            elif fresh.result:
                array = _results.new_array(fresh.shape, fresh.dtype)
                address = array.__array_interface__["data"][0]
            elif fresh.make is not None and fresh.values is not None:
                array = fresh.make(fresh.values.read(arrays, addresses))
                address = array.__array_interface__["data"][0]
            arrays.append(array)
            addresses.append(address)
        if self._inner:
            with default_manager("host").empty(self._inner_bytes, np.uint8, uninitialized=True) as scratch:
                for number, offset in self._inner:
                    addresses[number] = scratch.data_ptr + offset
                for part in self._zeros:
                    scratch.numpy_view()[part] = 0
                self._launch(addresses)
        else:
            self._launch(addresses)
        return self._result(arrays)

    def _launch(self, addresses: list[int]) -> None:
        for launch, pointers in self._launches:
            words = launch.words.copy()
            for at, number, offset in pointers:
                words[at] = addresses[number] + offset
            launch(words)


class DevicePlan(Plan):
    """Launches on a GPU: between earlier and later uses of their arrays, as the ordinary way has it.

    Parameters
    ----------
    stream : int or None
        On which PyTorch goes on with its arrays.
    recorder, returned, apart
        See `Plan`.
    """

    def __init__(self, stream: int | None, recorder: _recording.Recorder, returned: Any, apart: list[Pair]):
        super().__init__(recorder, returned, apart)
        assert recorder.stream is not None
        self._device, self._stream = recorder.target.device, recorder.stream
        self._manager = default_manager(self._device)
        others = {other for other in (stream, recorder.instead_of) if other is not None}
        self._origins = tuple(map(_streams.Origin, others))
        # Whether PyTorch's arrays, if any, need no order with another stream.
        self._simple = all(origin.stream == self._stream for origin in self._origins)
        self._names = [launch.name for launch in recorder.launches]
        self._makes_results = any(fresh.result for fresh in self._fresh)
        self._no_addresses = [0] * len(self._fresh)
        self._graph_stream = recorder.graph_stream
        self._scratch = self._manager.scratch(self._inner_bytes, self._stream) if self._inner_bytes else None
        if self._scratch is not None:
            # So that there is room in the pool from now on, and later calls allocate nothing.
            self._scratch.lend(lambda _: None)
        self._lock = Mutex()
        self._addresses: list[int] = []  # whose are in the launch words

    def applies(self, addresses: list[int]) -> bool:
        """Whether the addresses allow what was recorded."""
        if addresses != self._allowed and not super().applies(addresses):
            return False
        if self._graph_stream is not None and self._device.is_capturing(self._graph_stream):
            return False
        return not self._manager.closed

    @property
    def ended(self) -> bool:
        # It takes memory from that manager.
        return self._manager.closed

    def run(self, arrays: list[Any], addresses: list[int], owners: list[Any]) -> Any:
        if self._fresh:
            if self._makes_results:
                self._allocate(arrays, addresses)
            else:
                addresses += self._no_addresses
        if self._scratch is not None:
            self._scratch.lend(self._submit_with, addresses, owners)
        else:
            self._submit(addresses, owners)
        return self._result(arrays)

    def _allocate(self, arrays: list[Any], addresses: list[int]) -> None:
        """Append the results to the lists, and places for the inner results."""
        for fresh in self._fresh:
            array: Any = None
            address = 0
            if fresh.result:
                beside = arrays[fresh.like]
                if isinstance(beside, DeviceTensor):
                    array, _ = _results.new_result(fresh.shape, fresh.dtype, beside.manager, self._stream)
                    address = array.data_ptr
                else:
                    array = _results.new_tensor(fresh.shape, fresh.dtype, beside)
                    address = array.data_ptr()
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


def plan_of(call: PlannedCall, recorder: _recording.Recorder, result: Any) -> Plan | None:
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
    if recorder.target.device is None:
        plan: Plan = HostPlan(any(type(x) is not np.ndarray for x in call.arrays), recorder, returned, apart)
    else:
        plan = DevicePlan(call.stream, recorder, returned, apart)
    # Arrays that interleave were told apart by their strides, which a plan does not do.
    return plan if plan.applies(call.addresses) else None
