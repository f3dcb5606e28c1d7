"""Quantized blocks in global memory: words of a block, runs of elements, elements."""

from __future__ import annotations

import functools
from collections.abc import Callable

from llvmlite import ir

from rocmkern.tile._lowering.hip.emit import elements_of, flat, math, opaque, vector_of
from rocmkern.tile._lowering.hip.memory import load_from, narrowed
from rocmkern.tile._lowering.shared.ir_types import F16, F32, I8, I32, I64, const
from rocmkern.tile._lowering.shared.lanes import FoldingBuilder, LaneReader, PairReader
from rocmkern.tile._lowering.shared.tensors import call
from rocmkern.tile.formats import RUN, Format, Run

#: Formats whose numbers are all right as float16, NaN included.
_PLAIN = tuple(name for name in PairReader.FORMATS if name != "mxfp8_e4m3")


class Reader(PairReader):
    """A block for one lane, with instructions of this target."""

    def even_bytes_up(self, word: ir.Value) -> ir.Value:
        return call(self.b, "llvm.amdgcn.perm", I32, [const(I32, 0), word, const(I32, 0x020C000C)])


def in_order(b: ir.IRBuilder, pairs: list[ir.Value]) -> list[ir.Value]:
    """The float16 of a `PairReader`'s words, element by element."""
    halves = [elements_of(b, b.bitcast(pair, ir.VectorType(F16, 2))) for pair in pairs]
    return [halves[i + k][half] for i in range(0, len(halves), 2) for half in (0, 1) for k in (0, 1)]


def decode_as(b: ir.IRBuilder, kind: Format, row: ir.Value, column: ir.Value, count: int, dtype: str) -> ir.Value:
    """The elements of `runs_of`, rounded to a dtype, as a vector of what lies in memory."""
    if dtype != "float16" or kind.name not in _PLAIN or count % 4:
        return vector_of(b, [narrowed(b, x, dtype) for x in decode(b, kind, row, column, count)])
    fold = FoldingBuilder(b)
    block, inside = block_of(b, kind, column)
    reader, step = Reader(fold, words_of(b, row, block)), min(count, RUN)
    items = []
    for i in range(0, count, step):
        run = kind.emit(fold, reader, b.add(inside, const(I32, i)), step)
        scale = run.scale
        if run.factor != 1:
            # Not infinite, which is NaN times 0; what is not 0 is beyond float16 anyway.
            scale = b.fmul(scale, const(F32, run.factor))
            scale = b.select(b.fcmp_ordered(">", scale, const(F32, 2.0**127)), const(F32, 2.0**127), scale)
        less = const(F32, -0.0) if run.minimum is None else b.fneg(run.minimum)
        for number in in_order(b, run.numbers):
            items.append(b.fptrunc(math(b, "fma", b.fpext(number, F32), scale, less), F16))
    return vector_of(b, items)


def decode(b: ir.IRBuilder, kind: Format, row: ir.Value, column: ir.Value, count: int) -> list:
    """The elements of `runs_of`, as float32."""
    return flat(run.elements(b) for run in runs_of(b, kind, row, column, count))


def runs_of(b: ir.IRBuilder, kind: Format, row: ir.Value, column: ir.Value, count: int) -> list[Run]:
    """Elements ``column`` (i64) to ``column + count`` of a row of blocks in global memory, `RUN` at a time.

    They belong to one block, and ``count`` divides ``column``. ROCm allows unaligned loads of 4 bytes and more; what is
    shorter is read byte by byte. No other bytes are read: the last block may be the end of what the process may read.
    """
    block, first = block_of(b, kind, column)
    reader, step = LaneReader(b, words_of(b, row, block)), min(count, RUN) if count >= 4 else 1
    return [kind.emit(b, reader, b.add(first, const(I32, i)), step) for i in range(0, count, step)]


def block_of(b: ir.IRBuilder, kind: Format, column: ir.Value) -> tuple[ir.Value, ir.Value]:
    """Where in a row the block of a column (i64) begins, in bytes, and the number of its element there (i32)."""
    block = b.mul(b.udiv(column, const(I64, kind.elements)), const(I64, kind.nbytes))
    return block, b.and_(b.trunc(column, I32), const(I32, kind.elements - 1))


def words_of(b: ir.IRBuilder, row: ir.Value, block: ir.Value) -> Callable[[ir.Value, int, int], list]:
    """`LaneReader`'s words of a block that begins so many bytes behind a row in global memory."""
    start = b.gep(row, [block], source_etype=I8)

    def words(offset: ir.Value, nbytes: int, step: int) -> list:
        whole, rest = divmod(nbytes, 4)
        found, place = [], b.zext(offset, I64)
        if whole:
            found = elements_of(b, load_from(b, start, place, ir.VectorType(I32, whole), 1))
        if rest:
            # LLVM would join neighbours to an unaligned load of 2 bytes.
            apart = [const(I32, 4 * whole), *(opaque(b, const(I32, 4 * whole + i), "v") for i in range(1, rest))]
            places = [b.add(place, b.zext(x, I64)) for x in apart]
            parts = [b.zext(load_from(b, start, x, I8, 1), I32) for x in places]
            found.append(functools.reduce(b.or_, [b.shl(x, const(I32, 8 * i)) for i, x in enumerate(parts)]))
        return found

    return words
