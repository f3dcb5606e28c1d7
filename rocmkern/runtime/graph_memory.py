"""Memory of recorded graphs.

A graph has addresses in it and may be started at any time, on any stream, at the same time as other work. So memory
that was handed out while a stream recorded a graph belongs to that graph: it does not go back to the pool, and the only
others that get it are later calls that the same stream records into the same graph, which run one after another. It is
reserved memory, which the cap counts, until the last manager of the device is closed.
"""

from __future__ import annotations

from collections.abc import Iterable

from rocmkern.runtime.device import Stream
from rocmkern.runtime.pool import Block

Recording = tuple[int, Stream]
"""Number of a graph and the stream that records it."""


class GraphMemory:
    """The blocks of all graphs of a device. The device's memory lock guards it."""

    def __init__(self) -> None:
        self._unused: dict[Recording, list[Block]] = {}

    def take(self, nbytes: int, recording: Recording) -> Block | None:
        """Hand out the smallest block of a graph that fits and that no live buffer has; None if there is none."""
        blocks = self._unused.get(recording, [])
        fitting = [block for block in blocks if block.capacity >= nbytes]
        if not fitting:
            return None
        block = min(fitting, key=lambda block: block.capacity)
        blocks.remove(block)
        return block

    def put(self, block: Block, recording: Recording) -> None:
        """Take the block of a dead buffer back, for the next call in the same graph."""
        self._unused.setdefault(recording, []).append(block)
        block.owner = recording

    def rebuild(self, blocks: Iterable[Block]) -> None:
        """Make the index anew from the blocks whose owner is a recording (see `rocmkern.runtime.memory`)."""
        self._unused = {}
        for block in blocks:
            self._unused.setdefault(block.owner, []).append(block)

    def clear(self) -> list[Block]:
        """Remove and return all blocks (to be freed): no graph is started any more."""
        blocks = [block for unused in self._unused.values() for block in unused]
        self._unused.clear()
        return blocks
