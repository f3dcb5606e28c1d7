"""Rotations of pairs of elements."""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from rocmkern.tile._lowering.hip.emit import GLOBAL, array_of, in_blocks, items_of, vector_of
from rocmkern.tile._lowering.hip.layouts import LaneLayout
from rocmkern.tile._lowering.hip.memory import in_space, is_below, load_from, remaining
from rocmkern.tile._lowering.hip.positions import PositionLowering
from rocmkern.tile._lowering.shared.angles import cos_sin, rotated
from rocmkern.tile._lowering.shared.ir_types import I64, const
from rocmkern.tile._lowering.shared.tensors import if_else


class RotaryLowering(PositionLowering):
    """Angles, and points turned by them."""

    def rotations(
        self, context: Any, b: ir.IRBuilder, sig: Any, cfg: Any, position: Any, frequencies: Any, col0: Any, n: Any
    ) -> ir.Value:
        ty = sig.return_type[0]
        layout = LaneLayout(ty)
        data, (columns,), (stride,) = self.unpack_tensor(context, b, sig.args[2], frequencies)
        base = in_space(b, data, GLOBAL)
        first = b.add(self.scalar(context, b, sig.args[3], col0, "i64"), b.zext(layout.first_column(b), I64))
        numbers = [x.constant for c in range(layout.vectors(ty.n)) for x in layout.columns_of(c).constant]

        def load() -> list:
            turns, (left, left_again) = [], remaining(b, first, columns, ty.n)
            start = b.mul(first, stride)
            for column in numbers:
                place = b.add(start, b.mul(stride, const(I64, column)))
                turn = load_from(b, base, b.select(is_below(b, column, left), place, const(I64, 0)), I64, 8)
                turns.append(b.select(is_below(b, column, left_again), turn, const(I64, 0)))
            return turns

        some = b.icmp_signed(">", columns, const(I64, 0))
        turns = if_else(b, some, load, lambda: [const(I64, 0)] * len(numbers))
        pairs = [[cos_sin(b, p, turn) for turn in turns] for p in items_of(b, position)]
        tiles = [
            self.join_blocks(
                b,
                [
                    [vector_of(b, [pair[which] for pair in some]) for some in in_blocks(row, layout.registers)]
                    for row in pairs
                ],
            )
            for which in (0, 1)
        ]
        return context.make_tuple(b, sig.return_type, tiles)

    def rotate(self, context: Any, b: ir.IRBuilder, sig: Any, x: Any, y: Any, cos: Any, sin: Any) -> ir.Value:
        points = [rotated(b, *values) for values in zip(*(items_of(b, t) for t in (x, y, cos, sin)), strict=True)]
        return context.make_tuple(b, sig.return_type, [array_of(b, list(part)) for part in zip(*points, strict=True)])
