"""Stages: windows of a tensor, in place or copied and converted."""

from __future__ import annotations

import math
from typing import Any

from llvmlite import ir
from numba.core import cgutils, types
from numba.core.errors import TypingError
from numba.core.imputils import impl_ret_borrowed, impl_ret_new_ref

from rocmkern.architectures import architecture
from rocmkern.tile._lowering.cpu.emit import floor_to, loop, smax, smin, store_floats, vec
from rocmkern.tile._lowering.cpu.layouts import PAGED_MEMBERS
from rocmkern.tile._lowering.cpu.memory import STORAGE, from_memory
from rocmkern.tile._lowering.cpu.quantized import decode
from rocmkern.tile._lowering.cpu.softmax import SoftmaxLowering
from rocmkern.tile._lowering.shared.ir_types import F32, I1, I32, I64, const
from rocmkern.tile._lowering.shared.tensors import at, if_else
from rocmkern.tile.formats import FORMATS
from rocmkern.tile.language.kinds import DTYPES


class StageLowering(SoftmaxLowering):
    """What happens to stages, and operands."""

    def operand(self, context: Any, b: ir.IRBuilder, sig: Any, tile: ir.Value, like: Any) -> ir.Value:
        return impl_ret_borrowed(context, b, sig.return_type, tile)

    @staticmethod
    def count_shared_memory(b: ir.IRBuilder, ty: Any) -> None:
        """Refuse a stage that does not fit beside the kernel's earlier ones."""
        limit = architecture(ty.hw[0]).shared_bytes
        total = getattr(b.function, "shared_bytes", 0) + ty.n * ty.k * DTYPES[ty.dtype]
        if total > limit:
            raise TypingError(
                f"stage: with a stage [{ty.n}, {ty.k}] of {ty.dtype} the kernel's stages take {total} bytes; "
                f"{ty.hw[0]} has {limit} bytes of shared memory; use smaller blocks"
            )
        b.function.shared_bytes = total

    def stage(
        self, context: Any, b: ir.IRBuilder, sig: Any, cfg: Any, source: ir.Value, n: Any, k: Any, *_: Any
    ) -> ir.Value:
        ty, source_ty = sig.return_type, sig.args[1]
        self.count_shared_memory(b, ty)
        data, shape, strides = self.unpack_tensor(context, b, source_ty, source)
        st = cgutils.create_struct_proxy(ty)(context, b)
        size = context.get_constant(types.uintp, ty.n * ty.k * 4)
        st.meminfo = context.nrt.meminfo_alloc_aligned(b, size, context.get_constant(types.uint32, 64))
        st.source = st.window = data
        st.rows, st.columns = shape
        st.row_stride, st.col_stride = strides
        st.row0 = st.col0 = st.count = st.cols = st.ld = const(I64, 0)
        if ty.paged:
            st.table = data
            for name in PAGED_MEMBERS:
                setattr(st, name, const(I64, 0))
        return impl_ret_new_ref(context, b, ty, st._getvalue())

    def paged(
        self, context: Any, b: ir.IRBuilder, sig: Any, stage: Any, cache: Any, head: Any, table: Any, stop: Any
    ) -> ir.Value:
        ty = sig.args[0]
        if ty.paged:
            st = cgutils.create_struct_proxy(ty)(context, b, stage)
            data, shape, strides = self.unpack_tensor(context, b, sig.args[1], cache)
            st.source = b.gep(data, [b.mul(self.scalar(context, b, sig.args[2], head, "i64"), strides[1])])
            st.pages, st.page_rows, st.page_stride = shape[0], shape[2], strides[0]
            st.columns, st.row_stride, st.col_stride = shape[3], strides[2], strides[3]
            st.table, (st.entries,), (st.entry_stride,) = self.unpack_tensor(context, b, sig.args[3], table)
            st.rows = self.scalar(context, b, sig.args[4], stop, "i64")
            stage = st._getvalue()
        return impl_ret_borrowed(context, b, sig.return_type, stage)

    def page(self, b: ir.IRBuilder, st: Any, row: ir.Value) -> tuple[ir.Value, ir.Value]:
        """Where a row of a paged stage lies, and whether its page exists (if not: the first page)."""
        number, line = b.sdiv(row, st.page_rows), b.srem(row, st.page_rows)
        listed = b.icmp_signed("<", number, st.entries)
        entry = b.mul(b.select(listed, number, const(I64, 0)), st.entry_stride)
        page = b.sext(b.load(at(b, st.table, entry, I32), align=4), I64)
        exists = b.and_(listed, b.icmp_unsigned("<", page, st.pages))
        page = b.select(exists, page, const(I64, 0))
        offset = b.add(b.mul(page, st.page_stride), b.mul(line, st.row_stride))
        return b.gep(st.source, [b.add(offset, b.mul(st.col0, st.col_stride))]), exists

    def fetch(self, context: Any, b: ir.IRBuilder, sig: Any, stage: ir.Value, *start: ir.Value) -> ir.Value:
        st = cgutils.create_struct_proxy(sig.args[0])(context, b, stage)
        starts = [self.scalar(context, b, t, v, "i64") for t, v in zip(sig.args[1:], start, strict=True)]
        st.row0, st.col0 = (*starts, const(I64, 0))[:2]
        return impl_ret_borrowed(context, b, sig.return_type, st._getvalue())

    def acquire(self, context: Any, b: ir.IRBuilder, sig: Any, stage: ir.Value) -> ir.Value:
        ty = sig.args[0]
        st = cgutils.create_struct_proxy(ty)(context, b, stage)
        storage, size, w = STORAGE[ty.source], DTYPES[ty.source], self.width(ty)
        st.count = smax(b, const(I64, 0), smin(b, b.sub(st.rows, st.row0), const(I64, ty.n)))
        st.cols = smax(b, const(I64, 0), smin(b, b.sub(st.columns, st.col0), const(I64, ty.k)))
        if ty.format:
            # What is done with the bytes depends on the product, see `window_of`; until then: where they start.
            st.window, st.ld = b.gep(st.source, [b.mul(st.row0, st.row_stride)]), st.col0
            return impl_ret_borrowed(context, b, sig.return_type, st._getvalue())
        one_page = const(I1, 1)
        if ty.paged:

            def on_page() -> list[ir.Value]:
                first, exists = self.page(b, st, st.row0)
                last = b.add(b.srem(st.row0, st.page_rows), st.count)
                return [first, b.and_(exists, b.icmp_signed("<=", last, st.page_rows))]

            nothing = [st.source, const(I1, 0)]
            origin, one_page = if_else(b, b.icmp_signed(">", st.count, const(I64, 0)), on_page, lambda: nothing)
        else:
            origin = b.gep(st.source, [b.add(b.mul(st.row0, st.row_stride), b.mul(st.col0, st.col_stride))])
        buffer = context.nrt.meminfo_data(b, st.meminfo)
        dense = b.icmp_signed("==", st.col_stride, const(I64, size))
        in_place = const(I1, 0)
        if ty.source == "float32":
            whole = b.icmp_signed("==", b.and_(st.row_stride, const(I64, 3)), const(I64, 0))
            in_place = b.and_(b.and_(dense, whole), one_page)
        with b.if_then(b.not_(in_place)), loop(b, st.count) as r:
            if ty.paged:
                row, exists = self.page(b, st, b.add(st.row0, r))
                columns = b.select(exists, st.cols, const(I64, 0))
            else:
                row, columns = b.gep(origin, [b.mul(r, st.row_stride)]), st.cols
            into = b.mul(r, const(I64, ty.k))
            fast = b.select(dense, floor_to(b, columns, w), const(I64, 0))
            with loop(b, fast, w, unrolled=True) as c:
                got = b.load(at(b, row, b.mul(c, const(I64, size)), vec(storage, w)), align=1)
                store_floats(b, from_memory(b, got, ty.source), buffer, b.add(into, c))
            with loop(b, columns, 1, fast) as c:
                got = b.load(at(b, row, b.mul(c, st.col_stride), storage), align=1)
                store_floats(b, from_memory(b, got, ty.source), buffer, b.add(into, c))
            if ty.paged:
                with loop(b, st.cols, 1, columns) as c:
                    store_floats(b, const(F32, 0.0), buffer, b.add(into, c))
        st.window = b.select(in_place, origin, buffer)
        st.ld = b.select(in_place, b.ashr(st.row_stride, const(I64, 2)), const(I64, ty.k))
        return impl_ret_borrowed(context, b, sig.return_type, st._getvalue())

    def window_of(self, context: Any, b: ir.IRBuilder, ty: Any, stage: ir.Value) -> Any:
        """An acquired stage whose window holds elements."""
        st = cgutils.create_struct_proxy(ty)(context, b, stage)
        if ty.format:
            self.decode_window(context, b, ty, st)
        return st

    @staticmethod
    def decode_window(context: Any, b: ir.IRBuilder, ty: Any, st: Any) -> None:
        """Decode the acquired window into the stage's buffer."""
        kind, unit = FORMATS[ty.format], math.gcd(ty.k, FORMATS[ty.format].elements)
        buffer, first, column = context.nrt.meminfo_data(b, st.meminfo), st.window, st.ld
        with loop(b, st.count) as r:
            row = b.gep(first, [b.mul(r, st.row_stride)])
            with loop(b, st.cols, unit) as c:
                into = b.add(b.mul(r, const(I64, ty.k)), c)
                for offset, vector in decode(b, kind, row, b.add(column, c), unit, ty.hw[0]):
                    store_floats(b, vector, buffer, b.add(into, const(I64, offset)))
        st.window, st.ld = buffer, const(I64, ty.k)

    def release(self, context: Any, b: ir.IRBuilder, sig: Any, stage: ir.Value) -> ir.Value:
        return impl_ret_borrowed(context, b, sig.return_type, stage)

    def finish(self, context: Any, b: ir.IRBuilder, sig: Any, stage: ir.Value) -> ir.Value:
        return context.get_dummy_value()
