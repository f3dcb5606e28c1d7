"""Operations on each element of a tile, or of rows, by itself."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from llvmlite import ir

from rocmkern.tile.lowering.cuda.backend import TILE
from rocmkern.tile.lowering.cuda.emit import ACTIVATIONS, exp2, fabs, floor_divide, fma, pack, unpack
from rocmkern.tile.lowering.cuda.layouts import PartialRows, complete_rows, elements_of, partial_rows
from rocmkern.tile.lowering.cuda.memory import float32_to_pairs, pairs_to_float32
from rocmkern.tile.lowering.cuda.reductions import ReductionLowering
from rocmkern.tile.lowering.shared.tensors import F32, call, const


class ElementwiseLowering(ReductionLowering):
    """Elementwise operations and operators."""

    def exp2(self, context: Any, b: ir.IRBuilder, sig: Any, x: ir.Value) -> ir.Value:
        values = complete_rows(b, sig.args[0], x) if isinstance(sig.args[0], TILE.Rows) else unpack(b, x)
        return pack(b, [exp2(b, v) for v in values])

    def tanh(self, context: Any, b: ir.IRBuilder, sig: Any, x: ir.Value) -> ir.Value:
        return self.map_tile(b, x, lambda v: call(b, "__nv_tanhf", F32, [v]))

    def rounded(self, context: Any, b: ir.IRBuilder, sig: Any, x: ir.Value, like: Any) -> ir.Value:
        dtype = sig.args[1].dtype
        return pack(b, pairs_to_float32(b, float32_to_pairs(b, unpack(b, x), dtype), dtype))

    def activation(self, context: Any, b: ir.IRBuilder, sig: Any, x: ir.Value, name: str) -> ir.Value:
        emit = getattr(ACTIVATIONS, name)
        values = complete_rows(b, sig.args[0], x) if isinstance(sig.args[0], TILE.Rows) else unpack(b, x)
        return pack(b, [emit(b, v) for v in values])

    silu = functools.partialmethod(activation, name="silu")

    gelu = functools.partialmethod(activation, name="gelu")

    gelu_tanh = functools.partialmethod(activation, name="gelu_tanh")

    relu = functools.partialmethod(activation, name="relu")

    def absolute(self, context: Any, b: ir.IRBuilder, sig: Any, x: ir.Value) -> ir.Value:
        return self.map_tile(b, x, lambda v: fabs(b, v))

    def at_least(self, context: Any, b: ir.IRBuilder, sig: Any, tile: ir.Value, bound: ir.Value) -> ir.Value:
        ty, bound_ty = sig.args
        least = self.per_slot(context, b, bound_ty, bound, TILE.Rows(ty.m, "f32", ty.hw))
        values = []
        for (s, _), v in zip(elements_of(ty), unpack(b, tile), strict=True):
            values.append(b.select(b.fcmp_ordered(">=", v, least[s]), const(F32, 1.0), const(F32, 0.0)))
        return pack(b, values)

    def mask_where(self, context: Any, b: ir.IRBuilder, sig: Any, tile: ir.Value, visible: ir.Value) -> ir.Value:
        def emit(v: ir.Value, seen: ir.Value) -> ir.Value:
            return b.select(b.fcmp_ordered("==", seen, const(F32, 0.0)), const(F32, float("-inf")), v)

        return pack(b, [emit(*pair) for pair in zip(unpack(b, tile), unpack(b, visible), strict=True)])

    def multiply_add(
        self, context: Any, b: ir.IRBuilder, sig: Any, tile: ir.Value, factor: ir.Value, summand: ir.Value
    ) -> ir.Value:
        return pack(b, [fma(b, *each) for each in zip(*(unpack(b, x) for x in (tile, factor, summand)), strict=True)])

    def arithmetic(
        self, context: Any, b: ir.IRBuilder, sig: Any, x: Any, y: Any, for_float: Callable | None, for_int: Callable
    ) -> ir.Value:
        """A binary operator whose left side may be a tile; ``for_float`` and ``for_int`` combine two scalars."""
        x_ty, y_ty = sig.args
        if not isinstance(x_ty, TILE.Tile):
            return self.combine_rows(
                context, b, sig, x, y, lambda p, q: for_float(p, q) if p.type == F32 else for_int(p, q)
            )
        values = unpack(b, x)
        if isinstance(y_ty, TILE.Tile):
            others = unpack(b, y)
        elif isinstance(y_ty, TILE.Rows):
            rows = complete_rows(b, y_ty, y)
            others = [rows[s] for s, _ in elements_of(x_ty)]
        else:
            others = [self.scalar(context, b, y_ty, y, "f32")] * len(values)
        return pack(b, [for_float(p, q) for p, q in zip(values, others, strict=True)])

    def operator_add(self, context: Any, b: ir.IRBuilder, sig: Any, x: ir.Value, y: ir.Value) -> ir.Value:
        if isinstance(sig.return_type, PartialRows):
            parts = (partial_rows(b, sig.return_type, ty, value) for ty, value in zip(sig.args, (x, y), strict=True))
            return pack(b, [b.fadd(*pair) for pair in zip(*parts, strict=True)])
        return self.arithmetic(context, b, sig, x, y, b.fadd, b.add)

    def operator_sub(self, context: Any, b: ir.IRBuilder, sig: Any, x: ir.Value, y: ir.Value) -> ir.Value:
        return self.arithmetic(context, b, sig, x, y, b.fsub, b.sub)

    def operator_mul(self, context: Any, b: ir.IRBuilder, sig: Any, x: ir.Value, y: ir.Value) -> ir.Value:
        return self.arithmetic(context, b, sig, x, y, b.fmul, b.mul)

    def operator_truediv(self, context: Any, b: ir.IRBuilder, sig: Any, x: ir.Value, y: ir.Value) -> ir.Value:
        return self.combine_rows(context, b, sig, x, y, b.fdiv)

    def operator_floordiv(self, context: Any, b: ir.IRBuilder, sig: Any, x: ir.Value, y: ir.Value) -> ir.Value:
        return self.combine_rows(context, b, sig, x, y, lambda p, q: floor_divide(b, p, q)[0])

    def operator_mod(self, context: Any, b: ir.IRBuilder, sig: Any, x: ir.Value, y: ir.Value) -> ir.Value:
        return self.combine_rows(context, b, sig, x, y, lambda p, q: floor_divide(b, p, q)[1])

    def compare(self, context: Any, b: ir.IRBuilder, sig: Any, x: ir.Value, y: ir.Value, symbol: str) -> ir.Value:
        def emit(p: ir.Value, q: ir.Value) -> ir.Value:
            if p.type != F32:
                return b.icmp_signed(symbol, p, q)
            # Only != is true of NaN.
            return b.fcmp_unordered(symbol, p, q) if symbol == "!=" else b.fcmp_ordered(symbol, p, q)

        return self.combine_rows(context, b, sig, x, y, emit)

    operator_lt = functools.partialmethod(compare, symbol="<")

    operator_le = functools.partialmethod(compare, symbol="<=")

    operator_gt = functools.partialmethod(compare, symbol=">")

    operator_ge = functools.partialmethod(compare, symbol=">=")

    operator_eq = functools.partialmethod(compare, symbol="==")

    operator_ne = functools.partialmethod(compare, symbol="!=")

    def operator_and(self, context: Any, b: ir.IRBuilder, sig: Any, x: ir.Value, y: ir.Value) -> ir.Value:
        return self.combine_rows(context, b, sig, x, y, b.and_)
