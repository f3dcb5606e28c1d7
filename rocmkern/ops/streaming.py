"""Operations that only stream through memory: block sizes for each architecture, as data, and their launch.

A block takes some rows of ``[A, B, R, N]``, some columns at a time. Where there are lanes, and all tensors have unit
stride in a row, rows lie along them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from rocmkern.architectures import tuned
from rocmkern.calls.launch import ceil_div, launch, target_for
from rocmkern.calls.types import Stream
from rocmkern.calls.view import View
from rocmkern.tile.language.kernel import Config, Kernel


@dataclass(frozen=True)
class Block:
    """Rows, columns and waves of a block."""

    rows: int
    columns: int
    waves: int


@dataclass(frozen=True)
class LaneBlock:
    """Rows and waves of a block, and the lanes of a row; with 0 lanes rows do not lie along them."""

    rows: int
    waves: int
    lanes: int


@dataclass(frozen=True)
class Streaming:
    """Block sizes of one architecture.

    Attributes
    ----------
    block : Block
    turned : Block
        Where a row of one tensor is a column of the other in memory.
    by_width : mapping of int to LaneBlock
        By the columns of a block, smallest first, where rows lie along lanes: the first that holds a row is taken, else
        the last; for float32 not the last one if there are several.
    whole_by_width : mapping of int to LaneBlock
        The same where a kernel needs a row more than once, which it reads once if a tile holds it. With 0 lanes
        ``block`` is for longer rows than the last one holds.
    """

    block: Block = Block(64, 64, 4)
    turned: Block = Block(64, 64, 4)
    by_width: Mapping[int, LaneBlock] = field(default_factory=dict)
    whole_by_width: Mapping[int, LaneBlock] = field(default_factory=dict)


_RDNA = Streaming(
    by_width={512: LaneBlock(4, 4, 32), 1024: LaneBlock(4, 4, 32)},
    whole_by_width={512: LaneBlock(4, 4, 32), 1024: LaneBlock(1, 2, 64)},
)
SIZES = {
    # Small on purpose: tests of a few dozen rows cross block borders.
    "python": Streaming(Block(16, 64, 1), turned=Block(16, 16, 1)),
    "cpu": Streaming(
        Block(4, 256, 1),
        turned=Block(64, 64, 1),
        whole_by_width={
            256: LaneBlock(4, 1, 0),
            **dict.fromkeys((512, 1024, 1536, 2048), LaneBlock(2, 1, 0)),
            **dict.fromkeys((3072, 4096), LaneBlock(1, 1, 0)),
        },
    ),
    "cdna": Streaming(by_width={512: LaneBlock(4, 4, 64)}, whole_by_width={512: LaneBlock(4, 4, 64)}),
    "rdna": _RDNA,
    # Norms of 8192 rows of 4096 float16 on an H200, where a copy of as many bytes takes 36.5 us: an RMS norm 40 us, and
    # 51 us with tiles of 2048 columns and a row to a warp; a layer norm 48 us and 65 us.
    "nvidia": replace(
        _RDNA,
        whole_by_width={
            512: LaneBlock(4, 4, 32),
            1024: LaneBlock(4, 4, 32),
            2048: LaneBlock(1, 4, 128),
            4096: LaneBlock(1, 4, 128),
        },
    ),
}


def rows_config(
    config: type,
    arch: str,
    columns: int = 0,
    itemsize: int = 2,
    *,
    whole: bool = False,
    widths: Mapping[int, LaneBlock] | None = None,
    **features: Any,
) -> Any:
    """Variant of an operation that streams through memory: ``config`` is its kernel's Config.

    With ``columns``, the length of its rows, they lie along lanes where there are lanes; ``itemsize`` is that of the
    elements. ``whole``: the kernel needs a row more than once; its Config says whether a tile holds a ``single`` one,
    and ``widths`` may take the place of `Streaming.whole_by_width`.
    """
    block, lanes = _block_of_rows(arch, columns, itemsize, whole, widths)
    if whole:
        features["single"] = columns <= block.columns
    return variant(config, arch, block, threads_per_row=lanes, **features)


def is_single(arch: str, columns: int, itemsize: int) -> bool:
    """Whether a tile of a kernel that needs a row more than once holds one of so many columns."""
    return columns <= _block_of_rows(arch, columns, itemsize, True, None)[0].columns


def _block_of_rows(
    arch: str, columns: int, itemsize: int, whole: bool, widths: Mapping[int, LaneBlock] | None
) -> tuple[Block, int]:
    """The block for rows of so many columns, and the lanes along a row; see `rows_config`."""
    sizes = tuned(SIZES, arch)
    by_width = widths or (sizes.whole_by_width if whole else sizes.by_width)
    if by_width and columns:
        each = list(by_width)
        if itemsize > 2 and by_width[each[-1]].lanes:
            each = each[:-1] or each
        width = next((n for n in each if n >= columns), each[-1])
        along = by_width[width]
        if along.lanes or width >= columns:
            return Block(along.rows, width, along.waves), along.lanes
    return sizes.block, 0


def turned(config: type, arch: str, **features: Any) -> Any:
    """Variant of an operation that copies between a tensor and a transposed one: ``config`` is its kernel's Config."""
    return variant(config, arch, tuned(SIZES, arch).turned, **features)


def longest_whole_row(arch: str) -> int:
    """The longest row that a tile of a kernel holds that needs it more than once, by lanes; 0: there is none."""
    return max(tuned(SIZES, arch).whole_by_width, default=0)


def variant(config: type, arch: str, block: Block, **features: Any) -> Any:
    """Variant of an operation with a block: ``config`` is its kernel's Config."""
    return config(arch=arch, waves=block.waves, block_m=block.rows, block_n=block.columns, **features)


def by_rows(
    kernel: Kernel,
    config: type[Config],
    out: View,
    args: Mapping[str, Any],
    stream: Stream,
    *,
    along_lanes: bool = False,
    whole: bool = False,
    stepping: int | None = None,
    **features: Any,
) -> None:
    """A kernel whose grid is (row block, axis 1, axis 0) of its output.

    With ``along_lanes`` rows lie along lanes on a GPU, which pays where all tensors have unit stride in a row; with
    ``whole``, in one tile if there is such a large one. With ``stepping`` the kernel's last argument is a number of row
    blocks: a block goes on with the rows so many further on. There are ``stepping`` blocks for each that runs at the
    same time, or, if that is 0, one for each row block.
    """
    target = target_for(out)
    columns = out.shape[3] if along_lanes else 0
    cfg = rows_config(config, target.arch, columns, out.dtype.itemsize, whole=whole, **features)
    row_blocks = ceil_div(out.shape[2], cfg.block_m)
    if stepping is not None:
        if stepping:
            row_blocks = min(row_blocks, ceil_div(target.parallelism * stepping, out.shape[0] * out.shape[1]))
        args = {**args, kernel.parameters[-1][0]: row_blocks}
    launch(target, kernel, cfg, (row_blocks, out.shape[1], out.shape[0]), args, stream)
