"""Which compiled variant an operation uses: block sizes per architecture, as data, and the few rules to pick them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from rocmkern.architectures import architecture, tuned
from rocmkern.ops.linear.kernels import matmul, row_product
from rocmkern.ops.mlp.kernels import gated_mlp, gated_row
from rocmkern.ops.rotary.kernels import rope
from rocmkern.ops.sampling.kernels import sample
from rocmkern.tile.formats import FORMATS
from rocmkern.tile.formats import IN_PAIRS as _PACKED
from rocmkern.tile.language.kernel import VECTOR_WIDTH


@dataclass(frozen=True)
class Blocks:
    """Block sizes of one architecture.

    Attributes
    ----------
    line : tuple of (int, int, int)
        Rows, columns and waves of a block in operations that only stream through memory.
    turned : tuple of (int, int, int)
        The same where a row of one tensor is a column of the other in memory.
    lines : dict of int to (int, int, int)
        Columns to choose from, smallest first, where rows lie along lanes: the first that holds a row is taken, else
        the last; for float32 not the last one if there are several. To each the rows and waves of a block, and the
        lanes of a row.
    whole_lines : dict of int to (int, int, int)
        The same where a kernel needs a row more than once, which it reads once if a tile holds it. With 0 lanes rows do
        not lie along lanes, and ``line`` is for longer rows than the last one holds.
    resident_norms : tuple of (int, int, int)
        Blocks that a multiprocessor should hold at once of an RMS norm without a residual, of a layer norm of rows that
        a tile holds, and of one of longer rows, where several waves share a row.
    stepping_norms : int
        Blocks of a layer norm for each that runs at the same time, if they keep its weights for all their rows.
    rotated_rows : tuple of int
        Rows of a lane to choose from where the rows of a rotary embedding are heads; none: they are positions.
    rotary : tuple of (int, int, int)
        Rows, pairs and waves of a block of a rotary embedding, which holds four tiles.
    sampling : tuple of (int, int, int)
        Parts of a row of logits, columns and waves of a block, which has the row to itself.
    """

    line: tuple[int, int, int] = (64, 64, 4)
    turned: tuple[int, int, int] = (64, 64, 4)
    lines: dict[int, tuple[int, int, int]] = field(default_factory=dict)
    whole_lines: dict[int, tuple[int, int, int]] = field(default_factory=dict)
    resident_norms: tuple[int, int, int] = (0, 0, 0)
    stepping_norms: int = 0
    rotated_rows: tuple[int, ...] = ()
    rotary: tuple[int, int, int] = (64, 32, 4)
    sampling: tuple[int, int, int] = (8, 512, 8)


_CPU = Blocks(
    line=(4, 256, 1),
    turned=(64, 64, 1),
    whole_lines={n: (4 if n == 256 else 2, 1, 0) for n in (256, 512, 1024, 1536, 2048)}
    | {n: (1, 1, 0) for n in (3072, 4096)},
    stepping_norms=16,
    rotary=(8, 64, 1),
    sampling=(4, 256, 1),
)
_CDNA = Blocks(
    line=(64, 64, 4),
    lines={512: (4, 4, 64)},
    whole_lines={512: (4, 4, 64)},
    rotary=(64, 16, 4),
)
_RDNA = Blocks(
    line=(64, 64, 4),
    lines={512: (4, 4, 32), 1024: (4, 4, 32)},
    whole_lines={512: (4, 4, 32), 1024: (1, 2, 64)},
    rotary=(64, 16, 4),
)
# Norms of 8192 rows of 4096 float16 on an H200, where a copy of as many bytes takes 36.5 us: an RMS norm 40 us, and 51
# us with tiles of 2048 columns and a row to a warp; a layer norm 48 us and 65 us.
_NVIDIA = Blocks(
    line=(64, 64, 4),
    lines={512: (4, 4, 32), 1024: (4, 4, 32)},
    whole_lines={512: (4, 4, 32), 1024: (4, 4, 32), 2048: (1, 4, 128), 4096: (1, 4, 128)},
    resident_norms=(6, 6, 4),
    rotated_rows=(2, 4),
    rotary=(64, 16, 4),
)
_TABLE = {
    # Small on purpose: tests of a few dozen rows cross block borders.
    "python": Blocks(
        line=(16, 64, 1),
        turned=(16, 16, 1),
        rotary=(16, 64, 1),
        sampling=(8, 16, 1),
        stepping_norms=2,
    ),
    "cpu": _CPU,
    "cdna": _CDNA,
    "rdna": _RDNA,
    "nvidia": _NVIDIA,
}


def blocks(arch: str) -> Blocks:
    """The block sizes of an architecture."""
    return tuned(_TABLE, arch)


def line(config: type, arch: str, columns: int = 0, itemsize: int = 2, *, whole: bool = False, **features: Any) -> Any:
    """Variant of an operation that streams through memory: ``config`` is its kernel's Config.

    With ``columns``, the length of its rows, they lie along lanes where there are lanes; ``itemsize`` is that of the
    elements. ``whole``: the kernel needs a row more than once; its Config says whether a tile holds a ``single`` one.
    """
    sizes = blocks(arch)
    block_m, block_n, waves, on_lanes = *sizes.line, 0
    lines = sizes.whole_lines if whole else sizes.lines
    if lines and columns:
        widths = list(lines)
        if itemsize > 2 and lines[widths[-1]][2]:
            widths = widths[:-1] or widths
        width = next((n for n in widths if n >= columns), widths[-1])
        rows, row_waves, lanes = lines[width]
        if lanes or width >= columns:
            block_m, block_n, waves, on_lanes = rows, width, row_waves, lanes
    if whole:
        features["single"] = columns <= block_n
    return config(arch=arch, waves=waves, block_m=block_m, block_n=block_n, threads_per_row=on_lanes, **features)


def resident_norms(arch: str, columns: int, itemsize: int) -> tuple[int, int]:
    """Blocks of an RMS norm and of a layer norm, with rows of so many columns, to hold at once; 0: as it comes."""
    sizes = blocks(arch)
    if itemsize > 2 or columns <= 2048:
        return 0, 0
    rms, of_tiles, longer = sizes.resident_norms
    return rms, of_tiles if columns <= max(sizes.whole_lines, default=0) else longer


def turned(config: type, arch: str) -> Any:
    """Variant of an operation that copies between a tensor and a transposed one: ``config`` is its kernel's Config."""
    block_m, block_n, waves = blocks(arch).turned
    return config(arch=arch, waves=waves, block_m=block_m, block_n=block_n)


