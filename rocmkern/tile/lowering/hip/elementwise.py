"""Operations on each element of a tile, or of rows, by itself."""

from __future__ import annotations

import functools
from typing import Any

from llvmlite import ir

from rocmkern.tile.lowering.hip.backend import TILE
from rocmkern.tile.lowering.hip.emit import (
    ACTIVATIONS,
    LOG2_E,
    NEG_INF,
    array_of,
    each_element,
    exp2,
    flag_rows,
    items_of,
    math,
    opaque,
    splat,
)
from rocmkern.tile.lowering.hip.layouts import Layout
from rocmkern.tile.lowering.hip.memory import narrowed, widen
from rocmkern.tile.lowering.hip.reductions import ReductionLowering
from rocmkern.tile.lowering.shared.tensors import F32, I16, I32, const

#: tanh(x) = x + x^3 * P(x^2) for |x| < 0.6: minimax fit of P in relative error (3e-9).
TANH_SMALL = 0.6
TANH_COEFFICIENTS = (-0.33333298, 0.13331924, -0.05378383, 0.02079597, -0.00589515)


class ElementwiseLowering(ReductionLowering):
    """Elementwise operations and operators."""

    def exp2(self, context: Any, b: ir.IRBuilder, sig: Any, x: Any) -> ir.Value:
        if isinstance(sig.args[0], TILE.Rows):
            return self.on_rows(context, b, sig, (x,), lambda _, v: exp2(b, v))
        return self.on_tile(b, sig.args[0], x, lambda v, c: each_element(b, v, lambda e: exp2(b, e)))

    def tanh(self, context: Any, b: ir.IRBuilder, sig: Any, tile: Any) -> ir.Value:
        # Of known value, they would be kept in scalar registers around a loop, even one that seldom comes here.
        numbers = (TANH_SMALL, 2 * LOG2_E, *TANH_COEFFICIENTS)
        largest_small, exponent, *coefficients = (opaque(b, const(F32, x), "s") for x in numbers)

        def one(x: ir.Value) -> ir.Value:
            size, square = math(b, "fabs", x), b.fmul(x, x)
            series = coefficients[-1]
            for coefficient in coefficients[-2::-1]:
                series = math(b, "fma", series, square, coefficient)
            small = math(b, "fma", b.fmul(x, square), series, x)
            power = b.fadd(exp2(b, b.fmul(size, exponent)), const(F32, 1.0))
            large = math(b, "fma", math(b, "amdgcn.rcp", power), const(F32, -2.0), const(F32, 1.0))
            is_small = b.fcmp_ordered("<", size, largest_small)
            return b.select(is_small, small, math(b, "copysign", large, x))

        return self.on_tile(b, sig.args[0], tile, lambda v, c: each_element(b, v, one))

    def rounded(self, context: Any, b: ir.IRBuilder, sig: Any, tile: Any, like: Any) -> ir.Value:
        dtype = sig.args[1].dtype
        if dtype == "float32":
            return tile

        def one(x: ir.Value) -> ir.Value:
            return widen(b, b.bitcast(narrowed(b, x, dtype), I16), dtype)

        return self.on_tile(b, sig.args[0], tile, lambda v, c: each_element(b, v, one))

    def activation(self, context: Any, b: ir.IRBuilder, sig: Any, tile: Any, name: str) -> ir.Value:
        emit = getattr(ACTIVATIONS, name)
        if isinstance(sig.args[0], TILE.Rows):
            return self.on_rows(context, b, sig, (tile,), lambda _, v: emit(b, v))
        return self.on_tile(b, sig.args[0], tile, lambda v, c: each_element(b, v, lambda x: emit(b, x)))

    silu = functools.partialmethod(activation, name="silu")

    gelu = functools.partialmethod(activation, name="gelu")

    gelu_tanh = functools.partialmethod(activation, name="gelu_tanh")

    relu = functools.partialmethod(activation, name="relu")

    def absolute(self, context: Any, b: ir.IRBuilder, sig: Any, tile: Any) -> ir.Value:
        return self.on_tile(b, sig.args[0], tile, lambda v, c: math(b, "fabs", v))

    def at_least(self, context: Any, b: ir.IRBuilder, sig: Any, tile: Any, bound: Any) -> ir.Value:
        ty, bound_ty = sig.args
        floats = ir.VectorType(F32, Layout(ty).registers)
        rows = self.row_values(context, b, ty, bound_ty, bound, "f32")

        def body(v: ir.Value, c: int, least: ir.Value) -> ir.Value:
            above = b.fcmp_ordered(">=", v, splat(b, least, floats.count))
            return b.select(above, const(floats, 1.0), const(floats, 0.0))

        return self.on_tile(b, ty, tile, body, rows)

    def mask_where(self, context: Any, b: ir.IRBuilder, sig: Any, tile: Any, visible: Any) -> ir.Value:
        floats = ir.VectorType(F32, Layout(sig.args[0]).registers)
        return array_of(
            b,
            [
                b.select(b.fcmp_unordered("!=", seen, const(floats, 0.0)), v, const(floats, NEG_INF))
                for v, seen in zip(items_of(b, tile), items_of(b, visible), strict=True)
            ],
        )

    def multiply_add(self, context: Any, b: ir.IRBuilder, sig: Any, tile: Any, factor: Any, summand: Any) -> ir.Value:
        items = zip(*(items_of(b, x) for x in (tile, factor, summand)), strict=True)
        return array_of(b, [math(b, "fma", *each) for each in items])

    def arithmetic(self, context: Any, b: ir.IRBuilder, sig: Any, x: Any, y: Any, on_float: Any, on_int: Any) -> Any:
        ty = sig.args[0]
        if not isinstance(ty, TILE.Tile):
            return self.on_rows(
                context, b, sig, (x, y), lambda kind, u, v: (on_float if kind == "f32" else on_int)(u, v)
            )
        registers = Layout(ty).registers
        if isinstance(sig.args[1], TILE.Tile):
            return array_of(b, [on_float(u, v) for u, v in zip(items_of(b, x), items_of(b, y), strict=True)])
        rows = self.row_values(context, b, ty, sig.args[1], y, "f32")
        return self.on_tile(b, ty, x, lambda v, c, row: on_float(v, splat(b, row, registers)), rows)

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
