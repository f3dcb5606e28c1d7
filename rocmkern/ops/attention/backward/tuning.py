"""Block sizes of attention's gradients for each architecture, as data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from rocmkern.architectures import tuned
from rocmkern.ops.attention.backward.kernels import key_value_gradient as keys
from rocmkern.ops.attention.backward.kernels import softmax_gradient, sum_heads


@dataclass(frozen=True)
class Block:
    """Rows of a block, columns of a step, waves, rows of a wave; whether dk and dv are launches of their own."""

    rows: int
    columns: int
    waves: int
    wave_rows: int = 16
    apart: bool = False


@dataclass(frozen=True)
class Blocks:
    """Blocks of the kernel of dq, which dbias shares, and of that of dk and dv.

    Each is by the bucket of the head dimension, smallest first.
    """

    queries: Mapping[int, Block]
    keys: Mapping[int, Block]


@dataclass(frozen=True)
class Sizes:
    """Block sizes of one architecture.

    Attributes
    ----------
    halves, floats : Blocks
        For elements of 2 and of 4 bytes.
    sums, waves : int
        Numbers that are added up at a time, and waves that do it.
    """

    halves: Blocks
    floats: Blocks
    sums: int = 64
    waves: int = 4


def _alike(blocks: Mapping[int, Block]) -> Blocks:
    return Blocks(blocks, blocks)


# Small on purpose: tests of a few dozen rows cross block borders.
_PYTHON = _alike({64: Block(16, 16, 1), 256: Block(16, 16, 1)})
_CPU = _alike(dict.fromkeys((64, 128, 256), Block(64, 64, 1)))
# Registers bound the blocks of AMD GPUs: no variant for heads of up to 128 dimensions should need scratch memory.
_CDNA = Sizes(
    Blocks(
        {64: Block(64, 32, 4), 128: Block(64, 32, 4), 256: Block(64, 16, 4)},
        {64: Block(64, 32, 4), 128: Block(64, 16, 4), 256: Block(64, 16, 4, apart=True)},
    ),
    _alike(dict.fromkeys((64, 128, 256), Block(64, 16, 4))),
)
# Products of float32 are FMAs.
_FMA = _alike({64: Block(64, 16, 4), 128: Block(64, 16, 8, wave_rows=8), 256: Block(64, 16, 8, wave_rows=8)})
_RDNA = Sizes(
    Blocks(
        {64: Block(64, 32, 4), 128: Block(16, 16, 1), 256: Block(32, 16, 2)},
        {64: Block(64, 16, 4), 128: Block(16, 16, 1, apart=True), 256: Block(32, 16, 2, apart=True)},
    ),
    _FMA,
)
# An operand of RDNA 4 takes half the registers: the copies of the next windows count for more.
_RDNA4 = replace(
    _RDNA,
    halves=Blocks(
        {64: Block(64, 32, 4), 128: Block(64, 16, 4), 256: Block(32, 16, 2)},
        {64: Block(64, 16, 4), 128: Block(64, 16, 4, apart=True), 256: Block(32, 16, 2, apart=True)},
    ),
)
_NVIDIA = Sizes(
    Blocks(
        {64: Block(64, 64, 4), 128: Block(64, 32, 4), 256: Block(64, 32, 4)},
        {64: Block(64, 64, 4), 128: Block(64, 32, 4), 256: Block(64, 32, 4, apart=True)},
    ),
    _alike(dict.fromkeys((64, 128, 256), Block(64, 16, 4))),
)
_TABLE = {
    "python": Sizes(_PYTHON, _PYTHON, 16, 1),
    "cpu": Sizes(_CPU, _CPU, 64, 1),
    "cdna": _CDNA,
    "rdna": _RDNA,
    "rdna2": Sizes(_FMA, _FMA),
    "rdna4": _RDNA4,
    "nvidia": _NVIDIA,
}


def _blocks(arch: str, itemsize: int) -> Blocks:
    sizes = tuned(_TABLE, arch)
    return sizes.floats if itemsize == 4 else sizes.halves


def _settings(arch: str, blocks: Mapping[int, Block], dim: int, score_mods: bool) -> tuple[Block, dict[str, Any]]:
    """The block for a head dimension, and what a variant of it is made from."""
    bucket = next(size for size in blocks if size >= dim)
    block = blocks[bucket]
    return block, {
        "arch": arch,
        "waves": block.waves,
        "wave_rows": block.wave_rows,
        "block_m": block.rows,
        "block_n": block.columns,
        "head_dim": bucket,
        "value_dim": bucket,
        "score_mods": score_mods,
    }


def query_gradient(arch: str, dim: int, itemsize: int, score_mods: bool) -> softmax_gradient.Config:
    """Variant of ``query_gradient`` and ``bias_gradient`` for heads of up to ``dim`` columns."""
    _, settings = _settings(arch, _blocks(arch, itemsize).queries, dim, score_mods)
    return softmax_gradient.Config(**settings)


def key_value_gradient(arch: str, dim: int, itemsize: int, score_mods: bool) -> tuple[keys.Config, ...]:
    """Variants of ``key_value_gradient`` that compute dk and dv: one, or one for each."""
    block, settings = _settings(arch, _blocks(arch, itemsize).keys, dim, score_mods)
    if not block.apart:
        return (keys.Config(**settings),)
    return tuple(keys.Config(**settings, keys=of_keys, values=not of_keys) for of_keys in (True, False))


def sums(arch: str) -> sum_heads.Config:
    """Variant of ``sum_heads``."""
    sizes = tuned(_TABLE, arch)
    return sum_heads.Config(arch=arch, waves=sizes.waves, block_m=sizes.sums)
