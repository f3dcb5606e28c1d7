"""A GPU made of host memory that is as late as a driver may be: what is submitted to a stream runs when it must.

Work runs when somebody asks for the second time whether an event behind it is done; a stream that is held does not even
then. Memory that is freed twice, or was never allocated, is an error, as with a driver.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from rocmkern.runtime.cap import Reading
from rocmkern.runtime.device import Device, DeviceInfo, MemoryInfo, Stream
from rocmkern.runtime.errors import DriverError

_ALIGNMENT = 256
_TOTAL = 1 << 26


@dataclass(eq=False)
class _Event:
    done: bool = False
    asked: bool = False


class SimulatedGpu(Device):
    """A device of `_TOTAL` bytes; the runtime cannot tell it from a card."""

    def __init__(self) -> None:
        self.info: DeviceInfo = DeviceInfo("hip", 0, "simulated", "0000:00:00.0", False, _TOTAL, "gfx1100")
        self._memory: dict[int, np.ndarray] = {}
        self._work: dict[Stream, deque[Callable[[], None]]] = {}
        self._owner_of: dict[_Event, Stream] = {}
        self._held: set[Stream] = set()
        self._streams = itertools.count(0x100)
        # Freed memory is not given back to the host, where work that comes too late would destroy something else.
        self._freed: list[np.ndarray] = []

    # What a test does

    def hold(self, stream: Stream) -> None:
        """Let nothing more of a stream run."""
        self._held.add(stream)

    def release(self, stream: Stream) -> None:
        """Let it run again, all of it now."""
        self._held.discard(stream)
        self._run(stream)

    # What a driver does

    def memory_info(self) -> MemoryInfo:
        used = sum(array.nbytes - _ALIGNMENT for array in self._memory.values())
        return MemoryInfo(Reading(_TOTAL - used, "simulated"), Reading(_TOTAL, "simulated"))

    def allocate(self, nbytes: int) -> int:
        array = np.full(nbytes + _ALIGNMENT, 0xA5, np.uint8)
        address = -(-array.ctypes.data // _ALIGNMENT) * _ALIGNMENT
        self._memory[address] = array
        return address

    def free(self, address: int) -> None:
        if address not in self._memory:
            raise DriverError("free", "invalid address, or freed before", str(self.info))
        self._freed.append(self._memory.pop(address))

    def allocated(self) -> dict[int, int]:
        return {address: array.nbytes - _ALIGNMENT for address, array in self._memory.items()}

    def flush(self) -> None:
        pass

    def current(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def create_stream(self) -> Stream:
        return next(self._streams)

    def fill(self, address: int, nbytes: int, byte: int, stream: Stream) -> None:
        self._submit(stream, lambda: ctypes.memset(address, byte, nbytes))

    def copy_to_device(self, destination: int, source: int, nbytes: int, stream: Stream) -> None:
        self._submit(stream, lambda: ctypes.memmove(destination, source, nbytes))

    copy_to_host = copy_to_device
    copy_device = copy_to_device

    def record(self, stream: Stream) -> _Event:
        event = _Event()
        self._owner_of[event] = stream
        self._submit(stream, lambda: setattr(event, "done", True))
        return event

    def query(self, event: _Event) -> bool:
        if event.asked and not event.done:
            self._run(self._owner_of[event])
        event.asked = True
        return event.done

    def release_event(self, event: _Event) -> None:
        pass

    def stream_wait(self, stream: Stream, event: _Event) -> None:
        self._submit(stream, lambda: self._run(self._owner_of[event]) if not event.done else None)

    def _submit(self, stream: Stream, work: Callable[[], Any]) -> None:
        self._work.setdefault(stream, deque()).append(work)

    def _run(self, stream: Stream) -> None:
        work = self._work.get(stream, ())
        while work and stream not in self._held:
            work.popleft()()
