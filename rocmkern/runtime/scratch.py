"""Memory between two launches of one call: `ResourceManager.scratch`.

A class and not a generator: it is part of every launch that needs inner results, and counts nanoseconds.
"""

from __future__ import annotations

from threading import get_ident
from typing import TYPE_CHECKING

import numpy as np

from rocmkern.runtime.device import Stream

if TYPE_CHECKING:
    from rocmkern.runtime.manager import ResourceManager
    from rocmkern.runtime.memory import DeviceMemory
    from rocmkern.runtime.pool import Block
    from rocmkern.runtime.tensor import DeviceTensor


class Scratch:
    """Idle memory of the pool, borrowed for the block; a tensor of its own where that is not possible.

    It may be entered again, also by several threads at once, but not within its own block.
    """

    __slots__ = ("_block", "_lasting", "_manager", "_memory", "_nbytes", "_stream", "_tensors")

    def __init__(self, manager: ResourceManager, memory: DeviceMemory, nbytes: int, stream: Stream):
        self._manager, self._memory, self._nbytes, self._stream = manager, memory, nbytes, stream
        self._lasting = stream in (0, memory.stream)  # no graph is ever recorded there
        # The block that was borrowed the last time. During a loan its borrower alone may change it.
        self._block: Block | None = None
        self._tensors: dict[int, DeviceTensor] = {}  # of the threads that could not borrow and are in the block now

    def __enter__(self) -> int:
        memory, settings = self._memory, self._manager.settings
        # What a graph uses may not be idle afterwards, and guard bands and poison are those of a buffer.
        plain = settings.pool and not settings.poison and not settings.guard
        if plain and (self._lasting or memory.recording(self._stream) is None):
            block = memory.borrow(self._nbytes, self._stream, self._block)
            if block is not None:
                self._block = block
                return block.address
        tensor = self._manager.empty(self._nbytes, np.uint8, uninitialized=True, stream=self._stream)
        self._tensors[get_ident()] = tensor
        return tensor.data_ptr

    def __exit__(self, *error: object) -> None:
        tensor = self._tensors.pop(get_ident(), None) if self._tensors else None
        if tensor is not None:
            tensor.close()
        elif self._block is not None:
            self._memory.end_loan(self._block, self._stream)
