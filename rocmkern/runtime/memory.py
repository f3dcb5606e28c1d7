"""What all managers of one device share: reserved memory, the pool, the ledger, and the lock around them.

A buffer is returned when its last reference goes, which may be in any thread and in the middle of anything (a garbage
collection). Nothing of ours runs then. A buffer's *ticket* is a weak reference to it whose callback is the ``append``
of a queue, in C; the next call that holds the lock takes the queue in.

Python raises KeyboardInterrupt, and what `PyThreadState_SetAsyncExc` asks for, between any two instructions. CPython
looks for them when a function of Python begins, when a loop goes round and after a call (not between other
instructions, and not within a function written in C). From this follows how state is kept here:

* the lock is held in ``with alone(self.lock):`` only, where none comes between the lock and the region: a `Mutex` sees
  to that, and says which loops a region cannot have. (Behind ``acquire()`` and before a ``try`` one can be raised.)
* what is true stands in few places, each changed by one instruction: the memory that the driver gave (which the device
  knows, `Device.allocated`), the owner of each block, and whether a ticket's buffer is alive. All else (reserved bytes,
  the pool's lists, the ledger) is an index of that;
* whoever changes something marks it as *torn* before, and takes the mark away when done. Whoever finds the mark makes
  the indexes anew (`DeviceMemory._repair`). So an exception leaves a block where it was, or where it should go, but
  never nowhere.
"""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from rocmkern.runtime import fork
from rocmkern.runtime.cap import Reading, allowed_bytes, usable_free
from rocmkern.runtime.device import Device, Stream
from rocmkern.runtime.error_word import ErrorWords
from rocmkern.runtime.errors import ArgumentError, DeviceMemoryError, DeviceUnavailableError, DriverError
from rocmkern.runtime.graph_memory import GraphMemory, Recording
from rocmkern.runtime.interface import PER_THREAD_STREAM
from rocmkern.runtime.ledger import Ledger, LedgerEntry
from rocmkern.runtime.mutex import Mutex, alone
from rocmkern.runtime.pinned import PinnedBuffers
from rocmkern.runtime.pool import GONE, TAKEN, Block, Pool, size_class

POISON_BYTE = 0xFF
"""Filling with it makes every element NaN in float16, bfloat16, float32 and float64."""

Wait = Callable[[Callable[[], bool], str], None]
"""Waits until a function returns True, with a deadline that names what is waited for."""


@dataclass(frozen=True)
class MemoryBudget:
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


class Ticket(weakref.ref["Buffer"]):
    """What is needed to take a dead buffer back: a weak reference to it, queued by its own callback."""

    # An exception may come before these are set: then the buffer has no block yet, and is in no ledger.
    number: int = 0
    entry: LedgerEntry | None = None
    block: Block | None = None
    pooled = poison = False
    recording: Recording | None = None
    other_streams: set[Stream]
    # Of the threads whose default streams use the buffer.
    threads: frozenset[object] = frozenset()
    # What the tensors on the buffer share, which a manager closes.
    storage: weakref.ref[Any] | None = None


class _Thread(threading.local):
    """``token`` is an object that no other thread has, not even a later one, unlike a thread's number."""

    def __init__(self) -> None:
        self.token = object()


_thread = _Thread()


class _IdleInUseError(MemoryError):
    """Idle memory would be enough, but the device still works with it."""


