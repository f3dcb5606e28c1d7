"""How a launch reaches a kernel: every argument is 64-bit words, put together again by these operations.

A tensor of n axes is ``1 + 2 n`` words (address, shape, strides in bytes), an integer one word, a float32 one word (its
bits). So every target launches kernels that take integers only, and a launch is one flat array of words.

The generated modules (`rocmkern.targets`) call these; kernels never do. They have no meaning in plain Python, where a
kernel is called with its arguments as they are.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import numpy as np

from rocmkern.tile.language.kernel import Parameter
from rocmkern.tile.language.kinds import DTYPES, ConfigKind, ScalarKind, TensorKind, dtype_refusal, refuse, want
from rocmkern.tile.language.operation import Operation

_INT, _FLOAT = struct.Struct("<i"), struct.Struct("<f")


class BoundConfig:
    """A configuration together with the numba type it has on one target."""

    def __init__(self, numba_type: Any):
        self.numba_type = numba_type


def config(bound: BoundConfig, x: int, y: int, z: int) -> Any:
    """The kernel's ``cfg``, for the block at grid index (x, y, z). Targets with index registers ignore the numbers."""


def tensor(dtype: str, *words: int) -> Any:
    """A tensor of an element type, from its words."""


def mapped(x: Any, number: int) -> Any:
    """The same tensor, known to have a tensor map; ``number`` is that of its first word. Of the cuda target."""


def argument(x: Any, number: int) -> Any:
    """The same tensor, known to be an argument; ``number`` is that of its first word. Of the hip target."""


def float32(word: int) -> Any:
    """A float32 from its bits."""


def float32_bits(value: float) -> int:
    """Bits of a float32, as the launch passes it."""
    return _INT.unpack(_FLOAT.pack(np.float32(value)))[0]


def words_of(parameter: Parameter) -> int:
    """Number of 64-bit words that an argument takes."""
    return 1 + 2 * parameter.ndim if parameter.kind == "tensor" else 1


def _tensor(dtype: Any, *words: Any) -> Any:
    name = getattr(dtype, "value", None)
    if name not in DTYPES:
        refuse(dtype_refusal(name))
    return TensorKind(name, len(words) // 2)


#: The operation that a function declares, of those that all targets have.
OF_FUNCTION: dict[Callable[..., Any], Operation] = {
    config: Operation("config", config, lambda bound, x, y, z: want(ConfigKind, bound)),
    tensor: Operation("tensor", tensor, _tensor),
    float32: Operation("float32", float32, lambda word: ScalarKind("float32")),
}
