"""Operations that know in which column an element lies."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.core.imputils import impl_ret_borrowed, impl_ret_new_ref

from rocmkern.tile._lowering.cpu.elementwise import ElementwiseLowering
from rocmkern.tile._lowering.cpu.emit import loop, smax, splat, store_floats
from rocmkern.tile._lowering.shared.ir_types import I64, const


class PositionLowering(ElementwiseLowering):
    """Masks, distances and paddings."""

    def pad_columns(
        self, context: Any, b: ir.IRBuilder, sig: Any, tile: ir.Value, col0: Any, stop: Any, value: Any
    ) -> ir.Value:
        ty = sig.args[0]
        first, end = (self.scalar(context, b, t, v, "i64") for t, v in zip(sig.args[1:3], (col0, stop), strict=True))
        start = smax(b, b.sub(end, first), const(I64, 0))
        filling, data = self.scalar(context, b, sig.args[3], value, "f32"), self.data(context, b, ty, tile)
        if self.by_column(ty):
            with loop(b, const(I64, ty.n * ty.m), 1, b.mul(start, const(I64, ty.m)), unrolled=True) as i:
                store_floats(b, filling, data, i)
        else:
            with loop(b, ty.m) as r, loop(b, const(I64, ty.n), 1, start, unrolled=True) as c:
                store_floats(b, filling, data, b.add(b.mul(r, const(I64, ty.n)), c))
        return impl_ret_borrowed(context, b, ty, tile)

    def distance(
        self, context: Any, b: ir.IRBuilder, sig: Any, cfg: Any, position: ir.Value, col0: ir.Value, n: Any
    ) -> ir.Value:
        ty = sig.return_type
        value = self.new(context, b, ty)
        first = self.scalar(context, b, sig.args[2], col0, "i32")

        def emit(i: Any, v: ir.Value, rows: list, column: Any) -> ir.Value:
            lies_at = b.add(column(), splat(b, first, v.type.count))
            return b.sitofp(b.sub(rows[0], lies_at), v.type)

        self.map(context, b, ty, value, emit, (position,))
        context.nrt.decref(b, ty, value)  # `map` returned a second reference
        return impl_ret_new_ref(context, b, ty, value)

    def mask_outside(
        self, context: Any, b: ir.IRBuilder, sig: Any, tile: Any, col0: ir.Value, low: ir.Value, high: ir.Value
    ) -> ir.Value:
        first = self.scalar(context, b, sig.args[1], col0, "i32")

        def emit(i: Any, v: ir.Value, rows: list, column: Any) -> ir.Value:
            lies_at = b.add(column(), splat(b, first, v.type.count))
            inside = b.and_(b.icmp_signed(">=", lies_at, rows[0]), b.icmp_signed("<=", lies_at, rows[1]))
            return b.select(inside, v, const(v.type, float("-inf")))

        return self.map(context, b, sig.args[0], tile, emit, (low, high))
