"""A GPU made of host memory, whose free memory, streams and failures a test controls."""

from __future__ import annotations

import contextlib
import ctypes
import itertools

import numpy as np

from rocmkern.runtime.cap import Reading
from rocmkern.runtime.device import Device, DeviceInfo, MemoryInfo
from rocmkern.runtime.mutex import Mutex

ALIGNMENT = 256


class FakeEvent:
    """Done once the stream has passed the position at which it was recorded."""

    def __init__(self, stream: int, position: int):
        self.stream, self.position, self.released = stream, position, False


class FakeDevice(Device):
    """Counts what a driver would; `stall(stream)` stops a stream until `resume(stream)`."""

    def __init__(self, total: int | None = 1 << 30, *, used_by_others: int = 0, kind: str = "hip"):
        self.info = DeviceInfo(kind, 0, "Fake RX 7900 XT", "0000:03:00.0", False, total or 0, "gfx1100")
        self.total, self.used_by_others = total, used_by_others
        self.reported_free: int | str | None = "computed"
        self.leaked = 0
        self.memory: dict[int, np.ndarray] = {}
        self.sizes: dict[int, int] = {}
        self.calls: list[str] = []
        self.allocations = 0
        self.fail_allocations: set[int] = set()
        self.live_events = 0
        self.stalled: set[int] = set()
        self._streams = itertools.count(0x100)
        self._positions: dict[int, int] = {}
        self._passed: dict[int, int] = {}
        self._lock = Mutex()

    @property
    def driver_bytes(self) -> int:
        return sum(self.sizes.values())

    def memory_info(self) -> MemoryInfo:
        free = self.reported_free
        if free == "computed":
            free = (self.total or 0) - self.used_by_others - self.driver_bytes - self.leaked
        return MemoryInfo(Reading(free, "fake driver"), Reading(self.total, "fake driver"))

    def allocate(self, nbytes: int) -> int:
        assert nbytes > 0
        with self._lock:
            self.allocations += 1
            self.calls.append("allocate")
            if self.allocations in self.fail_allocations:
                raise MemoryError("fake driver is out of memory")
            # The pages of a huge one are never touched: the host has no such memory.
            array = np.empty(nbytes + ALIGNMENT, np.uint8)
            address = -(-array.ctypes.data // ALIGNMENT) * ALIGNMENT
            self.memory[address], self.sizes[address] = array, nbytes
            return address

    def free(self, address: int) -> None:
        with self._lock:
            self.calls.append("free")
            del self.memory[address], self.sizes[address]

    def allocated(self) -> dict[int, int]:
        return dict(self.sizes)

    def flush(self) -> None:
        self.calls.append("flush")

    def current(self):
        return contextlib.nullcontext()

    def create_stream(self) -> int:
        return next(self._streams)

    def fill(self, address: int, nbytes: int, byte: int, stream: int) -> None:
        self.submit(stream)
        ctypes.memset(address, byte, nbytes)

    def copy_to_device(self, destination: int, source: int, nbytes: int, stream: int) -> None:
        self.submit(stream)
        ctypes.memmove(destination, source, nbytes)

    copy_to_host = copy_to_device
    copy_device = copy_to_device

    def record(self, stream: int) -> FakeEvent:
        with self._lock:
            self.live_events += 1
            return FakeEvent(stream, self._positions.get(stream, 0))

    def query(self, event: FakeEvent) -> bool:
        assert not event.released, "an event was used after it was given back"
        return event.stream not in self.stalled or event.position <= self._passed.get(event.stream, 0)

    def release_event(self, event: FakeEvent) -> None:
        with self._lock:
            assert not event.released, "an event was given back twice"
            event.released = True
            self.live_events -= 1

    def stream_wait(self, stream: int, event: FakeEvent) -> None:
        self.calls.append(f"stream {stream:#x} waits for {event.stream:#x}")

    def submit(self, stream: int) -> None:
        """Submit a piece of work that a stalled stream does not get to."""
        with self._lock:
            self._positions[stream] = self._positions.get(stream, 0) + 1
            if stream not in self.stalled:
                self._passed[stream] = self._positions[stream]

    def stall(self, stream: int) -> None:
        """Stop a stream behind what it has done so far."""
        self.stalled.add(stream)

    def resume(self, stream: int) -> None:
        """Let a stream do everything submitted to it."""
        self.stalled.discard(stream)
        self._passed[stream] = self._positions.get(stream, 0)


class FakeClock:
    """Seconds that pass only in `sleep`, which may also call something at a given time."""

    def __init__(self) -> None:
        self.now = 0.0
        self.appointments: list[tuple[float, object]] = []

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        # Far longer than asked: a deadline of a minute takes a few steps.
        self.now += max(seconds, 1.0)
        for when, action in list(self.appointments):
            if self.now >= when:
                self.appointments.remove((when, action))
                action()
