"""Block sizes of products with quantized weights for each architecture, and the rules that pick among them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from rocmkern.architectures import tuned
from rocmkern.ops.linear import tuning as _linear
from rocmkern.ops.linear.kernels import matmul, row_product
from rocmkern.ops.linear.tuning import ProductBlock, for_all, rows_along_lanes
from rocmkern.tile.formats import FORMATS, IN_PAIRS

#: As of a product of numbers; a window of weights is decoded once and read by all rows of a block.
SIZES = {
    **_linear.SIZES,
    "cpu": for_all(
        {
            1: ProductBlock(32, 256, 1),
            4: ProductBlock(32, 256, 1),
            16: ProductBlock(64, 256, 1),
            64: ProductBlock(64, 256, 1),
        },
        alike=(16, 64),
    ),
    "hopper": replace(
        _linear.SIZES["hopper"],
        half={16: ProductBlock(32, 128, 1), 64: ProductBlock(64, 128, 4), 128: ProductBlock(256, 128, 8)},
    ),
}


def quantized_product(arch: str, rows: int, itemsize: int, format: str, invariant: bool = False) -> matmul.Config:
    """Variant of ``matmul`` for so many rows of a and quantized weights; ``invariant`` as in `_linear.product`."""
    block = tuned(SIZES, arch).config(rows, itemsize, invariant)
    return matmul.Config(arch=arch, **block, transposed=True, format=format)


@dataclass(frozen=True)
class InPairs:
    """Where lanes read numbers in pairs: rows of a wave, and parts of a row in a step (see `OneRow.pieces`)."""

    rows: int
    pieces: int


@dataclass(frozen=True)
class Packed:
    """A block all of whose waves have the same rows.

    Attributes
    ----------
    waves, rows : int
    columns : int
        The most of a wave in a step.
    resident : int
        Blocks that a multiprocessor should hold at once.
    """

    waves: int
    rows: int
    columns: int
    resident: int


@dataclass(frozen=True)
class QuantizedRow:
    """Block sizes of products of one row on one architecture.

    Attributes
    ----------
    waves : int
    rows : int
        Rows of the weights of a wave.
    columns : int
        Columns side by side in a lane: a block of most formats.
    in_pairs : mapping of str to InPairs
        By dtype of x, for the formats that lanes can read in pairs.
    packed : mapping of str to Packed
        By format, for aligned weights and x of 16 bits.
    """

    waves: int = 4
    rows: int = 1
    columns: int = 32
    in_pairs: Mapping[str, InPairs] = field(default_factory=dict)
    packed: Mapping[str, Packed] = field(default_factory=dict)


ONE_ROW = {
    "python": QuantizedRow(columns=128),
    "amd": QuantizedRow(in_pairs={"float16": InPairs(2, 2), "bfloat16": InPairs(2, 1), "float32": InPairs(2, 1)}),
    # An H200, one row by 28672 x 8192, share of a copy's bandwidth behind an L2 flush by reads: q4_0 0.78, q4_k 0.74,
    # mxfp4 0.67, q8_0 0.89; 2048 columns of a wave make it 0.64, 0.57, 0.57, 0.69.
    "nvidia": QuantizedRow(
        waves=2, rows=4, packed={**dict.fromkeys(IN_PAIRS, Packed(4, 16, 1024, 4)), "q6_k": Packed(4, 16, 1024, 3)}
    ),
}


def quantized_row(arch: str, depth: int, format: str, alignment: int, dtype: str) -> row_product.Config:
    """Variant of ``row_product`` for quantized weights with ``depth`` columns, and x of ``dtype``.

    Rows of the weights start at multiples of ``alignment`` bytes.
    """
    sizes = tuned(ONE_ROW, arch)
    encoding: dict[str, Any] = {"format": format, "alignment": alignment}
    if format not in sizes.packed or alignment < 8 or dtype == "float32":
        pairs = sizes.in_pairs.get(dtype) if format in IN_PAIRS else None
        rows, pieces = (pairs.rows, pairs.pieces) if pairs else (sizes.rows, 1)
        return rows_along_lanes(arch, sizes.waves, rows, pieces, sizes.columns, **encoding)
    packed, kind = sizes.packed[format], FORMATS[format]
    widths = [n for n in (512, 1024) if n <= packed.columns and n // kind.elements * kind.nbytes % 8 == 0]
    # A step costs as much as some more columns.
    own = min(widths, key=lambda n: -(-depth // (n * packed.waves)) * (n + 512))
    block: dict[str, Any] = {"block_n": packed.rows, "block_k": own * packed.waves}
    return row_product.Config(
        arch=arch, waves=packed.waves, split_kv=True, resident=packed.resident, **block, **encoding
    )
