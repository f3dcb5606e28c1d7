"""Memory between two launches of one call: `ResourceManager.scratch`.

A function that is called with the memory, and not a context manager: the memory's lock is held meanwhile, which only a
``with`` on the lock itself gives back at any exception (see `rocmkern.runtime.memory`). It is part of every launch that
needs inner results, and counts nanoseconds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from rocmkern.runtime.base_manager import BaseManager
from rocmkern.runtime.device import Stream
from rocmkern.runtime.handle import Handle
from rocmkern.runtime.memory import DeviceMemory
from rocmkern.runtime.mutex import alone
from rocmkern.runtime.pool import Block


class Scratch:
    """Idle memory of the pool, lent for one call; a tensor of its own where that is not possible.

    It may be lent again and again, also by several threads at once, but not within a call that it is lent to.
    """

    __slots__ = ("_block", "_empty", "_lasting", "_manager", "_memory", "_nbytes", "_stream")

    def __init__(
        self, manager: BaseManager, memory: DeviceMemory, nbytes: int, stream: Stream, empty: Callable[..., Handle]
    ):
        self._manager, self._memory, self._nbytes, self._stream, self._empty = manager, memory, nbytes, stream, empty
        self._lasting = memory.is_lasting(stream)  # no graph is ever recorded there
        # The block that was lent the last time. Whoever holds the memory's lock may change it.
        self._block: Block | None = None

    def lend(self, submit: Callable[..., Any], *arguments: Any) -> Any:
        """Return what ``submit(address, *arguments)`` does; all that it submits is behind it on the stream.

        Parameters
        ----------
        submit : callable
            Submits kernels to the stream; the address is aligned to 256. It cannot allocate memory of the device.
        """
        memory, settings = self._memory, self._manager.settings
        # What a graph uses may not be idle afterwards, and guard bands and poison are those of a buffer.
        plain = settings.pool and not settings.poison and not settings.guard
        if plain and (self._lasting or memory.recording(self._stream) is None):
            with alone(memory.lock):
                block = memory.idle_block(self._nbytes, self._stream, self._block)
                if block is not None:
                    self._block = block
                    result = submit(block.address, *arguments)
                    memory.pool.used(block, self._stream)
                    return result
        with self._empty(self._nbytes, np.uint8, uninitialized=True, stream=self._stream) as tensor:
            return submit(tensor.data_ptr, *arguments)
