"""NumPy views over raw addresses."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from rocmkern.runtime.geometry import byte_extent


def raw_buffer(
    address: int, shape: tuple[int, ...], strides: tuple[int, ...], itemsize: int, keep_alive: Any
) -> tuple[Any, int]:
    """Return an object with the buffer protocol over the bytes of a tensor, and the offset of element 0 in it.

    The object holds `keep_alive`, and with it the memory, for as long as anybody looks at it.
    """
    first, end = byte_extent(shape, strides, itemsize)
    if end == first:
        return (ctypes.c_ubyte * 0)(), 0
    raw: Any = (ctypes.c_ubyte * (end - first)).from_address(address + first)
    raw.keep_alive = keep_alive
    return raw, -first


def memory_view(
    address: int,
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    dtype: np.dtype,
    keep_alive: Any,
    read_only: bool = False,
) -> np.ndarray:
    """Return a NumPy array over an address; only host-accessible memory may be read or written through it."""
    raw, offset = raw_buffer(address, shape, strides, dtype.itemsize, keep_alive)
    buffer = memoryview(raw).toreadonly() if read_only else raw
    return np.ndarray(shape, dtype, buffer=buffer, offset=offset, strides=strides)
