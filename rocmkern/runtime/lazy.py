"""Tensors whose memory is taken when they are first used: what they are made from, and what their handles share.

Before that a handle has no address. It refers to a `LazyStorage`, which all its clones and views share, and its address
counts from the start of the memory that is to come. The first use uploads the data, and from then on each handle that
is used refers to the `Storage` of that memory, as any other handle does.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Protocol, cast, runtime_checkable

import numpy as np

from rocmkern.runtime import fork, transfer
from rocmkern.runtime.errors import CheckpointError
from rocmkern.runtime.mutex import Mutex, alone

if TYPE_CHECKING:
    from rocmkern.runtime.manager import ResourceManager
    from rocmkern.runtime.tensor import DeviceTensor, Storage


@runtime_checkable
class TensorSource(Protocol):
    """What a lazy tensor is made from: a tensor in a file, say.

    Attributes
    ----------
    shape : tuple of int
        Known without reading the data, as is `dtype`.
    dtype : numpy.dtype
    """

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def dtype(self) -> np.dtype: ...

    def pieces(self) -> Iterable[np.ndarray]:
        """Read the data: arrays which, one after the other, hold all elements in C order. May be called again."""
        ...


class LazyStorage:
    """What handles share whose memory has not been taken yet.

    Parameters
    ----------
    manager : ResourceManager
        Where the memory will come from.
    source : TensorSource
        What it will hold.
    where : str
        ``file:line`` that made the tensor, for the ledger.
    """

    __slots__ = ("__weakref__", "_address", "_lock", "_source", "_storage", "manager", "where")

    # No memory: whoever asks for the owner gets none until the handle refers to the memory itself.
    owner: Any = None

    def __init__(self, manager: ResourceManager, source: TensorSource, where: str):
        self.manager, self.where = manager, where
        self._source: TensorSource | None = source
        self._storage: Storage | None = None
        self._address = 0
        self._lock = Mutex()
        fork.renew_locks(self, "_lock")

    @property
    def loaded(self) -> bool:
        """Whether the memory has been taken."""
        return self._storage is not None

    @property
    def closed(self) -> bool:
        """Whether the manager was closed, and the memory with it."""
        return self.manager.closed if self._storage is None else self._storage.closed

    def of(self, handle: DeviceTensor) -> tuple[Storage | LazyStorage | None, int]:
        """What a handle refers to, and its address there, which another thread may be about to change."""
        with alone(self._lock):
            return handle._storage, handle._address

    def resolve(self, handle: DeviceTensor) -> Storage:
        """Let a handle refer to the memory, which is taken and filled if that has not happened yet.

        Raises
        ------
        DeviceMemoryError
            If there is no room. Nothing is changed, and a later use tries again.
        """
        with alone(self._lock):
            if self._storage is None:
                self._load()
            storage = self._storage
            assert storage is not None
            if handle._storage is self:
                # In this order: who sees the memory sees its address too.
                handle._address += self._address
                handle._storage = storage
            return storage

    def _load(self) -> None:
        source = self._source
        assert source is not None
        tensor = self.manager._allocate(source.shape, source.dtype, fill=None, where=self.where)
        elements, done = tensor.reshape(-1), 0
        for piece in source.pieces():
            end = done + piece.size
            if piece.dtype != tensor.dtype or end > tensor.size:
                raise CheckpointError(
                    f"{source!r} gave {piece.dtype.name}{list(piece.shape)} after {done} elements of "
                    f"{tensor.dtype.name}{list(tensor.shape)}"
                )
            transfer.from_host(elements[done:end], piece.reshape(-1))
            done = end
        if done != tensor.size:
            raise CheckpointError(f"{source!r} gave {done} elements of {tensor.dtype.name}{list(tensor.shape)}")
        # The file, which the source keeps open, is not needed any more.
        self._storage, self._address, self._source = cast("Storage", tensor._storage), tensor._address, None
