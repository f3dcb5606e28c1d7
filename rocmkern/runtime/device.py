"""The interface that a kind of device implements: identity, free memory, raw memory, streams and events.

Everything above it (pool, ledger, manager, tensors) is written once against `Device`. Streams and events are opaque
values of the device's own; the runtime only hands them back.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias

from rocmkern.runtime.cap import Reading

Stream = int
"""A stream handle. 0 is the device's default stream (on the host: program order)."""


@dataclass(frozen=True)
class DeviceInfo:
    """What a device is.

    Attributes
    ----------
    kind : str
        ``"host"``, ``"hip"`` or ``"cuda"``.
    index : int
        The driver's number of the device.
    name : str
        Product name.
    pci_id : str or None
        ``"0000:03:00.0"``; None for the host.
    integrated : bool
        Whether it shares its memory with the CPU (an APU).
    total : int
        Bytes of memory; 0 if unknown.
    arch : str
        ``"gfx1100"``, ``"sm_90"``; empty for the host.
    """

    kind: str
    index: int
    name: str
    pci_id: str | None
    integrated: bool
    total: int
    arch: str = ""

    def __str__(self) -> str:
        details = [self.pci_id, self.arch, "integrated" if self.integrated else "", f"{self.total / 2**30:.1f} GiB"]
        return f"{self.kind}:{self.index} {self.name} ({', '.join(detail for detail in details if detail)})"


@dataclass(frozen=True)
class MemoryInfo:
    """Free and total bytes of a device now, each with its source."""

    free: Reading
    total: Reading


class Device(ABC):
    """One device. There is one object per physical device and process; managers on it share cap, pool and ledger.

    Each method works whatever device is current in the calling thread and leaves the current device as it was.
    Methods may be called from several threads at once.

    Attributes
    ----------
    info : DeviceInfo
        Identity.
    host_accessible : bool
        Whether addresses may be read and written by the CPU.
    free_memory_is_ours : bool
        Whether a drop of the free memory can be blamed on this process (a locked GPU), so that a leak check may look
        at it. The host's free memory changes with every process of the machine.
    """

    info: DeviceInfo
    host_accessible: bool = False
    free_memory_is_ours: bool = True

    on_use: ClassVar[list[Callable[[Device], None]]] = []
    """Called with a GPU before it is used; a test run notes uses without the device's lock."""

    @property
    def kind(self) -> str:
        """``"host"``, ``"hip"`` or ``"cuda"``."""
        return self.info.kind

    def __repr__(self) -> str:
        return f"<{self.info}>"

    @abstractmethod
    def memory_info(self) -> MemoryInfo:
        """Read free and total memory now. Never raises: what cannot be read is None."""

    @abstractmethod
    def allocate(self, nbytes: int) -> int:
        """Return the address of `nbytes` (> 0) fresh bytes, aligned to 256. Raise MemoryError if there are none."""

    @abstractmethod
    def free(self, address: int) -> None:
        """Return memory to the driver, after the work submitted so far no longer needs it."""

    @abstractmethod
    def allocated(self) -> Mapping[int, int]:
        """Return the bytes at each address that `allocate` has given and `free` has not taken back.

        Also where an exception came before `allocate` or `free` returned: what the driver did counts.
        """

    def allocate_pinned(self, nbytes: int) -> int:
        """Return the address of page-locked host memory for copies, or 0 where any host memory serves as well."""
        return 0

    @abstractmethod
    def flush(self) -> None:
        """Carry out frees that the driver's binding has only queued."""

    @abstractmethod
    def current(self) -> AbstractContextManager[None]:
        """Make this device current in the calling thread for a launch, and restore the previous one."""

    def call_current(self, function: Callable[[Any], Any], argument: Any) -> Any:
        """Call a function of one argument while this device is `current`: the quickest way, for launches.

        A thread without any current device may be left with this one, if that is the one it would get by itself.
        """
        with self.current():
            return function(argument)

    @abstractmethod
    def create_stream(self) -> Stream:
        """Create a stream that does not synchronise with the default stream."""

    @abstractmethod
    def fill(self, address: int, nbytes: int, byte: int, stream: Stream) -> None:
        """Set `nbytes` bytes to `byte` (0 to 255), ordered on `stream`."""

    @abstractmethod
    def copy_to_device(self, destination: int, source: int, nbytes: int, stream: Stream) -> None:
        """Copy from a host address, ordered on `stream`; the source stays valid until the stream has passed."""

    @abstractmethod
    def copy_to_host(self, destination: int, source: int, nbytes: int, stream: Stream) -> None:
        """Copy to a host address, ordered on `stream`; readable once the stream has passed."""

    @abstractmethod
    def copy_device(self, destination: int, source: int, nbytes: int, stream: Stream) -> None:
        """Copy within the device, ordered on `stream`; the ranges do not overlap."""

    @abstractmethod
    def record(self, stream: Stream) -> Any:
        """Return an event that is done when everything submitted to `stream` so far is done."""

    @abstractmethod
    def query(self, event: Any) -> bool:
        """Return whether `event` is done, without waiting."""

    @abstractmethod
    def release_event(self, event: Any) -> None:
        """Give an event back; it is not used again."""

    def capture(self, stream: Stream) -> int | None:
        """Return the number of the graph that `stream` records, unique in this process; None if it records none.

        The events of such a stream cannot be queried, and nothing may wait for it.
        """
        return None

    def is_capturing(self, stream: Stream) -> bool:
        """Return whether `stream` records a graph."""
        return self.capture(stream) is not None

    def beside_capture(self) -> AbstractContextManager[None]:
        """Let this thread allocate, and query events of other streams, while a stream records a graph."""
        return nullcontext()

    @abstractmethod
    def stream_wait(self, stream: Stream, event: Any) -> None:
        """Make later work on `stream` wait for `event`, without blocking the caller."""

    def call_followed(self, submit: Callable[[], Any], streams: Iterable[Stream], other: Stream) -> Any:
        """Return what `submit()` does; later work on `streams` waits for all that it has submitted to `other`.

        Also where it raises. On a GPU no exception from outside comes between the two.
        """
        try:
            return submit()
        finally:
            for stream in streams:
                self.follow(stream, other)

    def follow(self, stream: Stream, other: Stream) -> None:
        """Make later work on `stream` wait for what was submitted to `other` so far."""
        event = self.record(other)
        self.stream_wait(stream, event)
        self.release_event(event)


#: What a user may write for a device: see `rocmkern.runtime.devices.open_device`; any part of a card's name is a str.
DeviceLike: TypeAlias = Device | DeviceInfo | str | int
