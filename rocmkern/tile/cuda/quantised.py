"""Sources of 8 bits and of blocks: words of a unit, and their elements."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import Any

from llvmlite import ir

from rocmkern.tile.cuda.emit import LANES, VOID, asm
from rocmkern.tile.formats import FORMATS, RUN
from rocmkern.tile.lanes import FoldingBuilder, LaneReader
from rocmkern.tile.tensors import I32, I64, const


def unit_elements(ty: Any) -> int:
    """Consecutive elements of a stage of a quantised source that one thread decodes at a time."""
    return 2 * RUN if ty.k % (2 * RUN) == 0 else RUN


def units_per_thread(ty: Any) -> int:
    return -(-ty.n * ty.k // (unit_elements(ty) * LANES * ty.hw[1]))


def decode_unit(
    b: ir.IRBuilder, name: str, row: ir.Value, column: ir.Value, count: int, load: Callable[..., ir.Value]
) -> list[ir.Value]:
    """Elements ``column`` (i64) to ``column + count`` of a row of blocks at an address, as float32.

    ``count`` divides ``column``, and they belong to one block. ``load(address, needed)`` is asked for aligned 32-bit
    words; those that are not needed may hold anything, and so no byte is read beyond a word with one that is needed.
    """
    kind, fold = FORMATS[name], FoldingBuilder(b)
    block = b.mul(b.udiv(column, const(I64, kind.elements)), const(I64, kind.nbytes))
    start = b.add(row, block)

    def words(offset: ir.Value, nbytes: int) -> list[ir.Value]:
        address = b.add(start, b.zext(offset, I64))
        low = b.and_(b.trunc(address, I32), const(I32, 3))
        base, end = b.and_(address, const(I64, ~3)), b.add(low, const(I32, nbytes))
        raw = [
            load(b.add(base, const(I64, 4 * i)), b.icmp_unsigned(">", end, const(I32, 4 * i)))
            for i in range((nbytes + 6) // 4)
        ]
        shift = b.shl(low, const(I32, 3))
        code = "shf.r.wrap.b32 $0, $1, $2, $3;"
        return [
            asm(b, code, I32, "=r,r,r,r", [raw[i], raw[min(i + 1, len(raw) - 1)], shift])
            for i in range((nbytes + 3) // 4)
        ]

    reader, step = LaneReader(fold, words), min(count, RUN)
    first = const(I32, 0) if count == kind.elements else b.and_(b.trunc(column, I32), const(I32, kind.elements - 1))
    runs = [kind.emit(fold, reader, fold.add(first, const(I32, i)), step) for i in range(0, count, step)]
    return list(itertools.chain(*(run.elements(b) for run in runs)))


def raw_words(ty: Any) -> list[str]:
    """Members of a stage that hold the bytes on their way: an array would not be kept in registers."""
    if not ty.format:
        return []
    return [f"raw{i}" for i in range(units_per_thread(ty) * _words_of_unit(ty.format, unit_elements(ty)))]


@functools.cache
def _words_of_unit(name: str, unit: int) -> int:
    """Words that `decode_unit` asks for."""
    asked = []
    fn = ir.Function(ir.Module(), ir.FunctionType(VOID, [I64, I64]), "count")

    def load(address: ir.Value, needed: ir.Value) -> ir.Value:
        asked.append(address)
        return const(I32, 0)

    decode_unit(ir.IRBuilder(fn.append_basic_block()), name, *fn.args, unit, load)
    return len(asked)
