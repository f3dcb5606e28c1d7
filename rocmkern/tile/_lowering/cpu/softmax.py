"""Online softmax, and sums of squares that do not overflow."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.core import cgutils
from numba.core.imputils import impl_ret_borrowed

from rocmkern.tile._lowering.cpu.emit import all_of, any_of, exp2, fmax, splat, store_floats
from rocmkern.tile._lowering.cpu.rotary import RotaryLowering
from rocmkern.tile._lowering.shared import squares
from rocmkern.tile._lowering.shared.ir_types import const
from rocmkern.tile._lowering.shared.tensors import call, if_else

#: A row's maximum may lag behind by this much, in base-2 exponent, before the accumulator is rescaled.
LAZY_EXPONENT = 8.0


class SoftmaxLowering(RotaryLowering):
    """Steps over the columns of a row."""

    def softmax_step(
        self, context: Any, b: ir.IRBuilder, sig: Any, s: Any, scale: Any, m: ir.Value, l: ir.Value, acc: ir.Value
    ) -> ir.Value:
        s_ty, acc_ty = sig.args[0], sig.args[4]
        scores, rows = self.data(context, b, s_ty, s), m.type
        factor = self.scalar(context, b, sig.args[1], scale, "f32")
        wide_factor = splat(b, factor, s_ty.m)
        low = const(rows, float("-inf"))

        # The maximum may lag behind as long as no exponent grows beyond LAZY_EXPONENT: then acc and l stay as they are.
        # Each row decides for itself, so that it is the same bits whatever the others are: those that stay as they are
        # are multiplied by 1 where others do not.
        grown = fmax(b, self.row_maximum(b, s_ty, scores), m)
        excess = b.fmul(b.fsub(grown, m), wide_factor)
        rescale = b.fcmp_ordered(">", excess, const(rows, LAZY_EXPONENT))
        new = b.select(rescale, grown, m)
        base = b.select(b.fcmp_ordered("==", new, low), const(rows, 0.0), new)
        denominator = cgutils.alloca_once_value(b, l)
        with b.if_then(any_of(b, rescale), likely=False):
            shrink = exp2(b, b.fmul(b.fsub(m, base), wide_factor))
            b.store(b.fmul(l, shrink), denominator)
            data = self.data(context, b, acc_ty, acc)
            for index, vector, parts, _ in self.vectors(b, acc_ty, data, (shrink,)):
                store_floats(b, b.fmul(vector, parts[0]), data, index)

        def weight(index: ir.Value, vector: ir.Value, parts: list) -> ir.Value:
            exponent = b.fmul(b.fsub(vector, parts[0]), splat(b, factor, vector.type.count))
            p = exp2(b, exponent)
            store_floats(b, p, scores, index)
            return p

        total = self.reduce_rows(b, s_ty, scores, 0.0, b.fadd, weight, (base,))
        result = context.make_tuple(b, sig.return_type, (s, new, b.fadd(b.load(denominator), total), acc))
        return impl_ret_borrowed(context, b, sig.return_type, result)

    def softmax_end(
        self, context: Any, b: ir.IRBuilder, sig: Any, scale: Any, m: ir.Value, l: ir.Value, acc: ir.Value
    ) -> ir.Value:
        result = context.make_tuple(b, sig.return_type, (m, l, acc))
        return impl_ret_borrowed(context, b, sig.return_type, result)

    def square_step(
        self, context: Any, b: ir.IRBuilder, sig: Any, tile: ir.Value, scale: ir.Value, total: ir.Value
    ) -> ir.Value:
        ty = sig.args[0]
        data = self.data(context, b, ty, tile)
        plain = self.reduce_rows(b, ty, data, 0.0, b.fadd, lambda index, vector, parts: b.fmul(vector, vector))
        done = squares.is_plain(b, plain, scale)
        results = if_else(
            b,
            all_of(b, done),
            lambda: squares.add_plain(b, plain, scale, total),
            lambda: [
                b.select(done, *each)
                for each in zip(
                    squares.add_plain(b, plain, scale, total),
                    self.scaled_squares(b, ty, data, scale, total),
                    strict=True,
                )
            ],
            likely=True,
        )
        return context.make_tuple(b, sig.return_type, results)

    def multiply_rows(
        self, context: Any, b: ir.IRBuilder, sig: Any, tile: ir.Value, scale: ir.Value, factor: ir.Value
    ) -> ir.Value:
        ty = sig.args[0]
        product, ordinary = squares.joined(b, scale, factor)
        with b.if_else(all_of(b, ordinary), likely=True) as (yes, no):
            with yes:
                self.map(context, b, ty, tile, lambda i, v, rows, c: b.fmul(v, rows[0]), (product,))
            with no:
                parts = squares.in_order(b, product, ordinary, scale, factor)
                self.map(context, b, ty, tile, lambda i, v, rows, c: b.fmul(b.fmul(v, rows[0]), rows[1]), parts)
        return tile

    def scaled_squares(
        self, b: ir.IRBuilder, ty: Any, data: ir.Value, scale: ir.Value, total: ir.Value
    ) -> tuple[ir.Value, ir.Value]:
        """`square_step` where squares as they are would not do."""

        def size(index: ir.Value, vector: ir.Value, parts: list) -> ir.Value:
            return call(b, f"llvm.fabs.v{vector.type.count}f32", vector.type, [vector])

        def square(index: ir.Value, vector: ir.Value, parts: list) -> ir.Value:
            return squares.square(b, vector, parts[0])

        largest = self.reduce_rows(b, ty, data, 0.0, lambda most, x: fmax(b, x, most), size)
        new = squares.scale_of(b, largest, scale)
        more = self.reduce_rows(b, ty, data, 0.0, b.fadd, square, (new,))
        return new, b.fadd(squares.rescale(b, total, scale, new), more)
