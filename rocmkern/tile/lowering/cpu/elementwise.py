"""Operations on each element of a tile, or of rows, by itself."""

from __future__ import annotations

import functools
from typing import Any

from llvmlite import ir
from numba.core.imputils import impl_ret_borrowed

from rocmkern.tile.lowering.cpu.backend import TILE
from rocmkern.tile.lowering.cpu.emit import ACTIVATIONS, exp2, floor_divide, fma, load_floats, splat, tanh, vec
from rocmkern.tile.lowering.cpu.memory import from_memory, to_memory
from rocmkern.tile.lowering.cpu.reductions import ReductionLowering
from rocmkern.tile.lowering.shared.tensors import I8, call, const


class ElementwiseLowering(ReductionLowering):
    """Elementwise operations and operators."""

    def exp2(self, context: Any, b: ir.IRBuilder, sig: Any, x: ir.Value) -> ir.Value:
        def emit(v: ir.Value) -> ir.Value:
            # `exp2` rounds the exponent: from 127.5 on that would be 128, which has no finite power.
            large = b.fcmp_ordered(">", v, const(v.type, 127.0))
            infinite = b.fcmp_ordered(">=", v, const(v.type, 128.0))
            power = exp2(b, b.select(large, b.fsub(v, const(v.type, 1.0)), v))
            power = b.select(large, b.fadd(power, power), power)
            return b.select(infinite, const(v.type, float("inf")), power)

        if isinstance(sig.args[0], TILE.Rows):
            return emit(x)
        return self.map(context, b, sig.args[0], x, lambda i, v, rows, column: emit(v))

    def tanh(self, context: Any, b: ir.IRBuilder, sig: Any, x: ir.Value) -> ir.Value:
        return self.map(context, b, sig.args[0], x, lambda i, v, rows, column: tanh(b, v))

    def rounded(self, context: Any, b: ir.IRBuilder, sig: Any, x: ir.Value, like: Any) -> ir.Value:
        dtype = sig.args[1].dtype
        if dtype == "float32":
            return impl_ret_borrowed(context, b, sig.return_type, x)

        def emit(i: Any, v: ir.Value, rows: Any, column: Any) -> ir.Value:
            return from_memory(b, to_memory(b, v, dtype), dtype)

        return self.map(context, b, sig.args[0], x, emit)

    def activation(self, context: Any, b: ir.IRBuilder, sig: Any, x: ir.Value, name: str) -> ir.Value:
        emit = getattr(ACTIVATIONS, name)
        if isinstance(sig.args[0], TILE.Rows):
            return emit(b, x)
        return self.map(context, b, sig.args[0], x, lambda i, v, rows, column: emit(b, v))

    silu = functools.partialmethod(activation, name="silu")
    gelu = functools.partialmethod(activation, name="gelu")
    gelu_tanh = functools.partialmethod(activation, name="gelu_tanh")
    relu = functools.partialmethod(activation, name="relu")

    def absolute(self, context: Any, b: ir.IRBuilder, sig: Any, x: ir.Value) -> ir.Value:
        def emit(i: Any, v: ir.Value, rows: Any, column: Any) -> ir.Value:
            return call(b, f"llvm.fabs.v{v.type.count}f32", v.type, [v])

        return self.map(context, b, sig.args[0], x, emit)

    def at_least(self, context: Any, b: ir.IRBuilder, sig: Any, tile: ir.Value, bound: ir.Value) -> ir.Value:
        ty, bound_ty = sig.args
        if isinstance(bound_ty, TILE.Rows):
            rows: tuple = (bound,)
        else:
            rows, number = (), self.scalar(context, b, bound_ty, bound, "f32")

        def emit(i: Any, v: ir.Value, parts: list, column: Any) -> ir.Value:
            least = parts[0] if parts else splat(b, number, v.type.count)
            return b.select(b.fcmp_ordered(">=", v, least), const(v.type, 1.0), const(v.type, 0.0))

        return self.map(context, b, ty, tile, emit, rows)

    def mask_where(self, context: Any, b: ir.IRBuilder, sig: Any, tile: ir.Value, visible: ir.Value) -> ir.Value:
        seen = self.data(context, b, sig.args[1], visible)

        def emit(i: ir.Value, v: ir.Value, rows: Any, column: Any) -> ir.Value:
            flags = load_floats(b, seen, i, v.type.count)
            hidden = b.fcmp_ordered("==", flags, const(v.type, 0.0))
            return b.select(hidden, const(v.type, float("-inf")), v)

        return self.map(context, b, sig.args[0], tile, emit)

    def multiply_add(
        self, context: Any, b: ir.IRBuilder, sig: Any, tile: ir.Value, factor: ir.Value, summand: ir.Value
    ) -> ir.Value:
        others = [self.data(context, b, ty, x) for ty, x in zip(sig.args[1:], (factor, summand), strict=True)]

        def emit(i: ir.Value, v: ir.Value, rows: Any, column: Any) -> ir.Value:
            return fma(b, v, *(load_floats(b, other, i, v.type.count) for other in others))

        return self.map(context, b, sig.args[0], tile, emit)

    def rows_or_tile(self, for_float: Any, for_int: Any = None) -> Any:
        """Lowering of a binary operator from the builder's method names for floats and integers."""

        def emit(context: Any, b: ir.IRBuilder, sig: Any, x: ir.Value, y: ir.Value) -> ir.Value:
            ty = sig.return_type
            x_ty, y_ty = sig.args
            if isinstance(ty, TILE.Rows):
                rows = x_ty if isinstance(x_ty, TILE.Rows) else y_ty
                x, y = (self.row_value(context, b, t, v, rows) for t, v in zip(sig.args, (x, y), strict=True))
                if rows.kind == "f32":
                    return for_float(b, x, y)
                return for_int(b, x, y)
            if isinstance(y_ty, TILE.Tile):
                other = self.data(context, b, y_ty, y)
                return self.map(
                    context, b, ty, x, lambda i, v, rows, c: for_float(b, v, load_floats(b, other, i, v.type.count))
                )
            if isinstance(y_ty, TILE.Rows):
                return self.map(context, b, ty, x, lambda i, v, rows, c: for_float(b, v, rows[0]), (y,))
            scalar = self.scalar(context, b, y_ty, y, "f32")
            return self.map(context, b, ty, x, lambda i, v, rows, c: for_float(b, v, splat(b, scalar, v.type.count)))

        return emit

    @property
    def operator_add(self) -> Any:
        return self.rows_or_tile(ir.IRBuilder.fadd, ir.IRBuilder.add)

    @property
    def operator_sub(self) -> Any:
        return self.rows_or_tile(ir.IRBuilder.fsub, ir.IRBuilder.sub)

    @property
    def operator_mul(self) -> Any:
        return self.rows_or_tile(ir.IRBuilder.fmul, ir.IRBuilder.mul)

    @property
    def operator_truediv(self) -> Any:
        return self.rows_or_tile(ir.IRBuilder.fdiv)

    @property
    def operator_floordiv(self) -> Any:
        return self.rows_or_tile(None, lambda b, x, y: floor_divide(b, x, y)[0])

    @property
    def operator_mod(self) -> Any:
        return self.rows_or_tile(None, lambda b, x, y: floor_divide(b, x, y)[1])

    def comparison(self, symbol: str) -> Any:
        def compare(method: Any) -> Any:
            return lambda b, x, y: b.zext(method(b, symbol, x, y), vec(I8, x.type.count))

        # Only != is true of NaN.
        floats = ir.IRBuilder.fcmp_unordered if symbol == "!=" else ir.IRBuilder.fcmp_ordered
        return self.rows_or_tile(compare(floats), compare(ir.IRBuilder.icmp_signed))

    def operator_and(self, context: Any, b: ir.IRBuilder, sig: Any, x: ir.Value, y: ir.Value) -> ir.Value:
        return b.and_(x, y)


for _op, _symbol in (("lt", "<"), ("le", "<="), ("gt", ">"), ("ge", ">="), ("eq", "=="), ("ne", "!=")):
    setattr(
        ElementwiseLowering,
        f"operator_{_op}",
        property(functools.partial(ElementwiseLowering.comparison, symbol=_symbol)),
    )
