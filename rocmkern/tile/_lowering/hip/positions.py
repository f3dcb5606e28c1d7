"""Operations that know in which column an element lies."""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from rocmkern.tile._lowering.hip.elementwise import ElementwiseLowering
from rocmkern.tile._lowering.hip.emit import NEG_INF, items_of, splat
from rocmkern.tile._lowering.hip.layouts import LaneLayout
from rocmkern.tile._lowering.shared.ir_types import F32, const


class PositionLowering(ElementwiseLowering):
    """Masks, distances and paddings."""

    def pad_columns(
        self, context: Any, b: ir.IRBuilder, sig: Any, tile: Any, col0: Any, stop: Any, value: Any
    ) -> ir.Value:
        ty = sig.args[0]
        layout = LaneLayout(ty)
        first, end = (self.scalar(context, b, t, v, "i32") for t, v in zip(sig.args[1:3], (col0, stop), strict=True))
        left = splat(b, b.sub(end, b.add(first, layout.first_column(b))), layout.registers)
        filling = splat(b, self.scalar(context, b, sig.args[3], value, "f32"), layout.registers)

        def body(v: ir.Value, c: int) -> ir.Value:
            return b.select(b.icmp_signed("<", layout.columns_of(c), left), v, filling)

        return self.on_tile(b, ty, tile, body)

    def distance(self, context: Any, b: ir.IRBuilder, sig: Any, cfg: Any, position: Any, col0: Any, n: Any) -> ir.Value:
        ty = sig.return_type
        layout = LaneLayout(ty)
        start = b.add(self.scalar(context, b, sig.args[2], col0, "i32"), layout.first_column(b))

        def block(p: ir.Value) -> list:
            relative = splat(b, b.sub(p, start), layout.registers)
            floats = ir.VectorType(F32, layout.registers)
            return [b.sitofp(b.sub(relative, layout.columns_of(c)), floats) for c in range(layout.vectors(ty.n))]

        return self.join_blocks(b, [block(p) for p in items_of(b, position)])

    def mask_outside(self, context: Any, b: ir.IRBuilder, sig: Any, tile: Any, col0: Any, low: Any, high: Any) -> Any:
        ty = sig.args[0]
        layout = LaneLayout(ty)
        start = b.add(self.scalar(context, b, sig.args[1], col0, "i32"), layout.first_column(b))
        nothing = const(ir.VectorType(F32, layout.registers), NEG_INF)

        def body(v: ir.Value, c: int, lo: ir.Value, hi: ir.Value) -> ir.Value:
            numbers = layout.columns_of(c)
            above = b.icmp_signed(">=", numbers, splat(b, b.sub(lo, start), layout.registers))
            below = b.icmp_signed("<=", numbers, splat(b, b.sub(hi, start), layout.registers))
            return b.select(b.and_(above, below), v, nothing)

        return self.on_tile(b, ty, tile, body, low, high)
