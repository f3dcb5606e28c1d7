"""What is known of an array apart from its address, as one object that compares by identity."""

from __future__ import annotations

from typing import Any

import numpy as np

from rocmkern.runtime.device import Device
from rocmkern.runtime.geometry import byte_extent

#: Addresses that agree modulo this are aligned alike: the widest access of a kernel has 16 bytes.
ALIGNMENT = 16
#: Layouts that are remembered. Beyond it all are forgotten: equal ones made before and after then differ.
_LIMIT = 4096

_known: dict[tuple[Any, ...], StridedLayout] = {}


class StridedLayout:
    """Device, element type, shape, strides and alignment of an array. Made by `layout_of`; compares by identity.

    Attributes
    ----------
    device : Device or "host memory"
        Where the memory is.
    first, end : int
        Offsets from element 0 of the first byte, and of the byte after the last one.
    """

    __slots__ = ("device", "end", "first")

    first: int
    end: int

    def __init__(self, device: Any, shape: tuple[int, ...], strides: tuple[int, ...], itemsize: int):
        self.device: Any = device
        self.first, self.end = byte_extent(shape, strides, itemsize)


def layout_of(
    device: Device | str,
    address: int,
    dtype: np.dtype,
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    read_only: bool = False,
) -> StridedLayout:
    """The layout of an array: the same object for arrays that differ in their address only."""
    key: tuple[Any, ...] = device, address % ALIGNMENT, dtype, shape, strides, read_only
    layout = _known.get(key)
    if layout is None:
        if len(_known) >= _LIMIT:
            _known.clear()
        layout = _known.setdefault(key, StridedLayout(device, shape, strides, dtype.itemsize))
    return layout
