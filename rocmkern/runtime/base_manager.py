"""A manager without tensors: one user's share of a device, with its cap, its waiting, its checks and its end.

It puts together what the other files do: `rocmkern.runtime.queue` waits with a deadline, `allocator` grants buffers,
`leaks` looks for what is still alive. `ResourceManager` adds tensors.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Sequence

from rocmkern.runtime import leaks
from rocmkern.runtime.allocator import Allocator, MemoryStats
from rocmkern.runtime.cap import DEFAULT_CAP, check_cap
from rocmkern.runtime.device import Device, DeviceLike, Stream
from rocmkern.runtime.devices import default_device, open_device
from rocmkern.runtime.error_word import ErrorWord
from rocmkern.runtime.errors import ArgumentError, ClosedError, RocmkernError
from rocmkern.runtime.ledger import LedgerEntry
from rocmkern.runtime.memory import DeviceMemory
from rocmkern.runtime.queue import Queue
from rocmkern.runtime.settings import MemorySettings


def _check_deadline(deadline_s: float) -> float:
    if isinstance(deadline_s, bool) or not isinstance(deadline_s, (int, float)) or not 0 < deadline_s < math.inf:
        raise ArgumentError("deadline_s", repr(deadline_s), "a number of seconds > 0")
    return float(deadline_s)


class BaseManager:
    """What a tensor knows of its `ResourceManager`, which describes the parameters."""

    _numbers = itertools.count(1)

    def __init__(
        self,
        device: DeviceLike | None = None,
        *,
        cap: float = DEFAULT_CAP,
        deadline_s: float = 60.0,
        settings: MemorySettings | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ):
        cap, deadline_s = check_cap(cap), _check_deadline(deadline_s)
        self.device: Device = default_device() if device is None else open_device(device)
        self.settings: MemorySettings = MemorySettings.from_environment() if settings is None else settings
        self._number = next(self._numbers)
        self._memory = DeviceMemory.of(self.device)
        self._memory.managers.add(self)
        self.queue: Queue = Queue(self.device, self.stream, deadline_s, clock, sleep)
        self._allocator = Allocator(self._memory, self.queue, cap)
        self._closed = self._all_returned = False

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"cap {self.cap:.0%}"
        return f"<ResourceManager on {self.device.info}, {state}>"

    def __exit__(self, *exception: object) -> None:
        self.close()

    @property
    def cap(self) -> float:
        """Fraction of the memory that is free or held by this process which this process may hold at most."""
        return self._allocator.cap

    @cap.setter
    def cap(self, cap: float) -> None:
        self._allocator.cap = check_cap(cap)

    @property
    def deadline_s(self) -> float:
        """Seconds after which a wait gives up."""
        return self.queue.deadline_s

    @deadline_s.setter
    def deadline_s(self, deadline_s: float) -> None:
        self.queue.deadline_s = _check_deadline(deadline_s)

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
        return self._allocator.fits(nbytes, self.settings)

    def safe_alloc_size(self) -> int:
        """Return the size in bytes of the largest buffer that would be granted now."""
        self._check_open()
        return self._allocator.largest(self.settings)

    def memory_stats(self) -> MemoryStats:
        """Return free, total, held, reserved and allowed bytes with the source of each number."""
        self._check_open()
        return self._allocator.stats()

    def trim(self) -> int:
        """Return the idle memory of the pool to the driver; return how many bytes that were."""
        self._check_open()
        return self._allocator.trim()

    # Waiting

    def track(self, name: str, stream: Stream | None = None) -> None:
        """Note that `name` (a kernel, a copy) was just submitted to a stream, so that a wait can name it if stuck."""
        self.queue.track(name, self.stream if stream is None else stream)

    def note(self, names: Sequence[str], stream: Stream) -> None:
        """As `track` for kernels that were just submitted, one event for many of them where that is possible.

        It is on our own stream and on the default stream 0: they live as long as the process and are never captured.
        """
        self.queue.note(names, stream)

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
        self.queue.wait(what, self.stream if stream is None else stream)
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

    # Checks

    def check_guards(self, kernel: str) -> None:
        """Compare the guard bands of all live buffers, after waiting for `kernel`.

        Raises
        ------
        GuardBandError
            If one has changed; it names `kernel` and the buffer.
        """
        self.wait(kernel)
        self._allocator.guards.check(kernel, self.wait)

    def live_buffers(self) -> list[LedgerEntry]:
        """Return the live buffers of this manager, oldest first, without what it keeps for itself."""
        return leaks.live_buffers(self._memory, self._number)

    def assert_no_leak(self, tolerance_percent: float = 5) -> None:
        """Raise `LeakError` if a buffer of this manager is alive or memory of the device is missing.

        Parameters
        ----------
        tolerance_percent : float
            How much of the memory that was free when the device was opened may be missing now, in percent; the
            ledger tolerates nothing. Host memory changes with every process and is judged by the ledger alone.
        """
        self._check_open()
        leaks.check(self._memory, self._number, self.trim, tolerance_percent)

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
        self.queue.wait("the end of all work, to close the manager", self.stream)
        self._closed = True
        for storage in self._memory.storages(self._number):
            storage.close()
        self._memory.managers.discard(self)
        if not self._memory.managers:
            self._allocator.trim()
            self._memory.end_graphs()
        self._all_returned = True  # at the end: a call that was interrupted is finished by the next one
