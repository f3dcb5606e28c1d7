"""Sources of 8 bits and of blocks: words of a unit, and their elements."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable
from typing import Any

from llvmlite import ir

from rocmkern.tile._lowering.cuda.emit import LANES, VOID, asm, funnel, select_bytes
from rocmkern.tile._lowering.cuda.memory import load_bytes, load_piece
from rocmkern.tile._lowering.shared.ir_types import F32, I1, I32, I64, const
from rocmkern.tile._lowering.shared.lanes import FoldingBuilder, LaneReader, PairReader, constant_pair
from rocmkern.tile.formats import FORMATS, RUN, Run


def unit_elements(ty: Any) -> int:
    """Consecutive elements of a stage of a quantized source that one thread decodes at a time."""
    return 2 * RUN if ty.k % (2 * RUN) == 0 else RUN


def units_per_thread(ty: Any) -> int:
    return -(-ty.n * ty.k // (unit_elements(ty) * LANES * ty.hw[1]))


class Instructions:
    """What a `LaneReader` takes from this target."""

    b: ir.IRBuilder

    def masked_onto(self, word: ir.Value, mask: int, base: ir.Value | int) -> ir.Value:
        base = const(I32, base) if isinstance(base, int) else base
        return self._logic(0xEA, word, const(I32, mask), base)

    def masked_and_flipped(self, word: ir.Value, mask: int, bits: int) -> ir.Value:
        return self._logic(0x6A, word, const(I32, mask), const(I32, bits))

    def chosen_bits(self, mask: int, x: ir.Value, y: ir.Value) -> ir.Value:
        return self._logic(0xE4, x, y, const(I32, mask))

    def _logic(self, table: int, x: ir.Value, y: ir.Value, z: ir.Value) -> ir.Value:
        return asm(self.b, f"lop3.b32 $0, $1, $2, $3, {table:#x};", I32, "=r,r,r,r", [x, y, z])

    def even_bytes_up(self, word: ir.Value) -> ir.Value:
        return select_bytes(self.b, word, const(I32, 0), 0x2404)

    def fma_pairs(self, x: ir.Value, y: float, z: float) -> ir.Value:
        factors = [constant_pair(y), constant_pair(z)]
        return asm(self.b, "fma.rn.f16x2 $0, $1, $2, $3;", I32, "=r,r,r,r", [x, *factors])

    def add_pairs(self, x: ir.Value, y: float) -> ir.Value:
        return asm(self.b, "add.rn.f16x2 $0, $1, $2;", I32, "=r,r,r", [x, constant_pair(y)])


class Reader(Instructions, LaneReader):
    """A block for one lane."""


class NumberReader(Instructions, PairReader):
    """Numbers of a lane without their scale, which is not read.

    Parameters
    ----------
    b, words
        As `LaneReader`; the words begin with the lane's own, as if its elements were the first ones of the block.
    shared : callable
        The same for all lanes: those of the block.
    ahead : i32 value
        Elements that other lanes have before this one.
    """

    def __init__(self, b: ir.IRBuilder, words: Callable, shared: Callable, ahead: ir.Value):
        super().__init__(b, words)
        self._of_block, self._ahead = LaneReader(b, shared), ahead

    def bit_plane(self, offset: ir.Value, first: ir.Value) -> ir.Value:
        return self.b.lshr(self._of_block.bit_plane(offset, self._ahead), first)

    def byte(self, offset: ir.Value) -> ir.Value:
        return const(I32, 0)

    def word(self, offset: ir.Value) -> ir.Value:
        return const(I32, 0)

    def half(self, offset: ir.Value) -> ir.Value:
        return const(F32, 0.0)

    def power(self, offset: ir.Value) -> ir.Value:
        return const(F32, 0.0)


class ScaleReader(Instructions, PairReader):
    """What a run has besides numbers: no number is read."""

    def nibbles(
        self, offset: ir.Value, count: int, shift: ir.Value, numbers: tuple, step: int = 1
    ) -> tuple[list, float]:
        return [], self.factor_of_nibbles(numbers)

    def whole_bytes(self, kind: str, offset: ir.Value, count: int) -> tuple[list, float]:
        return [], self.FACTORS[kind]

    def joined_bits(
        self, low: ir.Value, low_shift: ir.Value, high: ir.Value, high_shift: ir.Value, width: int, less: int,
        count: int,
    ) -> list:  # fmt: skip
        return []

    def five_bits(
        self, low: ir.Value, shift: ir.Value, plane: ir.Value, first: ir.Value, less: int, count: int
    ) -> list:
        return []


#: ``load(address, needed, nbytes, count)``: 1, 2, 4 or 16 bytes as i32 words. What is not needed may be anything. With
#: a ``count`` that is no None, only so many (i32) of 4 bytes are needed, and the others may lie beyond the source.
Load = Callable[[ir.Value, ir.Value, int, "ir.Value | None"], list[ir.Value]]


def load_from(b: ir.IRBuilder, exists: ir.Value, into: list, cautious: bool = False) -> Load:
    """A `Load` from global memory that appends what it finds to a list; cautious: nothing is read beyond the source."""

    def load(address: ir.Value, needed: ir.Value, nbytes: int, count: ir.Value | None) -> list[ir.Value]:
        there = b.and_(exists, needed)
        if cautious and count is not None:
            into.append([load_bytes(b, address, count, there)])
        else:
            into.append(load_piece(b, address, nbytes, there))
        return into[-1]

    return load


def load_again(words: list[ir.Value]) -> Load:
    """A `Load` that gives words which have been loaded, in their order."""
    found = iter(words)
    return lambda address, needed, nbytes, count: [next(found) for _ in range(0, nbytes, 4)]


def ends_within_word(
    b: ir.IRBuilder, name: str, data: ir.Value, rows: ir.Value, row_stride: ir.Value, columns: ir.Value
) -> ir.Value:
    """Whether the last byte of a source (address, rows, stride, elements of a row) is not the last one of a word."""
    kind = FORMATS[name]
    row_bytes = b.mul(b.udiv(columns, const(I64, kind.elements)), const(I64, kind.nbytes))
    end = b.add(b.add(data, b.mul(b.sub(rows, const(I64, 1)), row_stride)), row_bytes)
    return b.icmp_signed("!=", b.and_(b.trunc(end, I32), const(I32, 3)), const(I32, 0))


def decode_unit(b: ir.IRBuilder, name: str, row: ir.Value, column: ir.Value, count: int, load: Load) -> list[ir.Value]:
    """The elements of `runs_of_unit`, as float32."""
    return list(itertools.chain(*(run.elements(b) for run in runs_of_unit(b, name, row, column, count, load))))


def runs_of_unit(
    b: ir.IRBuilder,
    name: str,
    row: ir.Value,
    column: ir.Value,
    count: int,
    load: Load,
    alignment: int = 1,
    beside: tuple[int, int] | None = None,
) -> list[Run]:
    """Elements of a row of blocks at an address, `RUN` at a time: ``count`` of one block.

    They start ``beside[0]`` elements behind ``column``, which is a multiple of ``beside[1]``, a power of two, as
    ``count`` and the first of these numbers are its divisors; None is 0 and ``count``. Address and column are i64. The
    row starts at a multiple of ``alignment`` bytes. ``load`` is asked for bytes, for aligned pieces of 2 and 16 bytes
    and for aligned words, in which bytes of other blocks may lie; it is told of those that may reach beyond the last
    block.
    """
    kind, fold = FORMATS[name], FoldingBuilder(b)
    offset, multiple_of = beside or (0, count)
    block = b.mul(b.udiv(column, const(I64, kind.elements)), const(I64, kind.nbytes))
    block = b.add(block, const(I64, offset // kind.elements * kind.nbytes))
    start, alignment = b.add(row, block), math.gcd(alignment, kind.nbytes)
    pieces: dict[int, list[ir.Value]] = {}

    def piece(number: int) -> list[ir.Value]:
        """16 bytes of a block whose pieces are aligned."""
        if number not in pieces:
            pieces[number] = load(b.add(start, const(I64, 16 * number)), const(I1, 1), 16, None)
        return pieces[number]

    def words(offset: ir.Value, nbytes: int, step: int) -> list[ir.Value]:
        count = (nbytes + 3) // 4
        multiple = math.gcd(alignment, offset.constant if isinstance(offset, ir.Constant) else step)
        if alignment == 16 and isinstance(offset, ir.Constant) and offset.constant % 4 + nbytes <= 4 * count:
            first, shift = offset.constant // 4, 8 * (offset.constant % 4)
            found = [piece(i // 4)[i % 4] for i in range(first, first + count)]
            return [b.lshr(found[0], const(I32, shift))] if shift else found
        address = b.add(start, b.zext(offset, I64))
        if nbytes in (1, 2, 16) and multiple % nbytes == 0:
            return load(address, const(I1, 1), nbytes, None)
        if nbytes == 2:
            low, high = (load(b.add(address, const(I64, i)), const(I1, 1), 1, None)[0] for i in (0, 1))
            return [b.or_(low, b.shl(high, const(I32, 8)))]
        low = b.and_(b.trunc(address, I32), const(I32, 3))
        base, end = b.and_(address, const(I64, ~3)), b.add(low, const(I32, nbytes))
        # Words that bytes may begin in: the address is a multiple of what is known.
        raw, most = [], (max(4 - multiple, 0) + nbytes + 3) // 4
        inside = isinstance(offset, ir.Constant) and offset.constant + nbytes + 3 <= kind.nbytes
        for i in range(most):
            at = b.add(base, const(I64, 4 * i))
            needed = const(I1, 1) if 4 * i < nbytes else b.icmp_unsigned(">", end, const(I32, 4 * i))
            if i == most - 1 and multiple == 2 and nbytes % 4 == 0:
                raw += load(at, needed, 2, None)
            else:
                beyond = 4 * (i + 1) > nbytes and not inside
                raw += load(at, needed, 4, b.sub(end, const(I32, 4 * i)) if beyond else None)
        if multiple >= 4:
            return raw
        shift = b.shl(low, const(I32, 3))
        return [funnel(b, raw[i], raw[min(i + 1, len(raw) - 1)], shift) for i in range(count)]

    reader, step = Reader(fold, words), min(count, RUN)
    first = const(I32, offset % kind.elements)
    if multiple_of < kind.elements:
        multiple = b.and_(b.trunc(column, I32), const(I32, kind.elements - 1))
        first = fold.sum(multiple, offset, multiple_of.bit_length() - 1)
    return [kind.emit(fold, reader, fold.add(first, const(I32, i)), step) for i in range(0, count, step)]


def raw_words(ty: Any) -> list[str]:
    """Members of a stage that hold the bytes on their way: an array would not be kept in registers."""
    if not ty.format:
        return []
    return [f"raw{i}" for i in range(units_per_thread(ty) * words_of_unit(ty.format, unit_elements(ty)))]


def words_of_unit(name: str, unit: int) -> int:
    """Words that `decode_unit` asks for."""
    return len(_asked(name, unit, 1))


def reaches_beyond(name: str, unit: int, alignment: int = 1) -> bool:
    """Whether a unit of the last block may be read in a word that ends behind it."""
    return any(_asked(name, unit, alignment))


@functools.cache
def _asked(name: str, unit: int, alignment: int) -> list[bool]:
    """For each load of a unit whether it may reach beyond the block."""
    asked = []
    fn = ir.Function(ir.Module(), ir.FunctionType(VOID, [I64, I64]), "count")

    def load(address: ir.Value, needed: ir.Value, nbytes: int, count: ir.Value | None) -> list[ir.Value]:
        asked.append(count is not None)
        return [const(I32, 0)] * max(1, nbytes // 4)

    runs_of_unit(ir.IRBuilder(fn.append_basic_block()), name, *fn.args, unit, load, alignment)
    return asked
