"""Faults of the runtime's memory, and the checks that notice them.

A wrong pool shows on a device that works later than it is told to, which neither the interpreter nor a CPU does. So the
checks run the runtime on a simulated GPU (`rocmkern.matrix.faults.simulated`), on every machine.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from rocmkern.matrix.faults.simulated import SimulatedGpu
from rocmkern.matrix.registry import Fault
from rocmkern.runtime.manager import ResourceManager
from rocmkern.runtime.memory import DeviceMemory
from rocmkern.runtime.settings import MemorySettings

_OLD, _NEW = 7.0, 9.0
_SIZE = 1000


class Place:
    """A device for one check: a manager, two streams, and streams that can be held back.

    Parameters
    ----------
    device : Device
        On another device than the simulated one a stream is late by itself, or this proves little.
    """

    def __init__(self, device: Any):
        self.device = device
        self.manager: ResourceManager = ResourceManager(device, settings=MemorySettings(), deadline_s=5)
        self.other: Any = device.create_stream()

    def hold(self, stream: int) -> None:
        """Let nothing of a stream run, where that can be had."""
        if isinstance(self.device, SimulatedGpu):
            self.device.hold(stream)

    def release(self, stream: int) -> None:
        """Let all of it run."""
        if isinstance(self.device, SimulatedGpu):
            self.device.release(stream)
        self.manager.wait("the stream", stream=stream)

    def full(self, value: float) -> Any:
        """A tensor of one value."""
        return self.manager.from_numpy(np.full(_SIZE, value, np.float32))


def zeros_are_zero_in_used_memory(place: Place) -> None:
    """A tensor of zeros in memory that held something else is zero."""
    for make in (place.manager.zeros, place.manager.empty):
        with place.full(_OLD):
            pass
        with make(_SIZE) as tensor:
            assert not tensor.to_numpy().any(), f"{make.__name__}() of used memory is not zero"


def memory_is_not_reused_before_its_streams_are_done(place: Place) -> None:
    """What another stream still reads does not change when its buffer has died."""
    manager, device = place.manager, place.device
    source = place.full(_OLD)
    manager.wait()
    into = manager.zeros(_SIZE)
    manager.wait()
    place.hold(place.other)
    source.record_stream(place.other)
    into.record_stream(place.other)
    device.copy_device(into.data_ptr, source.data_ptr, source.nbytes, place.other)
    source.close()
    with place.full(_NEW):
        manager.wait()
    place.release(place.other)
    assert (into.to_numpy() == _OLD).all(), "a buffer was given to somebody else while a stream read it"
    into.close()


def a_copy_to_the_host_waits_for_its_data(place: Place) -> None:
    """What is copied back is what was there, and it is there on return."""
    for value in (_OLD, _NEW):
        with place.full(value) as tensor:
            assert (tensor.to_numpy() == value).all(), "a copy to the host did not wait for its stream"


def a_copy_waits_for_the_streams_that_write(place: Place) -> None:
    """A copy of a tensor that another stream writes comes after it."""
    source = place.full(_OLD)
    with place.manager.zeros(_SIZE) as tensor:
        place.manager.wait()
        source.record_stream(place.other)
        tensor.record_stream(place.other)
        place.device.copy_device(tensor.data_ptr, source.data_ptr, source.nbytes, place.other)
        assert (tensor.to_numpy() == _OLD).all(), "a copy did not wait for the stream that writes the tensor"
    source.close()


def live_tensors_share_no_memory(place: Place) -> None:
    """Two tensors of a pool are apart, also when buffers were returned before."""
    for _ in range(2):
        place.full(_OLD).close()
    first, second = place.full(_OLD), place.full(_NEW)
    assert first.data_ptr != second.data_ptr, "two tensors have the same memory"
    assert (first.to_numpy() == _OLD).all() and (second.to_numpy() == _NEW).all(), "two tensors share memory"
    first.close()
    second.close()


def memory_is_given_back_once(place: Place) -> None:
    """Buffers that die, pooled and not, are returned without error, and afterwards as much is reserved as before."""
    memory, seen = DeviceMemory.of(place.device), []
    place.manager.trim()
    reserved, live = memory.reserved, len(memory.ledger.entries())
    before, sys.unraisablehook = sys.unraisablehook, lambda unraisable: seen.append(unraisable.exc_value)
    try:
        for settings in (MemorySettings(), MemorySettings(pool=False)):
            place.manager.settings = settings
            place.full(_OLD).close()
            memory.settle()
        place.manager.trim()
    finally:
        sys.unraisablehook = before
    assert not seen, f"returning a buffer failed: {seen[0]}"
    assert (memory.reserved, len(memory.ledger.entries())) == (reserved, live), "reserved bytes are left"


#: What must hold of the runtime, by name.
CHECKS: dict[str, Callable[[Place], None]] = {
    check.__name__: check
    for check in (
        zeros_are_zero_in_used_memory,
        memory_is_not_reused_before_its_streams_are_done,
        a_copy_to_the_host_waits_for_its_data,
        a_copy_waits_for_the_streams_that_write,
        live_tensors_share_no_memory,
        memory_is_given_back_once,
    )
}


def failing_checks(make_device: Callable[[], Any] = SimulatedGpu) -> dict[str, str]:
    """Run every check on a device of its own; those that fail, with the reason."""
    failed = {}
    for name, check in CHECKS.items():
        try:
            check(Place(make_device()))
        except Exception as error:
            failed[name] = f"{type(error).__name__}: {error}"
    return failed


def _without_zeroing(allocate: Callable[..., Any]) -> Callable[..., Any]:
    def faulty(self: Any, shape: Any, dtype: Any, *, fill: int | None, **others: Any) -> Any:
        return allocate(self, shape, dtype, fill=None if fill == 0 else fill, **others)

    return faulty


def _always_ready(ready: Callable[..., bool]) -> Callable[..., bool]:
    return lambda self, block, stream: True


def _without_waiting(wait: Callable[..., None]) -> Callable[..., None]:
    def faulty(self: Any, what: str | None = None, *, stream: int | None = None) -> None:
        # Copies name themselves when they wait.
        if not (what or "").startswith("the copy of"):
            wait(self, what, stream=stream)

    return faulty


def _out_of_order(order: Callable[..., None]) -> Callable[..., None]:
    return lambda tensor: None


def _twice(free: Callable[..., None]) -> Callable[..., None]:
    def faulty(self: Any, block: Any) -> None:
        free(self, block)
        self.device.free(block.address)

    return faulty


def _put_twice(put: Callable[..., None]) -> Callable[..., None]:
    def faulty(self: Any, block: Any, other_streams: frozenset[int]) -> None:
        put(self, block, other_streams)
        put(self, block, other_streams)

    return faulty


FAULTS = (
    Fault(
        "runtime_missing_zero_fill",
        "tensors of zeros are not filled",
        patches={"rocmkern.runtime.manager:ResourceManager._allocate": _without_zeroing},
    ),
    Fault(
        "runtime_early_reuse",
        "the pool hands out a block that a stream still uses",
        patches={"rocmkern.runtime.pool:Pool._ready": _always_ready},
    ),
    Fault(
        "runtime_copy_without_wait",
        "a copy to the host returns before its stream has done it",
        patches={"rocmkern.runtime.base_manager:BaseManager.wait": _without_waiting},
    ),
    Fault(
        "runtime_copy_out_of_order",
        "a copy does not wait for the other streams that use a tensor",
        patches={"rocmkern.runtime.transfer:order_after_users": _out_of_order},
    ),
    Fault(
        "runtime_double_free",
        "memory is given back to the driver twice",
        patches={"rocmkern.runtime.memory:DeviceMemory._free": _twice},
    ),
    Fault(
        "runtime_double_return",
        "a block is put into the pool twice",
        patches={"rocmkern.runtime.pool:Pool.put": _put_twice},
    ),
)
