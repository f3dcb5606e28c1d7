"""The block that runs a kernel: where it lies in the grid, and what it knows of other blocks.

In the interpreter a block is what a thread does between entering `running` and leaving it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from rocmkern.runtime.mutex import Mutex
from rocmkern.tile.language.kernel import Config
from rocmkern.tile.language.kinds import (
    ConfigKind,
    ScalarKind,
    TensorKind,
    integers,
    refuse,
    show,
    want,
)
from rocmkern.tile.language.operation import operation
from rocmkern.tile.language.values import Tensor, block

_arriving = Mutex()


@contextmanager
def running(index: tuple[int, int, int]) -> Iterator[None]:
    """Let this thread be the block at a grid index.

    Raises
    ------
    TileError
        At the end, if a stage has a window in use or on its way.
    """
    before = block.index, block.quiet, block.stages
    block.index, block.quiet, block.stages = index, True, []
    try:
        with np.errstate(all="ignore"):  # infinities and NaN are data here, as on the machine targets
            yield
        for stage in block.stages:
            stage.windows.end()
    finally:
        block.index, block.quiet, block.stages = before


def _block_id(cfg: Any, axis: Any) -> Any:
    want(ConfigKind, cfg, "cfg")
    integers(axis=axis)
    return ScalarKind("int64")


@operation(_block_id)
def block_id(cfg: Config, axis: int) -> int:
    """Index of this block along grid ``axis`` (0, 1 or 2)."""
    return block.index[axis]


def _last_to_arrive(cfg: Any, counters: Any, index: Any, count: Any) -> Any:
    want(ConfigKind, cfg, "cfg")
    want(TensorKind, counters, "the tensor")
    if counters.dtype != "int32" or counters.ndim != 1:
        refuse(f"counters must be int32 with 1 axis, got {show(counters)} of {counters.dtype}")
    integers(index=index, count=count)
    return ScalarKind("bool")


@operation(_last_to_arrive)
def last_to_arrive(cfg: Config, counters: Tensor, index: int, count: int) -> bool:
    """Whether this block is the last of ``count`` that call this with the same element of ``counters`` (int32).

    What the other blocks wrote to global memory before is there for the last one to read. The counter has to be 0
    before the first one arrives, and is 0 again when the last one has.
    """
    with _arriving:
        counters[index] = (counters[index] + 1) % count
        return bool(counters[index] == np.int32(0))
