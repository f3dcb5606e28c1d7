"""Products with stages."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace
from typing import Any

from llvmlite import ir
from numba.core import cgutils
from numba.core.imputils import impl_ret_borrowed, impl_ret_new_ref

from rocmkern.tile._lowering.cpu.backend import TILE
from rocmkern.tile._lowering.cpu.emit import floor_to, load_floats, loop, reduced, smin, store_floats, vec
from rocmkern.tile._lowering.cpu.microkernels import (
    BLOCKING,
    LINE_PADDING,
    Left,
    Right,
    multiply_lanes,
    multiply_rows_nn,
    multiply_rows_nt,
    multiply_rows_quantized,
)
from rocmkern.tile._lowering.cpu.pipeline import StageLowering
from rocmkern.tile._lowering.shared.ir_types import F32, I1, I64, const
from rocmkern.tile._lowering.shared.tensors import fma


class CpuLowering(StageLowering):
    """One method per operation: see `binding.bind`."""

    def accumulator(self, context: Any, b: ir.IRBuilder, sig: Any, acc: tuple) -> tuple:
        """The tile a product adds to: the given one, or a new one of zeros. Returns it and its data."""
        ty = sig.return_type
        if acc:
            return impl_ret_borrowed(context, b, ty, acc[0]), self.data(context, b, ty, acc[0])
        value = self.new(context, b, ty)
        data = self.data(context, b, ty, value)
        cgutils.memset(b, data, const(I64, ty.m * ty.n * 4), 0)
        return impl_ret_new_ref(context, b, ty, value), data

    def dot_nt(self, context: Any, b: ir.IRBuilder, sig: Any, left: Any, right: Any, *acc: Any) -> ir.Value:
        ty, right_ty = sig.return_type, sig.args[1]
        in_registers = right_ty.format and not self.by_column(ty)
        if in_registers:
            st = cgutils.create_struct_proxy(right_ty)(context, b, right)
        else:
            st = self.window_of(context, b, right_ty, right)
        out, data = self.accumulator(context, b, sig, acc)
        with self.left(context, b, sig, left) as a:
            if in_registers:
                multiply_rows_quantized(b, ty, right_ty, sig.args[0].k, st, a.data, data)
            elif self.by_column(ty):
                source = Right(st.window, st.ld, const(I64, 1))
                multiply_lanes(b, self.width(ty), ty.m, st.count, st.cols, source, a, data)
            else:
                multiply_rows_nt(b, self.width(ty), ty, sig.args[0].k, st, a.data, data)
        return out

    def dot_nn(self, context: Any, b: ir.IRBuilder, sig: Any, left: Any, right: Any, *acc: Any) -> ir.Value:
        st = self.window_of(context, b, sig.args[1], right)
        out, data = self.accumulator(context, b, sig, acc)
        with self.left(context, b, sig, left) as a:
            self.multiply_nn(b, sig.return_type, sig.args[0], st, a, data)
        return out

    @contextlib.contextmanager
    def left(self, context: Any, b: ir.IRBuilder, sig: Any, value: ir.Value) -> Any:
        """The left side of a product as a `Left`. A stage is copied for the time of the product.

        A product of two stages is one step of many over large matrices: the copy is made of panels as wide as the
        micro-kernel, and has room for the lines of the right side that the micro-kernel works on.
        """
        ty, out = sig.args[0], sig.return_type
        if not isinstance(ty, TILE.Stage):
            yield Left(self.data(context, b, ty, value), ty.m, 1)
            return
        across, heights = BLOCKING[self.width(ty)]
        lanes = self.by_column(out)
        panel = min(ty.n, across * self.width(ty)) if lanes else ty.n
        # The lines of the right side are counted as more rows of an operand.
        room = TILE.Operand(ty.n + heights[0] * lanes, ty.k + LINE_PADDING * lanes, ty.dtype, ty.hw)
        copy = self.new(context, b, room)
        data = self.data(context, b, room, copy)
        source = self.window_of(context, b, ty, value)
        address, step = b.ptrtoint(source.window, I64), b.mul(source.ld, const(I64, 4))
        place = SimpleNamespace(
            row=lambda r: b.add(address, b.mul(r, step)),
            exists=lambda r, n: b.icmp_signed("<=", b.add(r, const(I64, n)), source.count),
            stride=const(I64, 4),
            columns=source.cols,
            side_by_side=lambda r, n: const(I1, 0),
        )
        self.transfer(b, SimpleNamespace(m=ty.n, n=ty.k, hw=ty.hw, panel=panel), data, "float32", place, load=True)
        lines = b.gep(data, [const(I64, 4 * ty.n * ty.k)]) if lanes else None
        yield Left(data, panel, 1 if panel == ty.n else ty.k, lines, ty.k + LINE_PADDING)
        context.nrt.decref(b, room, copy)

    def multiply_nn(self, b: ir.IRBuilder, ty: Any, a_ty: Any, st: Any, left: Left, data: ir.Value) -> None:
        if self.by_column(ty):
            source = Right(st.window, const(I64, 1), st.ld)
            multiply_lanes(b, self.width(ty), ty.m, st.cols, st.count, source, left, data)
        else:
            multiply_rows_nn(b, self.width(ty), ty, a_ty.k, st, left.data, data)

    def dot_nn_where(self, context: Any, b: ir.IRBuilder, sig: Any, left: Any, right: Any, acc: Any) -> ir.Value:
        ty, a_ty = sig.return_type, sig.args[0]
        st = cgutils.create_struct_proxy(sig.args[1])(context, b, right)
        a = self.data(context, b, a_ty, left)
        out, data = self.accumulator(context, b, sig, (acc,))
        with b.if_else(self.window_is_finite(b, self.width(ty), st), likely=True) as (finite, not_finite):
            with finite:
                self.multiply_nn(b, ty, a_ty, st, Left(a, ty.m, 1), data)
            with not_finite:
                step_a, step_out = (ty.m, ty.m) if self.by_column(ty) else (1, 1)
                row_a, row_out = (1, 1) if self.by_column(ty) else (a_ty.k, ty.n)
                with loop(b, st.count) as k, loop(b, st.cols) as n:
                    v = load_floats(b, st.window, b.add(b.mul(k, st.ld), n))
                    with loop(b, ty.m) as r:
                        p = load_floats(b, a, b.add(b.mul(k, const(I64, step_a)), b.mul(r, const(I64, row_a))))
                        with b.if_then(b.fcmp_unordered("!=", p, const(F32, 0.0))):
                            i = b.add(b.mul(n, const(I64, step_out)), b.mul(r, const(I64, row_out)))
                            store_floats(b, fma(b, p, v, load_floats(b, data, i)), data, i)
        return out

    @staticmethod
    def window_is_finite(b: ir.IRBuilder, w: int, st: Any) -> ir.Value:
        """Whether the window in use has neither NaN nor infinity: the sum of 0 * x is 0 then, and NaN otherwise."""
        vector = cgutils.alloca_once_value(b, const(vec(F32, w), 0.0))
        single = cgutils.alloca_once_value(b, const(F32, 0.0))
        whole = floor_to(b, st.cols, w)
        with loop(b, st.count) as r:
            row = b.mul(r, st.ld)
            with loop(b, whole, w, unrolled=True) as c:
                x = load_floats(b, st.window, b.add(row, c), w)
                b.store(fma(b, x, const(x.type, 0.0), b.load(vector)), vector)
            with loop(b, st.cols, 1, whole) as c:
                x = load_floats(b, st.window, b.add(row, c))
                b.store(fma(b, x, const(F32, 0.0), b.load(single)), single)
        total = b.fadd(reduced(b, b.load(vector), b.fadd), b.load(single))
        return b.fcmp_ordered("==", total, const(F32, 0.0))

    def dot_tn(self, context: Any, b: ir.IRBuilder, sig: Any, left: Any, right: Any, *acc: Any) -> ir.Value:
        ty = sig.return_type
        x, y = (self.window_of(context, b, t, v) for t, v in zip(sig.args, (left, right), strict=False))
        out, data = self.accumulator(context, b, sig, acc)
        row, column = (1, ty.m) if self.by_column(ty) else (ty.n, 1)
        with (
            loop(b, smin(b, x.count, y.count)) as k,
            loop(b, x.cols) as r,
            loop(b, y.cols, unrolled=True) as c,
        ):
            i = b.add(b.mul(r, const(I64, row)), b.mul(c, const(I64, column)))
            product = (
                load_floats(b, x.window, b.add(b.mul(k, x.ld), r)),
                load_floats(b, y.window, b.add(b.mul(k, y.ld), c)),
            )
            store_floats(b, fma(b, *product, load_floats(b, data, i)), data, i)
        return out
