"""What all managers of one device share: reserved memory, the pool, the ledger, and the lock around them.

A buffer is returned when its last reference goes, which may be in any thread and in the middle of anything (a garbage
collection). So returning never waits for the lock: the buffer's ticket is queued, and whoever holds the lock takes
the queue in on the way out.
"""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from rocmkern.runtime.cap import Reading, allowed_bytes, usable_free
from rocmkern.runtime.device import Device, Stream
from rocmkern.runtime.error_word import ErrorWords
from rocmkern.runtime.errors import ArgumentError, DeviceMemoryError, DeviceUnavailableError, DriverError
from rocmkern.runtime.graph_memory import GraphMemory, Recording
from rocmkern.runtime.interface import PER_THREAD_STREAM
from rocmkern.runtime.ledger import Ledger, LedgerEntry
from rocmkern.runtime.pinned import PinnedBuffers
from rocmkern.runtime.pool import Block, Pool, size_class

POISON_BYTE = 0xFF
"""Filling with it makes every element NaN in float16, bfloat16, float32 and float64."""

Wait = Callable[[Callable[[], bool], str], None]
"""Waits until a function returns True, with a deadline that names what is waited for."""


@dataclass(frozen=True)
class Budget:
    """What may be reserved now.

    Attributes
    ----------
    free, total : Reading
        As the device says.
    reserved, idle : int
        Bytes reserved from the driver, and how many of them lie idle in the pool.
    allowed : int
        Bytes that may still be reserved, if the pool is trimmed first.
    allowed_untrimmed : int
        The same without touching the pool.
    """

    free: Reading
    total: Reading
    reserved: int
    idle: int
    allowed: int
    allowed_untrimmed: int


@dataclass(eq=False)
class Ticket:
    """What is needed to take a dead buffer back: it must not refer to the buffer itself."""

    number: int
    block: Block | None
    pooled: bool
    poison: bool
    other_streams: set[Stream]
    recording: Recording | None
    # Of the threads whose default streams use the buffer.
    threads: frozenset[object] = frozenset()


class _Thread(threading.local):
    """``token`` is an object that no other thread has, not even a later one, unlike a thread's number."""

    def __init__(self) -> None:
        self.token = object()


_thread = _Thread()


class _IdleInUseError(MemoryError):
    """Idle memory would be enough, but the device still works with it."""


class Buffer:
    """Owned memory of one tensor; returned, once, when the last reference to this object goes.

    Attributes
    ----------
    memory : DeviceMemory
        Where it belongs.
    address, nbytes : int
        The part that the tensor may use.
    number : int
        Its number in the ledger.
    only_stream : int or None
        The stream that it was made for, as long as no other stream uses it too; then None.
    """

    __slots__ = ("__weakref__", "_ticket", "address", "memory", "nbytes", "number", "only_stream")

    def __init__(self, memory: DeviceMemory, address: int, nbytes: int, ticket: Ticket):
        self.memory, self.address, self.nbytes = memory, address, nbytes
        self.number, self._ticket = ticket.number, ticket
        self.only_stream: Stream | None = None if ticket.block is None else ticket.block.stream

    def record_stream(self, stream: Stream) -> None:
        """Note that work on `stream` uses the buffer too, so that it is not reused before that work is done."""
        if stream != self.only_stream:
            self.only_stream = None
            self._ticket.other_streams.add(stream)
            if stream == PER_THREAD_STREAM:
                self._ticket.threads |= {_thread.token}

    def streams(self) -> set[Stream]:
        """Return the streams that use the buffer: the one it was made for, and those that were said to."""
        block = self._ticket.block
        return self._ticket.other_streams | ({block.stream} if block is not None else set())

    def __del__(self) -> None:
        self.memory.give_back(self._ticket)


