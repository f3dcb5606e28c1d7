"""Arrays of a case in the memory of a GPU, laid out there as they are in host memory.

The buffer that an array is a view of is copied as it is, and the tensor is the same view of the copy: strides, what
lies between the elements, and how far the first one is from an aligned address are those of the host.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import numpy as np

from rocmkern.matrix import inputs as _inputs
from rocmkern.runtime.manager import DeviceTensor


class PlacedArray:
    """An array on the device of a manager.

    Parameters
    ----------
    array : numpy.ndarray
        A view into a buffer of `rocmkern.matrix.inputs.place`, or any other array.
    manager : ResourceManager
    alive : ExitStack
        Gives the buffer back.

    Attributes
    ----------
    tensor : DeviceTensor
        What an operation is called with.
    """

    def __init__(self, array: np.ndarray, manager: Any, alive: ExitStack):
        whole = _inputs.owner(array)
        owned = whole.reshape(-1).view(np.uint8) if whole.flags.c_contiguous and whole.ndim else None
        if owned is None or not owned.size or not array.size:
            # No buffer of ours: nothing is between its elements.
            array = np.asarray(array, order="C")  # `ascontiguousarray` makes an array without axes one with an axis
            owned = array.reshape(-1).view(np.uint8)
        # From an aligned address on, as device memory begins at one.
        first = -_address(owned) % _inputs.ALIGNMENT if owned.size > _inputs.ALIGNMENT else 0
        self._host, self._array = owned[first:], array
        self._offset = _address(array) - _address(self._host)
        self._buffer = alive.enter_context(manager.from_numpy(self._host)) if self._host.size else None
        if self._buffer is None:
            self.tensor = alive.enter_context(manager.from_numpy(array))
            return
        address = self._buffer.data_ptr + self._offset
        self.tensor: DeviceTensor = alive.enter_context(
            DeviceTensor.from_foreign(self._buffer, address, array.shape, array.dtype, array.strides, manager.device)
        )

    def to_numpy(self) -> np.ndarray:
        """The array as it is on the device now, in its layout."""
        if self._buffer is None:
            return self.tensor.to_numpy()
        return self._view(self._buffer.to_numpy())

    def changed(self) -> bool:
        """Whether any byte of the buffer is not what it was."""
        return self._buffer is not None and not np.array_equal(self._buffer.to_numpy(), self._host)

    def changed_beside(self) -> int:
        """How many bytes of the buffer changed that are not the array's."""
        if self._buffer is None:
            return 0
        differs = self._buffer.to_numpy() != self._host
        if self._array.size:
            _view_of(differs.view(np.uint8), self._offset, self._array, f"u{self._array.itemsize}")[...] = 0
        return int(differs.sum())

    def _view(self, bytes_now: np.ndarray) -> np.ndarray:
        return _view_of(bytes_now, self._offset, self._array, self._array.dtype)


def _view_of(buffer: np.ndarray, offset: int, like: np.ndarray, dtype: Any) -> np.ndarray:
    return np.ndarray(like.shape, dtype, buffer, offset, like.strides)


def _address(array: np.ndarray) -> int:
    return int(array.__array_interface__["data"][0])
