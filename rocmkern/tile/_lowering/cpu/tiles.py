"""Tiles from and to memory."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

from llvmlite import ir
from numba.core import cgutils
from numba.core.imputils import impl_ret_new_ref

from rocmkern.tile._lowering.cpu.backend import TILE
from rocmkern.tile._lowering.cpu.emit import (
    all_of,
    any_of,
    element,
    floor_to,
    load_floats,
    loop,
    smax,
    smin,
    splat,
    store_floats,
    transpose,
    vec,
)
from rocmkern.tile._lowering.cpu.memory import STORAGE, from_memory, to_memory
from rocmkern.tile._lowering.cpu.quantized import decode
from rocmkern.tile._lowering.cpu.rows import RowLowering
from rocmkern.tile._lowering.shared.ir_types import F32, I8, I64, const
from rocmkern.tile._lowering.shared.tensors import at
from rocmkern.tile.formats import FORMATS, RUN
from rocmkern.tile.language.kinds import DTYPES


class TileLowering(RowLowering):
    """Operations that make, load, store and copy tiles."""

    def zeros(self, context: Any, b: ir.IRBuilder, sig: Any, *_: Any) -> ir.Value:
        value = self.new(context, b, sig.return_type)
        cgutils.memset(
            b,
            self.data(context, b, sig.return_type, value),
            const(I64, sig.return_type.m * sig.return_type.n * 4),
            0,
        )
        return impl_ret_new_ref(context, b, sig.return_type, value)

    def load_tile(
        self, context: Any, b: ir.IRBuilder, sig: Any, cfg: Any, x: Any, index: Any, col0: Any, n: Any, valid: Any
    ) -> ir.Value:
        ty, out = sig.args[1], sig.return_type
        columns = out.n if isinstance(out, TILE.Tile) else out.k
        value = self.new(context, b, out)
        data = self.data(context, b, out, value)
        shape = SimpleNamespace(m=out.m, n=columns, hw=out.hw)
        if isinstance(ty, TILE.Quantized):
            self.load_quantized(context, b, sig, x, index, col0, shape, valid, data)
            return impl_ret_new_ref(context, b, out, value)
        window = self.window(context, b, ty, x, sig.args[2], index, sig.args[3], col0, shape, valid)
        self.transfer(b, shape, data, ty.dtype, window, load=True)
        return impl_ret_new_ref(context, b, out, value)

    load_operand = load_tile

    def load_quantized(
        self, context: Any, b: ir.IRBuilder, sig: Any, x: Any, index: Any, col0: Any, shape: Any, valid: Any, data: Any
    ) -> None:
        """Decode a tile; a run of elements exists or does not, as blocks are whole."""
        ty = sig.args[1]
        kind = FORMATS[ty.format]
        addresses, extent, _ = self.row_addresses(context, b, ty, x, sig.args[2], index, shape.m)
        first, flags = self.scalar(context, b, sig.args[3], col0, "i64"), self.spill(b, valid)
        column_step, row_step = (shape.m, 1) if self.by_column(shape) else (1, shape.n)
        unit = math.gcd(shape.n, kind.elements)
        cgutils.memset(b, data, const(I64, shape.m * shape.n * 4), 0)
        columns = smin(b, b.sub(extent, first), const(I64, shape.n))
        with loop(b, shape.m) as r, b.if_then(self.flag(b, flags, r)), loop(b, columns, unit) as c:
            row = b.inttoptr(self.pick(b, addresses, r, I64, 8), ir.PointerType(I8))
            into = b.add(b.mul(r, const(I64, row_step)), b.mul(c, const(I64, column_step)))
            for offset, vector in decode(b, kind, row, b.add(first, c), unit, shape.hw[0]):
                start = b.add(into, const(I64, offset * column_step))
                if column_step == 1:
                    store_floats(b, vector, data, start)
                    continue
                for i in range(RUN):
                    store_floats(b, element(b, vector, i), data, b.add(start, const(I64, i * column_step)))

    def store_tile(
        self, context: Any, b: ir.IRBuilder, sig: Any, x: Any, index: Any, col0: Any, tile: Any, valid: Any
    ) -> ir.Value:
        ty, src = sig.args[0], sig.args[3]
        window = self.window(context, b, ty, x, sig.args[1], index, sig.args[2], col0, src, valid)
        self.transfer(b, src, self.data(context, b, src, tile), ty.dtype, window, load=False)
        return context.get_dummy_value()

    def window(
        self,
        context: Any,
        b: ir.IRBuilder,
        ty: Any,
        x: ir.Value,
        index_ty: Any,
        index: ir.Value,
        col0_ty: Any,
        col0: ir.Value,
        shape: Any,
        valid: ir.Value,
    ) -> SimpleNamespace:
        """Where the rows of a tile lie in a tensor, and how much of it exists there.

        ``row(r)`` is the address of a row, ``exists(r, n)`` whether all rows ``r .. r + n`` are there, and
        ``side_by_side(r, n)`` whether an element of each of them lies beside that of the next one.
        """
        addresses, extent, stride = self.row_addresses(context, b, ty, x, index_ty, index, shape.m)
        first = self.scalar(context, b, col0_ty, col0, "i64")
        left = b.sub(extent, first)
        flags, offset = self.spill(b, valid), b.mul(first, stride)

        def exists(r: ir.Value, n: int) -> ir.Value:
            some = b.load(at(b, flags, r, vec(I8, n)), align=1)
            return b.not_(any_of(b, b.icmp_unsigned("==", some, const(some.type, 0))))

        def side_by_side(r: ir.Value, n: int) -> ir.Value:
            places = b.load(at(b, addresses, b.mul(r, const(I64, 8)), vec(I64, n)), align=8)
            steps = ir.Constant(places.type, [i * DTYPES[ty.dtype] for i in range(n)])
            expected = b.add(splat(b, element(b, places, 0), n), steps)
            return all_of(b, b.icmp_signed("==", places, expected))

        return SimpleNamespace(
            row=lambda r: b.add(self.pick(b, addresses, r, I64, 8), offset),
            exists=exists,
            stride=stride,
            columns=smax(b, const(I64, 0), smin(b, left, const(I64, shape.n))),
            side_by_side=side_by_side,
        )

    def transfer(self, b: ir.IRBuilder, ty: Any, data: ir.Value, dtype: str, window: Any, load: bool) -> None:
        """Copy between a tile's buffer and memory. Loading, what does not exist becomes 0."""
        w, storage, size = self.width(ty), STORAGE[dtype], DTYPES[dtype]
        dense = b.icmp_signed("==", window.stride, const(I64, size))
        by_column = self.by_column(ty)
        panel = getattr(ty, "panel", ty.m)  # rows that lie side by side in column storage

        def buffer_index(r: ir.Value, c: ir.Value) -> ir.Value:
            if not by_column:
                return b.add(c, b.mul(r, const(I64, ty.n)))
            if panel == ty.m:
                return b.add(b.mul(c, const(I64, ty.m)), r)
            first = floor_to(b, r, panel)
            return b.add(b.add(b.mul(first, const(I64, ty.n)), b.mul(c, const(I64, panel))), b.sub(r, first))

        def memory(r: ir.Value, c: ir.Value, n: int) -> ir.Value:
            step = const(I64, size) if n else window.stride
            address = b.add(window.row(r), b.mul(c, step))
            return b.inttoptr(address, ir.PointerType(vec(storage, n) if n else storage))

        def move(r: ir.Value, c: ir.Value, n: int = 0) -> None:
            if load:
                got = b.load(memory(r, c, n), align=1)
                store_floats(b, from_memory(b, got, dtype), data, buffer_index(r, c))
            else:
                b.store(to_memory(b, load_floats(b, data, buffer_index(r, c), n), dtype), memory(r, c, n), align=1)

        def row_by_row(r: ir.Value, first: ir.Value) -> None:
            """Columns first .. of one row."""
            with b.if_then(window.exists(r, 1)), loop(b, window.columns, 1, first) as c:
                move(r, c)
            if load:
                start = b.select(window.exists(r, 1), window.columns, const(I64, 0))
                with loop(b, const(I64, ty.n), 1, start) as c:
                    store_floats(b, const(F32, 0.0), data, buffer_index(r, c))

        if by_column:
            whole = floor_to(b, window.columns, w)
            with loop(b, ty.m, w) as r0:
                fast = b.and_(window.exists(r0, w), dense)
                with b.if_then(fast), loop(b, whole, w) as c0:
                    rows = [b.add(r0, const(I64, i)) for i in range(w)]
                    columns = [b.add(c0, const(I64, i)) for i in range(w)]
                    if load:
                        got = [from_memory(b, b.load(memory(r, c0, w), align=1), dtype) for r in rows]
                        for c, vector in zip(columns, transpose(b, got), strict=True):
                            store_floats(b, vector, data, buffer_index(r0, c))
                    else:
                        got = transpose(b, [load_floats(b, data, buffer_index(r0, c), w) for c in columns])
                        for r, vector in zip(rows, got, strict=True):
                            b.store(to_memory(b, vector, dtype), memory(r, c0, w), align=1)
                # A transposed view: its columns are what the buffer has.
                turned = b.and_(b.and_(window.exists(r0, w), b.not_(dense)), window.side_by_side(r0, w))
                with b.if_then(turned), loop(b, window.columns, unrolled=True) as c:
                    address = b.add(window.row(r0), b.mul(c, window.stride))
                    place = b.inttoptr(address, ir.PointerType(vec(storage, w)))
                    if load:
                        got = b.load(place, align=1)
                        store_floats(b, from_memory(b, got, dtype), data, buffer_index(r0, c))
                    else:
                        b.store(to_memory(b, load_floats(b, data, buffer_index(r0, c), w), dtype), place, align=1)
                first = b.select(fast, whole, b.select(turned, window.columns, const(I64, 0)))
                with loop(b, b.add(r0, const(I64, w)), 1, r0) as r:
                    row_by_row(r, first)
        else:
            with loop(b, ty.m) as r:
                whole = b.select(dense, floor_to(b, window.columns, w), const(I64, 0))
                with b.if_then(window.exists(r, 1)), loop(b, whole, w, unrolled=True) as c:
                    move(r, c, w)
                row_by_row(r, whole)

    def copy(self, context: Any, b: ir.IRBuilder, sig: Any, x: ir.Value) -> ir.Value:
        ty = sig.return_type
        value = self.new(context, b, ty)
        size = const(I64, ty.m * ty.n * 4)
        cgutils.raw_memcpy(b, self.data(context, b, ty, value), self.data(context, b, ty, x), size, 1)
        return impl_ret_new_ref(context, b, ty, value)
