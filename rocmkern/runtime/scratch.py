"""Memory between two launches of one call: `ResourceManager.scratch`.

A class and not a generator: it is part of every launch that needs inner results, and counts microseconds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from rocmkern.runtime.device import Stream

if TYPE_CHECKING:
    from rocmkern.runtime.manager import ResourceManager
    from rocmkern.runtime.memory import DeviceMemory
    from rocmkern.runtime.pool import Block
    from rocmkern.runtime.tensor import DeviceTensor


class Scratch:
    """Idle memory of the pool, borrowed for the block; a tensor of its own where that is not possible."""

    __slots__ = ("_block", "_manager", "_memory", "_nbytes", "_stream", "_tensor")

    def __init__(self, manager: ResourceManager, memory: DeviceMemory, nbytes: int, stream: Stream):
        self._manager, self._memory, self._nbytes, self._stream = manager, memory, nbytes, stream
        self._block: Block | None = None
        self._tensor: DeviceTensor | None = None

    def __enter__(self) -> int:
        manager, memory, settings = self._manager, self._memory, self._manager.settings
        # What a graph uses may not be idle afterwards, and guard bands and poison are those of a buffer.
        plain = settings.pool and not settings.poison and not settings.guard
        if plain and memory.recording(self._stream) is None:
            self._block = memory.borrow(self._nbytes, self._stream)
            if self._block is not None:
                return self._block.address
        self._tensor = manager.empty(self._nbytes, np.uint8, uninitialized=True, stream=self._stream)
        return self._tensor.data_ptr

    def __exit__(self, *error: object) -> None:
        if self._block is not None:
            self._memory.end_loan(self._block, self._stream)
        elif self._tensor is not None:
            self._tensor.close()
