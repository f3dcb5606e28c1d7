"""Rows of quantized blocks times a vector, by mma.sync.

Every warp has all rows and a part of the columns, which it brings to shared memory chunk by chunk and takes `GROUP` at
a time, 8 blocks of 32. Lane l is number t = l % 4 of the four that share rows l / 4 and l / 4 + 8 of every 16:

=======  ===========================================================================================================
left     the numbers of a block as they are packed, without scale: elements 4t .. 4t + 3 and 16 + 4t .. 16 + 4t + 3
right    the same elements of the vector, of block l / 4 of the group: column n of the right side is block n
product  of each block with all 8 columns, of which the one of the block counts; lane t has columns 2t and 2t + 1
=======  ===========================================================================================================

So seven eighths of the products are for nothing, but the matrix unit has nothing else to do; scales are read once, by
the lane that has the sum of the block, and applied in float32; and which elements a lane takes is up to the format:
the order of a sum is free as long as both sides agree. Of a bfloat16 vector each block is multiplied by a power of two
that makes it float16.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

from llvmlite import ir

from rocmkern.tile._lowering.cuda.emit import (
    fma_where,
    funnel,
    lane_index,
    over_lanes,
    pack,
    select_bytes,
    shuffle,
    tree,
    unpack,
)
from rocmkern.tile._lowering.cuda.layouts import chunk_columns, is_shared, m_tiles, row_of_lane, warp_index
from rocmkern.tile._lowering.cuda.matrix import mma
from rocmkern.tile._lowering.cuda.memory import float32_to_pairs, load_bits, load_piece
from rocmkern.tile._lowering.cuda.packed_rows import Chunk, bring, shared_bytes
from rocmkern.tile._lowering.cuda.quantized import NumberReader, ScaleReader
from rocmkern.tile._lowering.cuda.shared import SharedLowering
from rocmkern.tile._lowering.cuda.windows import read_shared, wait_for_own_fetches
from rocmkern.tile._lowering.shared.ir_types import F32, I1, I32, I64, const
from rocmkern.tile._lowering.shared.lanes import FoldingBuilder, constant_pair
from rocmkern.tile._lowering.shared.tensors import fma, if_else
from rocmkern.tile.formats import FORMATS, Run

#: Columns of a group and of a block, and elements that a lane takes from each half of a block.
GROUP, BLOCK, PART = 256, 32, 4
#: Lanes that share a row.
LANES_OF_ROW = 4


class MatvecLowering(SharedLowering):
    """`tile.matvec` for rows that all warps have."""

    def matvec(
        self, context: Any, b: ir.IRBuilder, sig: Any, cfg: Any, x: Any, index: Any, col0: Any, n: Any, vector: Any,
        valid: Any,
    ) -> ir.Value:  # fmt: skip
        ty = sig.return_type
        if not is_shared(ty):
            return super().matvec(context, b, sig, cfg, x, index, col0, n, vector, valid)
        _, x_ty, index_ty, col0_ty, n_ty, vector_ty, _ = sig.args
        own = n_ty.literal_value // ty.hw[1]
        chunk = Chunk(x_ty.format, chunk_columns(x_ty.format, own), ty.m, x_ty.alignment)
        count = own // chunk.columns
        room = shared_bytes(chunk, count)
        memory = self.shared_memory(context, b, "matvec", ty.hw[1] * room)
        rows, (_, extent), _ = self.row_addresses(context, b, x_ty, x, index_ty, index, ty)
        warp, quarter = warp_index(b), b.and_(lane_index(b), const(I32, LANES_OF_ROW - 1))
        first = b.add(self.scalar(context, b, col0_ty, col0, "i64"), b.zext(b.mul(warp, const(I32, own)), I64))

        start = b.add(memory, b.mul(warp, const(I32, room)))
        chunks = bring(b, chunk, start, count, rows, unpack(b, valid), first, extent)
        groups = self.own_words(context, b, vector_ty, vector, first, quarter, own // GROUP)
        numbers = [
            scaled_halves(b, words, quarter) if vector_ty.dtype == "bfloat16" else (words, []) for words in groups
        ]
        product = Product(b, chunk, quarter, 2 * m_tiles(ty))
        for number, place in enumerate(chunks):
            own_rows = b.add(place, b.mul(row_of_lane(b), const(I32, chunk.pitch)))
            wait_for_own_fetches(b, count - 1 - number)
            for i in range(chunk.columns // GROUP):
                product.add(own_rows, i, *numbers[number * chunk.columns // GROUP + i])
        return pack(b, product.sums())

    def own_words(
        self, context: Any, b: ir.IRBuilder, ty: Any, vector: Any, first: ir.Value, quarter: ir.Value, groups: int
    ) -> list[list[ir.Value]]:
        """A lane's elements of the vector in each group of columns from ``first`` on, two of 16 bits in a word.

        Of every four, words hold the first and the third, and the second and the fourth.
        """
        data, (length,), (stride,) = self.unpack_tensor(context, b, ty, vector)
        data = b.ptrtoint(data, I64)
        inner = b.add(b.mul(row_of_lane(b), const(I32, BLOCK)), b.mul(quarter, const(I32, PART)))
        column = b.add(first, b.zext(inner, I64))
        starts = [b.add(column, const(I64, c)) for g in range(groups) for c in (GROUP * g, GROUP * g + BLOCK // 2)]

        def together() -> list[ir.Value]:
            pieces = []
            for c in starts:
                low, high = load_piece(b, b.add(data, b.shl(c, const(I64, 1))), 2 * PART, b.icmp_signed("<", c, length))
                pieces += [select_bytes(b, low, high, 0x5410), select_bytes(b, low, high, 0x7632)]
            return pieces

        def one_by_one() -> list[ir.Value]:
            pieces = []
            for c in starts:
                columns = [b.add(c, const(I64, i)) for i in range(PART)]
                bits = [
                    b.zext(load_bits(b, b.add(data, b.mul(e, stride)), ty.dtype, b.icmp_signed("<", e, length)), I32)
                    for e in columns
                ]
                pieces += [b.or_(bits[i], b.shl(bits[i + 2], const(I32, 16))) for i in (0, 1)]
            return pieces

        aligned = b.icmp_signed("==", b.and_(data, const(I64, 2 * PART - 1)), const(I64, 0))
        regular = b.and_(aligned, b.icmp_signed("==", stride, const(I64, 2)))
        words = if_else(b, regular, together, one_by_one)
        return [words[i : i + 4] for i in range(0, len(words), 4)]


def scaled_halves(b: ir.IRBuilder, words: list[ir.Value], quarter: ir.Value) -> tuple[list[ir.Value], list[ir.Value]]:
    """Words of bfloat16 of a group as float16, each block multiplied by a power of two; and for the two blocks of which
    this lane has the sums what they are multiplied by in return.

    The largest finite number of a block becomes one from 2 ** 14 to 2 ** 15, so what float16 does not hold of the
    others is 2 ** -38 of it at most.
    """
    inf, integer = const(I32, 0x7F800000), functools.partial(const, I32)
    numbers = [[b.shl(word, integer(16)), b.and_(word, integer(0xFFFF0000))] for word in words]

    def larger(x: ir.Value, y: ir.Value) -> ir.Value:
        x, y = b.bitcast(x, I32), b.bitcast(y, I32)
        return b.bitcast(b.select(b.icmp_unsigned(">", x, y), x, y), F32)

    sizes = [b.and_(x, integer(0x7FFFFFFF)) for pair in numbers for x in pair]
    finite = [b.select(b.icmp_unsigned("<", size, inf), size, integer(0)) for size in sizes]
    largest = over_lanes(b, tree(b, [b.bitcast(x, F32) for x in finite], larger), larger, LANES_OF_ROW)
    # Exponents of powers of two that are no subnormal numbers, nor is their inverse.
    up = b.sub(integer(2 * 127 + 14), b.lshr(b.bitcast(largest, I32), integer(23)))
    up = b.select(b.icmp_unsigned("<", up, integer(253)), up, integer(253))
    power = b.bitcast(b.shl(up, integer(23)), F32)
    inverse = b.bitcast(b.shl(b.sub(integer(254), up), integer(23)), F32)
    halves = [float32_to_pairs(b, [b.fmul(b.bitcast(x, F32), power) for x in pair], "float16")[0] for pair in numbers]
    lanes = [b.add(b.shl(quarter, integer(3)), integer(LANES_OF_ROW * i)) for i in (0, 1)]
    return halves, [shuffle(b, inverse, lane) for lane in lanes]


class Product:
    """A lane's part of the sums of ``slots`` rows, which come group by group."""

    def __init__(self, b: ir.IRBuilder, chunk: Chunk, quarter: ir.Value, slots: int):
        self.b, self.pitch, self.kind, self.quarter = b, chunk.pitch, FORMATS[chunk.format], quarter
        self.totals: list[ir.Value] = [const(F32, 0.0)] * slots
        self.is_nan: list[ir.Value] = [const(I1, 0)] * slots
        self.factor = 1.0
        #: Words of a block, from which on two share a scale.
        self.parts = [(0, 2)] if self.kind.group >= BLOCK else [(0,), (2,)]
        #: Whether this lane has the sums of blocks 2i and 2i + 1.
        self.owns = [b.icmp_signed("==", quarter, const(I32, i)) for i in range(LANES_OF_ROW)]

    def add(self, rows: ir.Value, number: int, vector: list[ir.Value], powers: list[ir.Value]) -> None:
        """Add group ``number`` of a chunk: the lane's first row begins at ``rows``, and ``vector`` are its words.

        ``powers``: what the sums of its two blocks are to be multiplied by; none is 1.
        """
        b, zero, starts = self.b, [const(F32, 0.0)] * 4, self.starts(number)
        scales = [self.scales(rows, start) for start in starts]
        if scales[0][0][0].minimum is not None:
            # Ones on the left side: the sums of the vector's blocks.
            sums = self.multiply([[constant_pair(1.0)] * 4] * 2, vector, (0, 2), zero)[:2]
            sums = [b.fmul(x, power) for x, power in zip(sums, powers, strict=True)] if powers else sums
            for slot, runs in enumerate(scales):
                for (run,), total in zip(runs, sums, strict=True):
                    less = b.fmul(run.minimum, const(F32, -1.0))
                    self.totals[slot] = fma(b, less, total, self.totals[slot])
        numbers = [self.numbers(rows, start, slot) for slot, start in enumerate(starts)]
        for block in range(GROUP // BLOCK):
            for tile in range(0, len(starts), 2):
                pair = [numbers[tile][block], numbers[tile + 1][block]]
                for part, halves in enumerate(self.parts):
                    product = self.multiply(pair, vector, halves, zero)
                    for slot in (tile, tile + 1):
                        value, scale = product[2 * (slot - tile) + block % 2], scales[slot][block % 2][part].scale
                        value = b.fmul(value, powers[block % 2]) if powers else value
                        self.totals[slot] = fma_where(b, self.owns[block // 2], value, scale, self.totals[slot])

    def starts(self, number: int) -> list[int]:
        """Where the lane's rows of a group begin, behind the first row of the chunk."""
        first = number * GROUP // self.kind.elements * self.kind.nbytes
        return [first + 8 * slot * self.pitch for slot in range(len(self.totals))]

    def blocks(self) -> list[tuple[int, int]]:
        """Of each of the 8 blocks of 32: where its block of the format begins in a group, its first element there."""
        elements = self.kind.elements
        return [(c // elements * self.kind.nbytes, c % elements) for c in range(0, GROUP, BLOCK)]

    def scales(self, rows: ir.Value, start: int) -> list[list[Run]]:
        """Scales and minima of the parts of the two blocks of which this lane has the sums."""
        b, kind, runs = self.b, self.kind, []
        first = b.shl(self.quarter, const(I32, 1))
        for i in (0, 1):
            if kind.elements == BLOCK:
                own = b.add(rows, b.mul(first, const(I32, kind.nbytes)))
                reader = ScaleReader(FoldingBuilder(b), local_words(b, own, start + i * kind.nbytes))
                element = const(I32, 0)
            else:
                reader = ScaleReader(FoldingBuilder(b), local_words(b, rows, start))
                element = b.mul(b.add(first, const(I32, i)), const(I32, BLOCK))
            firsts = [FoldingBuilder(b).add(element, const(I32, part * kind.group)) for part in range(len(self.parts))]
            runs.append([kind.emit(FoldingBuilder(b), reader, each, PART) for each in firsts])
        self.factor = runs[0][0].factor
        return runs

    def numbers(self, rows: ir.Value, start: int, slot: int) -> list[list[ir.Value]]:
        """Words of this lane's elements of each block of a row, without scale."""
        b, found = self.b, []
        ahead = b.mul(self.quarter, const(I32, PART))
        own = b.add(rows, ahead)
        readers: dict[int, NumberReader] = {}
        for place, element in self.blocks():
            fold = FoldingBuilder(b)
            words, shared = (local_words(b, base, start + place) for base in (own, rows))
            reader = readers.setdefault(place, NumberReader(fold, words, shared, ahead))
            halves = (const(I32, element), const(I32, element + BLOCK // 2))
            found.append([word for first in halves for word in self.kind.emit(fold, reader, first, PART).numbers])
        for reader in readers.values():
            self.is_nan[slot] = functools.reduce(b.or_, reader.nan, self.is_nan[slot])
        return found

    def multiply(
        self, rows: list[list[ir.Value]], vector: list[ir.Value], halves: tuple[int, ...], acc: list[ir.Value]
    ) -> list[ir.Value]:
        """Halves of a block of two rows of each lane times all 8 columns."""
        for half in halves:
            left = [row[half + i] for i in (0, 1) for row in rows]
            acc = mma(self.b, left, vector[half : half + 2], acc, "float16")
        return acc

    def sums(self) -> list[ir.Value]:
        """What this lane has of each row."""
        b = self.b
        scaled = [b.fmul(total, const(F32, self.factor)) for total in self.totals]
        return [b.select(n, const(F32, math.nan), x) for n, x in zip(self.is_nan, scaled, strict=True)]


def local_words(b: ir.IRBuilder, base: ir.Value, start: int) -> Callable[[ir.Value, int, int], list[ir.Value]]:
    """`LaneReader`'s words of a block that begins at a constant place behind an address in shared memory.

    Single bytes may lie anywhere; for more of them the address is a multiple of 4.
    """

    def words(offset: ir.Value, nbytes: int, step: int) -> list[ir.Value]:
        if not isinstance(offset, ir.Constant):
            return read_shared(b, b.add(base, b.add(offset, const(I32, start))), nbytes)
        place = start + offset.constant
        first, behind = place - place % 4, place % 4
        if place % nbytes == 0:
            return read_shared(b, b.add(base, const(I32, place)), nbytes)
        low, high = (read_shared(b, b.add(base, const(I32, at)), 4)[0] for at in (first, first + 4))
        return [funnel(b, low, high, const(I32, 8 * behind))]

    return words
