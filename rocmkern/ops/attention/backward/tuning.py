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
    """Sizes of a block.

    Attributes
    ----------
    rows, columns : int
        Rows of the block, and columns of a step.
    waves, wave_rows : int
        Waves, and rows that lie side by side in one.
    resident, shared : int, bool
        See `rocmkern.tile.Config`: ``resident`` and ``shared_operands``.
    values : Block, optional
        That of dv, where dk and dv are launches of their own.
    """

    rows: int
    columns: int
    waves: int
    wave_rows: int = 16
    resident: int = 0
    shared: bool = False
    values: Block | None = None


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


def _apart(block: Block) -> Block:
    return replace(block, values=block)


# Small on purpose: tests of a few dozen rows cross block borders.
_PYTHON = _alike({64: Block(16, 16, 1), 256: Block(16, 16, 1)})
_CPU = _alike(dict.fromkeys((64, 128, 256), Block(64, 64, 1)))
# Registers bound the blocks of AMD GPUs: no variant for heads of up to 128 dimensions should need scratch memory.
_CDNA = Sizes(
    Blocks(
        {64: Block(64, 32, 4), 128: Block(64, 32, 4), 256: Block(64, 16, 4)},
        {64: Block(64, 32, 4), 128: Block(64, 16, 4), 256: _apart(Block(64, 16, 4))},
    ),
    _alike(dict.fromkeys((64, 128, 256), Block(64, 16, 4))),
)
# Products of float32 are FMAs.
_FMA = _alike({64: Block(64, 16, 4), 128: Block(64, 16, 8, wave_rows=8), 256: Block(64, 16, 8, wave_rows=8)})
_RDNA = Sizes(
    Blocks(
        {64: Block(64, 32, 4), 128: Block(16, 16, 1), 256: Block(32, 16, 2)},
        {64: Block(64, 16, 4), 128: _apart(Block(16, 16, 1)), 256: _apart(Block(32, 16, 2))},
    ),
    _FMA,
)
# An operand of RDNA 4 takes half the registers: the copies of the next windows count for more.
_RDNA4 = replace(
    _RDNA,
    halves=Blocks(
        {64: Block(64, 32, 4), 128: Block(64, 16, 4), 256: Block(32, 16, 2)},
        {64: Block(64, 16, 4), 128: _apart(Block(64, 16, 4)), 256: _apart(Block(32, 16, 2))},
    ),
)
_NVIDIA_FLOATS = Blocks(
    dict.fromkeys((64, 128, 256), Block(64, 16, 4)),
    {64: Block(64, 16, 4), 128: _apart(Block(64, 16, 4)), 256: _apart(Block(64, 16, 4))},
)
_NVIDIA = Sizes(
    Blocks(
        {64: Block(64, 64, 4), 128: Block(64, 32, 4, shared=True), 256: Block(64, 16, 4, shared=True)},
        {64: Block(64, 64, 4), 128: Block(64, 32, 4, shared=True), 256: _apart(Block(64, 16, 4, shared=True))},
    ),
    _NVIDIA_FLOATS,
)
# wgmma reads operands in shared memory as they are. Blocks of four waves, two or more of which a multiprocessor holds,
# fill each other's gaps; what no longer fits twice takes eight waves.
_HOPPER = Sizes(
    Blocks(
        {
            64: Block(64, 64, 4),
            128: Block(64, 64, 4),
            256: Block(128, 32, 8, shared=True),
        },
        {
            64: Block(64, 64, 4, resident=3, shared=True),
            128: Block(64, 64, 4, shared=True),
            256: Block(128, 32, 8, shared=True, values=Block(128, 64, 8, shared=True)),
        },
    ),
    _NVIDIA_FLOATS,
)
_TABLE = {
    "python": Sizes(_PYTHON, _PYTHON, 16, 1),
    "cpu": Sizes(_CPU, _CPU, 64, 1),
    "cdna": _CDNA,
    "rdna": _RDNA,
    "rdna2": Sizes(_FMA, _FMA),
    "rdna4": _RDNA4,
    "nvidia": _NVIDIA,
    "hopper": _HOPPER,
}


def _blocks(arch: str, itemsize: int) -> Blocks:
    sizes = tuned(_TABLE, arch)
    return sizes.floats if itemsize == 4 else sizes.halves


def _block(blocks: Mapping[int, Block], dim: int) -> tuple[int, Block]:
    """The bucket of a head dimension, and its block."""
    bucket = next(size for size in blocks if size >= dim)
    return bucket, blocks[bucket]


def _settings(arch: str, bucket: int, block: Block, score_mods: bool) -> dict[str, Any]:
    """What a variant is made from."""
    return {
        "arch": arch,
        "waves": block.waves,
        "wave_rows": block.wave_rows,
        "resident": block.resident,
        "shared_operands": block.shared,
        "block_m": block.rows,
        "block_n": block.columns,
        "head_dim": bucket,
        "value_dim": bucket,
        "score_mods": score_mods,
    }


def query_gradient(arch: str, dim: int, itemsize: int, score_mods: bool) -> softmax_gradient.Config:
    """Variant of ``query_gradient`` and ``bias_gradient`` for heads of up to ``dim`` columns."""
    bucket, block = _block(_blocks(arch, itemsize).queries, dim)
    return softmax_gradient.Config(**_settings(arch, bucket, block, score_mods))


def key_value_gradient(arch: str, dim: int, itemsize: int, score_mods: bool) -> tuple[keys.Config, ...]:
    """Variants of ``key_value_gradient`` that compute dk and dv: one, or one for each."""
    bucket, block = _block(_blocks(arch, itemsize).keys, dim)
    settings = _settings(arch, bucket, block, score_mods)
    if block.values is None:
        return (keys.Config(**settings),)
    of_values = _settings(arch, bucket, block.values, score_mods)
    return keys.Config(**settings, values=False), keys.Config(**of_values, keys=False)


def sums(arch: str) -> sum_heads.Config:
    """Variant of ``sum_heads``."""
    sizes = tuned(_TABLE, arch)
    return sum_heads.Config(arch=arch, waves=sizes.waves, block_m=sizes.sums)
