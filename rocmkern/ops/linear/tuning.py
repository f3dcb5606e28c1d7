"""Block sizes of matrix products for each architecture, as data, and the rules that pick among them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from rocmkern.architectures import architecture, tuned
from rocmkern.ops.linear.kernels import matmul, row_product
from rocmkern.targets import Target
from rocmkern.tile.language.kernel import VECTOR_WIDTH


@dataclass(frozen=True)
class ProductBlock:
    """A block of a product, beside its rows.

    Attributes
    ----------
    columns : int
    block_k : int
        What it takes of K in a step.
    waves : int
    num_stages : int
        How many steps ahead are on their way.
    group_m : int
        See `product_block`.
    """

    columns: int
    block_k: int
    waves: int
    num_stages: int = 1
    group_m: int = 0

    def config(self, rows: int) -> dict[str, Any]:
        """What a configuration says of a block of so many rows."""
        return {
            "block_m": rows,
            "block_n": self.columns,
            "block_k": self.block_k,
            "waves": self.waves,
            "num_stages": self.num_stages,
            "group_m": self.group_m,
        }


#: Blocks by their rows, smallest first: the first that holds the problem's rows is taken, else the last.
ByRows = Mapping[int, ProductBlock]


@dataclass(frozen=True)
class Products:
    """Blocks on one architecture: of 2-byte elements, and of float32.

    ``alike`` are the rows of blocks in which a row is computed alike, to the bit: what batch-invariant calls choose
    from.
    """

    half: ByRows
    single: ByRows
    alike: tuple[int, ...] = (64,)

    def config(self, rows: int, itemsize: int, invariant: bool = False) -> dict[str, Any]:
        """What a configuration says of a block, for so many rows."""
        sizes = self.half if itemsize == 2 else self.single
        choice = self.alike if invariant else sizes
        size = next((size for size in choice if size >= rows), max(choice))
        return sizes[size].config(size)


def for_all(sizes: ByRows, alike: tuple[int, ...]) -> Products:
    """The same blocks for all element types."""
    return Products(sizes, sizes, alike)


SIZES = {
    "python": for_all({16: ProductBlock(16, 16, 1)}, alike=(16,)),
    # Few rows: a step is long, because every sum is added up over its lanes. Many rows: the left side (64 KiB and more)
    # and the lines of the right side that are in use stay in the caches of a core. From 16 rows on lanes run over rows,
    # and every lane computes alike.
    "cpu": for_all(
        {
            1: ProductBlock(64, 1024, 1),
            4: ProductBlock(64, 1024, 1),
            16: ProductBlock(256, 256, 1),
            128: ProductBlock(256, 256, 1),
        },
        alike=(16, 128),
    ),
    # Few rows: the weights are what takes time, so there are many small blocks with long steps, one wave each.
    # Longer steps of float32 would take more scalar registers than CDNA has.
    "cdna": Products(
        half={16: ProductBlock(32, 128, 1), 64: ProductBlock(64, 32, 4)},
        single={16: ProductBlock(32, 32, 1), 64: ProductBlock(32, 16, 4)},
    ),
    "rdna": Products(
        half={16: ProductBlock(32, 128, 1), 64: ProductBlock(64, 32, 4)},
        single={16: ProductBlock(32, 32, 1), 64: ProductBlock(32, 32, 4)},
    ),
    "nvidia": Products(
        half={16: ProductBlock(32, 128, 1), 64: ProductBlock(64, 64, 4), 128: ProductBlock(128, 64, 4)},
        single={16: ProductBlock(32, 32, 1), 64: ProductBlock(64, 32, 4)},
    ),
    # 16 rows a warp and two groups of four warps: both sides of a product stay in shared memory for wgmma.
    "hopper": Products(
        half={
            16: ProductBlock(32, 128, 1),
            64: ProductBlock(64, 128, 4),
            128: ProductBlock(256, 64, 8, num_stages=2, group_m=16),
        },
        single={16: ProductBlock(32, 32, 1), 64: ProductBlock(64, 32, 4)},
    ),
}

#: Blocks of 2-byte elements of so many rows, one narrower than the other, for products of which the ordinary ones would
#: keep few multiprocessors busy. An H200, float16, beside the ordinary ones: 512 x 4096 by 4096 x 4096 in 33 us instead
#: of 44, 128 x 4096 by 4096 x 14336 in 45 instead of 56.
_NARROW_ROWS = 128
_NARROW = {
    "hopper": (
        ProductBlock(128, 64, 8, num_stages=4, group_m=16),
        ProductBlock(64, 128, 8, num_stages=2, group_m=16),
    )
}
#: Share of the multiprocessors that should have a block.
_BUSY = 0.75


def product(
    target: Target,
    shape: tuple[int, int, int],
    itemsize: int,
    transposed: bool,
    left_transposed: bool = False,
    invariant: bool = False,
) -> matmul.Config:
    """Variant of ``matmul`` for so many products, and rows of a and columns of b in each.

    ``transposed``: b is [N, K], ``left_transposed``: a is [K, M]. The latter makes a difference only where several
    windows are on their way, and is left alone elsewhere. ``invariant``: a row is the same bits in all variants that
    may be chosen for it, whatever the numbers of products and rows.
    """
    arch, (products, rows, columns) = target.arch, shape
    if invariant:
        return matmul.Config(arch=arch, **tuned(SIZES, arch).config(rows, itemsize, True), transposed=transposed)
    block = tuned(SIZES, arch).config(rows, itemsize)
    for narrow in tuned(_NARROW, arch, ()) if itemsize == 2 else ():
        count = products * -(-rows // block["block_m"]) * -(-columns // block["block_n"])
        if block["block_m"] != _NARROW_ROWS or count >= _BUSY * (target.parallelism // 2):
            break
        block = narrow.config(_NARROW_ROWS)
    return matmul.Config(
        arch=arch, **block, transposed=transposed, left_transposed=left_transposed and block["num_stages"] > 1
    )


@dataclass(frozen=True)
class FewRows:
    """Where weights of 2 bytes are the left side because a has few rows.

    Attributes
    ----------
    weight_rows, rows, block_k, waves : int
        Of a block: rows of weights, rows of a, what it takes of K in a step.
    fewest : int
        Rows of weights from which that pays.
    """

    weight_rows: int
    rows: int
    block_k: int
    waves: int
    fewest: int


#: An H200, 16 rows by 28672 x 8192 weights: 3.8 TB/s, the other way round 2.7.
_FEW_ROWS = {"hopper": FewRows(64, 16, 256, 4, 1024)}


def few_rows_product(arch: str, rows: int, columns: int, itemsize: int) -> matmul.Config | None:
    """Variant of ``matmul`` for the transposed problem, where it is the better one."""
    sizes = tuned(_FEW_ROWS, arch, None)
    if sizes is None or itemsize != 2 or rows > sizes.rows or columns < sizes.fewest:
        return None
    return matmul.Config(
        arch=arch,
        waves=sizes.waves,
        block_m=sizes.weight_rows,
        block_n=sizes.rows,
        block_k=sizes.block_k,
        transposed=True,
    )


@dataclass(frozen=True)
class OneRow:
    """Block sizes of products of one row on one architecture.

    Attributes
    ----------
    waves : int
    waves_per_row : int
        Waves that a row of weights is spread over: 1 or all.
    rows : int
        Rows of the weights of a wave.
    pieces : int
        Parts of a row in a step: each is the columns of all lanes of a wave.
    longest : int
        Elements of a row of weights for each row that there is, beyond which K has to be shared out, by `matmul`.
    """

    waves: int
    waves_per_row: int = 1
    rows: int = 1
    pieces: int = 4
    longest: int = 512


ONE_ROW = {
    "python": OneRow(waves=4, pieces=16),
    "amd": OneRow(waves=4, pieces=2),
    # Small blocks, for an even end: of 1024 blocks with 4 rows each an H200 took 924 at once, then the rest. A row by
    # float16 weights [N, K] with those, and with two waves to a row: [4096, 14336] 37 us and 31, [8192, 28672] 118 and
    # 108, [1024, 4096] 7.7 and 6.9, [128256, 4096] 240 and 233; by two weights [14336, 4096] 67 and 61.
    "nvidia": OneRow(waves=2, waves_per_row=2, pieces=8),
}


def one_row(arch: str, rows: int, columns: int, depth: int) -> OneRow | None:
    """Block sizes where weights [columns, depth] are best streamed past a single row."""
    sizes = tuned(ONE_ROW, arch, None)
    return sizes if sizes and rows == 1 and depth <= sizes.longest * columns else None


def row_product_of(arch: str, sizes: OneRow) -> row_product.Config:
    """Variant of ``row_product``."""
    waves = sizes.waves // sizes.waves_per_row
    cfg = rows_along_lanes(arch, waves, sizes.rows, sizes.pieces, VECTOR_WIDTH, overlaps=True)
    return replace(cfg, waves=sizes.waves, threads_per_row=sizes.waves_per_row * cfg.threads_per_row)


def rows_along_lanes(
    arch: str, waves: int, rows: int, pieces: int, columns: int, **features: Any
) -> row_product.Config:
    """Variant of ``row_product`` whose waves have so many rows each, along lanes with pieces of so many columns."""
    lanes = architecture(arch).wave
    block: dict[str, Any] = {"block_n": rows * waves, "block_k": lanes * columns * pieces}
    return row_product.Config(arch=arch, waves=waves, threads_per_row=lanes, vector_width=columns, **block, **features)
