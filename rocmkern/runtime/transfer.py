"""Copies between tensors and host arrays, and between tensors, of any strides.

On a device that the CPU can address NumPy does it. Elsewhere contiguous data is one copy, and strided data is copied
in the longest runs that are contiguous on both sides.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from rocmkern.runtime.errors import ArgumentError
from rocmkern.runtime.geometry import byte_extent, contiguous_runs, contiguous_strides, is_contiguous
from rocmkern.runtime.memory import Buffer

if TYPE_CHECKING:
    from rocmkern.runtime.tensor import DeviceTensor

# Fetching the bytes between the elements too is cheaper than many small copies, up to this factor.
_WORTHWHILE_EXTENT = 4


def _order_after_users(tensor: DeviceTensor) -> None:
    """Make our stream wait for the other streams that were said to use the tensor."""
    owner, device = tensor.keep_alive(), tensor.device
    if isinstance(owner, Buffer):
        for stream in owner.streams() - {tensor.manager.stream}:
            event = device.record(stream)
            device.stream_wait(tensor.manager.stream, event)
            device.release_event(event)


def _describe(tensor: DeviceTensor) -> str:
    return f"{tensor.dtype.name}{list(tensor.shape)} on {tensor.device.info}"


def check_writable(tensor: DeviceTensor) -> None:
    """Raise `ArgumentError` for a destination that is read-only or whose elements share memory."""
    if tensor.read_only:
        raise ArgumentError("self", "a read-only tensor", "a tensor that may be written")
    if any(dim > 1 and stride == 0 for dim, stride in zip(tensor.shape, tensor.strides, strict=True)):
        raise ArgumentError("self", f"a broadcast tensor with strides {tensor.strides}", "a tensor without stride 0")


def to_host(tensor: DeviceTensor, out: np.ndarray) -> None:
    """Copy a tensor into a host array of its shape and dtype, and wait for it."""
    manager, device = tensor.manager, tensor.device
    _order_after_users(tensor)
    what = f"the copy of {_describe(tensor)} to the host"
    if device.host_accessible:
        manager.wait(what)
        np.copyto(out, tensor.numpy_view())
        return
    if not tensor.size:
        return
    itemsize = tensor.dtype.itemsize
    first, end = byte_extent(tensor.shape, tensor.strides, itemsize)
    if end - first > _WORTHWHILE_EXTENT * tensor.nbytes:
        staged = np.empty(tensor.shape, tensor.dtype)
        run_bytes, runs = contiguous_runs(tensor.shape, tensor.strides, staged.strides, itemsize)
        for source, destination in runs:
            device.copy_to_host(staged.ctypes.data + destination, tensor.data_ptr + source, run_bytes, manager.stream)
        manager.wait(what)
        np.copyto(out, staged)
    elif is_contiguous(tensor.shape, tensor.strides, itemsize) and out.flags.c_contiguous:
        device.copy_to_host(out.ctypes.data, tensor.data_ptr, tensor.nbytes, manager.stream)
        manager.wait(what)
    else:
        staged = np.empty(end - first, np.uint8)
        device.copy_to_host(staged.ctypes.data, tensor.data_ptr + first, staged.nbytes, manager.stream)
        manager.wait(what)
        np.copyto(out, np.ndarray(tensor.shape, tensor.dtype, staged, -first, tensor.strides))


def from_host(tensor: DeviceTensor, array: np.ndarray) -> None:
    """Copy a host array of the tensor's shape and dtype into it, and wait until the array is no longer needed."""
    manager, device = tensor.manager, tensor.device
    _order_after_users(tensor)
    what = f"the copy to {_describe(tensor)} from the host"
    if device.host_accessible:
        manager.wait(what)
        np.copyto(tensor.numpy_view(), array)
        return
    # Not numpy.ascontiguousarray, which makes a 0-d array 1-d.
    array = np.asarray(array, order="C")
    strides = contiguous_strides(tensor.shape, tensor.dtype.itemsize)
    run_bytes, runs = contiguous_runs(tensor.shape, strides, tensor.strides, tensor.dtype.itemsize)
    for source, destination in runs:
        device.copy_to_device(tensor.data_ptr + destination, array.ctypes.data + source, run_bytes, manager.stream)
    manager.wait(what)


def between(destination: DeviceTensor, source: DeviceTensor) -> None:
    """Copy a tensor into another one of its shape and dtype, in stream order; they may overlap."""
    device = destination.device
    same_device = device is source.device
    if not same_device or (not device.host_accessible and _may_overlap(destination, source)):
        staged = np.empty(source.shape, source.dtype)
        to_host(source, staged)
        from_host(destination, staged)
        return
    _order_after_users(source)
    _order_after_users(destination)
    if device.host_accessible:
        destination.manager.wait(f"the copy to {_describe(destination)}")
        np.copyto(destination.numpy_view(), source.numpy_view())
        return
    run_bytes, runs = contiguous_runs(source.shape, source.strides, destination.strides, source.dtype.itemsize)
    for begin, end in runs:
        device.copy_device(destination.data_ptr + end, source.data_ptr + begin, run_bytes, destination.manager.stream)
    destination.manager.track(f"the copy to {_describe(destination)}")


def _may_overlap(a: DeviceTensor, b: DeviceTensor) -> bool:
    (a_first, a_end), (b_first, b_end) = (
        (t.data_ptr + edge for edge in byte_extent(t.shape, t.strides, t.dtype.itemsize)) for t in (a, b)
    )
    return a_first < b_end and b_first < a_end