class _AtOnce:
    """Part of a buffer whose memory is to be taken back at once: it goes after the ticket was queued."""

    __slots__ = ("_memory",)

    def __init__(self, memory: DeviceMemory):
        self._memory = memory

    def __del__(self) -> None:
        self._memory.take_back_at_once()


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

    __slots__ = ("__weakref__", "_at_once", "_ticket", "address", "memory", "nbytes", "number", "only_stream")

    memory: DeviceMemory
    address: int
    nbytes: int
    number: int

    def __init__(self, memory: DeviceMemory, address: int, nbytes: int, only_stream: Stream | None):
        self.memory, self.address, self.nbytes, self.only_stream = memory, address, nbytes, only_stream
        self._at_once: _AtOnce | None = None

    def belongs_to(self, ticket: Ticket) -> None:
        """Set what the ledger calls the buffer."""
        self._ticket, self.number = ticket, ticket.number
        stream = self.only_stream
        if not ticket.pooled or not (stream is None or self.memory.is_lasting(stream)):
            self._at_once = _AtOnce(self.memory)

    def shared_by(self, storage: Any) -> None:
        """Note what the tensors on the buffer share."""
        self._ticket.storage = weakref.ref(storage)

    def record_stream(self, stream: Stream) -> None:
        """Note that work on `stream` uses the buffer too, so that it is not reused before that work is done."""
        if stream != self.only_stream:
            if self._at_once is None and not self.memory.is_lasting(stream):
                # An event is needed when the buffer goes: later, the stream may be no more.
                self._at_once = _AtOnce(self.memory)
            self.only_stream = None
            self._ticket.other_streams.add(stream)
            if stream == PER_THREAD_STREAM:
                self._ticket.threads |= {_thread.token}

    def streams(self) -> set[Stream]:
        """Return the streams that use the buffer: the one it was made for, and those that were said to."""
        block = self._ticket.block
        return self._ticket.other_streams | ({block.stream} if block is not None else set())


