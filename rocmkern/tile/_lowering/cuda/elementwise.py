"""Operations on each element of a tile, or of rows, by itself."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from llvmlite import ir

from rocmkern.tile._lowering.cuda.backend import TILE
from rocmkern.tile._lowering.cuda.emit import ACTIVATIONS, exp2, fabs, floor_divide, fmax, fmin, pack, sqrt, unpack
from rocmkern.tile._lowering.cuda.layouts import PartialRows, elements_of, partial_rows
from rocmkern.tile._lowering.cuda.memory import float32_to_pairs, pairs_to_float32
from rocmkern.tile._lowering.cuda.reductions import ReductionLowering
from rocmkern.tile._lowering.shared.expressions import ExpressionEmitter
from rocmkern.tile._lowering.shared.ir_types import F32
from rocmkern.tile._lowering.shared.tensors import call
from rocmkern.tile.language.expression import Expression


class Emitter(ExpressionEmitter):
    """Expressions of scalars."""

    activations = ACTIVATIONS

    def exp2(self, x: ir.Value) -> ir.Value:
        return exp2(self.b, x)

    def log2(self, x: ir.Value) -> ir.Value:
        return call(self.b, "__nv_log2f", F32, [x])

    def tanh(self, x: ir.Value) -> ir.Value:
        return call(self.b, "__nv_tanhf", F32, [x])

    def sqrt(self, x: ir.Value) -> ir.Value:
        return sqrt(self.b, x)

    def abs(self, x: ir.Value) -> ir.Value:
        return fabs(self.b, x)

    def minimum(self, x: ir.Value, y: ir.Value) -> ir.Value:
        return fmin(self.b, x, y)

    def maximum(self, x: ir.Value, y: ir.Value) -> ir.Value:
        return fmax(self.b, x, y)


class ElementwiseLowering(ReductionLowering):
    """Elementwise operations and operators."""

    def elementwise(self, context: Any, b: ir.IRBuilder, sig: Any, expression: Expression, *values: Any) -> ir.Value:
        """An expression of each element."""
        emitter = Emitter(b)
        return self.on_elements(context, b, sig.args, values, lambda *numbers: emitter.emit(expression, numbers))

    def on_elements(self, context: Any, b: ir.IRBuilder, kinds: Any, values: Any, emit: Callable) -> ir.Value:
        """``emit`` on the elements of a tile or of rows, and on those of other tiles, rows and scalars beside them."""
        ty = kinds[0]

        def elements(t: Any, v: Any) -> list[ir.Value]:
            if isinstance(t, TILE.Tile):
                return unpack(b, v)
            rows = self.per_slot(context, b, t, v, TILE.Rows(ty.m, "f32", ty.hw))
            return [rows[slot] for slot, _ in elements_of(ty)] if isinstance(ty, TILE.Tile) else rows

        columns = [elements(t, v) for t, v in zip(kinds, values, strict=True)]
        return pack(b, [emit(*each) for each in zip(*columns, strict=True)])

    def rounded(self, context: Any, b: ir.IRBuilder, sig: Any, x: ir.Value, like: Any) -> ir.Value:
        dtype = sig.args[1].dtype
        return pack(b, pairs_to_float32(b, float32_to_pairs(b, unpack(b, x), dtype), dtype))

    def arithmetic(
        self, context: Any, b: ir.IRBuilder, sig: Any, x: Any, y: Any, for_float: Callable | None, for_int: Callable
    ) -> ir.Value:
        """A binary operator whose left side may be a tile; ``for_float`` and ``for_int`` combine two scalars."""
        if not isinstance(sig.args[0], TILE.Tile):
            return self.combine_rows(
                context, b, sig, x, y, lambda p, q: for_float(p, q) if p.type == F32 else for_int(p, q)
            )
        return self.on_elements(context, b, sig.args, (x, y), for_float)

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
