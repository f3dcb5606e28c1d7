"""A handle on an array in the memory of a device: what it is, how long it lives, and NumPy's views of it.

Copies and the interfaces of other libraries: `rocmkern.runtime.tensor`.
"""

from __future__ import annotations

import math
from typing import Any, TypeVar

import numpy as np

from rocmkern.runtime.base_manager import BaseManager
from rocmkern.runtime.device import Device, Stream
from rocmkern.runtime.errors import ArgumentError, ArgumentTypeError, ClosedError
from rocmkern.runtime.geometry import (
    index_view,
    is_contiguous,
    reshape_strides,
    resolve_reshape,
    transpose_axes,
)
from rocmkern.runtime.layout import StridedLayout, layout_of
from rocmkern.runtime.memory import Buffer
from rocmkern.runtime.mutex import alone
from rocmkern.runtime.storage import LazyStorage, Storage
from rocmkern.runtime.views import memory_view

Self = TypeVar("Self", bound="Handle")


def check_dtype(dtype: Any, argument: str = "dtype") -> np.dtype:
    """Return `dtype` as a NumPy dtype that a buffer can hold, or raise `ArgumentTypeError`."""
    allowed = "bool, integer, float, complex (native byte order) or a dtype of ml_dtypes"
    try:
        resolved: np.dtype = np.dtype(dtype)
    except TypeError:
        raise ArgumentTypeError(argument, repr(dtype), allowed) from None
    known = resolved.kind in "biufc" or resolved.type.__module__.partition(".")[0] == "ml_dtypes"
    if not known or not resolved.isnative:
        raise ArgumentTypeError(argument, f"dtype {resolved!s}", allowed)
    return resolved


