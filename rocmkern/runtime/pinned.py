"""Page-locked host memory that copies go through.

A copy from or to pageable memory makes the driver wait for the stream, inside a call that no deadline can end. Through
a page-locked block it is only submitted; whoever needs it waits by polling.

A block is lent as long as its `Loan` lives, so none is lost to an exception, wherever that comes from. The event behind
its copies is recorded when the loan ends, or, where it did not come to that, when the block is asked for again.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from rocmkern.runtime import fork
from rocmkern.runtime.device import Device, Stream
from rocmkern.runtime.mutex import Mutex, alone

BLOCK_BYTES = 8 << 20
"""The most that one copy moves at once."""
_SMALL_BYTES = 64 << 10
# As many blocks of a size as are kept at most; they are never given back, as that would make the device wait.
_MOST = {_SMALL_BYTES: 16, BLOCK_BYTES: 4}


@dataclass(eq=False)
class _Block:
    address: int
    stream: Stream = 0
    event: Any = None
    # Whether it was lent since the event was recorded.
    used: bool = False
    loan: weakref.ref[Loan] | None = None
    # Holds plain memory where the driver has no page-locked memory left.
    memory: np.ndarray | None = None


class Loan:
    """A block for copies that the body of a ``with`` submits to a stream; its value is the address."""

    __slots__ = ("__weakref__", "_block", "_lender")

    def __init__(self, lender: PinnedBuffers):
        self._lender = lender
        self._block: _Block

    def __enter__(self) -> int:
        return self._block.address

    def __exit__(self, *error: object) -> None:
        self._lender._end(self._block)


class PinnedBuffers:
    """The blocks of one device.

    Parameters
    ----------
    device : Device
        Allocates them, and says when a copy is done.
    """

    def __init__(self, device: Device):
        self._device = device
        self._lock = Mutex()
        self._blocks: dict[int, list[_Block]] = {size: [] for size in _MOST}
        self._lost: list[_Block] = []
        fork.renew_locks(self, "_lock")

    def lend(self, nbytes: int, stream: Stream, wait: Callable[[], None]) -> Loan:
        """Lend a block to copies that the body of a ``with`` submits; it is lent again once they are done.

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
        loan = Loan(self)
        while not self._lend_to(loan, size, stream):
            wait()
        return loan

    def _lend_to(self, loan: Loan, size: int, stream: Stream) -> bool:
        with alone(self._lock):
            blocks = self._blocks[size]
            idle = self._idle(blocks)
            block = self._first_done(idle)
            if block is None:
                # With nothing idle, all blocks are lent by other threads, which may wait for each other: one more.
                if len(blocks) >= _MOST[size] and idle:
                    return False
                block = self._make(size)
                blocks.append(block)
            reference = weakref.ref(loan)
            loan._block, block.loan, block.stream, block.used = block, reference, stream, True
            return True

    @staticmethod
    def _idle(blocks: list[_Block]) -> list[_Block]:
        return [block for block in blocks if block.loan is None or block.loan() is None]

    def _first_done(self, blocks: list[_Block]) -> _Block | None:
        return next((block for block in blocks if self._is_done(block)), None)

    def _is_done(self, block: _Block) -> bool:
        if block.used:
            block.event, block.used = self._device.record(block.stream), False
        event = block.event
        if event is not None:
            if not self._device.query(event):
                return False
            block.event = None  # first: an event that was given back is another's
            self._device.release_event(event)
        return True

    def _end(self, block: _Block) -> None:
        try:
            event = self._device.record(block.stream)
        except Exception:
            # Nobody can tell when the copies are done: it is not lent again, and its memory stays.
            with alone(self._lock):
                self._lose(block)
            raise
        block.event, block.used, block.loan = event, False, None

    def _lose(self, block: _Block) -> None:
        self._lost.append(block)
        for blocks in self._blocks.values():
            blocks[:] = [each for each in blocks if each is not block]

    def _make(self, size: int) -> _Block:
        with contextlib.suppress(MemoryError):
            address = self._device.allocate_pinned(size)
            if address:
                return _Block(address)
        memory = np.empty(size, np.uint8)
        return _Block(memory.ctypes.data, memory=memory)
