"""Rotations of pairs of elements."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.core.imputils import impl_ret_borrowed, impl_ret_new_ref

from rocmkern.tile._lowering.cpu.emit import element, load_floats, loop, smin, splat, store_floats, vec
from rocmkern.tile._lowering.cpu.positions import PositionLowering
from rocmkern.tile._lowering.shared.angles import cos_sin, rotated
from rocmkern.tile._lowering.shared.ir_types import I64, const
from rocmkern.tile._lowering.shared.tensors import at


class RotaryLowering(PositionLowering):
    """Angles, and points turned by them."""

    def rotations(
        self, context: Any, b: ir.IRBuilder, sig: Any, cfg: Any, position: Any, frequencies: Any, col0: Any, n: Any
    ) -> ir.Value:
        ty = sig.return_type[0]
        data, (extent,), (stride,) = self.unpack_tensor(context, b, sig.args[2], frequencies)
        first = self.scalar(context, b, sig.args[3], col0, "i64")
        turns = self.spill(b, const(vec(I64, ty.n), 0))
        with loop(b, smin(b, b.sub(extent, first), const(I64, ty.n))) as c:
            turn = b.load(at(b, data, b.mul(b.add(first, c), stride), I64), align=1)
            b.store(turn, at(b, turns, b.mul(c, const(I64, 8)), I64), align=8)
        tiles = [self.new(context, b, ty) for _ in range(2)]
        cos, sin = (self.data(context, b, ty, tile) for tile in tiles)
        for index, vector, (part,), column in self.vectors(b, ty, cos, (position,)):
            c, lanes = b.zext(element(b, column(), 0), I64), vector.type.count
            wide = I64 if self.by_column(ty) else vec(I64, lanes)
            turn = b.load(at(b, turns, b.mul(c, const(I64, 8)), wide), align=8)
            values = cos_sin(b, part, splat(b, turn, lanes) if self.by_column(ty) else turn)
            for value, into in zip(values, (cos, sin), strict=True):
                store_floats(b, value, into, index)
        return impl_ret_new_ref(context, b, sig.return_type, context.make_tuple(b, sig.return_type, tiles))

    def rotate(self, context: Any, b: ir.IRBuilder, sig: Any, x: Any, y: Any, cos: Any, sin: Any) -> ir.Value:
        ty = sig.args[0]
        left, right, cosines, sines = (self.data(context, b, ty, tile) for tile in (x, y, cos, sin))
        for index, vector, _, _ in self.vectors(b, ty, left):
            others = [load_floats(b, data, index, vector.type.count) for data in (right, cosines, sines)]
            for value, into in zip(rotated(b, vector, *others), (left, right), strict=True):
                store_floats(b, value, into, index)
        return impl_ret_borrowed(context, b, sig.return_type, context.make_tuple(b, sig.return_type, (x, y)))
