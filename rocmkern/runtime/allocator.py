"""Buffers of one manager: under its cap, out of the device's pool, with guard bands where they are asked for."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from rocmkern.runtime.cap import usable_free
from rocmkern.runtime.device import Stream
from rocmkern.runtime.errors import ArgumentError, ArgumentTypeError
from rocmkern.runtime.guard import GUARD_BYTES, GuardBands
from rocmkern.runtime.ledger import LedgerEntry
from rocmkern.runtime.memory import Buffer, DeviceMemory
from rocmkern.runtime.queue import Queue
from rocmkern.runtime.settings import MemorySettings


@dataclass(frozen=True)
class MemoryStats:
    """Bytes of a device, and where each number comes from.

    Attributes
    ----------
    free : int
        Free now, as far as it can be used (never more than ``total - reserved`` where the total is known).
    total : int
        Size of the device; 0 if unknown.
    held : int
        In live buffers of this process (the ledger).
    reserved : int
        Reserved from the driver by this process: live buffers, their rounding and guard bands, and the pool.
    allowed : int
        May still be allocated under the manager's cap, the idle part of the pool included.
    sources : mapping of str to str
        For each of the names above, where the number was read.
    """

    free: int
    total: int
    held: int
    reserved: int
    allowed: int
    sources: Mapping[str, str]


def _guard_bytes(settings: MemorySettings) -> int:
    return GUARD_BYTES if settings.guard else 0


class Allocator:
    """Allocates for one manager; what is allocated, all managers of the device know.

    Parameters
    ----------
    memory : DeviceMemory
        Of the device.
    queue : Queue
        Waits for work on memory that is needed.
    cap : float
        As of the manager.
    """

    cap: float

    def __init__(self, memory: DeviceMemory, queue: Queue, cap: float):
        self._memory, self._queue, self.cap = memory, queue, cap
        self.guards: GuardBands = GuardBands()

    def fits(self, nbytes: int, settings: MemorySettings) -> bool:
        """Return whether a buffer of `nbytes` would be granted now (another thread may take it meanwhile)."""
        try:
            nbytes = operator.index(nbytes)
        except TypeError:
            raise ArgumentTypeError("nbytes", repr(nbytes), "an int >= 0") from None
        if nbytes < 0:
            raise ArgumentError("nbytes", str(nbytes), "an int >= 0")
        needed = nbytes + 2 * _guard_bytes(settings)
        if settings.pool and self._memory.fits_idle(needed, self._queue.stream):
            return True
        return needed <= self._memory.budget(self.cap).allowed

    def largest(self, settings: MemorySettings) -> int:
        """Return the size in bytes of the largest buffer that would be granted now."""
        return max(0, self._memory.budget(self.cap).allowed - 2 * _guard_bytes(settings))

    def stats(self) -> MemoryStats:
        """Return free, total, held, reserved and allowed bytes with the source of each number."""
        budget = self._memory.budget(self.cap)
        free = usable_free(budget.free.value, budget.reserved, budget.total.value)
        cut = "" if free == budget.free.value else f" ({budget.free.value}), cut to total - reserved"
        return MemoryStats(
            free=free,
            total=budget.total.value or 0,
            held=self._memory.ledger.nbytes(),
            reserved=budget.reserved,
            allowed=budget.allowed,
            sources=MappingProxyType(
                {
                    "free": budget.free.source + cut,
                    "total": budget.total.source,
                    "held": "ledger of this process",
                    "reserved": f"allocations of this process, {budget.idle} bytes of them idle in the pool",
                    "allowed": f"{self.cap:.2f} * (free + reserved) - (reserved - idle)",
                }
            ),
        )

    def allocate(self, entry: LedgerEntry, stream: Stream, fill: int | None, settings: MemorySettings) -> Buffer:
        """Make a buffer, each byte of it `fill`, or whatever was in memory.

        Raises
        ------
        DeviceMemoryError
            If there is no room for it; nothing is changed.
        """
        guard_bytes = _guard_bytes(settings)
        buffer = self._memory.allocate(
            entry,
            stream=stream,
            cap=self.cap,
            pooled=settings.pool,
            poison=settings.poison,
            guard_bytes=guard_bytes,
            wait=self._queue.poll,
        )
        if guard_bytes:
            self.guards.add(buffer)
            # The bands are written on our stream; the buffer may be used on another one.
            self._queue.wait("the guard bands of a new buffer", self._queue.stream)
        if fill is not None and buffer.nbytes:
            self._memory.device.fill(buffer.address, buffer.nbytes, fill, stream)
        return buffer

    def trim(self) -> int:
        """Return the idle memory of the pool to the driver; return how many bytes that were."""
        return self._memory.trim(self._queue.poll)
