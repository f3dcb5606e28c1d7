"""The python target: the kernel function itself, block after block, on NumPy arrays. For reading and debugging."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from rocmkern.runtime.errors import TileError
from rocmkern.targets import source
from rocmkern.targets.interface import refuse_stream
from rocmkern.targets.launches import launching
from rocmkern.tile.language.block import running
from rocmkern.tile.language.kernel import Config, Kernel
from rocmkern.tile.language.kinds import DTYPES, dtype_refusal
from rocmkern.tile.language.values import Tensor


class _Empty(Tensor):
    """A tensor that a launch leaves out, all of whose extents are 0: so are those of its parts, whatever the index."""

    def __getitem__(self, index: Any) -> Any:
        axes = len(index) if isinstance(index, tuple) else 1
        return np.empty((0,) * (self.ndim - axes), self.dtype).view(_Empty)


def _tensor(argument: Any) -> Any:
    """An argument as the interpreter takes it: views and arrays as tensors, numbers as they are."""
    array = argument.numpy() if hasattr(argument, "numpy") else argument
    return array.view(Tensor if any(array.shape) else _Empty) if isinstance(array, np.ndarray) else array


class PythonTarget:
    """Runs kernels in the interpreter, by the tile language's NumPy definitions."""

    name: ClassVar[str] = "python"
    device: ClassVar[None] = None
    arch: ClassVar[str] = "python"
    #: Blocks that run at the same time.
    parallelism: ClassVar[int] = 1

    def launch(self, kernel: Kernel, cfg: Config, grid: Sequence[int], args: Sequence[Any], stream: Any = None) -> None:
        """Run all blocks of a launch, in grid order."""
        refuse_stream(stream)
        for name in source.dtypes_of(kernel, args):
            if name not in DTYPES:
                raise TileError(f"kernel {kernel.__name__}: {dtype_refusal(name)}")
        values = [_tensor(a) for a in args]
        with launching(kernel.__name__):
            for z, y, x in itertools.product(*(range(n) for n in reversed(grid))):
                with running((x, y, z)):
                    kernel(cfg, *values)
