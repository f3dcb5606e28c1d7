"""`ResourceManager`: allocates tensors under the cap, waits with a deadline, and knows what is still alive."""

from __future__ import annotations

import gc
import itertools
import math
import operator
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np

from rocmkern.runtime import fork, transfer
from rocmkern.runtime.cap import DEFAULT_CAP, check_cap, usable_free
from rocmkern.runtime.device import Device, Stream
from rocmkern.runtime.devices import default_device, open_device
from rocmkern.runtime.error_word import ErrorWord
from rocmkern.runtime.errors import (
    ArgumentError,
    ArgumentTypeError,
    ClosedError,
    LeakError,
    RocmkernError,
    masked_array_error,
)
from rocmkern.runtime.geometry import check_shape, contiguous_strides
from rocmkern.runtime.guard import GUARD_BYTES, GuardBands
from rocmkern.runtime.lazy import LazyStorage, TensorSource
from rocmkern.runtime.ledger import LedgerEntry, caller_location
from rocmkern.runtime.memory import POISON_BYTE, DeviceMemory
from rocmkern.runtime.mutex import Mutex, alone
from rocmkern.runtime.scratch import Scratch
from rocmkern.runtime.settings import MemorySettings
from rocmkern.runtime.tensor import DeviceTensor, Storage, check_dtype
from rocmkern.runtime.waiting import poll

_LISTED_LEAKS = 10
# Kernels that share an event; if one of them is stuck, an error names them all.
_NOTED = 16
_NO_EVENT = object()
_CONSTANTS = 64
_COUNTERS = 256


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


class _Operation:
    """What was submitted to a stream, and the event after it, which is recorded when it is first asked for."""

    __slots__ = ("done", "event", "names", "stream")

    def __init__(self, names: list[str], stream: Stream):
        self.names, self.stream, self.done = names, stream, False
        self.event: Any = _NO_EVENT

    @property
    def name(self) -> str:
        return " or ".join(dict.fromkeys(self.names))


