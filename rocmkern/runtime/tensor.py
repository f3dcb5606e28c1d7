"""`DeviceTensor`: a handle on an array in device memory, with NumPy's view semantics."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np

from rocmkern.runtime import dlpack, transfer
from rocmkern.runtime.device import Device, Stream
from rocmkern.runtime.errors import ArgumentError, ArgumentTypeError, ClosedError, masked_array_error
from rocmkern.runtime.geometry import (
    check_shape,
    contiguous_strides,
    index_view,
    is_contiguous,
    reshape_strides,
    resolve_reshape,
    transpose_axes,
)
from rocmkern.runtime.interface import LEGACY_STREAM
from rocmkern.runtime.layout import StridedLayout, layout_of
from rocmkern.runtime.lazy import LazyStorage, TensorSource
from rocmkern.runtime.memory import Buffer
from rocmkern.runtime.views import memory_view, raw_buffer

if TYPE_CHECKING:
    from rocmkern.runtime.manager import ResourceManager

_BFLOAT16 = np.dtype(ml_dtypes.bfloat16)


def check_dtype(dtype: Any, argument: str = "dtype") -> np.dtype:
    """Return `dtype` as a NumPy dtype that a buffer can hold, or raise `ArgumentTypeError`."""
    allowed = "bool, integer, float, complex (native byte order) or a dtype of ml_dtypes"
    try:
        resolved = np.dtype(dtype)
    except TypeError:
        raise ArgumentTypeError(argument, repr(dtype), allowed) from None
    known = resolved.kind in "biufc" or resolved.type.__module__.partition(".")[0] == "ml_dtypes"
    if not known or not resolved.isnative:
        raise ArgumentTypeError(argument, f"dtype {resolved!s}", allowed)
    return resolved


class Storage:
    """What clones and views of one buffer share: their number of references is its reference count.

    Attributes
    ----------
    owner : object or None
        Keeps the memory alive: a `Buffer`, or the foreign object. None after the manager was closed.
    """

    __slots__ = ("__weakref__", "owner")

    def __init__(self, owner: Any):
        self.owner = owner

    @property
    def closed(self) -> bool:
        """Whether the memory was let go of."""
        return self.owner is None

    def close(self) -> None:
        """Let go of the memory for all handles at once."""
        self.owner = None


class DeviceTensor:
    """An array in the memory of a device. Made by a `ResourceManager`, by `from_foreign` or by `lazy`.

    Clones and views share the buffer; it is returned once, when the last of them is closed or collected. Use after
    `close` is a `ClosedError`. NumPy arrays and DLPack consumers that look at host memory keep it alive too.

    Attributes
    ----------
    shape : tuple of int
        Shape; dimensions of 0 are legal.
    dtype : numpy.dtype
        Element type, ``ml_dtypes.bfloat16`` included.
    strides : tuple of int
        Strides in bytes; negative and 0 are legal.
    manager : ResourceManager
        Whose stream and deadline copies use.
    read_only : bool
        Whether the owner forbids writing (foreign memory only).
    """

    __slots__ = ("__weakref__", "_address", "_layout", "_storage", "dtype", "manager", "read_only", "shape", "strides")

    def __init__(
        self,
        manager: ResourceManager,
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

    @classmethod
    def from_foreign(
        cls,
        owner: Any,
        address: int,
        shape: int | tuple[int, ...],
        dtype: Any,
        strides: tuple[int, ...] | None = None,
        device: Device | str | None = None,
        *,
        read_only: bool = False,
        stream: Stream | None = None,
    ) -> DeviceTensor:
        """Wrap memory that somebody else owns; it is not in the ledger and never freed by us.

        Parameters
        ----------
        owner : object
            Kept alive until the last handle goes.
        address : int
            Address of element 0.
        shape, dtype
            As in `ResourceManager.empty`.
        strides : tuple of int, optional
            Strides in bytes; default: C-contiguous.
        device : Device, "host" or None
            Where the memory is; None is the host.
        read_only : bool
            Refuse writing through the handle.
        stream : int, optional
            Stream that the data is ready on; our stream waits for it.
        """
        from rocmkern.runtime.manager import default_manager

        manager = default_manager("host" if device is None else device)
        shape, dtype = check_shape(shape), check_dtype(dtype)
        if strides is None:
            strides = contiguous_strides(shape, dtype.itemsize)
        elif len(strides) != len(shape):
            raise ArgumentError("strides", repr(strides), f"one stride for each of the {len(shape)} dimensions")
        if stream is not None:
            manager.device.follow(manager.stream, stream)
        return cls(manager, Storage(owner), address, shape, dtype, tuple(strides), read_only)

    @classmethod
    def lazy(cls, source: TensorSource, device: Device | str | None = None) -> DeviceTensor:
        """Return a tensor that takes memory, and reads its data, when it is first used.

        Shape, dtype, strides and nbytes are known before; views and clones do not count as use, and share the memory
        once one of them is used. If there is no room then, that use raises `DeviceMemoryError`, nothing is changed, and
        a later use tries again.

        Parameters
        ----------
        source : TensorSource
            A tensor of a file that `rocmkern.open_checkpoint` opened, or any object with ``shape``, ``dtype`` and
            ``pieces()``.
        device : Device, "host" or None
            Where the memory will be taken, from the default manager of the device; None is the host. See also
            `ResourceManager.lazy`.

        Raises
        ------
        ArgumentTypeError
            If `source` is something else, or has a dtype that a tensor cannot have.

        Examples
        --------
        >>> with open_checkpoint("model.safetensors") as checkpoint:  # doctest: +SKIP
        ...     weight = DeviceTensor.lazy(checkpoint["model.norm.weight"])
        """
        from rocmkern.runtime.manager import default_manager

        return default_manager("host" if device is None else device).lazy(source)

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
            storage = storage.resolve(self)
        owner = None if storage is None else storage.owner
        if owner is None:
            self._check_open()
        return owner

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

    def clone(self) -> DeviceTensor:
        """Return another handle on the same buffer, to be closed on its own."""
        return self._view(0, self.shape, self.strides)

    def close(self) -> None:
        """Let go of the buffer; a second call does nothing."""
        self._storage = None

    def __enter__(self) -> DeviceTensor:
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

    def _view(self, offset: int, shape: tuple[int, ...], strides: tuple[int, ...]) -> DeviceTensor:
        self._check_open()
        storage, address = self._storage, self._address
        if type(storage) is LazyStorage:
            storage, address = storage.of(self)
        assert storage is not None
        return DeviceTensor(self.manager, storage, address + offset, shape, self.dtype, strides, self.read_only)

    def __getitem__(self, index: Any) -> DeviceTensor:
        """Return a view by basic indexing: ints, slices (negative steps too), ``None`` and ``...``."""
        return self._view(*index_view(self.shape, self.strides, index))

    def reshape(self, *shape: int | tuple[int, ...]) -> DeviceTensor:
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

    def transpose(self, *axes: int | tuple[int, ...]) -> DeviceTensor:
        """Return a view with the axes permuted; without arguments, reversed."""
        wanted: Any = axes[0] if len(axes) == 1 and isinstance(axes[0], (tuple, list)) else axes
        order = transpose_axes(self.ndim, wanted)
        return self._view(0, tuple(self.shape[axis] for axis in order), tuple(self.strides[axis] for axis in order))

    @property
    def T(self) -> DeviceTensor:
        """View with the axes reversed."""
        return self.transpose()

    # Copies

    def copy(self) -> DeviceTensor:
        """Return a C-contiguous copy in a buffer of its own."""
        self.keep_alive()
        new = self.manager.empty(self.shape, self.dtype, uninitialized=True)
        transfer.between(new, self)
        return new

    def copy_(self, other: DeviceTensor | np.ndarray) -> DeviceTensor:
        """Copy `other` (same shape and dtype, any device or NumPy, overlap allowed) into this tensor and return it."""
        self.keep_alive()
        if not isinstance(other, (DeviceTensor, np.ndarray)):
            raise ArgumentTypeError("other", type(other).__name__, "a DeviceTensor or a numpy.ndarray")
        if isinstance(other, np.ma.MaskedArray):
            raise masked_array_error("other")
        self._check_like("other", other)
        transfer.check_writable(self)
        if isinstance(other, np.ndarray):
            transfer.from_host(self, other)
        else:
            transfer.between(self, other)
        return self

    def to_numpy(self, out: np.ndarray | None = None) -> np.ndarray:
        """Return the elements as a NumPy array of its own, or in `out`, which must have this shape and dtype.

        Raises
        ------
        ArgumentError
            If `out` has another shape (too small, say) or is read-only; `ArgumentTypeError` for another dtype.
        DeadlineError
            If the work before the copy does not finish.
        """
        self.keep_alive()
        if out is None:
            out = np.empty(self.shape, self.dtype)
        elif not isinstance(out, np.ndarray):
            raise ArgumentTypeError("out", type(out).__name__, "a numpy.ndarray")
        elif isinstance(out, np.ma.MaskedArray):
            raise masked_array_error("out")
        else:
            self._check_like("out", out)
            if not out.flags.writeable:
                raise ArgumentError("out", "a read-only array", "an array that may be written")
        transfer.to_host(self, out)
        return out

    def _check_like(self, argument: str, array: DeviceTensor | np.ndarray) -> None:
        if array.dtype != self.dtype:
            raise ArgumentTypeError(argument, f"dtype {array.dtype.name}", f"dtype {self.dtype.name}")
        if array.shape != self.shape:
            raise ArgumentError(argument, f"shape {array.shape}", f"shape {self.shape}")

    # Interfaces

    def numpy_view(self) -> np.ndarray:
        """Return a NumPy array over the memory itself, which it keeps alive. Host-accessible devices only."""
        owner = self.keep_alive()
        if not self.device.host_accessible:
            raise ArgumentError("self", f"a tensor on {self.device.info}", "a tensor in host memory; use to_numpy()")
        return memory_view(self._address, self.shape, self.strides, self.dtype, owner, self.read_only)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        if self.device.host_accessible:
            array = self.numpy_view()
        elif copy is False:
            raise ValueError(f"a tensor on {self.device.info} cannot become a NumPy array without a copy")
        else:
            array = self.to_numpy()
        target = array.dtype if dtype is None else np.dtype(dtype)
        if copy is False and target != array.dtype:
            raise ValueError(f"{array.dtype.name} cannot become {target.name} without a copy")
        return array.astype(target, copy=bool(copy))

    @property
    def __array_interface__(self) -> dict[str, Any]:
        # Without this attribute NumPy asks __array__, which knows the dtypes that have no type string.
        if not self.device.host_accessible or self.dtype.kind not in "biufc":
            raise AttributeError("__array_interface__")
        owner = self.keep_alive()
        raw, offset = raw_buffer(self._address, self.shape, self.strides, self.dtype.itemsize, owner)
        # A buffer instead of an address: NumPy's array then holds it, and with it our memory, even after close().
        data = memoryview(raw).toreadonly() if self.read_only else raw
        return {
            "version": 3,
            "shape": self.shape,
            "typestr": self.dtype.str,
            "data": data,
            "offset": offset,
            "strides": self.strides,
        }

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        if self.device.kind == "host":
            raise AttributeError("__cuda_array_interface__")
        transfer.order_after_users(self)
        return {
            "version": 3,
            "shape": self.shape,
            "typestr": self.dtype.str,
            "data": (self._address if self.size else 0, self.read_only),
            "strides": None if self.is_contiguous else self.strides,
            "stream": self.manager.stream or LEGACY_STREAM,
        }

    def __dlpack_device__(self) -> tuple[int, int]:
        return dlpack.DEVICE_TYPES[self.device.kind], self.device.info.index

    def __dlpack__(
        self,
        *,
        stream: int | None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        """Return a DLPack capsule (arguments as in the array API standard); it keeps the memory alive."""
        owner = self.keep_alive()
        if dl_device is not None and tuple(dl_device) != self.__dlpack_device__():
            if tuple(dl_device) != (dlpack.CPU, 0) or copy is False:
                raise BufferError(f"cannot export a tensor on {self.device.info} to DLPack device {tuple(dl_device)}")
            view, device = self.to_numpy(), (dlpack.CPU, 0)
            return dlpack.write_capsule(view, device_type=device[0], device_index=device[1], max_version=max_version)
        if copy:
            return self.copy().__dlpack__(stream=stream, max_version=max_version)
        self._make_ready_on(stream)
        view = memory_view(self._address, self.shape, self.strides, self.dtype, owner, self.read_only)
        device_type, device_index = self.__dlpack_device__()
        return dlpack.write_capsule(view, device_type=device_type, device_index=device_index, max_version=max_version)

    def _make_ready_on(self, stream: int | None) -> None:
        """Order a consumer's stream after ours: None is the default stream, -1 asks for nothing."""
        if self.device.kind == "host":
            if stream is not None:
                raise ArgumentError("stream", repr(stream), "None for host memory")
            return
        if stream == -1:
            return
        transfer.order_after_users(self)
        default = LEGACY_STREAM if self.device.kind == "cuda" else 0
        consumer = default if stream is None else stream
        self.device.follow(consumer, self.manager.stream)
        self.record_stream(consumer)
