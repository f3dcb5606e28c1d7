"""Guard bands: random NaN on both sides of every buffer, compared after every launch.

A kernel that writes outside its buffer changes a band; one that reads outside gets NaN, which then shows in its output.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable

import numpy as np

from rocmkern.runtime.errors import GuardBandError
from rocmkern.runtime.memory import Buffer

GUARD_BYTES = 256
"""Length of a band. A multiple of the allocation's alignment, so that the buffer between stays aligned."""


def nan_pattern(nbytes: int, generator: np.random.Generator) -> np.ndarray:
    """Return `nbytes` random bytes that are NaN read as float16, bfloat16, float32 or float64 (from an even offset)."""
    halves = generator.integers(0x7FF1, 0x8000, size=-(-nbytes // 2), dtype=np.uint16)
    halves |= generator.integers(0, 2, size=halves.shape, dtype=np.uint16) << np.uint16(15)
    return halves.astype("<u2").view(np.uint8)[:nbytes]


class GuardBands:
    """The bands of one manager's buffers."""

    def __init__(self) -> None:
        self._guarded: dict[int, tuple[weakref.ref[Buffer], np.ndarray]] = {}
        self._generator = np.random.default_rng(0)

    def add(self, buffer: Buffer) -> None:
        """Write the bands of a new buffer."""
        pattern = nan_pattern(2 * GUARD_BYTES, self._generator)
        # Without a callback: an exception that arrives while one runs would be lost.
        self._guarded[buffer.number] = weakref.ref(buffer), pattern
        self._write(buffer, pattern)

    def check(self, kernel: str, wait: Callable[[str], None]) -> None:
        """Compare every band.

        Parameters
        ----------
        kernel : str
            Name of the kernel that was launched last.
        wait : callable
            Waits for the runtime's stream; called with a description after the bands are on their way to the host.

        Raises
        ------
        GuardBandError
            If one has changed: names `kernel`, the buffer, and how far outside the first changed byte is. The bands
            of that buffer are written anew, so that the next kernel is not blamed.
        """
        read: list[tuple[Buffer, np.ndarray, np.ndarray]] = []
        for number, (reference, pattern) in list(self._guarded.items()):
            buffer = reference()
            if buffer is None:
                self._guarded.pop(number, None)
            else:
                found = np.empty_like(pattern)
                for band, address in zip(np.split(found, 2), self._bands(buffer), strict=True):
                    buffer.memory.read(band, address)
                read.append((buffer, pattern, found))
        wait(f"the guard bands after {kernel}")
        for buffer, pattern, found in read:
            changed = np.flatnonzero(found != pattern)
            if changed.size:
                self._write(buffer, pattern)
                before, after = changed[changed < GUARD_BYTES], changed[changed >= GUARD_BYTES] - GUARD_BYTES
                sides = []
                if before.size:
                    sides.append(f"{before.size} bytes before it (the nearest {GUARD_BYTES - before[-1]} bytes ahead)")
                if after.size:
                    sides.append(f"{after.size} bytes behind it (the nearest {after[0]} bytes past its end)")
                raise GuardBandError(
                    f"{kernel} wrote outside a buffer: changed {' and '.join(sides)}; the buffer has "
                    f"{buffer.memory.describe(buffer)}"
                )

    @staticmethod
    def _bands(buffer: Buffer) -> tuple[int, int]:
        return buffer.address - GUARD_BYTES, buffer.address + buffer.nbytes

    def _write(self, buffer: Buffer, pattern: np.ndarray) -> None:
        for band, address in zip(np.split(pattern, 2), self._bands(buffer), strict=True):
            buffer.memory.write(address, band)
