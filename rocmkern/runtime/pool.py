"""Idle buffers of one device, kept for reuse.

Freeing through a driver synchronises the device, and allocating costs more than a launch; so a buffer that dies is
kept. It is handed out again only where nothing can still read it: at once on the stream that used it (work there is
ordered), on another stream after the event of every stream that used it. Not thread-safe by itself: the device's
memory lock guards it.

What is true of a block stands in the block; the lists are an index of that, which `Pool.rebuild` makes anew where an
exception has come between two changes (see `rocmkern.runtime.memory`). So each method changes a block such that it is
safe after every single step: events are dropped after the stream is set that they no longer matter to, and an event
that is missing is recorded when somebody asks.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from rocmkern.runtime.device import Device, Stream

_LARGE = 1 << 20

TAKEN, GONE = "taken", "gone"
"""Owners of a block that is on its way from the pool to a buffer, and of one that was returned to the driver."""


def size_class(nbytes: int) -> int:
    """Return the capacity to reserve for `nbytes`.

    Small buffers are rounded up to eight steps per power of two (at least 512 bytes), so that sizes that vary a little
    share buffers; from 1 MiB on only to whole pages of 4 KiB: there, rounding would cost memory that counts.
    """
    step = 4096 if nbytes >= _LARGE else max(512, 1 << max(0, (nbytes - 1).bit_length() - 4))
    return -(-nbytes // step) * step


def largest_reused(nbytes: int) -> int:
    """Return the capacity up to which an idle block is handed out for `nbytes`: an eighth more, or its size class."""
    return max(size_class(nbytes), nbytes + nbytes // 8)


@dataclass(eq=False)
class Block:
    """Memory reserved from the driver.

    Attributes
    ----------
    address, capacity : int
        Where it is and how many bytes it has.
    stream : int
        The stream that it was last handed out on.
    events : dict
        While idle: for each stream that used it, the event after which it no longer does.
    owner : object
        None while it lies in the pool, `TAKEN` while it is on its way, `GONE` once the driver has it back; else what
        has it: the ticket of a buffer, or the recording of the graph that it belongs to.
    number : int
        Its place in the order in which blocks came to the pool; 0 before.
    """

    address: int
    capacity: int
    stream: Stream
    events: dict[Stream, Any] = field(default_factory=dict)
    owner: Any = None
    number: int = 0

    @property
    def idle(self) -> bool:
        """Whether it lies in the pool."""
        return self.owner is None


class Pool:
    """Idle blocks of one device, by the stream that used them.

    Parameters
    ----------
    device : Device
        Records and queries the events.
    own_stream : int
        The runtime's stream. It and the default stream 0 live as long as the process: their events are recorded only
        when somebody else asks for the block. Other streams may be destroyed later, so theirs are recorded when the
        block comes back.
    """

    idle_bytes: int

    def __init__(self, device: Device, own_stream: Stream):
        self._device, self._lasting = device, (own_stream, 0)
        self._idle: dict[Stream, list[tuple[int, int, Block]]] = {}
        self._order = itertools.count(1)
        self.idle_bytes = 0

    def put(self, block: Block, other_streams: frozenset[Stream]) -> None:
        """Take a block back whose buffer has died; `other_streams` used it besides its own.

        Where an event of one of them cannot be recorded, the block is not taken.
        """
        try:
            for stream in other_streams | {block.stream}:
                self.used(block, stream)
        except BaseException:
            self._release_events(block)
            raise
        block.number = next(self._order)
        self._insert(block)
        self.idle_bytes += block.capacity
        block.owner = None

    def rebuild(self, blocks: Iterable[Block]) -> None:
        """Make the index anew: these blocks are idle, and no others."""
        self._idle, self.idle_bytes = {}, 0
        for block in blocks:
            block.owner = None
            block.number = block.number or next(self._order)  # one that never came here
            self._insert(block)
            self.idle_bytes += block.capacity

    def take(self, nbytes: int, stream: Stream, everywhere: bool = False) -> Block | None:
        """Hand out the smallest fitting idle block that `stream`, or every stream, may write now, or None."""
        found = self._find(nbytes, None if everywhere else stream)
        if found is None:
            return None
        idle, position = found
        block = idle.pop(position)[2]
        block.stream = stream
        self._hand_out(block)
        return block

    def look_for(self, nbytes: int, stream: Stream) -> Block | None:
        """Return the block that `take` would hand out, which stays idle: from now on it is one of `stream`."""
        found = self._find(nbytes, stream)
        if found is None:
            return None
        idle, position = found
        block = idle[position][2]
        # No other stream works with it any more: their events would only be asked again.
        if block.stream != stream:
            del idle[position]
            block.stream = stream
            self._insert(block)
        # Nor is an event of this one behind the work that is to come: whoever asks later has one recorded.
        self._release_events(block)
        return block

    def _insert(self, block: Block) -> None:
        bisect.insort(self._idle.setdefault(block.stream, []), (block.capacity, block.number, block))

    def used(self, block: Block, stream: Stream) -> None:
        """Note that work on an idle block was submitted to `stream`."""
        if stream in block.events:
            self._device.release_event(block.events.pop(stream))
        if stream != block.stream or stream not in self._lasting:
            block.events[stream] = self._device.record(stream)

    def fits(self, nbytes: int, stream: Stream) -> bool:
        """Return whether `take` would find a block."""
        return self._find(nbytes, stream) is not None

    def _find(self, nbytes: int, stream: Stream | None) -> tuple[list[tuple[int, int, Block]], int] | None:
        most = largest_reused(nbytes)
        own = self._idle.get(stream) if stream is not None else None
        others = (idle for home, idle in self._idle.items() if home != stream)
        for idle in itertools.chain(() if own is None else (own,), others):
            for position in range(bisect.bisect_left(idle, (nbytes,)), len(idle)):
                capacity, _, block = idle[position]
                if capacity > most:
                    break
                if self._ready(block, stream):
                    return idle, position
        return None

    def take_ready(self) -> list[Block]:
        """Remove and return every idle block that no stream uses any more (to be freed)."""
        ready = []
        for home, idle in list(self._idle.items()):
            keep = []
            for item in idle:
                if self._ready(item[2], None):
                    self._hand_out(item[2])
                    ready.append(item[2])
                else:
                    keep.append(item)
            self._idle[home] = keep
        return ready

    def blocks(self) -> list[Block]:
        """Return the idle blocks."""
        return [block for idle in self._idle.values() for *_, block in idle]

    def busy(self, block: Block) -> bool:
        """Return whether a block is idle but still in use by a stream."""
        return block.idle and not self._ready(block, None)

    def _ready(self, block: Block, stream: Stream | None) -> bool:
        if block.stream != stream and block.stream not in block.events:
            block.events[block.stream] = self._device.record(block.stream)
        return not block.events or all(
            self._device.query(event) for user, event in block.events.items() if user != stream
        )

    def _hand_out(self, block: Block) -> None:
        self._release_events(block)
        block.owner = TAKEN
        self.idle_bytes -= block.capacity

    def _release_events(self, block: Block) -> None:
        # Out of the block first: an event that was given back is another's.
        while block.events:
            self._device.release_event(block.events.popitem()[1])
