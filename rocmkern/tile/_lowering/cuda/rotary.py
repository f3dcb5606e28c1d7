"""Rotations of pairs of elements."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir

from rocmkern.tile._lowering.cuda.emit import any_in_warp, pack, tree, unpack
from rocmkern.tile._lowering.cuda.layouts import column_of_lane, elements_of
from rocmkern.tile._lowering.cuda.memory import load_bits
from rocmkern.tile._lowering.cuda.positions import PositionLowering
from rocmkern.tile._lowering.shared.angles import cos_sin, is_still, rotated, turned
from rocmkern.tile._lowering.shared.ir_types import I64, const
from rocmkern.tile._lowering.shared.tensors import if_else


class RotaryLowering(PositionLowering):
    """Angles, and points turned by them."""

    def rotations(
        self, context: Any, b: ir.IRBuilder, sig: Any, cfg: Any, position: Any, frequencies: Any, col0: Any, n: Any
    ) -> ir.Value:
        ty = sig.return_type[0]
        data, (extent,), (stride,) = self.unpack_tensor(context, b, sig.args[2], frequencies)
        first = b.add(self.scalar(context, b, sig.args[3], col0, "i64"), b.zext(column_of_lane(b, ty), I64))
        start, rest = b.add(b.ptrtoint(data, I64), b.mul(first, stride)), b.sub(extent, first)
        turns = {}
        for c in sorted({c for _, c in elements_of(ty)}):
            exists = b.icmp_signed(">", rest, const(I64, c))
            turns[c] = load_bits(b, b.add(start, b.mul(stride, const(I64, c))), "int64", exists)
        rows = unpack(b, position)
        pairs = [cos_sin(b, rows[slot], turns[c]) for slot, c in elements_of(ty)]
        return context.make_tuple(b, sig.return_type, [pack(b, list(part)) for part in zip(*pairs, strict=True)])

    def rotate(self, context: Any, b: ir.IRBuilder, sig: Any, x: Any, y: Any, cos: Any, sin: Any) -> ir.Value:
        values = list(zip(*(unpack(b, t) for t in (x, y, cos, sin)), strict=True))
        # Lanes that turn every point are the rule, and need not choose.
        still = tree(b, [is_still(b, sine) for *_, sine in values], b.or_)

        def by(emit: Callable) -> Callable:
            return lambda: [x for each in values for x in emit(b, *each)]

        flat = if_else(b, any_in_warp(b, still), by(rotated), by(turned))
        points = list(zip(flat[::2], flat[1::2], strict=True))
        return context.make_tuple(b, sig.return_type, [pack(b, list(part)) for part in zip(*points, strict=True)])
