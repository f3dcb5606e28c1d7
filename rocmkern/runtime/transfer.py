"""Copies between tensors and host arrays, and between tensors, of any strides.

On a device that the CPU can address NumPy does it. Elsewhere copies go through page-locked blocks: contiguous data at
once, and strided data in the longest runs that are contiguous on both sides.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import numpy as np

from rocmkern.runtime.base_manager import BaseManager
from rocmkern.runtime.errors import ArgumentError
from rocmkern.runtime.geometry import byte_extent, contiguous_runs, contiguous_strides, is_contiguous
from rocmkern.runtime.handle import Handle
from rocmkern.runtime.memory import Buffer, DeviceMemory
from rocmkern.runtime.pinned import BLOCK_BYTES

# Fetching the bytes between the elements too is cheaper than many small copies, up to this factor.
_WORTHWHILE_EXTENT = 4


def order_after_users(tensor: Handle) -> None:
    """Make our stream wait for the other streams that use the tensor, and note that ours uses it too.

    A stream that records a graph is passed over: with an event of it our own would record the same graph.
    """
    tensor.manager.check_process()
    owner, own = tensor.keep_alive(), tensor.manager.stream
    if not isinstance(owner, Buffer):
        return
    others = owner.streams() - {own}
    for stream in others:
        if not owner.memory.records(stream):
            tensor.device.follow(own, stream)
    if others:
        owner.record_stream(own)


class _Thread(threading.local):
    copies = 0


_thread = _Thread()


def copies() -> int:
    """Number of copies that this thread has asked for, for whoever has to know whether there was one."""
    return _thread.copies


def _describe(tensor: Handle) -> str:
    return f"{tensor.dtype.name}{list(tensor.shape)} on {tensor.device.info}"


def check_writable(tensor: Handle) -> None:
    """Raise `ArgumentError` for a destination that is read-only or whose elements share memory."""
    if tensor.read_only:
        raise ArgumentError("self", "a read-only tensor", "a tensor that may be written")
    if any(dim > 1 and stride == 0 for dim, stride in zip(tensor.shape, tensor.strides, strict=True)):
        raise ArgumentError("self", f"a broadcast tensor with strides {tensor.strides}", "a tensor without stride 0")


def to_host(tensor: Handle, out: np.ndarray) -> None:
    """Copy a tensor into a host array of its shape and dtype, and wait for it."""
    _thread.copies += 1
    manager, device = tensor.manager, tensor.device
    order_after_users(tensor)
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
        _fetch(tensor, staged, run_bytes, runs, what)
        np.copyto(out, staged)
    elif is_contiguous(tensor.shape, tensor.strides, itemsize) and out.flags.c_contiguous:
        _fetch(tensor, out, tensor.nbytes, [(0, 0)], what)
    else:
        staged = np.empty(end - first, np.uint8)
        _fetch(tensor, staged, staged.nbytes, [(first, 0)], what)
        np.copyto(out, np.ndarray(tensor.shape, tensor.dtype, staged, -first, tensor.strides))


def from_host(tensor: Handle, array: np.ndarray) -> None:
    """Copy a host array of the tensor's shape and dtype into it; on return the array is no longer needed."""
    _thread.copies += 1
    manager, device = tensor.manager, tensor.device
    order_after_users(tensor)
    what = f"the copy to {_describe(tensor)} from the host"
    if device.host_accessible:
        manager.wait(what)
        np.copyto(tensor.numpy_view(), array)
        return
    # Not numpy.ascontiguousarray, which makes a 0-d array 1-d.
    array = np.asarray(array, order="C")
    strides = contiguous_strides(tensor.shape, tensor.dtype.itemsize)
    run_bytes, runs = contiguous_runs(tensor.shape, tensor.strides, strides, tensor.dtype.itemsize)
    for pieces in _blocks(run_bytes, runs):
        with _lend(manager, pieces, what) as (block, start, nbytes):
            ctypes.memmove(block, array.ctypes.data + start, nbytes)
            for there, here, length in pieces:
                device.copy_to_device(tensor.data_ptr + there, block + here - start, length, manager.stream)
    manager.track(what)


def _fetch(tensor: Handle, out: np.ndarray, run_bytes: int, runs: Iterable[tuple[int, int]], what: str) -> None:
    """Copy runs of a tensor, given by their offsets there and in `out`, and wait for them."""
    manager, device = tensor.manager, tensor.device
    for pieces in _blocks(run_bytes, runs):
        with _lend(manager, pieces, what) as (block, start, nbytes):
            for there, here, length in pieces:
                device.copy_to_host(block + here - start, tensor.data_ptr + there, length, manager.stream)
            manager.wait(what)
            ctypes.memmove(out.ctypes.data + start, block, nbytes)


def _blocks(run_bytes: int, runs: Iterable[tuple[int, int]]) -> Iterator[list[tuple[int, int, int]]]:
    """Divide runs, consecutive in host memory, into lists of (offset there, offset here, bytes), one list a block."""
    pieces: list[tuple[int, int, int]] = []
    room = BLOCK_BYTES
    for there, here in runs:
        done = 0
        while done < run_bytes:
            length = min(run_bytes - done, room)
            pieces.append((there + done, here + done, length))
            done, room = done + length, room - length
            if not room:
                yield pieces
                pieces, room = [], BLOCK_BYTES
    if pieces:
        yield pieces


@contextmanager
def _lend(manager: BaseManager, pieces: list[tuple[int, int, int]], what: str) -> Iterator[tuple[int, int, int]]:
    """Lend a page-locked block to some pieces: its address, their first offset in host memory, their bytes."""
    start, nbytes = pieces[0][1], sum(length for *_, length in pieces)
    pinned = DeviceMemory.of(manager.device).pinned
    with pinned.lend(nbytes, manager.stream, lambda: manager.wait(what)) as block:
        yield block, start, nbytes


def between(destination: Handle, source: Handle) -> None:
    """Copy a tensor into another one of its shape and dtype, in stream order; they may overlap."""
    _thread.copies += 1
    device = destination.device
    same_device = device is source.device
    if not same_device or (not device.host_accessible and _may_overlap(destination, source)):
        staged = np.empty(source.shape, source.dtype)
        to_host(source, staged)
        from_host(destination, staged)
        return
    order_after_users(source)
    order_after_users(destination)
    if device.host_accessible:
        destination.manager.wait(f"the copy to {_describe(destination)}")
        np.copyto(destination.numpy_view(), source.numpy_view())
        return
    run_bytes, runs = contiguous_runs(source.shape, source.strides, destination.strides, source.dtype.itemsize)
    for begin, end in runs:
        device.copy_device(destination.data_ptr + end, source.data_ptr + begin, run_bytes, destination.manager.stream)
    destination.manager.track(f"the copy to {_describe(destination)}")


def _may_overlap(a: Handle, b: Handle) -> bool:
    (a_first, a_end), (b_first, b_end) = (
        (t.data_ptr + edge for edge in byte_extent(t.shape, t.strides, t.dtype.itemsize)) for t in (a, b)
    )
    return a_first < b_end and b_first < a_end
