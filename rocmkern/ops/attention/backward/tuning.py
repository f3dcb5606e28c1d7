"""Block sizes of attention's gradients for each architecture, as data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rocmkern.architectures import tuned
from rocmkern.ops.attention.backward.kernels import sum_heads
from rocmkern.ops.attention.backward.kernels.softmax_gradient import Config


@dataclass(frozen=True)
class Block:
    """Rows of a block, columns of a step, and waves."""

    rows: int
    columns: int
    waves: int


@dataclass(frozen=True)
class Sizes:
    """Block sizes of one architecture.

    Attributes
    ----------
    halves, floats : mapping of int to Block
        For elements of 2 and of 4 bytes, by the bucket of the head dimension, smallest first.
    sums : int
        Numbers that are added up at a time, by ``waves`` waves.
    waves : int
    """

    halves: Mapping[int, Block]
    floats: Mapping[int, Block]
    sums: int = 64
    waves: int = 4


# Small on purpose: tests of a few dozen rows cross block borders.
_PYTHON = {64: Block(16, 16, 1), 256: Block(16, 16, 1)}
_CPU = {64: Block(64, 64, 1), 128: Block(64, 64, 1), 256: Block(64, 64, 1)}
_GPU = Sizes(
    {64: Block(64, 32, 4), 128: Block(64, 16, 4), 256: Block(64, 16, 4)},
    {64: Block(64, 16, 4), 128: Block(64, 16, 4), 256: Block(64, 16, 4)},
)
_TABLE = {
    "python": Sizes(_PYTHON, _PYTHON, 16, 1),
    "cpu": Sizes(_CPU, _CPU, 64, 1),
    "gpu": _GPU,
}


def gradient(arch: str, head_dim: int, value_dim: int, itemsize: int, score_mods: bool) -> Config:
    """Variant of the kernels with products."""
    sizes = tuned(_TABLE, arch)
    blocks = sizes.floats if itemsize == 4 else sizes.halves
    dim = next(size for size in blocks if size >= max(head_dim, value_dim))
    block = blocks[dim]
    return Config(
        arch=arch,
        waves=block.waves,
        block_m=block.rows,
        block_n=block.columns,
        head_dim=dim,
        value_dim=dim,
        score_mods=score_mods,
    )


def sums(arch: str) -> sum_heads.Config:
    """Variant of ``sum_heads``."""
    sizes = tuned(_TABLE, arch)
    return sum_heads.Config(arch=arch, waves=sizes.waves, block_m=sizes.sums)