class Handle:
    """An array in the memory of a device, without copies. The attributes are those of `DeviceTensor`."""

    __slots__ = ("__weakref__", "_address", "_layout", "_storage", "dtype", "manager", "read_only", "shape", "strides")

    manager: BaseManager
    shape: tuple[int, ...]
    dtype: np.dtype
    strides: tuple[int, ...]
    read_only: bool

    def __init__(
        self,
        manager: BaseManager,
        storage: Storage | LazyStorage,
        address: int,
        shape: tuple[int, ...],
        dtype: np.dtype,
        strides: tuple[int, ...],
        read_only: bool = False,
    ):
        self.manager, self._address = manager, address
        self._layout: StridedLayout | None = None
        self._storage: Storage | LazyStorage | None = storage
        self.shape, self.dtype, self.strides, self.read_only = shape, dtype, strides, read_only

    # Identity

    @property
    def closed(self) -> bool:
        """Whether this handle, or its manager, was closed."""
        return self._storage is None or self._storage.closed

    @property
    def loaded(self) -> bool:
        """Whether the memory has been taken: False only for a lazy tensor that was not used yet."""
        storage = self._storage
        return storage is not None and not (type(storage) is LazyStorage and not storage.loaded)

    def _check_open(self) -> None:
        storage = self._storage
        if storage is None or storage.closed:
            what = "the tensor" if storage is None else "the manager of the tensor"
            raise ClosedError(f"{what} {self.dtype.name}{list(self.shape)} was closed; clone() keeps a buffer alive")

    def keep_alive(self) -> Any:
        """Return the object that keeps the memory alive; raise `ClosedError` after `close`.

        This is the first use of a lazy tensor: whatever needs the memory comes here first.
        """
        storage = self._storage
        if type(storage) is LazyStorage and not storage.closed:
            storage = self._take_memory(storage)
        owner = None if storage is None else storage.owner
        if owner is None:
            self._check_open()
        return owner

    def _take_memory(self, lazy: LazyStorage) -> Storage:
        with alone(lazy.lock):
            storage, address = lazy.taken()
            if self._storage is lazy:
                # In this order: who sees the memory sees its address too.
                self._address += address
                self._storage = storage
            return storage

    def taken(self) -> tuple[Storage, int]:
        """Return the storage, whose memory is taken if that has not happened yet, and the address of element 0."""
        self.keep_alive()
        storage = self._storage
        assert isinstance(storage, Storage)
        return storage, self._address

    @property
    def device(self) -> Device:
        """The device whose memory this is."""
        return self.manager.device

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of the elements (not of gaps between them)."""
        return self.size * self.dtype.itemsize

    @property
    def data_ptr(self) -> int:
        """Address of element 0; 0 if there is no element and so no memory."""
        self.keep_alive()
        return self._address

    @property
    def layout(self) -> StridedLayout:
        """Everything that is known of the tensor without its address, as one object that is found out once."""
        layout = self._layout
        if layout is None:
            self.keep_alive()  # a lazy tensor has no address before
            layout = layout_of(self.device, self._address, self.dtype, self.shape, self.strides, self.read_only)
            self._layout = layout
        return layout

    @property
    def is_contiguous(self) -> bool:
        """Whether the elements lie one after another in C order."""
        return is_contiguous(self.shape, self.strides, self.dtype.itemsize)

    def __repr__(self) -> str:
        state = "closed" if self.closed else str(self.device.info) if self.loaded else f"not yet on {self.device.info}"
        return f"<DeviceTensor {self.dtype.name}{list(self.shape)}, {state}>"

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of a tensor without dimensions")
        return self.shape[0]

    # Life

    def clone(self: Self) -> Self:
        """Return another handle on the same buffer, to be closed on its own."""
        return self._view(0, self.shape, self.strides)

    def close(self) -> None:
        """Let go of the buffer; a second call does nothing."""
        self._storage = None

    def __enter__(self: Self) -> Self:
        self._check_open()
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def record_stream(self, stream: Stream) -> None:
        """Note that work on `stream` uses the buffer: it is not copied or reused before that work is done.

        The default stream of a thread (2) is that of the calling thread, and only there do copies wait for it.
        """
        owner = self.keep_alive()
        if isinstance(owner, Buffer):
            owner.record_stream(stream)

    # Views

    def _view(self: Self, offset: int, shape: tuple[int, ...], strides: tuple[int, ...]) -> Self:
        self._check_open()
        storage, address = self._storage, self._address
        if type(storage) is LazyStorage:
            with alone(storage.lock):  # another thread may be about to change both
                storage, address = self._storage, self._address
        assert storage is not None
        return type(self)(self.manager, storage, address + offset, shape, self.dtype, strides, self.read_only)

    def __getitem__(self: Self, index: Any) -> Self:
        """Return a view by basic indexing: ints, slices (negative steps too), ``None`` and ``...``."""
        return self._view(*index_view(self.shape, self.strides, index))

    def reshape(self: Self, *shape: int | tuple[int, ...]) -> Self:
        """Return a view with another shape (one dimension may be -1).

        Raises
        ------
        ArgumentError
            If the number of elements differs, or if the strides make a view impossible.
        """
        wanted: Any = shape[0] if len(shape) == 1 and isinstance(shape[0], (tuple, list)) else shape
        new_shape = resolve_reshape(self.shape, wanted)
        strides = reshape_strides(self.shape, self.strides, new_shape, self.dtype.itemsize)
        if strides is None:
            raise ArgumentError(
                "shape",
                f"{new_shape} for a tensor of shape {self.shape} with strides {self.strides}",
                "a shape that is a view of these strides; here a copy is needed: t.copy().reshape(...)",
            )
        return self._view(0, new_shape, strides)

    def transpose(self: Self, *axes: int | tuple[int, ...]) -> Self:
        """Return a view with the axes permuted; without arguments, reversed."""
        wanted: Any = axes[0] if len(axes) == 1 and isinstance(axes[0], (tuple, list)) else axes
        order = transpose_axes(self.ndim, wanted)
        return self._view(0, tuple(self.shape[axis] for axis in order), tuple(self.strides[axis] for axis in order))

    @property
    def T(self: Self) -> Self:
        """View with the axes reversed."""
        return self.transpose()

    def numpy_view(self) -> np.ndarray:
        """Return a NumPy array over the memory itself, which it keeps alive. Host-accessible devices only."""
        owner = self.keep_alive()
        if not self.device.host_accessible:
            raise ArgumentError("self", f"a tensor on {self.device.info}", "a tensor in host memory; use to_numpy()")
        return memory_view(self._address, self.shape, self.strides, self.dtype, owner, self.read_only)