class DeviceMemory:
    """The memory of one device in this process, shared by its managers.

    Parameters
    ----------
    device : Device
        The device; use `DeviceMemory.of`, which makes one object per device.
    """

    _creation = threading.Lock()
    _all: ClassVar[weakref.WeakSet[DeviceMemory]] = weakref.WeakSet()

    def __init__(self, device: Device):
        self.device = device
        self.pid = os.getpid()
        self.stream = device.create_stream()
        self.ledger = Ledger()
        self.pool = Pool(device, self.stream)
        self.graphs = GraphMemory()
        self.pinned = PinnedBuffers(device)
        self.error_words = ErrorWords(device)
        self.managers: weakref.WeakSet[object] = weakref.WeakSet()
        self.reserved = 0
        self.baseline = device.memory_info().free.value
        self._lock = threading.Lock()
        self._returned: deque[Ticket] = deque()
        self._postponed: list[Ticket] = []

    @classmethod
    def of(cls, device: Device) -> DeviceMemory:
        """Return the shared memory object of a device, making it on the first call."""
        with cls._creation:
            memory = device.__dict__.get("_shared_memory")
            if memory is None:
                memory = device.__dict__["_shared_memory"] = cls(device)
                cls._all.add(memory)
            return memory

    def check_process(self) -> None:
        """Raise `DeviceUnavailableError` in a forked child of the process that opened a GPU."""
        if self.pid != os.getpid() and self.device.kind != "host":
            raise DeviceUnavailableError(
                f"process {os.getpid()} was forked from process {self.pid}, which had opened {self.device.info}: a GPU "
                "context does not survive a fork. Start the child with the 'spawn' method, or use the GPU only there"
            )

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        try:
            with self._lock:
                self._take_back()
                yield
        finally:
            self._drain()

    def _drain(self) -> None:
        # Queued between our last look and the release of the lock: nobody else would come for it.
        while self._returned and self._lock.acquire(blocking=False):
            try:
                self._take_back()
            finally:
                self._lock.release()

    def give_back(self, ticket: Ticket) -> None:
        """Queue a dead buffer and take it in if nobody holds the lock. Safe in finalizers; never waits."""
        if self.pid != os.getpid() and self.device.kind != "host":
            return
        self._returned.append(ticket)
        self._drain()

    def _take_back(self) -> None:
        for _ in range(len(self._postponed)):
            self._put(self._postponed.pop(0))
        while self._returned:
            ticket = self._returned.popleft()
            self.ledger.remove(ticket.number)
            self._put(ticket)

    def _put(self, ticket: Ticket) -> None:
        """Keep or free the block of a dead buffer."""
        block = ticket.block
        if block is None:
            return
        if ticket.recording is not None:
            self.graphs.put(block, ticket.recording)
        elif not ticket.pooled or not self._keep(block, ticket):
            self._give_up(block, ticket)

    def _keep(self, block: Block, ticket: Ticket) -> bool:
        """Put a block into the pool, now or later; False where no event says when its last work is done."""
        try:
            if any(self.records(stream) for stream in (block.stream, *ticket.other_streams)):
                self._postponed.append(ticket)  # an event that such a stream records now would be one of its graph
                return True
            if ticket.threads - {_thread.token}:
                return False  # an event of this thread is not behind the work of another
            if ticket.poison and not ticket.other_streams:
                self.device.fill(block.address, block.capacity, POISON_BYTE, block.stream)
            self.pool.put(block, frozenset(ticket.other_streams))
        except DriverError:  # of a stream that is no more, say
            return False
        return True

    def _give_up(self, block: Block, ticket: Ticket) -> None:
        """Return a block to the driver, which waits for the device; later, if the driver refuses now."""
        try:
            with self.device.beside_capture():  # of whichever thread
                self._free(block)
        except DriverError:
            self._postponed.append(ticket)

    def _free(self, block: Block) -> None:
        self.device.free(block.address)
        self.reserved -= block.capacity

    def _budget(self, cap: float) -> Budget:
        info, idle = self.device.memory_info(), self.pool.idle_bytes
        total = info.total.value
        # Idle blocks could be freed at once, so the decision counts them as free; f + o is the same either way.
        both = usable_free(info.free.value, self.reserved, total) + self.reserved
        kept = self.reserved - idle
        allowed = allowed_bytes(both - kept, kept, both, cap)
        return Budget(info.free, info.total, self.reserved, idle, allowed, max(0, allowed - idle))

    def recording(self, stream: Stream) -> Recording | None:
        """The graph that a stream records, if it does, for memory that is handed out on that stream.

        Raises
        ------
        ArgumentError
            For the default stream of a thread that records none: by its handle, idle memory would be handed out while
            another thread works with it.
        """
        if stream in (0, self.stream):
            return None
        number = self.device.capture(stream)
        if number is not None:
            return number, stream
        if stream == PER_THREAD_STREAM:
            raise ArgumentError(
                "stream", "2, the default stream of a thread", "a stream that is the same in all threads"
            )
        return None

    def records(self, stream: Stream) -> bool:
        """Whether a stream records a graph: our own and the default stream never do."""
        return stream not in (0, self.stream) and self.device.is_capturing(stream)

    def end_graphs(self) -> None:
        """Return the memory of graphs to the driver: no graph is started any more."""
        with self._locked():
            for block in self.graphs.clear():
                self._free(block)

    def settle(self) -> None:
        """Take in what was given back so far, waiting for the lock if need be."""
        with self._locked():
            pass

    def budget(self, cap: float) -> Budget:
        """Return what may be reserved now under `cap`."""
        with self._locked():
            return self._budget(cap)

    def fits_idle(self, nbytes: int, stream: Stream) -> bool:
        """Return whether an idle block could serve `nbytes` on `stream` at once."""
        with self._locked():
            return self.pool.fits(nbytes, stream)

    def borrow(self, nbytes: int, stream: Stream, before: Block | None = None) -> Block | None:
        """Idle memory for work that is submitted to `stream` until `end_loan`, and to nothing else; None where none is.

        The memory stays idle: whoever takes it later comes after that work, on the same stream or by an event. Until
        the loan ends, other threads wait for the device's memory. `before` is what was lent for as many bytes the last
        time: if nobody has used it since, there is nothing to look for.
        """
        self._lock.acquire()
        if before is not None and before.idle and before.stream == stream and not before.events:
            return before
        block = None
        try:
            if self._returned or self._postponed:
                self._take_back()
            block = self.pool.look_for(nbytes, stream)
        finally:
            if block is None:
                self._lock.release()
                self._drain()
        return block

    def end_loan(self, block: Block, stream: Stream) -> None:
        """All work on what `borrow` returned is submitted."""
        try:
            self.pool.used(block, stream)
        finally:
            self._lock.release()
            if self._returned:
                self._drain()

    def trim(self, wait: Wait) -> int:
        """Return the idle memory to the driver, after waiting until the device no longer uses it; return the bytes."""
        with self._locked():
            done = self._idle_work_done()
        wait(done, "work on idle memory that is to be trimmed")
        with self._locked():
            return self._trim_ready()

    def _idle_work_done(self) -> Callable[[], bool]:
        # The blocks that are idle now: those that come later would make the wait endless.
        blocks = self.pool.blocks()

        def done() -> bool:
            with self._locked():
                return not any(self.pool.busy(block) for block in blocks)

        return done

    def _trim_ready(self) -> int:
        blocks = self.pool.take_ready()
        for block in blocks:
            self._free(block)
        self.device.flush()
        return sum(block.capacity for block in blocks)

    def allocate(
        self,
        entry: LedgerEntry,
        *,
        stream: Stream,
        cap: float,
        pooled: bool,
        poison: bool,
        guard_bytes: int,
        wait: Wait,
    ) -> Buffer:
        """Make a buffer of ``entry.nbytes`` with `guard_bytes` on both sides, its content undefined.

        Raises
        ------
        DeviceMemoryError
            If the cap or the driver refuses. Then ledger, reserved bytes and live buffers are as before.
        """
        needed = entry.nbytes + 2 * guard_bytes
        failure: MemoryError | None = None
        recording = self.recording(stream)
        while True:
            with contextlib.nullcontext() if recording is None else self.device.beside_capture(), self._locked():
                block = self._reserve(needed, stream, cap, pooled, failure, recording, entry.kept) if needed else None
                if not isinstance(block, MemoryError):
                    ticket = Ticket(self.ledger.add(entry), block, pooled, poison, set(), recording)
                    address = block.address + guard_bytes if block is not None else 0
                    return Buffer(self, address, entry.nbytes, ticket)
                if not isinstance(block, _IdleInUseError):
                    failure = block
                done = self._idle_work_done()
            # Idle memory may help but is still in use by the device: wait for it and decide again.
            wait(done, "work on idle memory that is needed")

    def _reserve(
        self,
        nbytes: int,
        stream: Stream,
        cap: float,
        pooled: bool,
        failure: MemoryError | None,
        recording: Recording | None,
        kept: bool,
    ) -> Block | MemoryError:
        """Return a block, or the reason to wait for idle memory and try once more."""
        # What lasts beyond a call is not where earlier calls of the graph write whenever it is started.
        block = None if recording is None or kept else self.graphs.take(nbytes, recording)
        if block is not None:
            return block
        if pooled:
            # A graph may be started on any stream: what it gets is idle on all.
            block = self.pool.take(nbytes, stream, everywhere=recording is not None)
            if block is not None:
                return block
        budget = self._budget(cap)
        if nbytes > budget.allowed:
            idle = f", {budget.idle} idle bytes of the pool counted as free" if budget.idle else ""
            raise self._refusal(nbytes, budget, f"over the cap of {cap:.0%}{idle}")
        if nbytes > budget.allowed_untrimmed or failure is not None:
            self._trim_ready()
            budget = self._budget(cap)
            if nbytes > budget.allowed_untrimmed:
                if budget.idle:
                    return _IdleInUseError()
                raise self._refusal(nbytes, budget, f"over the cap of {cap:.0%}")
        capacity = min(size_class(nbytes), budget.allowed_untrimmed) if pooled and failure is None else nbytes
        try:
            address = self.device.allocate(capacity)
        except MemoryError as error:
            if failure is not None:
                why = f"the driver refused it twice, also after the pool was trimmed: {error}"
                raise self._refusal(nbytes, self._budget(cap), why) from error
            return error
        self.reserved += capacity
        return Block(address, capacity, stream)

    @staticmethod
    def _refusal(nbytes: int, budget: Budget, why: str) -> DeviceMemoryError:
        free, total = budget.free.value, budget.total.value
        return DeviceMemoryError(nbytes, budget.allowed, free or 0, budget.reserved, total or 0, why)

    def describe(self, buffer: Buffer) -> str:
        """Return the ledger's line on a live buffer."""
        return str(self.ledger.entry(buffer.number))

    def write(self, address: int, data: np.ndarray) -> None:
        """Copy contiguous host bytes to an address on the runtime's stream."""
        self.device.copy_to_device(address, data.ctypes.data, data.nbytes, self.stream)

    def read(self, out: np.ndarray, address: int) -> None:
        """Copy bytes at an address to a contiguous host array on the runtime's stream."""
        self.device.copy_to_host(out.ctypes.data, address, out.nbytes, self.stream)


def _after_fork_in_child() -> None:
    # Another thread of the parent may have held these locks; it does not exist here.
    DeviceMemory._creation = threading.Lock()
    for memory in list(DeviceMemory._all):
        memory._lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
