"""Page-locked host memory that copies go through.

A copy from or to pageable memory makes the driver wait for the stream, inside a call that no deadline can end. Through
a page-locked block it is only submitted; whoever needs it waits by polling.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from rocmkern.runtime.device import Device, Stream

BLOCK_BYTES = 8 << 20
"""The most that one copy moves at once."""
_SMALL_BYTES = 64 << 10
# As many blocks of a size as are kept at most; they are never given back, as that would make the device wait.
_MOST = {_SMALL_BYTES: 16, BLOCK_BYTES: 4}


@dataclass(eq=False)
class _Block:
    address: int
    event: Any = None
    # Holds plain memory where the driver has no page-locked memory left.
    memory: np.ndarray | None = None


class PinnedBuffers:
    """The blocks of one device.

    Parameters
    ----------
    device : Device
        Allocates them, and says when a copy is done.
    """

    def __init__(self, device: Device):
        self._device = device
        self._lock = threading.Lock()
        self._idle: dict[int, list[_Block]] = {size: [] for size in _MOST}
        self._made = dict.fromkeys(_MOST, 0)
        self._lost: list[_Block] = []

    @contextlib.contextmanager
    def lend(self, nbytes: int, stream: Stream, wait: Callable[[], None]) -> Iterator[int]:
        """Lend a block to copies that the body submits to `stream`; it is lent again once they are done.

        Parameters
        ----------
        nbytes : int
            At most `BLOCK_BYTES`.
        stream : int
            Stream of the copies.
        wait : callable
            Waits for the copies that other blocks are lent to, where all are in use.
        """
        size = next(size for size in _MOST if size >= nbytes)
        block = self._take(size)
        while block is None:
            wait()
            block = self._take(size)
        try:
            yield block.address
        finally:
            try:
                block.event = self._device.record(stream)
            except BaseException:
                # Nobody can tell when the copies are done: it is not lent again, and its memory stays.
                self._lost.append(block)
                raise
            with self._lock:
                self._idle[size].append(block)

    def _take(self, size: int) -> _Block | None:
        with self._lock:
            for position, block in enumerate(self._idle[size]):
                if block.event is None or self._device.query(block.event):
                    if block.event is not None:
                        self._device.release_event(block.event)
                        block.event = None
                    return self._idle[size].pop(position)
            # With nothing idle, all blocks are lent by other threads, which may wait for each other: one more.
            if self._made[size] >= _MOST[size] and self._idle[size]:
                return None
            self._made[size] += 1
        return self._make(size)

    def _make(self, size: int) -> _Block:
        with contextlib.suppress(MemoryError):
            address = self._device.allocate_pinned(size)
            if address:
                return _Block(address)
        memory = np.empty(size, np.uint8)
        return _Block(memory.ctypes.data, memory=memory)
