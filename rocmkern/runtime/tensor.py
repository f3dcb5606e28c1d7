"""What every tensor in the memory of a device can do: copies, and the interfaces of other libraries."""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np

from rocmkern.runtime import dlpack, transfer
from rocmkern.runtime.errors import ArgumentError, ArgumentTypeError, masked_array_error
from rocmkern.runtime.handle import Handle
from rocmkern.runtime.interface import LEGACY_STREAM
from rocmkern.runtime.views import memory_view, raw_buffer

Self = TypeVar("Self", bound="Tensor")


class Tensor(Handle):
    """A `Handle` that can be copied and read. `DeviceTensor` says how one is made."""

    __slots__ = ()

    # Copies

    def copy(self: Self) -> Self:
        """Return a C-contiguous copy in a buffer of its own."""
        raise NotImplementedError("whoever makes tensors makes copies")

    def copy_(self: Self, other: Handle | np.ndarray) -> Self:
        """Copy `other` (same shape and dtype, any device or NumPy, overlap allowed) into this tensor and return it."""
        self.keep_alive()
        if not isinstance(other, (Handle, np.ndarray)):
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

    def _check_like(self, argument: str, array: Handle | np.ndarray) -> None:
        if array.dtype != self.dtype:
            raise ArgumentTypeError(argument, f"dtype {array.dtype.name}", f"dtype {self.dtype.name}")
        if array.shape != self.shape:
            raise ArgumentError(argument, f"shape {array.shape}", f"shape {self.shape}")

    # Interfaces

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
