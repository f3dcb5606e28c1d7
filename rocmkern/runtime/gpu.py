"""What HIP and CUDA devices share: the current device of a thread, events that are used again, driver errors."""

from __future__ import annotations

import contextlib
import sys
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from rocmkern.runtime.device import Device, DeviceInfo, Stream
from rocmkern.runtime.errors import RocmkernError

#: What a driver's binding returns: a status and values.
Answer = tuple[Any, ...]


class GpuDevice(Device):
    """A GPU. Streams live as long as the process; events are made without timing and used again.

    Parameters
    ----------
    info : DeviceInfo
        What the driver says about it.
    """

    host_accessible = False
    _numba_devices = ""

    def __init__(self, info: DeviceInfo):
        self.info = info
        # Only appended to and popped from, which needs no lock.
        self._idle_events: list[Any] = []
        self._allocated: dict[int, int] = {}
        # (answer, argument) of each call of the driver that has given or taken memory, until it is entered above.
        self._given: list[list[tuple[Answer, int]]] = []
        self._taken: list[list[tuple[Answer, int]]] = []

    def flush(self) -> None:
        # Frees of Numba's own arrays lie in a queue; asking Numba would load it, so only look whether it was used.
        numba_devices = sys.modules.get(self._numba_devices)
        known = vars(numba_devices._runtime.gpus).get("lst") if numba_devices is not None else None
        context = known[self.info.index].primary_context if known else None
        if context is not None:
            with self.current():
                context.memory_manager.deallocations.clear()

    @abstractmethod
    def _malloc(self, nbytes: int, note: list[tuple[Answer, int]]) -> None:
        """Ask the driver for memory, and put its answer and `nbytes` into `note`: both in one call of C.

        An exception then comes before the driver was asked, or after the answer was noted.
        """

    @abstractmethod
    def _free(self, address: int, note: list[tuple[Answer, int]]) -> None:
        """Return memory to the driver, and note its answer and `address`, as in `_malloc`."""

    @abstractmethod
    def _read_malloc(self, answer: Answer) -> int:
        """The address in the driver's answer; raise MemoryError, or `DriverError`."""

    @abstractmethod
    def _read_free(self, answer: Answer) -> None:
        """Raise `DriverError` for an answer that is one."""

    def allocate(self, nbytes: int) -> int:
        note: list[tuple[Answer, int]] = []
        self._given.append(note)
        self._malloc(nbytes, note)
        try:
            address = self._read_malloc(note[0][0])
        except (MemoryError, RocmkernError):
            self._given.remove(note)
            raise
        self._allocated[address] = nbytes
        self._given.remove(note)
        return address

    def free(self, address: int) -> None:
        note: list[tuple[Answer, int]] = []
        self._taken.append(note)
        self._free(address, note)
        try:
            self._read_free(note[0][0])
        except RocmkernError:
            self._taken.remove(note)
            raise
        self._allocated.pop(address, None)
        self._taken.remove(note)

    def allocated(self) -> Mapping[int, int]:
        for note in self._taken:
            for answer, address in note:
                with contextlib.suppress(RocmkernError):
                    self._read_free(answer)
                    self._allocated.pop(address, None)
        self._taken.clear()
        for note in self._given:
            for answer, nbytes in note:
                with contextlib.suppress(MemoryError, RocmkernError):
                    self._allocated[self._read_malloc(answer)] = nbytes
        self._given.clear()
        return self._allocated

    @abstractmethod
    def _create_event(self) -> Any:
        """Make an event; the device is current."""

    @abstractmethod
    def _record(self, event: Any, stream: Stream) -> None:
        """Record an event; the device is current."""

    def record(self, stream: Stream) -> Any:
        with self.current():
            try:
                event = self._idle_events.pop()
            except IndexError:
                event = self._create_event()
            try:
                self._record(event, stream)
            except BaseException:
                self._idle_events.append(event)
                raise
        return event

    @abstractmethod
    def _following(self, event: Any, streams: Iterable[Stream], other: Stream) -> Iterator[Answer]:
        """Record an event on `other`, then let each stream wait for it: an iterator in C over the driver's answers."""

    @abstractmethod
    def _read_following(self, answers: list[Answer]) -> None:
        """Raise `DriverError` if one of the answers is one."""

    def call_followed(self, submit: Callable[[], Any], streams: Iterable[Stream], other: Stream) -> Any:
        with self.current():
            try:
                event = self._idle_events.pop()
            except IndexError:
                event = self._create_event()
            answers: list[Answer] = []
            steps = self._following(event, streams, other)
            try:
                return submit()
            finally:
                # One call of C. What is raised between instructions comes before `submit`, within it, or behind this.
                answers.extend(steps)
                self._idle_events.append(event)
                self._read_following(answers)

    @abstractmethod
    def _create_timed_event(self) -> Any:
        """Make an event that keeps the time; the device is current."""

    @abstractmethod
    def _elapsed_ms(self, start: Any, stop: Any) -> float:
        """Milliseconds between two events with time."""

    def record_timed(self, stream: Stream) -> Any:
        """Record an event that keeps the time when the stream gets there.

        Parameters
        ----------
        stream : int
            Any stream of this device; 0 is the default stream.

        Returns
        -------
        object
            An event for `elapsed`; it lives as long as the process, so measurements are for benchmarks.
        """
        with self.current():
            event = self._create_timed_event()
            self._record(event, stream)
        return event

    def elapsed(self, start: Any, stop: Any) -> float:
        """Seconds between two events of `record_timed` that have both been reached."""
        with self.current():
            return self._elapsed_ms(start, stop) * 1e-3

    def release_event(self, event: Any) -> None:
        # A stream that was told to wait for it keeps what it was recorded for; recording it again is safe.
        self._idle_events.append(event)
