"""What becomes of the elements of a row, or of rows that belong together."""

from __future__ import annotations

import functools
from types import SimpleNamespace
from typing import Any

from llvmlite import ir
from numba.core import cgutils
from numba.core.imputils import impl_ret_new_ref

from rocmkern.tile._lowering.cpu.backend import TILE
from rocmkern.tile._lowering.cpu.emit import fmax, load_floats, loop, shuffle, store_floats, vec
from rocmkern.tile._lowering.cpu.tiles import TileLowering
from rocmkern.tile._lowering.shared.ir_types import F32, I32, I64, const
from rocmkern.tile._lowering.shared.tensors import call, fma


class ReductionLowering(TileLowering):
    """Largest elements, sums, and products with a vector."""

    def rowmax(self, context: Any, b: ir.IRBuilder, sig: Any, tile: ir.Value) -> ir.Value:
        return self.row_maximum(b, sig.args[0], self.data(context, b, sig.args[0], tile))

    def row_maximum(self, b: ir.IRBuilder, ty: Any, data: ir.Value) -> ir.Value:
        return self.reduce_rows(b, ty, data, float("-inf"), lambda m, x: fmax(b, x, m), lambda i, x, parts: x)

    def repeat_rows(self, context: Any, b: ir.IRBuilder, sig: Any, x: ir.Value, count: Any) -> ir.Value:
        m, total = sig.args[0].m, sig.return_type.m
        return shuffle(b, x, x, [i % m for i in range(total)])

    def folded(self, b: ir.IRBuilder, sig: Any, x: ir.Value, combine: Any) -> ir.Value:
        m, total = sig.return_type.m, sig.args[0].m
        parts = [shuffle(b, x, x, list(range(first, first + m))) for first in range(0, total, m)]
        return functools.reduce(combine, parts)

    def fold_max(self, context: Any, b: ir.IRBuilder, sig: Any, x: ir.Value, m: Any) -> ir.Value:
        ty = vec(F32, sig.return_type.m)
        return self.folded(b, sig, x, lambda u, v: call(b, f"llvm.maxnum.v{ty.count}f32", ty, [u, v]))

    def fold_sum(self, context: Any, b: ir.IRBuilder, sig: Any, x: ir.Value, m: Any) -> ir.Value:
        ty, out = sig.args[0], sig.return_type
        if isinstance(ty, TILE.Rows):
            return self.folded(b, sig, x, b.fadd)
        value = self.new(context, b, out)
        source, result = self.data(context, b, ty, x), self.data(context, b, out, value)

        def place(t: Any, row: ir.Value, column: ir.Value) -> ir.Value:
            wide, narrow = (column, row) if self.by_column(t) else (row, column)
            return b.add(b.mul(wide, const(I64, t.m if self.by_column(t) else t.n)), narrow)

        with loop(b, out.m) as r, loop(b, out.n, unrolled=True) as c:
            rows = [b.add(r, const(I64, first)) for first in range(0, ty.m, out.m)]
            sums = functools.reduce(b.fadd, [load_floats(b, source, place(ty, row, c)) for row in rows])
            store_floats(b, sums, result, place(out, r, c))
        return impl_ret_new_ref(context, b, out, value)

    def rowsum(self, context: Any, b: ir.IRBuilder, sig: Any, tile: ir.Value) -> ir.Value:
        ty = sig.args[0]
        return self.reduce_rows(b, ty, self.data(context, b, ty, tile), 0.0, b.fadd, lambda i, x, parts: x)

    def rowdot(self, context: Any, b: ir.IRBuilder, sig: Any, x: ir.Value, y: ir.Value) -> ir.Value:
        ty = sig.args[0]
        other = self.data(context, b, ty, y)

        def product(index: ir.Value, vector: ir.Value, parts: list) -> ir.Value:
            return b.fmul(vector, load_floats(b, other, index, vector.type.count))

        return self.reduce_rows(b, ty, self.data(context, b, ty, x), 0.0, b.fadd, product)

    def load_rowdot(
        self, context: Any, b: ir.IRBuilder, sig: Any, x: Any, index: Any, col0: Any, tile: Any, valid: Any
    ) -> ir.Value:
        (x_ty, index_ty, col0_ty, ty), valid_ty = sig.args[:4], sig.args[4]
        whole = TILE.Tile(valid_ty.m, ty.n, ty.hw)
        inner = SimpleNamespace(args=(None, x_ty, index_ty, col0_ty), return_type=whole)
        other = self.load_tile(context, b, inner, None, x, index, col0, None, valid)
        if whole == ty:
            result = self.rowdot(context, b, SimpleNamespace(args=(ty, ty)), other, tile)
        else:
            result = self.rowdot_of_fewer(
                b, whole, self.data(context, b, whole, other), ty, self.data(context, b, ty, tile)
            )
        context.nrt.decref(b, whole, other)
        return result

    def rowdot_of_fewer(self, b: ir.IRBuilder, ty: Any, x: ir.Value, few: Any, y: ir.Value) -> ir.Value:
        """`rowdot` where the rows of ``y`` take turns."""

        def element_of(shape: Any, data: ir.Value, row: int, column: ir.Value) -> ir.Value:
            if self.by_column(shape):
                return load_floats(b, data, b.add(b.mul(column, const(I64, shape.m)), const(I64, row)))
            return load_floats(b, data, b.add(column, const(I64, row * shape.n)))

        result = ir.Constant(vec(F32, ty.m), ir.Undefined)
        for r in range(ty.m):
            total = cgutils.alloca_once_value(b, const(F32, 0.0))
            with loop(b, ty.n) as c:
                pair = element_of(ty, x, r, c), element_of(few, y, r % few.m, c)
                b.store(fma(b, *pair, b.load(total)), total)
            result = b.insert_element(result, b.load(total), const(I32, r))
        return result
