"""Products of one row with quantised rows that lie along the four lanes of a quad, by mma.sync on codes.

Codes become float16 as they lie: four bits are the last digits of a subnormal number, and the tensor cores multiply
those exactly. Scales, minima and powers of two are applied to the sums of a block, in float32, so no weight is rounded.

Of 256 columns a lane has two blocks of 32 of its row, one of each half. In the left side of an mma, the quad's row has
what the lanes have of the first half, and the row 8 below what they have of the second. The right side has a column for
each of these 8 blocks: the numbers of that block where the lane of the quad has it, and zeros elsewhere. So every block
has a sum of its own: the first four columns of the result are those of the upper row, the last four those of the lower.
"""

from __future__ import annotations

import itertools
from typing import Any

from llvmlite import ir

from rocmkern.tile.cuda.emit import asm, fma, lane_index
from rocmkern.tile.cuda.layouts import Lines, column_of_lane, columns_of
from rocmkern.tile.cuda.matrix import mma
from rocmkern.tile.cuda.packed_rows import are_staged, local_load, piece_bytes
from rocmkern.tile.cuda.quantised import CodeReader, ScaleReader, runs_of_unit
from rocmkern.tile.formats import RUN, Run
from rocmkern.tile.tensors import F16, F32, I16, I32, const
from rocmkern.tile.types import line_lanes

#: Lanes that share a row, elements of a block that has a scale, and columns that are taken at once.
QUAD, BLOCK, COLUMNS = 4, 2 * RUN, 256


def are_quads(source: Any, ty: Any) -> bool:
    """Whether `rowdots` can do it."""
    layout = line_lanes(ty.hw) == QUAD and Lines.wide(ty) == BLOCK and columns_of(ty) % COLUMNS == 0
    return layout and source.dtype == "float16" and source.format in CodeReader.STARTS and are_staged(source, ty)


def rowdots(b: ir.IRBuilder, source: Any, ty: Any, rows: list[ir.Value], values: list) -> list[ir.Value]:
    """This lane's part of sums of products: of rows at addresses in local memory, and of float32 values."""
    start, column = CodeReader.STARTS[source.format], column_of_lane(b, ty)
    first_half = b.icmp_unsigned("<", b.and_(lane_index(b), const(I32, QUAD - 1)), const(I32, 2))

    def mine(acc: list[ir.Value]) -> list[ir.Value]:
        """Of a result, the two blocks whose sums this lane has."""
        return [b.select(first_half, acc[i], acc[2 + i]) for i in (0, 1)]

    def runs(row: ir.Value, at: ir.Value, reader: type, beside: tuple[int, int]) -> list[Run]:
        return runs_of_unit(b, source.format, row, at, BLOCK, local_load(b), piece_bytes(source, ty), reader, beside)

    totals = [const(F32, 0.0)] * len(rows)
    for first in range(0, columns_of(ty), COLUMNS):
        # The same list for rows that share their part of the tile.
        sides = {id(x): right_side(b, x[first // QUAD : (first + COLUMNS) // QUAD]) for x in values}
        # The lane's own two sums are those of blocks side by side.
        own = b.add(b.shl(column, const(I32, 1)), const(I32, first))
        scales = [[runs(row, own, ScaleReader, (BLOCK * i, 2 * BLOCK)) for i in (0, 1)] for row in rows]
        plain: dict[int, list[ir.Value]] = {}
        if start or scales[0][0][0].minimum is not None:
            ones = [const(I32, 0x3C003C00)] * 4
            plain = {key: mine(chain(b, [ones] * len(side), side)) for key, side in sides.items()}
        for slot, (row, numbers) in enumerate(zip(rows, values, strict=True)):
            halves = [b.add(column, const(I32, first + half)) for half in (0, COLUMNS // 2)]
            words = [[x for run in runs(row, c, CodeReader, (0, BLOCK)) for x in run.numbers] for c in halves]
            left = [[words[half][2 * i + k] for k in (0, 1) for half in (0, 1)] for i in range(len(words[0]) // 2)]
            right, factors = sides[id(numbers)], [[run.factor for run in unit] for unit in scales[slot]]
            # Runs whose codes lie at different bits have sums of their own.
            apart = len(left) // 2 if factors[0][0] != factors[0][1] else len(left)
            parts = [mine(chain(b, left[i : i + apart], right[i : i + apart])) for i in range(0, len(left), apart)]
            for i, unit in enumerate(scales[slot]):
                sum_ = b.fmul(plain[id(numbers)][i], const(F32, start)) if start else const(F32, 0.0)
                for part, factor in zip(parts, factors[i], strict=False):
                    sum_ = fma(b, part[i], const(F32, factor), sum_)
                totals[slot] = fma(b, sum_, unit[0].scale, totals[slot])
                if unit[0].minimum is not None:
                    less = b.fmul(unit[0].minimum, const(F32, -1.0))
                    totals[slot] = fma(b, plain[id(numbers)][i], less, totals[slot])
    return totals


def chain(b: ir.IRBuilder, left: list, right: list) -> list[ir.Value]:
    """Sum of products of fragments."""
    acc = [const(F32, 0.0)] * 4
    for fragments in zip(left, right, strict=True):
        acc = mma(b, *fragments, acc, "float16")
    return acc


def right_side(b: ir.IRBuilder, numbers: list[ir.Value]) -> list[list[ir.Value]]:
    """Fragments of the right side, in the order of a lane's codes; ``numbers`` are a lane's two blocks, as float32."""
    lane = lane_index(b)
    column = b.lshr(lane, const(I32, 2))
    block = b.and_(column, const(I32, QUAD - 1))
    own = b.icmp_signed("==", block, b.and_(lane, const(I32, QUAD - 1)))
    second = b.icmp_unsigned(">=", column, const(I32, QUAD))

    def half(x: ir.Value) -> ir.Value:
        return b.zext(b.bitcast(b.fptrunc(x, F16), I16), I32)

    halves = [half(x) for x in numbers]
    words = [b.or_(x, b.shl(y, const(I32, 16))) for x, y in zip(halves[::2], halves[1::2], strict=True)]
    both = zip(words[: len(words) // 2], words[len(words) // 2 :], strict=True)
    words = [b.select(own, b.select(second, y, x), const(I32, 0)) for x, y in both]

    def taken(x: ir.Value, y: ir.Value, which: str) -> ir.Value:
        return asm(b, f"prmt.b32 $0, $1, $2, {which};", I32, "=r,r,r", [x, y])

    # The first and the third number of every four, and the second and the fourth.
    pairs = itertools.pairwise(words)
    return [[taken(x, y, which) for which in ("0x5410", "0x7632")] for x, y in itertools.islice(pairs, 0, None, 2)]
