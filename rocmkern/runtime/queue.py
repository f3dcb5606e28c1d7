"""What was submitted to a device and is not done, and waiting for it with a deadline that names what is stuck.

A kernel or a copy is *tracked*: an event behind it says when it is done. Kernels of a plan are *noted*: many of them
share one event, which is recorded when there are enough, or when somebody waits.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from rocmkern.runtime import fork
from rocmkern.runtime.device import Device, Stream
from rocmkern.runtime.mutex import Mutex, alone
from rocmkern.runtime.waiting import poll

# Kernels that share an event; if one of them is stuck, an error names them all.
_NOTED = 16
_NO_EVENT = object()


class _Operation:
    """What was submitted to a stream, and the event after it, which is recorded when it is first asked for."""

    __slots__ = ("done", "event", "names", "stream")

    def __init__(self, names: list[str], stream: Stream):
        self.names, self.stream, self.done = names, stream, False
        self.event: Any = _NO_EVENT

    @property
    def name(self) -> str:
        return " or ".join(dict.fromkeys(self.names))


class Queue:
    """What one manager has submitted to the streams of its device.

    Parameters
    ----------
    device : Device
        Records and queries the events.
    stream : int
        The runtime's stream.
    deadline_s : float
        Seconds after which a wait gives up.
    clock, sleep : callable
        Seconds now and a pause.
    """

    device: Device
    stream: Stream
    deadline_s: float

    def __init__(
        self,
        device: Device,
        stream: Stream,
        deadline_s: float,
        clock: Callable[[], float],
        sleep: Callable[[float], None],
    ):
        self.device, self.stream, self.deadline_s = device, stream, deadline_s
        self._clock, self._sleep = clock, sleep
        self._in_flight: deque[_Operation] = deque()
        self._lock = Mutex()
        self._noted: dict[Stream, list[str]] = {stream: [], 0: []}
        fork.renew_locks(self, "_lock")

    def track(self, name: str, stream: Stream) -> None:
        """Note that `name` was just submitted to a stream, so that a wait can name it if it is stuck."""
        if stream != self.stream and self.device.is_capturing(stream):
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
        with alone(self._lock):
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
        with alone(self._lock):
            return self._look(operation)

    def wait(self, what: str | None, stream: Stream) -> None:
        """Wait until everything that was tracked, and everything submitted to a stream, is done.

        Raises
        ------
        DeadlineError
            After ``deadline_s`` seconds; it names the first tracked operation that is not done, or else `what`.
        """
        self._track_noted()
        event = self.device.record(stream)
        operations = list(self._in_flight)
        try:
            self.poll(
                lambda: all(map(self._finished, operations)) and self.device.query(event),
                what or f"work on stream {stream:#x} of {self.device.info}",
            )
        finally:
            self.device.release_event(event)

    def poll(self, done: Callable[[], bool], what: str) -> None:
        """Return when `done` does; at the deadline raise as `wait` does."""

        def name() -> str:
            stuck = next((op.name for op in list(self._in_flight) if not self._finished(op)), None)
            return what if stuck is None else f"{stuck} (while waiting for: {what})"

        poll(done, name, self.deadline_s, clock=self._clock, sleep=self._sleep)