class ResourceManager:
    """Memory and waiting on one device. Several managers on one device share cap and ledger; threads may share one.

    Parameters
    ----------
    device : Device, str, int or None
        Where: see `open_device`; None is the GPU where operations on NumPy arrays run on one (`rocmkern.target`), else
        host memory.
    cap : float
        Fraction of the memory that is free or held by this process which this process may hold at most,
        ``0 < cap <= 0.90``, default 0.70.
    deadline_s : float
        Seconds after which a wait gives up with `DeadlineError`, default 60.
    settings : MemorySettings, optional
        Pool, poison and guard bands; default: what ``ROCMKERN_MEMORY`` says. May be set later for new buffers.
    clock, sleep : callable
        Seconds now and a pause, for tests of the deadline.

    Raises
    ------
    ArgumentError
        For a cap or a deadline out of range.

    Examples
    --------
    >>> with ResourceManager("host") as manager:
    ...     x = manager.from_numpy(np.arange(6, dtype=np.float32).reshape(2, 3))
    ...     x.T.to_numpy().shape
    (3, 2)
    """

    _numbers = itertools.count(1)

    def __init__(
        self,
        device: Device | str | None = None,
        *,
        cap: float = DEFAULT_CAP,
        deadline_s: float = 60.0,
        settings: MemorySettings | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ):
        self.cap = check_cap(cap)
        if isinstance(deadline_s, bool) or not isinstance(deadline_s, (int, float)) or not 0 < deadline_s < math.inf:
            raise ArgumentError("deadline_s", repr(deadline_s), "a number of seconds > 0")
        self.deadline_s = float(deadline_s)
        self.device = default_device() if device is None else open_device(device)
        self.settings = MemorySettings.from_environment() if settings is None else settings
        self._clock, self._sleep = clock, sleep
        self._number = next(self._numbers)
        self._memory = DeviceMemory.of(self.device)
        self._memory.managers.add(self)
        self._guards = GuardBands()
        self._constants: dict[tuple, DeviceTensor] = {}
        self._constants_lock = Mutex()
        self._counters: dict[tuple, list[DeviceTensor]] = {}
        self._counters_lock = Mutex()
        self._in_flight: deque[_Operation] = deque()
        self._in_flight_lock = Mutex()
        self._noted: dict[Stream, list[str]] = {self.stream: [], 0: []}
        self._closed = self._all_returned = False
        fork.renew_locks(self, "_constants_lock", "_counters_lock", "_in_flight_lock")

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"cap {self.cap:.0%}"
        return f"<ResourceManager on {self.device.info}, {state}>"

    def __enter__(self) -> ResourceManager:
        self._check_open()
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._closed

    @property
    def stream(self) -> Stream:
        """The stream that copies, fills and waits of this device are ordered on; one per device and process."""
        return self._memory.stream

    def check_process(self) -> None:
        """Raise `DeviceUnavailableError` in a forked child of the process that opened the GPU."""
        self._memory.check_process()

    def is_recording(self, stream: Stream) -> bool:
        """Return whether a stream records a graph; our own and the default stream never do."""
        return self._memory.records(stream)

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError(f"{self!r} is closed: make a new ResourceManager, or call default_manager() again")
        self.check_process()

    # Memory

    def can_allocate(self, nbytes: int) -> bool:
        """Return whether a buffer of `nbytes` would be granted now (another thread may take it meanwhile)."""
        self._check_open()
        try:
            nbytes = operator.index(nbytes)
        except TypeError:
            raise ArgumentTypeError("nbytes", repr(nbytes), "an int >= 0") from None
        if nbytes < 0:
            raise ArgumentError("nbytes", str(nbytes), "an int >= 0")
        needed = nbytes + 2 * self._guard_bytes
        if self.settings.pool and self._memory.fits_idle(needed, self.stream):
            return True
        return needed <= self._memory.budget(self.cap).allowed

    def safe_alloc_size(self) -> int:
        """Return the size in bytes of the largest buffer that would be granted now."""
        self._check_open()
        return max(0, self._memory.budget(self.cap).allowed - 2 * self._guard_bytes)

    def memory_stats(self) -> MemoryStats:
        """Return free, total, held, reserved and allowed bytes with the source of each number."""
        self._check_open()
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

    def from_numpy(self, a: np.ndarray) -> DeviceTensor:
        """Return a C-contiguous copy of a NumPy array of any strides on the device.

        Raises
        ------
        ArgumentTypeError
            If `a` is not a NumPy array, or one with a mask, or of a dtype without a fixed binary layout.
        DeviceMemoryError
            If there is no room for it.
        """
        if not isinstance(a, np.ndarray):
            raise ArgumentTypeError("a", type(a).__name__, "a numpy.ndarray")
        if isinstance(a, np.ma.MaskedArray):
            raise masked_array_error("a")
        tensor = self._allocate(a.shape, check_dtype(a.dtype, "a"), fill=None)
        transfer.from_host(tensor, a)
        return tensor

    def constant(self, a: np.ndarray) -> DeviceTensor:
        """Return a copy of a small array that many calls read, made when its content is first asked for.

        The manager keeps the last few until it is closed. They count as held, but not as leaks. Nobody may write them.
        """
        self._check_open()
        key = (a.dtype.str, a.shape, a.tobytes())
        with alone(self._constants_lock):
            tensor = self._constants.pop(key, None)
            if tensor is None:
                tensor = self._allocate(a.shape, check_dtype(a.dtype, "a"), fill=None, kept=True)
                transfer.from_host(tensor, a)
            self._constants[key] = tensor
            self._forget_constants()
        return tensor

    def _forget_constants(self) -> None:
        while len(self._constants) > _CONSTANTS:
            del self._constants[next(iter(self._constants))]

    def counters(self, count: int, stream: Stream) -> DeviceTensor:
        """Return int32 zeros with which kernels on a stream count, and which each of them leaves as zeros.

        The manager keeps them until it is closed, those of each stream and of each graph that a stream records, which
        may be started on any stream. They count as held, but not as leaks.

        Parameters
        ----------
        count : int
            How many, at least.
        stream : int
            The stream of all that uses them.
        """
        self._check_open()
        recording = self._memory.recording(stream)
        with alone(self._counters_lock):
            kept = self._counters.setdefault((stream, recording), [])
            if not kept or kept[-1].size < count:
                # Those before may be in use still, and stay: all of them are no more than the last one.
                size = max(_COUNTERS, 1 << (count - 1).bit_length())
                fill = 0 if recording is None else None  # a fill would become a part of the graph
                tensor = self._allocate((size,), np.dtype(np.int32), fill=fill, stream=stream, kept=True)
                if recording is not None:
                    with self.device.beside_capture():
                        self.device.fill(tensor.data_ptr, tensor.nbytes, 0, self.stream)
                        self._wait("the zeros of a graph's counters", self.stream)
                kept.append(tensor)
            return kept[-1]

    def zeros(self, shape: int | tuple[int, ...], dtype: Any = np.float32) -> DeviceTensor:
        """Return a tensor of zeros (also under test, where `empty` gives NaN)."""
        return self._allocate(shape, dtype, fill=0)

    def empty(
        self,
        shape: int | tuple[int, ...],
        dtype: Any = np.float32,
        uninitialized: bool = False,
        *,
        stream: Stream | None = None,
    ) -> DeviceTensor:
        """Return a new tensor: zeros, or whatever was in memory if `uninitialized`.

        Parameters
        ----------
        shape : int or tuple of int
            Shape; a dimension of 0 is legal and needs no memory.
        dtype : dtype
            Bool, integer, float, complex or one of ml_dtypes; default float32.
        uninitialized : bool
            Leave the content undefined, for an output that is written everywhere. With the setting ``poison`` the
            content is NaN either way.
        stream : int, optional
            Stream that writes it first; default: `stream`. It must outlive the tensor, so it cannot be the default
            stream of a thread, but while that records a graph.

        Raises
        ------
        DeviceMemoryError
            If there is no room for it; nothing is changed.
        """
        fill = None if uninitialized else 0
        return self._allocate(shape, dtype, fill=POISON_BYTE if self.settings.poison else fill, stream=stream)

    def scratch(self, nbytes: int, stream: Stream) -> Scratch:
        """Memory of undefined content for kernels that one call submits to `stream`: see `Scratch.lend`.

        Where the pool has idle memory for that stream, it is used as it lies there: no buffer is made and none enters
        the ledger.

        Parameters
        ----------
        nbytes : int
            How much, at least 1.
        stream : int
            The stream of all that uses it.

        Returns
        -------
        Scratch
            To be lent again and again.
        """
        self._check_open()
        return Scratch(self, self._memory, nbytes, stream)

    def lazy(self, source: TensorSource) -> DeviceTensor:
        """Return a tensor that takes memory, and reads its data, when it is first used; see `DeviceTensor.lazy`."""
        self._check_open()
        if not isinstance(source, TensorSource):
            raise ArgumentTypeError("source", type(source).__name__, "an object with shape, dtype and pieces()")
        shape, dtype = check_shape(source.shape), check_dtype(source.dtype, "source")
        storage = LazyStorage(self, source, caller_location())
        return DeviceTensor(self, storage, 0, shape, dtype, contiguous_strides(shape, dtype.itemsize))

    @property
    def _guard_bytes(self) -> int:
        return GUARD_BYTES if self.settings.guard else 0

    def _allocate(
        self,
        shape: Any,
        dtype: Any,
        *,
        fill: int | None,
        stream: Stream | None = None,
        where: str | None = None,
        kept: bool = False,
    ) -> DeviceTensor:
        self._check_open()
        shape, dtype = check_shape(shape), check_dtype(dtype)
        stream = self.stream if stream is None else stream
        where = where or caller_location()
        entry = LedgerEntry(math.prod(shape) * dtype.itemsize, shape, dtype.name, where, self._number, kept)
        guard_bytes = self._guard_bytes
        buffer = self._memory.allocate(
            entry,
            stream=stream,
            cap=self.cap,
            pooled=self.settings.pool,
            poison=self.settings.poison,
            guard_bytes=guard_bytes,
            wait=self._poll,
        )
        if guard_bytes:
            self._guards.add(buffer)
            # The bands are written on our stream; the buffer may be used on another one.
            self._wait("the guard bands of a new buffer", self.stream)
        if fill is not None and buffer.nbytes:
            self.device.fill(buffer.address, buffer.nbytes, fill, stream)
        storage = Storage(buffer)
        buffer.shared_by(storage)
        strides = contiguous_strides(shape, dtype.itemsize)
        return DeviceTensor(self, storage, buffer.address, shape, dtype, strides)

    def trim(self) -> int:
        """Return the idle memory of the pool to the driver; return how many bytes that were."""
        self._check_open()
        return self._memory.trim(self._poll)

    # Waiting

    def track(self, name: str, stream: Stream | None = None) -> None:
        """Note that `name` (a kernel, a copy) was just submitted to a stream, so that a wait can name it if stuck."""
        if stream is None or stream == self.stream:
            stream = self.stream
        elif self.device.is_capturing(stream):
            return
        self._track_noted()
        operation = _Operation([name], stream)
        self._forget_done(operation)
        self._in_flight.append(operation)

    def note(self, names: Sequence[str], stream: Stream) -> None:
        """As `track` for kernels that were just submitted, one event for many of them where that is possible.

        It is on our own stream and on the default stream 0: they live as long as the process and are never captured.
        """
        noted = self._noted.get(stream)
        if noted is None:
            for name in names:
                self.track(name, stream)
            return
        noted += names
        if len(noted) >= _NOTED:
            self._track_noted()

    def _track_noted(self) -> None:
        for stream, names in self._noted.items():
            if names:
                operation = _Operation(names, stream)
                self._in_flight.append(operation)  # first: whatever happens, the names are in one of the two
                # A thread that is just noting adds to the list that it has seen, which the operation shares.
                self._noted[stream] = []
                self._forget_done(operation)

    def _forget_done(self, latest: _Operation) -> None:
        with alone(self._in_flight_lock):
            self._look(latest)  # records its event
            self._drop_done()

    def _drop_done(self) -> None:
        while self._in_flight and self._look(self._in_flight[0]):
            self._in_flight.popleft()

    def _look(self, operation: _Operation) -> bool:
        if operation.event is _NO_EVENT:
            operation.event = self.device.record(operation.stream)
        if not operation.done and self.device.query(operation.event):
            operation.done = True
            self.device.release_event(operation.event)
        return operation.done

    def _finished(self, operation: _Operation) -> bool:
        with alone(self._in_flight_lock):
            return self._look(operation)

    def wait(self, what: str | None = None, *, stream: Stream | None = None) -> None:
        """Wait until everything that was tracked, and everything submitted to a stream, is done.

        Parameters
        ----------
        what : str, optional
            What is waited for, in words, for the error.
        stream : int, optional
            Stream; default: `stream`.

        Raises
        ------
        DeadlineError
            After ``deadline_s`` seconds; it names the first tracked operation that is not done, or else `what`.
        IndexOutOfRangeError
            A kernel that is done was given an index, in device memory, that was out of range.
        """
        self._check_open()
        self._wait(what, self.stream if stream is None else stream)
        self._memory.error_words.check()

    def error_word(self, kind: str, make_error: Callable[[], RocmkernError]) -> ErrorWord:
        """Where kernels report a kind of error, such as "embedding: indices"; the next `wait` raises it.

        Parameters
        ----------
        kind : str
            One word for each, for as long as the process lives.
        make_error : callable
            Makes the exception.
        """
        return self._memory.error_words.get(kind, make_error)

    def _wait(self, what: str | None, stream: Stream) -> None:
        self._track_noted()
        event = self.device.record(stream)
        operations = list(self._in_flight)
        try:
            self._poll(
                lambda: all(map(self._finished, operations)) and self.device.query(event),
                what or f"work on stream {stream:#x} of {self.device.info}",
            )
        finally:
            self.device.release_event(event)

    def _poll(self, done: Callable[[], bool], what: str) -> None:
        def name() -> str:
            stuck = next((op.name for op in list(self._in_flight) if not self._finished(op)), None)
            return what if stuck is None else f"{stuck} (while waiting for: {what})"

        poll(done, name, self.deadline_s, clock=self._clock, sleep=self._sleep)

    # Checks

    def check_guards(self, kernel: str) -> None:
        """Compare the guard bands of all live buffers, after waiting for `kernel`.

        Raises
        ------
        GuardBandError
            If one has changed; it names `kernel` and the buffer.
        """
        self.wait(kernel)
        self._guards.check(kernel, self.wait)

    def live_buffers(self) -> list[LedgerEntry]:
        """Return the live buffers of this manager, oldest first, without what it keeps for itself."""
        self._memory.settle()
        return [entry for entry in self._memory.ledger.entries(self._number) if not entry.kept]

    def assert_no_leak(self, tolerance_percent: float = 5) -> None:
        """Raise `LeakError` if a buffer of this manager is alive or memory of the device is missing.

        Parameters
        ----------
        tolerance_percent : float
            How much of the memory that was free when the device was opened may be missing now, in percent; the
            ledger tolerates nothing. Host memory changes with every process and is judged by the ledger alone.
        """
        self._check_open()
        if not 0 <= tolerance_percent <= 100:
            raise ArgumentError("tolerance_percent", repr(tolerance_percent), "0 to 100")
        alive = self.live_buffers()
        if alive:
            # A reference cycle that nobody holds is no leak.
            gc.collect()
            alive = self.live_buffers()
        if alive:
            lines = [f"  {entry}" for entry in alive[:_LISTED_LEAKS]]
            if len(alive) > _LISTED_LEAKS:
                lines.append(f"  and {len(alive) - _LISTED_LEAKS} more")
            total = sum(entry.nbytes for entry in alive)
            raise LeakError(f"{len(alive)} buffers with {total} bytes are alive:\n" + "\n".join(lines))
        self.trim()
        before, memory = self._memory.baseline, self._memory
        now = self.device.memory_info().free.value
        if not self.device.free_memory_is_ours or before is None or now is None:
            return
        missing = before - (now + memory.reserved)
        if missing > before * tolerance_percent / 100:
            raise LeakError(
                f"{missing} bytes are missing on {self.device.info}: {before} bytes were free when it was opened, now "
                f"{now} are free and {memory.reserved} are held by other managers; tolerance {tolerance_percent} %"
            )

    def close(self) -> None:
        """Return everything that this manager holds; its tensors become unusable. A second call does nothing.

        Memory that NumPy or a DLPack consumer still looks at is returned when they let go of it.

        Raises
        ------
        DeadlineError
            If the device still works with the memory; then nothing is returned.
        """
        if self._all_returned:
            return
        self._memory.check_process()
        self._wait("the end of all work, to close the manager", self.stream)
        self._closed = True
        for storage in self._memory.storages(self._number):
            storage.close()
        self._constants.clear()
        self._counters.clear()
        self._memory.managers.discard(self)
        if not self._memory.managers:
            self._memory.trim(self._poll)
            self._memory.end_graphs()
        self._all_returned = True  # at the end: a call that was interrupted is finished by the next one


_defaults: dict[Device, ResourceManager] = {}
_defaults_lock = Mutex()


def default_manager(device: Device | str | None = None) -> ResourceManager:
    """Return this process's manager of a device; made on the first call and after a close.

    None is the device of the target that operations use: the GPU where they run on one, else host memory.
    """
    opened = default_device() if device is None else open_device(device)
    manager = _defaults.get(opened)
    if manager is None or manager.closed:
        with _defaults_lock:
            manager = _defaults.get(opened)
            if manager is None or manager.closed:
                made = ResourceManager(opened)
                manager = _defaults.get(opened)  # where a signal's handler has asked meanwhile
                if manager is None or manager.closed:
                    manager = _defaults[opened] = made
    return manager


fork.renew_locks(sys.modules[__name__], "_defaults_lock")
