"""What becomes of the elements of a row, or of rows that belong together."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from llvmlite import ir
from numba.cuda.core.errors import TypingError

from rocmkern.tile._lowering.cuda.backend import TILE
from rocmkern.tile._lowering.cuda.emit import LANES, dot, fmax, over_lanes, pack, split_at, tree, unpack
from rocmkern.tile._lowering.cuda.layouts import (
    Lines,
    column_of_lane,
    columns_of,
    complete_rows,
    elements_of,
    is_line,
    slots_of,
)
from rocmkern.tile._lowering.cuda.memory import pairs_to_float32
from rocmkern.tile._lowering.cuda.quantized import (
    Load,
    ends_within_word,
    load_again,
    load_from,
    reaches_beyond,
    runs_of_unit,
)
from rocmkern.tile._lowering.cuda.tiles import TileLowering
from rocmkern.tile._lowering.shared.folds import FoldLowering
from rocmkern.tile._lowering.shared.ir_types import F32, I1, I64, const
from rocmkern.tile._lowering.shared.tensors import fma, if_else
from rocmkern.tile.formats import FORMATS, Run
from rocmkern.tile.language.kinds import threads_per_row


class ReductionLowering(FoldLowering, TileLowering):
    """Largest elements, sums, and products with a vector."""

    def by_slot(self, ty: Any, values: list[ir.Value]) -> list[list[ir.Value]]:
        """This lane's values of each of its rows."""
        rows: list[list[ir.Value]] = [[] for _ in range(slots_of(ty))]
        for (slot, _), v in zip(elements_of(ty), values, strict=True):
            rows[slot].append(v)
        return rows

    def rowmax(self, context: Any, b: ir.IRBuilder, sig: Any, tile: ir.Value) -> ir.Value:
        return self.reduce_rows(b, sig.args[0], tile, functools.partial(fmax, b))

    def in_lane(self, b: ir.IRBuilder, ty: Any, x: ir.Value) -> list[ir.Value]:
        return complete_rows(b, ty, x) if isinstance(ty, TILE.Rows) else unpack(b, x)

    def of_lane(self, b: ir.IRBuilder, values: list[ir.Value]) -> ir.Value:
        return pack(b, values)

    def larger(self, b: ir.IRBuilder, x: ir.Value, y: ir.Value) -> ir.Value:
        return fmax(b, x, y)

    def rowsum(self, context: Any, b: ir.IRBuilder, sig: Any, tile: ir.Value) -> ir.Value:
        return self.reduce_rows(b, sig.args[0], tile, b.fadd)

    def reduce_rows(self, b: ir.IRBuilder, ty: Any, tile: ir.Value, combine: Callable) -> ir.Value:
        rows = self.by_slot(ty, unpack(b, tile))
        return pack(b, [self.over_row(b, ty, tree(b, row, combine), combine) for row in rows])

    def over_row(self, b: ir.IRBuilder, ty: Any, value: ir.Value, combine: Callable) -> ir.Value:
        """Combine what the lanes of a row have."""
        lanes = threads_per_row(ty.hw) or 4
        return self.over_warps(b, over_lanes(b, value, combine, lanes), combine, max(1, lanes // LANES))

    def rowdot(self, context: Any, b: ir.IRBuilder, sig: Any, x: ir.Value, y: ir.Value) -> ir.Value:
        ty = sig.args[0]
        rows = zip(*(self.by_slot(ty, unpack(b, each)) for each in (x, y)), strict=True)
        return pack(b, [self.over_row(b, ty, dot(b, *pair), b.fadd) for pair in rows])

    def load_rowdot(
        self, context: Any, b: ir.IRBuilder, sig: Any, x: Any, index: Any, col0: Any, tile: Any, valid: Any
    ) -> ir.Value:
        (x_ty, index_ty, col0_ty, ty), valid_ty = sig.args[:4], sig.args[4]
        whole = TILE.Tile(valid_ty.m, ty.n, ty.hw)
        rows = self.by_slot(ty, unpack(b, tile))
        if not is_line(ty) and whole != ty:
            raise TypingError("load_rowdot: a tile of fewer rows needs rows along lanes")
        rows = rows * (whole.m // ty.m)
        inner = SimpleNamespace(args=(None, x_ty, index_ty, col0_ty), return_type=whole)
        if isinstance(x_ty, TILE.Quantized) and is_line(ty):
            return pack(b, self.quantized_rowdots(context, b, inner, x, index, col0, rows, valid))
        if isinstance(x_ty, TILE.Quantized):
            values = unpack(b, self.load_quantized(context, b, inner, x, index, col0, valid))
        else:
            values = pairs_to_float32(b, self.gather(context, b, inner, x, index, col0, valid), x_ty.dtype)
        sums = [dot(b, *pair) for pair in zip(self.by_slot(whole, values), rows, strict=True)]
        return pack(b, sums if is_line(ty) else [over_lanes(b, x, b.fadd) for x in sums])

    def quantized_rowdots(
        self, context: Any, b: ir.IRBuilder, sig: Any, x: Any, index: Any, col0: Any, rows: list, valid: Any
    ) -> list[ir.Value]:
        """This lane's part of `load_rowdot` of a quantized source, for rows along lanes.

        The bytes of all rows are on their way before the first one is looked at. What does not exist is read as zeros,
        which all formats decode to finite numbers; the tile is zero there.
        """
        (x_ty, index_ty, col0_ty), ty = sig.args[1:4], sig.return_type
        addresses, (count, extent), strides = self.row_addresses(context, b, x_ty, x, index_ty, index, ty)
        kind, wide, valid = FORMATS[x_ty.format], Lines.wide(ty), unpack(b, valid)
        unit = min(wide, kind.group)
        # Parts of each row: first element in the lane's part of it, and its column: behind ``col0`` and the lane's
        # first one a multiple of a power of two and a smaller number.
        power = wide & -wide
        starts = [
            (number * wide + e, c + e - e % power, e % power)
            for number, c in enumerate(range(0, columns_of(ty), Lines.width(ty)))
            for e in range(0, wide, unit)
        ]
        col0, column = self.scalar(context, b, col0_ty, col0, "i64"), column_of_lane(b, ty)
        column = b.add(col0, b.zext(column, I64))
        columns = [(b.add(column, const(I64, c)), (rest, power)) for _, c, rest in starts]

        def runs_by(load: Load, address: ir.Value, column: ir.Value, beside: tuple) -> list[Run]:
            return runs_of_unit(b, x_ty.format, address, column, unit, load, x_ty.alignment, beside)

        places = [(address, *place) for address in addresses for place in columns]
        lengths: list[int] = []

        def loaded(cautious: bool) -> list[ir.Value]:
            inside = [b.icmp_signed("<", b.add(c, const(I64, beside[0])), extent) for c, beside in columns]
            words: list[ir.Value] = []
            lengths.clear()
            for place, there in zip(places, itertools.product(valid, inside), strict=True):
                raw: list[list[ir.Value]] = []
                runs_by(load_from(b, b.and_(*there), raw, cautious), *place)
                lengths.append(sum(map(len, raw)))
                words += itertools.chain(*raw)
            return words

        ragged = const(I1, 0)
        if reaches_beyond(x_ty.format, unit, x_ty.alignment):
            data = b.ptrtoint(self.unpack_tensor(context, b, x_ty, x)[0], I64)
            ragged = ends_within_word(b, x_ty.format, data, count, strides[0], extent)
        parts = split_at(if_else(b, ragged, lambda: loaded(True), lambda: loaded(False)), lengths)
        units = [runs_by(load_again(words), *place) for words, place in zip(parts, places, strict=True)]
        values = [[row[place : place + unit] for place, *_ in starts] for row in rows]
        by_row = split_at(units, [len(columns)] * len(addresses))
        return [self.dot_of_runs(b, *pair) for pair in zip(by_row, values, strict=True)]

    @staticmethod
    def dot_of_runs(b: ir.IRBuilder, units: list, values: list) -> ir.Value:
        """Sum of products of units of a row, each of runs that share a scale, and values."""
        total = const(F32, 0.0)
        for runs, numbers in zip(units, values, strict=True):
            shared = runs[0]
            part = dot(b, [number for run in runs for number in run.numbers], numbers)
            if shared.factor != 1:
                part = b.fmul(part, const(F32, shared.factor))
            total = fma(b, part, shared.scale, total)
            if shared.minimum is not None:
                total = fma(b, tree(b, numbers, b.fadd), b.fmul(shared.minimum, const(F32, -1.0)), total)
        return total
