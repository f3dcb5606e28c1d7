"""Block sizes of the gradients of norms for each architecture: what `rocmkern.ops.streaming` says, and these."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rocmkern.architectures import architecture, tuned
from rocmkern.ops import streaming
from rocmkern.ops.streaming import Block, LaneBlock


@dataclass(frozen=True)
class NormGradients:
    """Blocks of the gradients of norms on one architecture.

    Attributes
    ----------
    most_blocks : int
        The most blocks among which rows are shared. Each adds up its rows, so bits of the gradients of the parameters
        depend on it, and it does not depend on the device's size. On a CPU blocks are work for cores; on a GPU there
        are more than run at once, and what they write is a small share of what they read.
    widths : mapping of int to LaneBlock
        As `Streaming.whole_by_width`, if it is not that, for every dtype. A lane has three to five tiles, so no more
        than 16 columns of each: 150 to 172 vector registers on gfx1100.
    resident_rms : mapping of int to int
        By the columns of a tile, blocks of an RMS norm of halves that a multiprocessor should hold, which bounds their
        registers: `most_blocks` run at once then.
    sums : Block, optional
        Of `column_sums`, if it is not that of transposed copies.
    """

    most_blocks: int
    widths: Mapping[int, LaneBlock] = field(default_factory=dict)
    resident_rms: Mapping[int, int] = field(default_factory=dict)
    sums: Block | None = None


_WAVES_OF_32 = {
    512: LaneBlock(4, 4, 32),
    1024: LaneBlock(1, 2, 64),
    2048: LaneBlock(1, 4, 128),
    4096: LaneBlock(1, 8, 256),
    8192: LaneBlock(1, 16, 512),
}
_WAVES_OF_64 = {
    512: LaneBlock(4, 4, 64),
    1024: LaneBlock(2, 4, 128),
    2048: LaneBlock(1, 4, 256),
    4096: LaneBlock(1, 8, 512),
    8192: LaneBlock(1, 16, 1024),
}
#: Vector registers that a SIMD of RDNA needs for blocks of 16 waves: with 1024 eight waves have 128 each, and spilled
#: 14 to 34 on gfx1030.
_FOR_16_WAVES = 1536
SIZES = {
    "python": NormGradients(3),
    "cpu": NormGradients(64),
    "rdna": NormGradients(512, _WAVES_OF_32),
    "cdna": NormGradients(512, _WAVES_OF_64),
    # 8192 rows of 4096 float16 on an H200, sums included: with the 78 registers of the compiler's choice it holds 396
    # of 512 blocks, 96 us; with 64 it holds 528, 72 us; 264 blocks 87, 1056 blocks 85. The sums alone, in blocks of 64
    # columns and 64 parts, 8.4 us; of 16 and 64, 7.2; of 16 and 256, 5.5.
    "nvidia": NormGradients(512, _WAVES_OF_32, {4096: 4}, sums=Block(16, 256, 1)),
}


def most_blocks(arch: str) -> int:
    """The most blocks among which rows are shared."""
    return tuned(SIZES, arch).most_blocks


def widths(arch: str) -> Mapping[int, LaneBlock]:
    """Blocks by the columns of a row, in place of those of other operations; none: there are no others."""
    found, record = tuned(SIZES, arch).widths, architecture(arch)
    unit = record.compute_unit
    if unit is not None and record.wave == 32 and unit.registers < _FOR_16_WAVES:
        return {n: block for n, block in found.items() if block.waves < 16}
    return found


def resident_rms(arch: str, columns: int, itemsize: int) -> int:
    """Blocks of an RMS norm of so many columns that a multiprocessor should hold; 0: as it comes."""
    sizes = tuned(SIZES, arch)
    width = next((n for n in sizes.widths if n >= columns), 0)
    return sizes.resident_rms.get(width, 0) if itemsize == 2 else 0


def sums(config: type, arch: str, **features: Any) -> Any:
    """Variant of `column_sums`: ``config`` is its Config."""
    block, features = tuned(SIZES, arch).sums, features | {"overlaps": True}
    if block is None:
        return streaming.turned(config, arch, **features)
    return streaming.variant(config, arch, block, **features)