#: Tile rows of a block, smallest first, each with the block's columns, what it takes of K in a step, and its waves;
#: then, if they are not 1 and 0, how many steps ahead are on their way, and the group of `product_block`.
Sizes = Mapping[int, tuple[int, ...]]


@dataclass(frozen=True)
class ProductBlocks:
    """Block sizes of matrix products on one architecture: the first that holds the problem's rows, else the last.

    Attributes
    ----------
    half, single : dict of int to tuple of int
        For 2-byte elements and for float32: see `Sizes`.
    gated_half, gated_single : dict of int to tuple of int
        The same where a block computes two products at once; the columns are those of each.
    """

    half: Sizes
    single: Sizes
    gated_half: Sizes
    gated_single: Sizes


def _choose(sizes: Sizes, rows: int) -> dict[str, Any]:
    """What a configuration says of a block, for so many rows."""
    size = next((size for size in sizes if size >= rows), max(sizes))
    names = ("block_n", "block_k", "waves", "num_stages", "group")
    return {"block_m": size, "num_stages": 1, **dict(zip(names, sizes[size], strict=False))}


_INTERPRETER = {16: (16, 16, 1)}
# Few rows: a step is long, because every sum is added up over its lanes. Many rows: the left side (64 KiB and more)
# and the lines of the right side that are in use stay in the caches of a core.
_CPU_PRODUCT = {1: (64, 1024, 1), 4: (64, 1024, 1), 16: (256, 256, 1), 128: (256, 256, 1)}
# Few rows: the weights are what takes time, so there are many small blocks with long steps, one wave each.
_HALF, _GATED_HALF = {16: (32, 128, 1), 64: (64, 32, 4)}, {16: (16, 128, 1), 64: (32, 32, 4)}
_SINGLE, _GATED_SINGLE = {16: (32, 32, 1), 64: (32, 32, 4)}, {16: (16, 32, 1), 64: (16, 32, 4)}
_PRODUCT_TABLE = {
    "python": ProductBlocks(_INTERPRETER, _INTERPRETER, _INTERPRETER, _INTERPRETER),
    "cpu": ProductBlocks(_CPU_PRODUCT, _CPU_PRODUCT, _CPU_PRODUCT, _CPU_PRODUCT),
    # Longer steps of float32 would take more scalar registers than there are.
    "cdna": ProductBlocks(_HALF, {16: (32, 32, 1), 64: (32, 16, 4)}, _GATED_HALF, {16: (16, 32, 1), 64: (16, 16, 4)}),
    "rdna": ProductBlocks(_HALF, _SINGLE, _GATED_HALF, _GATED_SINGLE),
    "nvidia": ProductBlocks(
        half={16: (32, 128, 1), 64: (64, 64, 4), 128: (128, 64, 4)},
        single={16: (32, 32, 1), 64: (64, 32, 4)},
        gated_half={16: (16, 128, 1), 64: (32, 64, 4), 128: (64, 64, 4)},
        gated_single={16: (16, 32, 1), 64: (32, 32, 4)},
    ),
    # 16 rows a warp and two groups of four warps: both sides of a product stay in shared memory for wgmma.
    "hopper": ProductBlocks(
        half={16: (32, 128, 1), 64: (64, 128, 4), 128: (256, 64, 8, 2, 16)},
        single={16: (32, 32, 1), 64: (64, 32, 4)},
        gated_half={16: (16, 128, 1), 64: (64, 128, 4), 128: (128, 64, 8, 2, 16)},
        gated_single={16: (16, 32, 1), 64: (32, 32, 4)},
    ),
}


