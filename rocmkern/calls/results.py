"""What an operation gives: new results of the kind of an argument, inner results, and values written from the host.

Nothing else in `rocmkern.ops` and `rocmkern.calls` allocates.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, overload

import numpy as np

from rocmkern.calls import recording as _recording
from rocmkern.calls import streams as _streams
from rocmkern.calls.adapters import torch_tensors as _torch_tensors
from rocmkern.calls.arguments import Argument
from rocmkern.calls.types import Array
from rocmkern.calls.view import HOST, View, host_array, view_of
from rocmkern.runtime import dlpack
from rocmkern.runtime.errors import ArgumentError
from rocmkern.runtime.manager import DeviceTensor, ResourceManager
from rocmkern.runtime.memory import POISON_BYTE
from rocmkern.runtime.torch_tensors import torch_of

_poison: Callable[[np.ndarray], None] | None = None


@overload
def allocate(name: str, shape: tuple[int, ...], dtype: np.dtype, like: None = ...) -> Argument[np.ndarray]: ...
@overload
def allocate(name: str, shape: tuple[int, ...], dtype: np.dtype, like: Argument[Array]) -> Argument[Array]: ...
def allocate(name: str, shape: tuple[int, ...], dtype: np.dtype, like: Argument | None = None) -> Argument:
    """A new result of the kind of `like` (NumPy if None), not initialised.

    Parameters
    ----------
    name : str
        Name of the result.
    shape, dtype : tuple of int, numpy.dtype
    like : Argument, optional
        The first input of the operation.

    Returns
    -------
    Argument
        With `source` to be returned to the caller.
    """
    if like is not None and torch_of(like.source) is not None:
        source = new_tensor(shape, dtype, like.source, name)
        view = _torch_tensors.view(name, source)
    elif like is not None and like.on_device:
        view, source = _on_device(shape, dtype, like)
    elif like is not None and like.place != HOST:
        source = like.source.manager.empty(shape, dtype, uninitialized=True)
        view = view_of(source)
        poison(source.numpy_view())
    else:
        source = array = new_array(shape, dtype, name)
        view = view_of(array)
        if like is not None and not isinstance(like.source, np.ndarray):
            source = _like_dlpack(array, like.source)
    recorder = _recording.active()
    if recorder is not None:
        recorder.allocated(view, None if like is None else like.unconverted, source)
    return Argument(name, view, source)


def new_array(shape: tuple[int, ...], dtype: np.dtype, name: str = "out") -> np.ndarray:
    """A new host array; one that no memory could hold is refused by name."""
    try:
        array = np.empty(shape, dtype)
    except ValueError:  # more bytes, or a longer axis, than NumPy counts
        raise _too_large(name, shape, dtype) from None
    poison(array)
    return array


def new_tensor(shape: tuple[int, ...], dtype: np.dtype, like: Any, name: str = "out") -> Any:
    """A new tensor of PyTorch beside another one, from PyTorch's own memory; refused as in `new_array`."""
    try:
        tensor = _torch_tensors.empty(shape, dtype, like)
    except (RuntimeError, TypeError):  # PyTorch has no more of an error for it
        if _bytes_reached(shape, dtype) < 1 << 63:
            raise
        raise _too_large(name, shape, dtype) from None
    if _poison is not None:
        view = _torch_tensors.view(name, tensor)
        if view.origin is None:
            poison(host_array(view))
        elif view.size:
            view.owner.device.fill(view.address, view.nbytes, POISON_BYTE, view.origin.stream)
    return tensor


def _too_large(name: str, shape: tuple[int, ...], dtype: np.dtype) -> ArgumentError:
    words = f"a result of shape {shape}, {_bytes_reached(shape, dtype)} bytes"
    return ArgumentError(name, words, "less than 2 ** 63 bytes: smaller arguments")


def _bytes_reached(shape: tuple[int, ...], dtype: np.dtype) -> int:
    """Bytes of an array, or, where it has no elements, what its strides multiply up to."""
    return math.prod([max(length, 1) for length in shape]) * dtype.itemsize


def _on_device(shape: tuple[int, ...], dtype: np.dtype, like: Argument) -> tuple[View, Any]:
    view = like.view
    manager = view.owner.manager
    library = None if view.origin is None else _streams.library_of(like.source)
    home = _streams.launched_on(manager, _streams.choose(manager, [view]))
    tensor, source = new_result(shape, dtype, manager, home, library)
    return view_of(tensor), source


