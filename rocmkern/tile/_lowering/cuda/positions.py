"""Operations that know in which column an element lies."""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from rocmkern.tile._lowering.cuda.elementwise import ElementwiseLowering
from rocmkern.tile._lowering.cuda.emit import pack, unpack
from rocmkern.tile._lowering.cuda.layouts import column_of_lane, elements_of, keys_of_warp
from rocmkern.tile._lowering.shared.ir_types import F32, I32, const


class PositionLowering(ElementwiseLowering):
    """Masks, distances and paddings."""

    def columns_from(self, context: Any, b: ir.IRBuilder, ty: Any, col0: ir.Value, tile: Any = None) -> ir.Value:
        """``col0`` (of numba type ``ty``) plus this lane's first column of a tile, i32."""
        return b.add(self.scalar(context, b, ty, col0, "i32"), column_of_lane(b, tile))

    def pad_columns(
        self, context: Any, b: ir.IRBuilder, sig: Any, tile: ir.Value, col0: Any, stop: Any, value: Any
    ) -> ir.Value:
        first = self.columns_from(context, b, sig.args[1], col0, sig.args[0])
        left = b.sub(self.scalar(context, b, sig.args[2], stop, "i32"), first)
        filling = self.scalar(context, b, sig.args[3], value, "f32")
        pairs = zip(elements_of(sig.args[0]), unpack(b, tile), strict=True)
        return pack(b, [b.select(b.icmp_signed("<", const(I32, c), left), v, filling) for (_, c), v in pairs])

    def distance(
        self, context: Any, b: ir.IRBuilder, sig: Any, cfg: Any, position: ir.Value, col0: ir.Value, n: Any
    ) -> ir.Value:
        ty = sig.return_type
        first = b.add(self.columns_from(context, b, sig.args[2], col0, ty), keys_of_warp(b, ty, ty.n))
        before = [b.sub(p, first) for p in unpack(b, position)]
        return pack(b, [b.sitofp(b.sub(before[s], const(I32, c)), F32) for s, c in elements_of(sig.return_type)])

    def mask_outside(
        self, context: Any, b: ir.IRBuilder, sig: Any, tile: Any, col0: ir.Value, low: ir.Value, high: ir.Value
    ) -> ir.Value:
        ty = sig.args[0]
        first = b.add(self.columns_from(context, b, sig.args[1], col0, ty), keys_of_warp(b, ty, ty.n))
        lowest, highest = ([b.sub(x, first) for x in unpack(b, bound)] for bound in (low, high))
        values = []
        for (s, c), v in zip(elements_of(sig.args[0]), unpack(b, tile), strict=True):
            column = const(I32, c)
            inside = b.and_(b.icmp_signed("<=", lowest[s], column), b.icmp_signed("<=", column, highest[s]))
            values.append(b.select(inside, v, const(F32, float("-inf"))))
        return pack(b, values)