class DeviceMemory:
    """The memory of one device in this process, shared by its managers.

    Parameters
    ----------
    device : Device
        The device; use `DeviceMemory.of`, which makes one object per device.
    """

    _creation = Mutex()
    _made: ClassVar[list[weakref.ref[DeviceMemory]]] = []

    reserved: int

    def __init__(self, device: Device):
        self.device = device
        self.pid: int = os.getpid()
        self.stream: Stream = device.create_stream()
        self.ledger: Ledger = Ledger()
        self.pool: Pool = Pool(device, self.stream)
        self.graphs: GraphMemory = GraphMemory()
        self.pinned: PinnedBuffers = PinnedBuffers(device)
        self.error_words: ErrorWords = ErrorWords(device)
        self.managers: weakref.WeakSet[object] = weakref.WeakSet()
        self.reserved = 0
        self.baseline: int | None = device.memory_info().free.value
        #: Held by whoever changes anything here, and during work on idle memory that `idle_block` has found.
        self.lock: Mutex = Mutex()
        self._torn = False
        self._blocks: dict[int, Block] = {}  # all that are reserved, by their addresses
        self._returned: deque[Ticket] = deque()
        self._postponed: list[Ticket] = []
        fork.renew_locks(self, "lock")

    @classmethod
    def of(cls, device: Device) -> DeviceMemory:
        """Return the shared memory object of a device, making it on the first call."""
        with alone(cls._creation):
            memory = device.__dict__.get("_shared_memory")
            if memory is None:
                memory = device.__dict__["_shared_memory"] = cls(device)
                cls._note(memory)
            return memory

    @classmethod
    def _note(cls, memory: DeviceMemory) -> None:
        cls._made[:] = [made for made in cls._made if made() is not None] + [weakref.ref(memory)]

    @classmethod
    def all(cls) -> list[DeviceMemory]:
        """Return the memories of this process that are alive, one a device."""
        return [memory for memory in (made() for made in list(cls._made)) if memory is not None]

    def check_process(self) -> None:
        """Raise `DeviceUnavailableError` in a forked child of the process that opened a GPU."""
        if self.pid != os.getpid() and self.device.kind != "host":
            raise DeviceUnavailableError(
                f"process {os.getpid()} was forked from process {self.pid}, which had opened {self.device.info}: a GPU "
                "context does not survive a fork. Start the child with the 'spawn' method, or use the GPU only there"
            )

    def is_lasting(self, stream: Stream) -> bool:
        """Whether a stream lives as long as the process, and never records a graph: our own and the default stream."""
        return stream in (0, self.stream)

    def _begin(self) -> None:
        """Take in what was given back; the lock is held. Whoever is done with changes sets ``_torn`` to False."""
        if self._torn:
            self._repair()
        self._torn = True
        if self._returned or self._postponed:
            self._take_back()

    def _repair(self) -> None:
        """Make all indexes anew from what is true, after an exception in the middle of a change."""
        given, blocks = self.device.allocated(), self._blocks
        for address, nbytes in given.items():
            if address not in blocks:
                blocks[address] = Block(address, nbytes, self.stream)
        for address in blocks.keys() - given.keys():
            blocks[address].owner = GONE
            del blocks[address]
        idle: list[Block] = []
        of_graphs: list[Block] = []
        postponed: list[Ticket] = []
        for block in blocks.values():
            owner = block.owner
            if owner is None or owner is TAKEN:
                idle.append(block)
            elif not isinstance(owner, Ticket):
                of_graphs.append(block)
            elif owner() is None:
                postponed.append(owner)
        for number, ticket in list(self.ledger.tickets.items()):
            if ticket() is None:
                self.ledger.remove(number)
        self.pool.rebuild(idle)
        self.graphs.rebuild(of_graphs)
        self._postponed = postponed
        self.reserved = sum(block.capacity for block in blocks.values())

    def take_back_at_once(self) -> None:
        """Take in what was given back if nobody holds the lock. Safe in finalizers; never waits."""
        if self.pid != os.getpid() and self.device.kind != "host":
            return
        if self.lock._is_owned():  # within a change, where nothing is as it should be
            return
        acquired: list[bool] = []
        try:
            acquired.extend(map(self.lock.acquire, (False,)))  # one call of C: held and noted, or neither
            if acquired[0]:
                self._begin()
                self._torn = False
        finally:
            if acquired and acquired[0]:
                self.lock.release()

    def _take_back(self) -> None:
        postponed, self._postponed = self._postponed, []
        for ticket in postponed:
            self._put(ticket)
        while self._returned:
            ticket = self._returned[0]
            self.ledger.remove(ticket.number)
            self._put(ticket)
            self._returned.popleft()

    def _put(self, ticket: Ticket) -> None:
        """Keep or free the block of a dead buffer, if that was not done before."""
        block = ticket.block
        if block is None or block.owner is not ticket:
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
        del self._blocks[block.address]
        block.owner = GONE
        self.reserved -= block.capacity

    def _budget(self, cap: float) -> MemoryBudget:
        info, idle = self.device.memory_info(), self.pool.idle_bytes
        total = info.total.value
        # Idle blocks could be freed at once, so the decision counts them as free; f + o is the same either way.
        both = usable_free(info.free.value, self.reserved, total) + self.reserved
        kept = self.reserved - idle
        allowed = allowed_bytes(both - kept, kept, both, cap)
        return MemoryBudget(info.free, info.total, self.reserved, idle, allowed, max(0, allowed - idle))

    def recording(self, stream: Stream) -> Recording | None:
        """The graph that a stream records, if it does, for memory that is handed out on that stream.

        Raises
        ------
        ArgumentError
            For the default stream of a thread that records none: by its handle, idle memory would be handed out while
            another thread works with it.
        """
        if self.is_lasting(stream):
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
        return not self.is_lasting(stream) and self.device.is_capturing(stream)

    def end_graphs(self) -> None:
        """Return the memory of graphs to the driver: no graph is started any more."""
        with alone(self.lock):
            self._begin()
            for block in self.graphs.clear():
                self._free(block)
            self._torn = False

    def settle(self) -> None:
        """Take in what was given back so far, waiting for the lock if need be."""
        with alone(self.lock):
            self._begin()
            self._torn = False

    def budget(self, cap: float) -> MemoryBudget:
        """Return what may be reserved now under `cap`."""
        with alone(self.lock):
            self._begin()
            budget = self._budget(cap)
            self._torn = False
            return budget

    def fits_idle(self, nbytes: int, stream: Stream) -> bool:
        """Return whether an idle block could serve `nbytes` on `stream` at once."""
        with alone(self.lock):
            self._begin()
            fits = self.pool.fits(nbytes, stream)
            self._torn = False
            return fits

    def idle_block(self, nbytes: int, stream: Stream, before: Block | None = None) -> Block | None:
        """Idle memory for work that is submitted to `stream` while the caller holds the lock; None where none is.

        The memory stays idle: whoever takes it later comes after that work, on the same stream or by an event.

        Parameters
        ----------
        nbytes, stream : int
            How much, and where it is used.
        before : Block, optional
            What this has returned for as many bytes the last time: if nobody has used it since, there is nothing to
            look for.
        """
        if not self._torn and before is not None and before.idle and before.stream == stream and not before.events:
            return before
        self._begin()
        block = self.pool.look_for(nbytes, stream)
        self._torn = False
        return block

    def trim(self, wait: Wait) -> int:
        """Return the idle memory to the driver, after waiting until the device no longer uses it; return the bytes."""
        with alone(self.lock):
            self._begin()
            done = self._idle_work_done()
            self._torn = False
        wait(done, "work on idle memory that is to be trimmed")
        with alone(self.lock):
            self._begin()
            nbytes = self._trim_ready()
            self._torn = False
            return nbytes

    def _idle_work_done(self) -> Callable[[], bool]:
        # The blocks that are idle now: those that come later would make the wait endless.
        blocks = self.pool.blocks()

        def done() -> bool:
            with alone(self.lock):
                self._begin()
                busy = self._any_busy(blocks)
                self._torn = False
                return not busy

        return done

    def _any_busy(self, blocks: list[Block]) -> bool:
        return any(self.pool.busy(block) for block in blocks)

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
            with contextlib.nullcontext() if recording is None else self.device.beside_capture(), alone(self.lock):
                self._begin()
                block = self._reserve(needed, stream, cap, pooled, failure, recording, entry.kept) if needed else None
                if not isinstance(block, MemoryError):
                    return self._hand_out(entry, block, pooled, poison, recording, guard_bytes)
                if not isinstance(block, _IdleInUseError):
                    failure = block
                done = self._idle_work_done()
                self._torn = False
            # Idle memory may help but is still in use by the device: wait for it and decide again.
            wait(done, "work on idle memory that is needed")

    def _hand_out(
        self,
        entry: LedgerEntry,
        block: Block | None,
        pooled: bool,
        poison: bool,
        recording: Recording | None,
        guard_bytes: int,
    ) -> Buffer:
        """Make the buffer on a block: it has the block, and is in the ledger, from one instruction to the next."""
        address, stream = (0, None) if block is None else (block.address + guard_bytes, block.stream)
        buffer = Buffer(self, address, entry.nbytes, stream)
        ticket = Ticket(buffer, self._returned.append)
        ticket.number, ticket.entry, ticket.block, ticket.other_streams = next(self.ledger.numbers), entry, block, set()
        ticket.pooled, ticket.poison, ticket.recording = pooled, poison, recording
        buffer.belongs_to(ticket)
        self.ledger.tickets[ticket.number] = ticket
        if block is not None:
            block.owner = ticket
        self._torn = False
        return buffer

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
        block = self._blocks[address] = Block(address, capacity, stream, owner=TAKEN)
        self.reserved += capacity
        return block

    @staticmethod
    def _refusal(nbytes: int, budget: MemoryBudget, why: str) -> DeviceMemoryError:
        free, total = budget.free.value, budget.total.value
        return DeviceMemoryError(nbytes, budget.allowed, free or 0, budget.reserved, total or 0, why)

    def describe(self, buffer: Buffer) -> str:
        """Return the ledger's line on a live buffer."""
        return str(self.ledger.entry(buffer.number))

    def storages(self, manager: int) -> list[Any]:
        """Return what the tensors on the live buffers of a manager share."""
        references = [ticket.storage for ticket in self.ledger.live(manager) if ticket.storage is not None]
        return [storage for storage in (reference() for reference in references) if storage is not None]

    def write(self, address: int, data: np.ndarray) -> None:
        """Copy contiguous host bytes to an address on the runtime's stream."""
        self.device.copy_to_device(address, data.ctypes.data, data.nbytes, self.stream)

    def overwrite_idle(self, content: Callable[[int], np.ndarray], wait: Callable[[str], None]) -> int:
        """Fill every idle block with what `content` returns for its bytes; return how many blocks there were."""
        self.settle()
        wait("work on idle buffers")
        blocks = self.pool.blocks()
        for block in blocks:
            self.write(block.address, content(block.capacity))
            wait("filling idle buffers")
        return len(blocks)

    def read(self, out: np.ndarray, address: int) -> None:
        """Copy bytes at an address to a contiguous host array on the runtime's stream."""
        self.device.copy_to_host(out.ctypes.data, address, out.nbytes, self.stream)


fork.renew_locks(DeviceMemory, "_creation")
