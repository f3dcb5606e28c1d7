"""Operations on each element of a tile, or of rows, by itself."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from llvmlite import ir

from rocmkern.tile._lowering.hip.backend import TILE
from rocmkern.tile._lowering.hip.emit import (
    ACTIVATIONS,
    LOG2_E,
    array_of,
    each_element,
    elements_of,
    exp2,
    flag_rows,
    flat,
    items_of,
    math,
    opaque,
    splat,
    vector_of,
)
from rocmkern.tile._lowering.hip.layouts import LaneLayout
from rocmkern.tile._lowering.hip.memory import narrowed, widen
from rocmkern.tile._lowering.hip.reductions import ReductionLowering
from rocmkern.tile._lowering.shared.expressions import ExpressionEmitter
from rocmkern.tile._lowering.shared.ir_types import F32, I16, I32, const
from rocmkern.tile.language.expression import Expression

#: tanh(x) = x + x^3 * P(x^2) for |x| < 0.6: minimax fit of P in relative error (3e-9).
TANH_SMALL = 0.6
TANH_COEFFICIENTS = (-0.33333298, 0.13331924, -0.05378383, 0.02079597, -0.00589515)


class Emitter(ExpressionEmitter):
    """Expressions of scalars, and of vectors where that is as good."""

    activations = ACTIVATIONS
    #: Choices between vectors could be, but what comes of them is moved by single instructions, not by two at a time.
    of_scalars = frozenset(("exp2", "log2", "tanh", "silu", "gelu", "gelu_tanh", "select"))

    def exp2(self, x: ir.Value) -> ir.Value:
        return exp2(self.b, x)

    def log2(self, x: ir.Value) -> ir.Value:
        return math(self.b, "amdgcn.log", x)

    @functools.cached_property
    def _numbers_of_tanh(self) -> list[ir.Value]:
        # Of known value, they would be kept in scalar registers around a loop, even one that seldom comes here.
        return [opaque(self.b, const(F32, x), "s") for x in (TANH_SMALL, 2 * LOG2_E, *TANH_COEFFICIENTS)]

    def tanh(self, x: ir.Value) -> ir.Value:
        b, (largest_small, exponent, *coefficients) = self.b, self._numbers_of_tanh
        size, square = math(b, "fabs", x), b.fmul(x, x)
        series = coefficients[-1]
        for coefficient in coefficients[-2::-1]:
            series = math(b, "fma", series, square, coefficient)
        small = math(b, "fma", b.fmul(x, square), series, x)
        power = b.fadd(exp2(b, b.fmul(size, exponent)), const(F32, 1.0))
        large = math(b, "fma", math(b, "amdgcn.rcp", power), const(F32, -2.0), const(F32, 1.0))
        is_small = b.fcmp_ordered("<", size, largest_small)
        return b.select(is_small, small, math(b, "copysign", large, x))


class ElementwiseLowering(ReductionLowering):
    """Elementwise operations and operators."""

    def elementwise(self, context: Any, b: ir.IRBuilder, sig: Any, expression: Expression, *values: Any) -> ir.Value:
        """An expression of each element."""
        emitter = Emitter(b)
        if isinstance(sig.args[0], TILE.Rows):
            return self.on_rows(context, b, sig, values, lambda _, *numbers: emitter.emit(expression, numbers))

        def emit(*vectors: ir.Value) -> ir.Value:
            if emitter.takes_vectors(expression):
                return emitter.emit(expression, vectors)
            places = zip(*(elements_of(b, v) for v in vectors), strict=True)
            return vector_of(b, [emitter.emit(expression, numbers) for numbers in places])

        return self.on_elements(context, b, sig.args, values, emit)

    def on_elements(self, context: Any, b: ir.IRBuilder, kinds: Any, values: Any, emit: Callable) -> ir.Value:
        """``emit`` on the vectors of a tile, and on those of other tiles, rows and scalars beside them."""
        ty = kinds[0]
        layout = LaneLayout(ty)

        def numbers(t: Any, v: Any) -> list[ir.Value]:
            """Vectors of a tile, or for each of them the number beside it."""
            if isinstance(t, TILE.Tile):
                return items_of(b, v)
            if not isinstance(t, TILE.Rows):
                number = self.scalar(context, b, t, v, "f32")
                if not isinstance(number, ir.Constant):
                    # Of known value, a vector of it would be kept in scalar registers around a loop.
                    number = opaque(b, number, "v")
                return [number] * (layout.vectors(ty.n) * layout.row_blocks)
            rows = items_of(b, v)
            return flat([[row] * layout.vectors(ty.n) for row in rows])

        def vector(x: ir.Value) -> ir.Value:
            return x if isinstance(x.type, ir.VectorType) else splat(b, x, layout.registers)

        columns = [numbers(t, v) for t, v in zip(kinds, values, strict=True)]
        return array_of(b, [emit(*map(vector, each)) for each in zip(*columns, strict=True)])

    def rounded(self, context: Any, b: ir.IRBuilder, sig: Any, tile: Any, like: Any) -> ir.Value:
        dtype = sig.args[1].dtype
        if dtype == "float32":
            return tile

        def one(x: ir.Value) -> ir.Value:
            return widen(b, b.bitcast(narrowed(b, x, dtype), I16), dtype)

        return self.on_tile(b, sig.args[0], tile, lambda v, c: each_element(b, v, one))

    def arithmetic(self, context: Any, b: ir.IRBuilder, sig: Any, x: Any, y: Any, on_float: Any, on_int: Any) -> Any:
        ty = sig.args[0]
        if not isinstance(ty, TILE.Tile):
            return self.on_rows(
                context, b, sig, (x, y), lambda kind, u, v: (on_float if kind == "f32" else on_int)(u, v)
            )
        return self.on_elements(context, b, sig.args, (x, y), on_float)

    def operator_add(self, context: Any, b: ir.IRBuilder, sig: Any, x: Any, y: Any) -> ir.Value:
        return self.arithmetic(context, b, sig, x, y, b.fadd, b.add)

    def operator_sub(self, context: Any, b: ir.IRBuilder, sig: Any, x: Any, y: Any) -> ir.Value:
        return self.arithmetic(context, b, sig, x, y, b.fsub, b.sub)

    def operator_mul(self, context: Any, b: ir.IRBuilder, sig: Any, x: Any, y: Any) -> ir.Value:
        return self.arithmetic(context, b, sig, x, y, b.fmul, b.mul)

    def operator_truediv(self, context: Any, b: ir.IRBuilder, sig: Any, x: Any, y: Any) -> ir.Value:
        return self.on_rows(context, b, sig, (x, y), lambda _, u, v: b.fdiv(u, v))

    def operator_floordiv(self, context: Any, b: ir.IRBuilder, sig: Any, x: Any, y: Any) -> ir.Value:
        return self.on_rows(context, b, sig, (x, y), lambda _, u, v: self.floor_divide(b, u, v)[0])

    def operator_mod(self, context: Any, b: ir.IRBuilder, sig: Any, x: Any, y: Any) -> ir.Value:
        return self.on_rows(context, b, sig, (x, y), lambda _, u, v: self.floor_divide(b, u, v)[1])

    @staticmethod
    def floor_divide(b: ir.IRBuilder, x: ir.Value, y: ir.Value) -> tuple:
        """Quotient and remainder of Python's integer division."""
        quotient = b.sdiv(x, y)
        rest = b.sub(x, b.mul(quotient, y))
        inexact = b.icmp_signed("!=", rest, const(I32, 0))
        adjust = b.and_(inexact, b.icmp_signed("<", b.xor(rest, y), const(I32, 0)))
        return b.sub(quotient, b.zext(adjust, I32)), b.select(adjust, b.add(rest, y), rest)

    def compare(self, context: Any, b: ir.IRBuilder, sig: Any, x: Any, y: Any, relation: str) -> ir.Value:
        def one(kind: str, u: ir.Value, v: ir.Value) -> ir.Value:
            if kind != "f32":
                return b.icmp_signed(relation, u, v)
            # A comparison with NaN is false, except !=.
            return (b.fcmp_unordered if relation == "!=" else b.fcmp_ordered)(relation, u, v)

        return self.on_rows(context, b, sig, (x, y), one, flag_rows)

    operator_lt = functools.partialmethod(compare, relation="<")

    operator_le = functools.partialmethod(compare, relation="<=")

    operator_gt = functools.partialmethod(compare, relation=">")

    operator_ge = functools.partialmethod(compare, relation=">=")

    operator_eq = functools.partialmethod(compare, relation="==")

    operator_ne = functools.partialmethod(compare, relation="!=")

    def operator_and(self, context: Any, b: ir.IRBuilder, sig: Any, x: Any, y: Any) -> ir.Value:
        return array_of(b, [b.and_(u, v) for u, v in zip(items_of(b, x), items_of(b, y), strict=True)])