def _product_blocks(arch: str, table: dict[str, ProductBlocks] = _PRODUCT_TABLE) -> ProductBlocks:
    return tuned(table, arch)


#: Rows, columns, step, waves, steps ahead and group of blocks of 2-byte elements, one narrower than the other, for
#: products of which the ordinary ones would keep few multiprocessors busy. An H200, float16, beside the ordinary ones:
#: 512 x 4096 by 4096 x 4096 in 33 us instead of 44, 128 x 4096 by 4096 x 14336 in 45 instead of 56.
_NARROW = {"hopper": ((128, 128, 64, 8, 4, 16), (128, 64, 128, 8, 2, 16))}
#: Share of the multiprocessors that should have a block.
_BUSY = 0.75


def product(
    target: Any, shape: tuple[int, int, int], itemsize: int, transposed: bool, left_transposed: bool = False
) -> matmul.Config:
    """Variant of ``matmul`` for so many products, and rows of a and columns of b in each.

    ``transposed``: b is [N, K], ``left_transposed``: a is [K, M]. The latter makes a difference only where several
    windows are on their way, and is left alone elsewhere.
    """
    arch, (products, rows, columns) = target.arch, shape
    sizes = _product_blocks(arch)
    block = _choose(sizes.half if itemsize == 2 else sizes.single, rows)
    for narrow in tuned(_NARROW, arch, ()) if itemsize == 2 else ():
        count = products * -(-rows // block["block_m"]) * -(-columns // block["block_n"])
        if block["block_m"] != narrow[0] or count >= _BUSY * (target.parallelism // 2):
            break
        block = dict(zip(("block_m", "block_n", "block_k", "waves", "num_stages", "group"), narrow, strict=True))
    return matmul.Config(
        arch=arch, **block, transposed=transposed, left_transposed=left_transposed and block["num_stages"] > 1
    )


#: Rows of weights, rows of a, step and waves of a block where weights of 2 bytes are the left side because a has few
#: rows, and the rows of weights from which that pays. An H200, 16 rows by 28672 x 8192 weights: 3.8 TB/s, the other way
#: round 2.7.
_FEW_ROWS = {"hopper": (64, 16, 256, 4, 1024)}


def few_rows_product(arch: str, rows: int, columns: int, itemsize: int) -> matmul.Config | None:
    """Variant of ``matmul`` for the transposed problem, where it is the better one."""
    sizes = tuned(_FEW_ROWS, arch, None)
    if sizes is None or itemsize != 2:
        return None
    block_m, block_n, block_k, waves, fewest = sizes
    if rows > block_n or columns < fewest:
        return None
    return matmul.Config(arch=arch, waves=waves, block_m=block_m, block_n=block_n, block_k=block_k, transposed=True)


#: As `_PRODUCT_TABLE`, for weights that are decoded: a window of them is written once and read by all rows of a block.
_QUANTIZED_CPU = {1: (32, 256, 1), 4: (32, 256, 1), 16: (64, 256, 1), 64: (64, 256, 1)}
_QUANTIZED_TABLE = {
    **_PRODUCT_TABLE,
    "hopper": replace(_PRODUCT_TABLE["hopper"], half={16: (32, 128, 1), 64: (64, 128, 4), 128: (256, 128, 8)}),
    "cpu": ProductBlocks(_QUANTIZED_CPU, _QUANTIZED_CPU, _QUANTIZED_CPU, _QUANTIZED_CPU),
}


def quantized_product(arch: str, rows: int, itemsize: int, format: str) -> matmul.Config:
    """Variant of ``matmul`` for so many rows of a and quantized weights."""
    sizes = _product_blocks(arch, _QUANTIZED_TABLE)
    block = _choose(sizes.half if itemsize == 2 else sizes.single, rows)
    return matmul.Config(arch=arch, **block, transposed=True, format=format)


@dataclass(frozen=True)
class RowBlocks:
    """Block sizes of products of one row on one architecture.

    Attributes
    ----------
    waves, quantized_waves : int
    row_waves : int
        Waves that a row of weights is spread over, where they are not quantized and there is one of them: 1 or all.
    rows, quantized_rows : int
        Rows of the weights of a wave.
    pieces : int
        Parts of a row in a step: each is the columns of all lanes of a wave.
    gated_resident : int
        Blocks that a multiprocessor should hold at once where there are two weights; 0: the compiler chooses.
    quantized_columns : int
        Columns side by side in a lane where weights are quantized: a block of most formats.
    longest : int
        Elements of a row of weights for each row that there is, beyond which K has to be shared out, by `matmul`.
    pairs : dict of str to tuple of int
        By dtype of x, where lanes read numbers of a `_PACKED` format in pairs: rows of a wave, and pieces.
    packed : dict of str to tuple of int
        By format, for aligned weights and x of 16 bits, where all waves have the same rows: waves, rows, the most
        columns of a wave in a step, and blocks that a multiprocessor should hold at once.
    """

    waves: int
    quantized_waves: int = 4
    row_waves: int = 1
    rows: int = 1
    pieces: int = 4
    gated_resident: int = 0
    quantized_rows: int = 1
    quantized_columns: int = 32
    longest: int = 512
    pairs: dict[str, tuple[int, int]] = field(default_factory=dict)
    packed: dict[str, tuple[int, int, int, int]] = field(default_factory=dict)


_ROW_TABLE = {
    "python": RowBlocks(waves=4, pieces=16, quantized_columns=128),
    "amd": RowBlocks(waves=4, pieces=2, pairs={"float16": (2, 2), "bfloat16": (2, 1), "float32": (2, 1)}),
    "nvidia": RowBlocks(
        # Small blocks, for an even end: of 1024 blocks with 4 rows each an H200 took 924 at once, then the rest. A row
        # by float16 weights [N, K] with those, and with two waves to a row: [4096, 14336] 37 us and 31, [8192, 28672]
        # 118 and 108, [1024, 4096] 7.7 and 6.9, [128256, 4096] 240 and 233; by two weights [14336, 4096] 67 and 61.
        waves=2,
        row_waves=2,
        pieces=8,
        gated_resident=12,
        quantized_waves=2,
        quantized_rows=4,
        # An H200, one row by 28672 x 8192, share of a copy's bandwidth behind an L2 flush by reads: q4_0 0.78, q4_k
        # 0.74, mxfp4 0.67, q8_0 0.89; 2048 columns of a wave make it 0.64, 0.57, 0.57, 0.69.
        packed={
            **dict.fromkeys(_PACKED, (4, 16, 1024, 4)),
            "q6_k": (4, 16, 1024, 3),
        },
    ),
}


def one_row(arch: str, rows: int, columns: int, depth: int) -> RowBlocks | None:
    """Block sizes where weights [columns, depth] are best streamed past a single row."""
    sizes = tuned(_ROW_TABLE, arch, None)
    return sizes if sizes and rows == 1 and depth <= sizes.longest * columns else None


def row_product_of(arch: str, sizes: RowBlocks) -> row_product.Config:
    """Variant of ``row_product``."""
    waves, rows = sizes.waves // sizes.row_waves, sizes.rows
    cfg = _rows_along_lanes(arch, waves, rows, sizes.pieces, VECTOR_WIDTH, overlaps=True)
    return replace(cfg, waves=sizes.waves, threads_per_row=sizes.row_waves * cfg.threads_per_row)


def quantized_row(
    arch: str, sizes: RowBlocks, depth: int, format: str, alignment: int, dtype: str
) -> row_product.Config:
    """Variant of ``row_product`` for quantized weights with ``depth`` columns, and x of ``dtype``.

    Rows of the weights start at multiples of ``alignment`` bytes.
    """
    packing: dict[str, Any] = {"format": format, "alignment": alignment}
    if format not in sizes.packed or alignment < 8 or dtype == "float32":
        in_pairs = format in _PACKED and dtype in sizes.pairs
        shape = sizes.pairs[dtype] if in_pairs else (sizes.quantized_rows, 1)
        return _rows_along_lanes(arch, sizes.quantized_waves, *shape, sizes.quantized_columns, **packing)
    waves, rows, most, resident = sizes.packed[format]
    kind = FORMATS[format]
    widths = [n for n in (512, 1024) if n <= most and n // kind.elements * kind.nbytes % 8 == 0]
    # A step costs as much as some more columns.
    own = min(widths, key=lambda n: -(-depth // (n * waves)) * (n + 512))
    block: dict[str, Any] = {"block_n": rows, "block_k": own * waves}
    return row_product.Config(arch=arch, waves=waves, split_kv=True, resident=resident, **block, **packing)


def _rows_along_lanes(
    arch: str, waves: int, rows: int, pieces: int, columns: int, **packing: Any
) -> row_product.Config:
    """Variant of ``row_product`` whose waves have so many rows each, along lanes with pieces of so many columns."""
    lanes = wave_lanes(arch)
    block: dict[str, Any] = {"block_n": rows * waves, "block_k": lanes * columns * pieces}
    return row_product.Config(arch=arch, waves=waves, threads_per_row=lanes, vector_width=columns, **block, **packing)


def gated_row_of(arch: str, sizes: RowBlocks) -> gated_row.Config:
    """Variant of ``gated_row``."""
    # There are two weights: half of each is on its way at once.
    lanes = wave_lanes(arch)
    block: dict[str, Any] = {"block_n": sizes.rows * sizes.waves, "block_k": lanes * VECTOR_WIDTH * sizes.pieces // 2}
    return gated_row.Config(
        arch=arch, waves=sizes.waves, threads_per_row=lanes, resident=sizes.gated_resident, overlaps=True, **block
    )


def gated_product(arch: str, rows: int, itemsize: int) -> gated_mlp.Config:
    """Variant of ``gated_mlp`` for so many rows of x."""
    sizes = _product_blocks(arch)
    block = _choose(sizes.gated_half if itemsize == 2 else sizes.gated_single, rows)
    return gated_mlp.Config(arch=arch, **block)


def rotation(arch: str, heads: int, pairs: int, interleaved: bool) -> rope.Config:
    """Variant of ``rope`` for so many heads, with so many pairs each."""
    rows = blocks(arch).rotated_rows
    return heads_as_rows(arch, heads, pairs, interleaved, rows) if rows else rotary(rope.Config, arch)


def heads_as_rows(arch: str, heads: int, pairs: int, interleaved: bool, rows: tuple[int, ...]) -> rope.Config:
    """`rotation` where the rows are heads, so many to a lane, which share angles; a block is one wave.

    An H200 took 22 us for 4096 positions of 32 heads of 128 elements with 1 to 8 rows a lane, but for 8 heads 9.6 us
    with 2 rows a lane and 13.6 us with 8.
    """
    lanes = next((n for n in _ROTATED_LANES if n * VECTOR_WIDTH >= pairs), _ROTATED_LANES[-1])
    at_once = wave_lanes(arch) // lanes
    block_m = at_once * next((n for n in rows if n * at_once >= heads), rows[-1])
    block: dict[str, Any] = {"block_m": block_m, "block_n": lanes * VECTOR_WIDTH, "threads_per_row": lanes}
    return rope.Config(arch=arch, **block, rows_are_heads=True, neighbours=interleaved)


#: Lanes of a row to choose from.
_ROTATED_LANES = (4, 8, 16)


def rotary(config: type, arch: str, **features: Any) -> Any:
    """Variant of a rotary embedding: ``config`` is its kernel's Config."""
    block_m, block_n, waves = blocks(arch).rotary
    return config(arch=arch, waves=waves, block_m=block_m, block_n=block_n, **features)


def wave_lanes(arch: str) -> int:
    """Lanes of a wave, for rows along them."""
    return architecture(arch).wave


def sampling(arch: str, per_row: bool) -> sample.Config:
    """Variant of ``sample``; whether every row has numbers of its own."""
    block_m, block_n, waves = blocks(arch).sampling
    return sample.Config(
        arch=arch, waves=waves, block_m=block_m, block_n=block_n, threads_per_row=wave_lanes(arch), per_row=per_row
    )
