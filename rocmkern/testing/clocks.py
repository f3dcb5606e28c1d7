"""Clocks of benchmark rows: what a run of a function took, by the measure that counts where it runs.

On a CPU that is the CPU time of the process, over all its threads: it does not flatter the one of two implementations
that happened to run while the other cores were free. On a GPU it is the time between two events of the stream, with
nothing waited for in between; before the first one the last-level cache is overwritten, unless the row says warm.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median
from typing import Any

# More than the last-level cache of any card; writing it also keeps the card busy while the host prepares the call.
FLUSHED_BYTES = 1 << 28
FLUSHES = 3


class HostClock:
    """CPU and wall-clock seconds of the runs of one function."""

    counts = "cpu_s"

    def __init__(self, function: Callable[[], Any]):
        self.function = function
        self.cpu: list[float] = []
        self.wall: list[float] = []

    def __call__(self) -> Any:
        cpu, wall = time.process_time(), time.perf_counter()
        result = self.function()
        self.wall.append(time.perf_counter() - wall)
        self.cpu.append(time.process_time() - cpu)
        return result

    def medians(self) -> dict[str, float]:
        """``cpu_s`` and ``wall_s``."""
        return {"cpu_s": median(self.cpu), "wall_s": median(self.wall)}

    @property
    def rounds(self) -> int:
        """How often it ran."""
        return len(self.wall)

    @property
    def samples(self) -> list[float]:
        """What counts, of each run."""
        return _rounded(self.cpu)

    def spread(self) -> float:
        """Distance of the quartiles of what counts, relative to the median."""
        return _spread(self.cpu)


class DeviceClock:
    """Seconds between two events around the runs of one function, which works on one stream.

    Parameters
    ----------
    function : callable
    manager : ResourceManager
        Of the device; its pool gives the buffer that is written to empty the cache.
    stream : int
        The stream that the function's work goes to.
    warm : bool
        Leave the cache as it is.
    """

    counts = "wall_s"

    function: Callable[[], Any]
    manager: Any
    stream: int
    warm: bool

    def __init__(self, function: Callable[[], Any], manager: Any, stream: int, warm: bool):
        self.function, self.manager, self.stream, self.warm = function, manager, stream, warm
        self.seconds: list[float] = []

    def __call__(self) -> Any:
        device = self.manager.device
        with self.manager.empty((FLUSHED_BYTES,), "uint8", uninitialized=True) as buffer:
            self.manager.wait()
            if not self.warm:
                for byte in range(FLUSHES):
                    device.fill(buffer.data_ptr, FLUSHED_BYTES, byte, self.stream)
            start = device.record_timed(self.stream)
            result = self.function()
            stop = device.record_timed(self.stream)
            self.manager.wait(stream=self.stream)
            self.seconds.append(device.elapsed(start, stop))
        return result

    def medians(self) -> dict[str, float]:
        """``wall_s``."""
        return {"wall_s": median(self.seconds)}

    @property
    def rounds(self) -> int:
        """How often it ran."""
        return len(self.seconds)

    @property
    def samples(self) -> list[float]:
        """What counts, of each run."""
        return _rounded(self.seconds)

    def spread(self) -> float:
        """Distance of the quartiles, relative to the median."""
        return _spread(self.seconds)


def _rounded(values: list[float]) -> list[float]:
    """Seven digits are more than a clock has, and keep files of results small."""
    return [float(f"{value:.7g}") for value in values]


def _spread(values: list[float]) -> float:
    ordered = sorted(values)
    quarter = len(ordered) // 4
    return (ordered[-1 - quarter] - ordered[quarter]) / median(ordered)
