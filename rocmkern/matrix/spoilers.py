"""What rows with bad arguments do to an argument before the call.

A spoiler takes the good array of the case and all arrays of the call, and returns what is passed instead.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np


class RequiresGradient:
    """An array-like that asks for a gradient, as a torch tensor under training does."""

    requires_grad = True

    shape: tuple[int, ...]
    dtype: np.dtype

    def __init__(self, array: np.ndarray):
        self.array = array
        self.__array_interface__: dict[str, Any] = array.__array_interface__
        self.shape, self.dtype = array.shape, array.dtype


def _other_float(array: np.ndarray) -> np.ndarray:
    return array.astype(np.float16 if array.dtype != np.float16 else np.float32)


def _overlap(array: np.ndarray, arrays: Mapping[str, Any]) -> np.ndarray:
    """An array of the same shape that begins one element into the first input, so that the two overlap partly."""
    first = next(value for value in arrays.values() if isinstance(value, np.ndarray))
    memory = first.base
    if not isinstance(memory, np.ndarray) or not first.flags.c_contiguous:
        raise ValueError("the spoiler 'overlap' needs contiguous inputs")
    start = first.__array_interface__["data"][0] - memory.__array_interface__["data"][0] + first.itemsize
    if start + array.nbytes > memory.nbytes:
        raise ValueError("the spoiler 'overlap' needs an input at least as large as the output")
    return memory[start : start + array.nbytes].view(array.dtype).reshape(array.shape)


SPOILERS: dict[str, Callable[[np.ndarray, Mapping[str, Any]], Any]] = {
    "as_list": lambda array, arrays: array.tolist(),
    "as_none": lambda array, arrays: None,
    "as_scalar": lambda array, arrays: 1.0,
    "as_object": lambda array, arrays: array.astype(object),
    "as_complex": lambda array, arrays: array.astype(np.complex64),
    "as_float64": lambda array, arrays: array.astype(np.float64),
    "as_int32": lambda array, arrays: np.zeros(array.shape, np.int32),
    "as_int64": lambda array, arrays: np.zeros(array.shape, np.int64),
    "as_bool": lambda array, arrays: np.ones(array.shape, np.bool_),
    "other_float": lambda array, arrays: _other_float(array),
    "byte_swapped": lambda array, arrays: array.astype(array.dtype.newbyteorder()),
    "requires_grad": lambda array, arrays: RequiresGradient(array),
    "drop_axis": lambda array, arrays: np.array(array[0]),
    "extra_axis": lambda array, arrays: np.array(array[None]),
    "longer_first": lambda array, arrays: np.concatenate([array, array[:1]], axis=0),
    "longer_last": lambda array, arrays: np.concatenate([array, array[..., :1]], axis=-1),
    "two_shorter_last": lambda array, arrays: np.array(array[..., :-2]),
    "large_numbers": lambda array, arrays: np.full_like(array, 1000),
    "negated": lambda array, arrays: -array,
    "shorter_last": lambda array, arrays: np.array(array[..., :-1]),
    "longer_axis_1": lambda array, arrays: np.concatenate([array, array[:, :1]], axis=1),
    "longer_axis_2": lambda array, arrays: np.concatenate([array, array[:, :, :1]], axis=2),
    "decreasing": lambda array, arrays: array[::-1].copy(),
    "beyond_total": lambda array, arrays: np.concatenate([array[:-1], array[-1:] + 1]).astype(array.dtype),
    "not_from_zero": lambda array, arrays: np.concatenate([array[:1] + 1, array[1:]]).astype(array.dtype),
    "read_only": lambda array, arrays: _read_only(array),
    "stride_zero": lambda array, arrays: np.broadcast_to(array[:1].copy(), array.shape),
    "writable_stride_zero": lambda array, arrays: _writable_stride_zero(array),
    "overlap": _overlap,
    "the_first_input": lambda array, arrays: next(iter(arrays.values())),
}


def _read_only(array: np.ndarray) -> np.ndarray:
    frozen = array.copy()
    frozen.flags.writeable = False
    return frozen


def _writable_stride_zero(array: np.ndarray) -> np.ndarray:
    row = np.zeros(array.shape[1:], array.dtype)
    return np.lib.stride_tricks.as_strided(row, array.shape, (0, *row.strides), writeable=True)
