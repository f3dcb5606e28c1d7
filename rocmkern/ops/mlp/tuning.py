"""Block sizes of the first half of a gated MLP for each architecture, as data, and the rules that pick among them."""

from __future__ import annotations

from typing import Any

from rocmkern.architectures import architecture, tuned
from rocmkern.ops.linear import tuning as _linear
from rocmkern.ops.linear.tuning import OneRow, ProductBlock, Products
from rocmkern.ops.mlp.kernels import gated_mlp, gated_row
from rocmkern.tile.language.kernel import VECTOR_WIDTH

#: As of a product; the columns are those of each of the two that a block computes at once.
SIZES = {
    **_linear.SIZES,
    "cdna": Products(
        half={16: ProductBlock(16, 128, 1), 64: ProductBlock(32, 32, 4)},
        single={16: ProductBlock(16, 32, 1), 64: ProductBlock(16, 16, 4)},
    ),
    "rdna": Products(
        half={16: ProductBlock(16, 128, 1), 64: ProductBlock(32, 32, 4)},
        single={16: ProductBlock(16, 32, 1), 64: ProductBlock(16, 32, 4)},
    ),
    "nvidia": Products(
        half={16: ProductBlock(16, 128, 1), 64: ProductBlock(32, 64, 4), 128: ProductBlock(64, 64, 4)},
        single={16: ProductBlock(16, 32, 1), 64: ProductBlock(32, 32, 4)},
    ),
    "hopper": Products(
        half={
            16: ProductBlock(16, 128, 1),
            64: ProductBlock(64, 128, 4),
            128: ProductBlock(128, 64, 8, num_stages=2, group_m=16),
        },
        single={16: ProductBlock(16, 32, 1), 64: ProductBlock(32, 32, 4)},
    ),
}
#: Blocks of one row that a multiprocessor should hold at once; 0: the compiler chooses.
_RESIDENT_ROW = {"nvidia": 12}


def gated_product(arch: str, rows: int, itemsize: int, invariant: bool = False) -> gated_mlp.Config:
    """Variant of ``gated_mlp`` for so many rows of x; ``invariant`` as in `_linear.product`."""
    return gated_mlp.Config(arch=arch, **tuned(SIZES, arch).config(rows, itemsize, invariant))


def gated_row_of(arch: str, sizes: OneRow) -> gated_row.Config:
    """Variant of ``gated_row``."""
    # There are two weights: half of each is on its way at once.
    lanes = architecture(arch).wave
    block: dict[str, Any] = {"block_n": sizes.rows * sizes.waves, "block_k": lanes * VECTOR_WIDTH * sizes.pieces // 2}
    resident = tuned(_RESIDENT_ROW, arch, 0)
    return gated_row.Config(
        arch=arch, waves=sizes.waves, threads_per_row=lanes, resident=resident, overlaps=True, **block
    )
