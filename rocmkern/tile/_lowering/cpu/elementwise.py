"""Operations on each element of a tile, or of rows, by itself."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba.core.imputils import impl_ret_borrowed

from rocmkern.tile._lowering.cpu.backend import TILE
from rocmkern.tile._lowering.cpu.emit import (
    ACTIVATIONS,
    element,
    exp2_of_any,
    floor_divide,
    load_floats,
    splat,
    tanh,
    vec,
)
from rocmkern.tile._lowering.cpu.memory import from_memory, to_memory
from rocmkern.tile._lowering.cpu.reductions import ReductionLowering
from rocmkern.tile._lowering.shared.expressions import ExpressionEmitter
from rocmkern.tile._lowering.shared.ir_types import F32, I8, I32, const
from rocmkern.tile._lowering.shared.tensors import call
from rocmkern.tile.language.expression import Expression


class Emitter(ExpressionEmitter):
    """Expressions of vectors."""

    activations = ACTIVATIONS

    def exp2(self, x: ir.Value) -> ir.Value:
        return exp2_of_any(self.b, x)

    def log2(self, x: ir.Value) -> ir.Value:
        for i in range(x.type.count):
            x = self.b.insert_element(x, call(self.b, "llvm.log2.f32", F32, [element(self.b, x, i)]), const(I32, i))
        return x

    def tanh(self, x: ir.Value) -> ir.Value:
        return tanh(self.b, x)


class ElementwiseLowering(ReductionLowering):
    """Elementwise operations and operators."""

    def elementwise(self, context: Any, b: ir.IRBuilder, sig: Any, expression: Expression, *values: Any) -> ir.Value:
        """An expression of each element, in place."""
        ty, emitter = sig.args[0], Emitter(b)
        if isinstance(ty, TILE.Rows):
            rows = [self.row_value(context, b, t, v, ty) for t, v in zip(sig.args, values, strict=True)]
            return emitter.emit(expression, rows)

        def emit(*vectors: ir.Value) -> ir.Value:
            return emitter.emit(expression, vectors)

        return self.on_elements(context, b, sig.args, values, emit)

    def on_elements(self, context: Any, b: ir.IRBuilder, kinds: Any, values: Any, emit: Callable) -> ir.Value:
        """``emit`` on the vectors of a tile, in place, and on those of other tiles, rows and scalars beside them."""
        ty, *others = kinds
        tile, *beside = values
        rows = tuple(v for t, v in zip(others, beside, strict=True) if isinstance(t, TILE.Rows))

        def source(t: Any, v: Any) -> ir.Value | None:
            """Data of a tile, a scalar as float32; None for rows."""
            if isinstance(t, TILE.Rows):
                return None
            return self.data(context, b, t, v) if isinstance(t, TILE.Tile) else self.scalar(context, b, t, v, "f32")

        sources = [source(t, v) for t, v in zip(others, beside, strict=True)]

        def body(index: ir.Value, vector: ir.Value, parts: list, column: Any) -> ir.Value:
            count, of_rows, vectors = vector.type.count, iter(parts), [vector]
            for t, found in zip(others, sources, strict=True):
                if found is None:
                    vectors.append(next(of_rows))
                elif isinstance(t, TILE.Tile):
                    vectors.append(load_floats(b, found, index, count))
                else:
                    vectors.append(splat(b, found, count))
            return emit(*vectors)

        return self.map(context, b, ty, tile, body, rows)

    def rounded(self, context: Any, b: ir.IRBuilder, sig: Any, x: ir.Value, like: Any) -> ir.Value:
        dtype = sig.args[1].dtype
        if dtype == "float32":
            return impl_ret_borrowed(context, b, sig.return_type, x)

        def emit(i: Any, v: ir.Value, rows: Any, column: Any) -> ir.Value:
            return from_memory(b, to_memory(b, v, dtype), dtype)

        return self.map(context, b, sig.args[0], x, emit)

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
            return self.on_elements(context, b, sig.args, (x, y), functools.partial(for_float, b))

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
