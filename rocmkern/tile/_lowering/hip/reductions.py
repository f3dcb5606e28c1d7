"""What becomes of the elements of a row, or of rows that belong together."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from llvmlite import ir
from numba.core.errors import TypingError

from rocmkern.tile._lowering.hip.backend import TILE
from rocmkern.tile._lowering.hip.emit import GLOBAL, array_of, elements_of, flags_of, flat, items_of, math, tree
from rocmkern.tile._lowering.hip.layouts import LaneLayout, LineLayout
from rocmkern.tile._lowering.hip.memory import in_space, is_below, remaining
from rocmkern.tile._lowering.hip.quantized import runs_of
from rocmkern.tile._lowering.hip.tiles import TileLowering
from rocmkern.tile._lowering.shared.folds import FoldLowering
from rocmkern.tile._lowering.shared.ir_types import F32, I8, I64, const
from rocmkern.tile._lowering.shared.tensors import if_else
from rocmkern.tile.formats import FORMATS


class ReductionLowering(FoldLowering, TileLowering):
    """Largest elements, sums, and products with a vector."""

    def reduce_rows(self, b: ir.IRBuilder, ty: Any, tile: ir.Value, join: Callable) -> list:
        layout = LaneLayout(ty)
        return [layout.over_lanes(b, join, tree(b, join, block)) for block in self.tile_blocks(b, ty, tile)]

    def rowmax(self, context: Any, b: ir.IRBuilder, sig: Any, tile: Any) -> ir.Value:
        return array_of(b, self.reduce_rows(b, sig.args[0], tile, lambda x, y: math(b, "maxnum", x, y)))

    def in_lane(self, b: ir.IRBuilder, ty: Any, x: ir.Value) -> list[ir.Value]:
        return items_of(b, x)

    def of_lane(self, b: ir.IRBuilder, values: list[ir.Value]) -> ir.Value:
        return array_of(b, values)

    def larger(self, b: ir.IRBuilder, x: ir.Value, y: ir.Value) -> ir.Value:
        return math(b, "maxnum", x, y)

    def rowsum(self, context: Any, b: ir.IRBuilder, sig: Any, tile: Any) -> ir.Value:
        return array_of(b, self.reduce_rows(b, sig.args[0], tile, b.fadd))

    def rowdot(self, context: Any, b: ir.IRBuilder, sig: Any, x: Any, y: Any) -> ir.Value:
        products = array_of(b, [b.fmul(u, v) for u, v in zip(items_of(b, x), items_of(b, y), strict=True)])
        return array_of(b, self.reduce_rows(b, sig.args[0], products, b.fadd))

    def load_rowdot(
        self, context: Any, b: ir.IRBuilder, sig: Any, x: Any, index: Any, col0: Any, tile: Any, valid: Any
    ) -> ir.Value:
        (x_ty, index_ty, col0_ty, ty), valid_ty = sig.args[:4], sig.args[4]
        whole = TILE.Tile(valid_ty.m, ty.n, ty.hw)
        layout = LaneLayout(whole)
        if not isinstance(layout, LineLayout) and whole != ty:
            raise TypingError("load_rowdot: a tile of fewer rows needs rows along lanes")
        rows = self.tile_blocks(b, ty, tile) * (whole.m // ty.m)
        inner = SimpleNamespace(args=(None, x_ty, index_ty, col0_ty), return_type=whole)
        if isinstance(x_ty, TILE.Quantized) and isinstance(layout, LineLayout):
            sums = self.quantized_rowdots(context, b, inner, x, index, col0, rows, valid)
        else:
            blocks = self.gather(context, b, inner, x, index, col0, valid, ty.n)
            products = [[b.fmul(*pair) for pair in zip(*both, strict=True)] for both in zip(blocks, rows, strict=True)]
            sums = [tree(b, b.fadd, block) for block in products]
        return array_of(b, [layout.over_lanes(b, b.fadd, x) for x in sums])

    def quantized_rowdots(
        self, context: Any, b: ir.IRBuilder, sig: Any, x: Any, index: Any, col0: Any, rows: list, valid: Any
    ) -> list:
        """This lane's part of `load_rowdot` of a quantized source, for rows along lanes.

        Scales are applied to the sums of the elements that share them. What does not exist is zero in the tile.
        """
        (x_ty, index_ty, col0_ty), ty = sig.args[1:4], sig.return_type
        layout, kind = LaneLayout(ty), FORMATS[x_ty.format]
        data, (_, columns), strides = self.unpack_tensor(context, b, x_ty, x)
        base, unit = in_space(b, data, GLOBAL), min(layout.registers, kind.group)
        offsets = self.row_offsets(context, b, index_ty, index, strides[:-1], layout.row_blocks)
        first = b.add(self.scalar(context, b, col0_ty, col0, "i64"), b.zext(layout.first_column(b), I64))
        left, left_again = remaining(b, first, columns, ty.n)

        def row(offset: ir.Value, values: list) -> list:
            total, start = const(F32, 0.0), b.gep(base, [offset], source_etype=I8)
            for c, vector in enumerate(values):
                elements = elements_of(b, vector)
                for e in range(0, layout.registers, unit):
                    column = layout.width * c + e
                    place = b.select(is_below(b, column, left), b.add(first, const(I64, column)), const(I64, 0))
                    runs = runs_of(b, kind, start, place, unit)
                    part, plain = const(F32, 0.0), const(F32, 0.0)
                    for number, value in zip(flat(run.numbers for run in runs), elements[e : e + unit], strict=True):
                        part, plain = math(b, "fma", number, value, part), b.fadd(plain, value)
                    part = b.fmul(b.fmul(part, const(F32, runs[0].factor)), runs[0].scale)
                    if runs[0].minimum is not None:
                        part = b.fsub(part, b.fmul(plain, runs[0].minimum))
                    part = b.select(is_below(b, column, left_again), part, const(F32, 0.0))
                    total = b.fadd(total, part)
            return [total]

        some = b.icmp_signed(">", columns, const(I64, 0))
        return [
            *(
                if_else(b, b.and_(ok, some), lambda o=offset, v=values: row(o, v), lambda: [const(F32, 0.0)])[0]
                for ok, offset, values in zip(flags_of(b, valid), offsets, rows, strict=True)
            )
        ]