def new_result(
    shape: tuple[int, ...], dtype: np.dtype, manager: ResourceManager, stream: int, library: Any = None
) -> tuple[DeviceTensor, Any]:
    """A new `DeviceTensor` that `stream` writes, and the caller's object of it: of a library with ``from_dlpack``."""
    tensor = manager.empty(shape, dtype, uninitialized=True, stream=stream)
    if _poison is not None and tensor.nbytes:
        tensor.device.fill(tensor.data_ptr, tensor.nbytes, POISON_BYTE, stream)
    return tensor, tensor if library is None else library.from_dlpack(_DeviceExporter(tensor))


def temporary(shape: tuple[int, ...], dtype: np.dtype, view: View, stream: Any = None) -> DeviceTensor:
    """A new `DeviceTensor` beside a device array, for the inner results of an operation; its content is undefined.

    It is ready on the stream that an operation on that array uses, with this ``stream=`` argument.
    """
    manager = view.owner.manager
    home = _streams.launched_on(manager, _streams.choose(manager, [view], stream))
    tensor: DeviceTensor = manager.empty(shape, dtype, uninitialized=True, stream=home)
    recorder = _recording.active()
    if recorder is not None:
        recorder.allocated(view_of(tensor), view)
    return tensor


def assign(view: View, values: Any, stream: Any) -> None:
    """Write host values, broadcast to its shape, to an array in host or device memory."""
    if not view.on_device:
        view.numpy()[...] = values
    elif view.size:
        part, manager = _tensor_of(view), view.owner.manager
        source = np.broadcast_to(values, view.shape).astype(view.dtype)
        asked = _streams.choose(manager, [view], stream)
        _streams.ordered(
            lambda: part.copy_(source), manager, [view], manager.stream, "a copy of values from the host", asked
        )


def read(view: View) -> np.ndarray:
    """The values of an array: of device memory a copy in host memory, after all work on it."""
    if not view.on_device:
        return view.numpy()
    manager = view.owner.manager
    return _streams.ordered(_tensor_of(view).to_numpy, manager, [view], manager.stream, "a copy of values to the host")


def _tensor_of(view: View) -> DeviceTensor:
    """The part of its tensor that a view of device memory is."""
    tensor: DeviceTensor = view.owner
    return tensor._view(view.address - tensor.data_ptr, view.shape, view.strides)


class _DeviceExporter:
    """A new `DeviceTensor` as other libraries take it over. It is written on the stream that they go on with."""

    def __init__(self, tensor: DeviceTensor):
        self._tensor = tensor

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._tensor.__dlpack_device__()

    def __dlpack__(
        self, *, stream: int | None = None, max_version: tuple[int, int] | None = None, **_ignored: Any
    ) -> Any:
        # Not before the consumer's last use is its memory handed out again.
        self._tensor.record_stream(_streams.handle_of(stream))
        return self._tensor.__dlpack__(stream=-1, max_version=max_version)


class _Exporter:
    """A NumPy array as other libraries take it over, bfloat16 included."""

    def __init__(self, array: np.ndarray):
        self._array = array

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0

    def __dlpack__(self, *, max_version: tuple[int, int] | None = None, **_ignored: Any) -> Any:
        return dlpack.write_capsule(self._array, device_type=dlpack.CPU, device_index=0, max_version=max_version)


def _like_dlpack(array: np.ndarray, example: Any) -> Any:
    """The memory of a NumPy array as an object of the library of `example`; the array itself where that has no way."""
    library: Any = _streams.library_of(example)
    return array if library is None else library.from_dlpack(_Exporter(array))


def poison(array: np.ndarray) -> None:
    """Fill a new array with NaN, within `poison_outputs`."""
    if _poison is not None and array.size:
        _poison(array)


def _set_all_bits(array: np.ndarray) -> None:
    array.reshape(-1).view(np.uint8).fill(POISON_BYTE)


@contextmanager
def poison_outputs(fill: Callable[[np.ndarray], None] = _set_all_bits) -> Iterator[None]:
    """Fill new results with NaN, so that an element that a kernel does not write shows. For tests; not per thread.

    Parameters
    ----------
    fill : callable
        Fills new arrays in host memory; default: all bits set, which is how those in device memory are filled.
    """
    global _poison
    before, _poison = _poison, fill
    try:
        yield
    finally:
        _poison = before
