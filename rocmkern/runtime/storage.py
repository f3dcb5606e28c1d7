"""What all handles on one memory share: a `Storage`, or a `LazyStorage` before the memory is taken.

Before that a handle has no address: its address counts from the start of the memory that is to come. The first use
takes the memory, and from then on each handle that is used refers to the `Storage` of it, as any other handle does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rocmkern.runtime import fork
from rocmkern.runtime.mutex import Mutex


class Storage:
    """What clones and views of one buffer share: their number of references is its reference count.

    Attributes
    ----------
    owner : object or None
        Keeps the memory alive: a `Buffer`, or the foreign object. None after the manager was closed.
    """

    __slots__ = ("__weakref__", "owner")

    def __init__(self, owner: Any):
        self.owner: Any = owner

    @property
    def closed(self) -> bool:
        """Whether the memory was let go of."""
        return self.owner is None

    def close(self) -> None:
        """Let go of the memory for all handles at once."""
        self.owner = None


class LazyStorage:
    """What handles share whose memory has not been taken yet.

    Parameters
    ----------
    take : callable
        Takes the memory and fills it; returns its storage and its address. Where it raises, a later use tries again.
    is_closed : callable
        Whether nothing can be taken any more, because the manager was closed.

    Attributes
    ----------
    lock : Mutex
        Held while the memory is taken, and while a handle goes over to it.
    """

    __slots__ = ("__weakref__", "_is_closed", "_take", "_taken", "lock")

    # No memory: whoever asks for the owner gets none until the handle refers to the memory itself.
    owner: None = None

    def __init__(self, take: Callable[[], tuple[Storage, int]], is_closed: Callable[[], bool]):
        self._take: Callable[[], tuple[Storage, int]] | None = take
        self._is_closed = is_closed
        self._taken: tuple[Storage, int] | None = None
        self.lock: Mutex = Mutex()
        fork.renew_locks(self, "lock")

    @property
    def loaded(self) -> bool:
        """Whether the memory has been taken."""
        return self._taken is not None

    @property
    def closed(self) -> bool:
        """Whether the manager was closed, and the memory with it."""
        return self._is_closed() if self._taken is None else self._taken[0].closed

    def taken(self) -> tuple[Storage, int]:
        """The storage and the address of the memory, which is taken if that has not happened yet; the lock is held.

        Raises
        ------
        DeviceMemoryError
            If there is no room. Nothing is changed, and a later use tries again.
        """
        if self._taken is None:
            assert self._take is not None
            # What it holds, such as an open file, is not needed any more.
            self._taken, self._take = self._take(), None
        return self._taken
