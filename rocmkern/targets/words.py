"""A launch's arguments as the 64-bit words that reach the kernel (see `rocmkern.tile.entry`)."""

from __future__ import annotations

import ctypes
import functools
import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from rocmkern.tile import entry
from rocmkern.tile.language.kernel import Kernel


def pack(kernel: Kernel, args: Sequence[Any]) -> list[int]:
    """Launch words of a kernel's arguments, tensors as `View` or NumPy arrays; one without elements has address 0."""
    words: list[int] = []
    for (_, parameter), value in zip(kernel.parameters, args, strict=True):
        kind = parameter.kind
        if kind == "tensor":
            words.append(_address(value) if isinstance(value, np.ndarray) else value.address)
            words += value.shape
            words += value.strides
        elif kind == "int":
            words.append(int(value))
        else:
            words.append(entry.float32_bits(value))
    return words


def _address(tensor: np.ndarray) -> int:
    return int(tensor.__array_interface__["data"][0]) if tensor.size else 0


def tensors(kernel: Kernel, args: Sequence[Any]) -> Iterator[tuple[int, Any, bool]]:
    """The tensors among a kernel's arguments: (index of the address among the words, tensor, whether it is written)."""
    return ((at, args[place], output) for place, at, output in _places(kernel))


def dtypes(kernel: Kernel, args: Sequence[Any]) -> list[np.dtype]:
    """Element type of each tensor among a kernel's arguments."""
    return [args[place].dtype for place, _, _ in _places(kernel)]


@functools.cache
def _places(kernel: Kernel) -> tuple[tuple[int, int, bool], ...]:
    """For each tensor of a kernel: its number among the arguments, that of its address among the words, as above."""
    places, at = [], 0
    for place, (_, parameter) in enumerate(kernel.parameters):
        if parameter.kind == "tensor":
            places.append((place, at, parameter.output))
        at += entry.words_of(parameter)
    return tuple(places)


class ParameterBuffer:
    """Launch words as the drivers of CUDA and HIP read them during a launch.

    They are passed as one buffer (``CU_LAUNCH_PARAM_BUFFER_POINTER``), because a kernel takes nothing but 64-bit words;
    one that takes more is given the address of each parameter, since the compiler decides how they are laid out.

    Parameters
    ----------
    count : int
        Number of words.
    end : int
        What ends the list of parameters: ``CU_LAUNCH_PARAM_END`` is 0, ``HIP_LAUNCH_PARAM_END`` 3.
    more, nbytes : int
        Number of the parameters that follow the words, and bytes of each, a multiple of 8.

    Attributes
    ----------
    words : ctypes array
        The words, then the bytes of the other parameters; they may be changed between launches.
    address : int
        What the driver is given as ``extra``.
    pointers : int
        What it is given as ``kernelParams`` where there are more parameters.
    """

    def __init__(self, count: int, end: int, more: int = 0, nbytes: int = 0):
        self.words: ctypes.Array[ctypes.c_int64] = (ctypes.c_int64 * (count + more * nbytes // 8))()
        self._size = ctypes.c_size_t(ctypes.sizeof(self.words))
        pointer, size = ctypes.addressof(self.words), ctypes.addressof(self._size)
        self._extra = (ctypes.c_void_p * 5)(1, pointer, 2, size, end)
        self.address: int = ctypes.addressof(self._extra)
        places = [8 * i for i in range(count)] + [8 * count + nbytes * i for i in range(more)] if more else []
        self._pointers = (ctypes.c_void_p * len(places))(*(pointer + place for place in places))
        self.pointers: int = ctypes.addressof(self._pointers)
        self.fill: Callable[..., None] = functools.partial(struct.Struct(f"={count}q").pack_into, self.words, 0)


class ThreadParameters(threading.local):
    """A `ParameterBuffer` for each thread, for launches whose words are all new."""

    def __init__(self, count: int, end: int, more: int = 0, nbytes: int = 0):
        self.buffer: ParameterBuffer | None = ParameterBuffer(count, end, more, nbytes)
