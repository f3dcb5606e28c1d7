"""The grid, and rows: one LLVM vector with an element per row."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.core import cgutils

from rocmkern.tile._lowering.cpu.backend import TILE
from rocmkern.tile._lowering.cpu.emit import (
    float_at,
    iota,
    load_floats,
    loop,
    reduced,
    splat,
    store_floats,
    vec,
)
from rocmkern.tile._lowering.cpu.layouts import BufferLowering
from rocmkern.tile._lowering.cpu.memory import STORAGE, from_memory, to_memory
from rocmkern.tile._lowering.shared.ir_types import F32, F64, I8, I32, I64, const
from rocmkern.tile._lowering.shared.tensors import as_int32, at, call


class RowLowering(BufferLowering):
    """Operations on rows and on the grid."""

    def config(self, context: Any, b: ir.IRBuilder, sig: Any, bound: Any, *index: ir.Value) -> ir.Value:
        value = ir.Constant(ir.ArrayType(I64, 3), ir.Undefined)
        for axis, i in enumerate(index):
            value = b.insert_value(value, i, axis)
        return value

    def block_id(self, context: Any, b: ir.IRBuilder, sig: Any, cfg: ir.Value, axis: Any) -> ir.Value:
        return b.extract_value(cfg, sig.args[1].literal_value)

    def row_value(self, context: Any, b: ir.IRBuilder, ty: Any, value: ir.Value, rows: Any) -> ir.Value:
        """Rows as they are, or a scalar in every row."""
        if isinstance(ty, TILE.Rows):
            return value
        return splat(b, self.scalar(context, b, ty, value, rows.kind), rows.m)

    def row_index(self, context: Any, b: ir.IRBuilder, sig: Any, *_: Any) -> ir.Value:
        return iota(sig.return_type.m)

    def full_rows(self, context: Any, b: ir.IRBuilder, sig: Any, cfg: Any, m: Any, value: ir.Value) -> ir.Value:
        rows = sig.return_type
        return splat(b, self.number_of_rows(context, b, sig.args[2], value, rows.kind), rows.m)

    def where(self, context: Any, b: ir.IRBuilder, sig: Any, condition: ir.Value, x: ir.Value, y: ir.Value) -> ir.Value:
        x, y = (self.row_value(context, b, t, v, sig.return_type) for t, v in zip(sig.args[1:], (x, y), strict=True))
        return b.select(b.icmp_unsigned("!=", condition, const(condition.type, 0)), x, y)

    def extreme(self, name: str, comparison: str) -> Any:
        def emit(context: Any, b: ir.IRBuilder, sig: Any, x: ir.Value, y: ir.Value) -> ir.Value:
            ty = sig.return_type
            x, y = (self.row_value(context, b, t, v, ty) for t, v in zip(sig.args, (x, y), strict=True))
            if ty.kind == "i32":
                return b.select(b.icmp_signed(comparison, x, y), x, y)
            return call(b, f"llvm.{name}.v{ty.m}f32", x.type, [x, y])

        return emit

    @property
    def minimum(self) -> Any:
        return self.extreme("minnum", "<")

    @property
    def maximum(self) -> Any:
        return self.extreme("maxnum", ">")

    def row_addresses(
        self, context: Any, b: ir.IRBuilder, ty: Any, x: ir.Value, index_ty: Any, index: ir.Value, m: int
    ) -> tuple:
        """Address of each row of a tensor (an array of m x i64 in memory), with the last extent and stride."""
        data, shape, strides = self.unpack_tensor(context, b, ty, x)
        wide = vec(I64, m)
        address = splat(b, b.ptrtoint(data, I64), m)
        for (t, v), stride in zip(self.index_entries(context, b, index_ty, index), strides, strict=False):
            i = b.sext(v, wide) if isinstance(t, TILE.Rows) else splat(b, self.scalar(context, b, t, v, "i64"), m)
            address = b.add(address, b.mul(i, splat(b, stride, m)))
        return self.spill(b, address), shape[-1], strides[-1]

    @staticmethod
    def spill(b: ir.IRBuilder, vector: ir.Value) -> ir.Value:
        """A vector in memory, as an i8 pointer."""
        return b.bitcast(cgutils.alloca_once_value(b, vector), ir.PointerType(I8))

    @staticmethod
    def pick(b: ir.IRBuilder, array: ir.Value, i: ir.Value, ty: ir.Type, size: int) -> ir.Value:
        """Element i of a spilled vector."""
        return b.load(at(b, array, b.mul(i, const(I64, size)), ty), align=size)

    def load_rows(self, context: Any, b: ir.IRBuilder, sig: Any, x: ir.Value, index: ir.Value, valid: Any) -> ir.Value:
        ty, m = sig.args[0], sig.return_type.m
        addresses, _, _ = self.row_addresses(context, b, ty, x, sig.args[1], index, m)
        flags, out = self.spill(b, valid), self.spill(b, const(vec(F32, m), 0.0))
        with loop(b, m) as r, b.if_then(self.flag(b, flags, r)):
            address = b.inttoptr(self.pick(b, addresses, r, I64, 8), ir.PointerType(STORAGE[ty.dtype]))
            store_floats(b, from_memory(b, b.load(address, align=1), ty.dtype), out, r)
        return b.load(b.bitcast(out, ir.PointerType(vec(F32, m))), align=4)

    def load_integers(
        self, context: Any, b: ir.IRBuilder, sig: Any, x: ir.Value, index: ir.Value, valid: Any
    ) -> ir.Value:
        ty, m = sig.args[0], sig.return_type.m
        addresses, _, _ = self.row_addresses(context, b, ty, x, sig.args[1], index, m)
        flags, out = self.spill(b, valid), self.spill(b, const(vec(I32, m), 0))
        with loop(b, m) as r, b.if_then(self.flag(b, flags, r)):
            address = b.inttoptr(self.pick(b, addresses, r, I64, 8), ir.PointerType(STORAGE[ty.dtype]))
            b.store(as_int32(b, b.load(address, align=1)), float_at(b, out, r, I32), align=4)
        return b.load(b.bitcast(out, ir.PointerType(vec(I32, m))), align=4)

    def store_rows(
        self, context: Any, b: ir.IRBuilder, sig: Any, x: ir.Value, index: ir.Value, values: Any, valid: Any
    ) -> ir.Value:
        ty, m = sig.args[0], sig.args[2].m
        addresses, _, _ = self.row_addresses(context, b, ty, x, sig.args[1], index, m)
        flags, out = self.spill(b, valid), self.spill(b, values)
        with loop(b, m) as r, b.if_then(self.flag(b, flags, r)):
            address = b.inttoptr(self.pick(b, addresses, r, I64, 8), ir.PointerType(STORAGE[ty.dtype]))
            if ty.dtype == "int32":
                value = self.pick(b, out, r, I32, 4)
            else:
                value = to_memory(b, load_floats(b, out, r), ty.dtype)
            b.store(value, address, align=1)
        return context.get_dummy_value()

    def last_to_arrive(
        self, context: Any, b: ir.IRBuilder, sig: Any, cfg: Any, counters: Any, index: Any, count: Any
    ) -> ir.Value:
        address, last = self.counter(context, b, sig, counters, index, count)
        place = b.inttoptr(address, ir.PointerType(I32))
        is_last = b.icmp_unsigned("==", b.atomic_rmw("add", place, const(I32, 1), "acq_rel"), last)
        with b.if_then(is_last):
            b.store_atomic(const(I32, 0), place, "monotonic", 4)
        return is_last

    def total(self, context: Any, b: ir.IRBuilder, sig: Any, x: ir.Value) -> ir.Value:
        return b.fpext(reduced(b, x, b.fadd), F64)

    def largest(self, context: Any, b: ir.IRBuilder, sig: Any, x: ir.Value) -> ir.Value:
        # Not `fmax`, which may do anything with NaN.
        return b.fpext(reduced(b, x, lambda u, v: call(b, f"llvm.maxnum.v{u.type.count}f32", u.type, [u, v])), F64)

    def flag(self, b: ir.IRBuilder, flags: ir.Value, r: ir.Value) -> ir.Value:
        return b.icmp_unsigned("!=", self.pick(b, flags, r, I8, 1), const(I8, 0))
