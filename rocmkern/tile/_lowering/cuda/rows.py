"""The grid, and rows: one number for each row of a tile; loads, stores, reductions over a block."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from llvmlite import ir

from rocmkern.tile._lowering.cuda.backend import TILE, can_overlap
from rocmkern.tile._lowering.cuda.emit import (
    LANES,
    VOID,
    any_in_block,
    asm,
    barrier,
    fmax,
    fmin,
    lane_index,
    over_lanes,
    pack,
    register,
    thread,
    tree,
    unpack,
)
from rocmkern.tile._lowering.cuda.layouts import (
    Lines,
    column_of_lane,
    complete_rows,
    first_row,
    is_line,
    is_writer,
    m_tiles,
    row_of_lane,
    slots_of,
)
from rocmkern.tile._lowering.cuda.memory import bits_to_float32, load_bits, store_bits, store_float32
from rocmkern.tile._lowering.cuda.windows import load_shared
from rocmkern.tile._lowering.shared.ir_types import F32, F64, I32, I64, const
from rocmkern.tile._lowering.shared.tensors import TensorLowering, as_int32
from rocmkern.tile.language.kinds import threads_per_row


class RowLowering(TensorLowering):
    """The block, and operations on rows and scalars."""

    def config(self, context: Any, b: ir.IRBuilder, sig: Any, bound: Any, *index: ir.Value) -> ir.Value:
        if can_overlap(sig.return_type.cfg):
            asm(b, "griddepcontrol.wait;", VOID, "~{memory}", [], effect=True)
        return context.get_dummy_value()

    def block_id(self, context: Any, b: ir.IRBuilder, sig: Any, cfg: Any, axis: Any) -> ir.Value:
        return b.zext(register(b, "ctaid." + "xyz"[sig.args[1].literal_value]), I64)

    def last_to_arrive(
        self, context: Any, b: ir.IRBuilder, sig: Any, cfg: Any, counters: Any, index: Any, count: Any
    ) -> ir.Value:
        address, last = self.counter(context, b, sig, counters, index, count)
        # The first thread's release covers what the others wrote before the barrier, and its acquire what they read
        # behind the next one (PTX ISA, memory consistency model: causality order).
        barrier(b)
        first = b.icmp_signed("==", thread(b), const(I32, 0))
        code = "{.reg .pred p; setp.ne.b32 p, $3, 0; mov.b32 $0, -1; @p atom.acq_rel.gpu.global.inc.u32 $0, [$1], $2;}"
        before = asm(b, code, I32, "=&r,l,r,r,~{memory}", [address, last, b.zext(first, I32)], effect=True)
        return any_in_block(b, b.and_(first, b.icmp_signed("==", before, last)))

    def per_slot(self, context: Any, b: ir.IRBuilder, ty: Any, value: ir.Value, like: Any) -> list[ir.Value]:
        """The values of rows, or a scalar once for each row of ``like``."""
        if isinstance(ty, TILE.Rows):
            return complete_rows(b, ty, value)
        return [self.scalar(context, b, ty, value, like.kind)] * slots_of(like)

    def row_index(self, context: Any, b: ir.IRBuilder, sig: Any, *_: Any) -> ir.Value:
        first = first_row(b, sig.return_type)
        if is_line(sig.return_type):
            numbers = range(0, sig.return_type.m, Lines.teams(sig.return_type))
            return pack(b, [b.add(first, const(I32, i)) for i in numbers])
        first = b.add(first, row_of_lane(b))
        return pack(b, [b.add(first, const(I32, 8 * i)) for i in range(2 * m_tiles(sig.return_type))])

    def full_rows(self, context: Any, b: ir.IRBuilder, sig: Any, cfg: Any, m: Any, value: ir.Value) -> ir.Value:
        number = self.number_of_rows(context, b, sig.args[2], value, sig.return_type.kind)
        return pack(b, [number] * slots_of(sig.return_type))

    def where(self, context: Any, b: ir.IRBuilder, sig: Any, condition: ir.Value, x: ir.Value, y: ir.Value) -> ir.Value:
        values = (self.per_slot(context, b, t, v, sig.return_type) for t, v in zip(sig.args[1:], (x, y), strict=True))
        return pack(b, [b.select(*c) for c in zip(unpack(b, condition), *values, strict=True)])

    def minimum(self, context: Any, b: ir.IRBuilder, sig: Any, x: ir.Value, y: ir.Value) -> ir.Value:
        def emit(p: ir.Value, q: ir.Value) -> ir.Value:
            return fmin(b, p, q) if p.type == F32 else b.select(b.icmp_signed("<", p, q), p, q)

        return self.combine_rows(context, b, sig, x, y, emit)

    def maximum(self, context: Any, b: ir.IRBuilder, sig: Any, x: ir.Value, y: ir.Value) -> ir.Value:
        def emit(p: ir.Value, q: ir.Value) -> ir.Value:
            return fmax(b, p, q) if p.type == F32 else b.select(b.icmp_signed(">", p, q), p, q)

        return self.combine_rows(context, b, sig, x, y, emit)

    def combine_rows(self, context: Any, b: ir.IRBuilder, sig: Any, x: Any, y: Any, emit: Callable) -> ir.Value:
        """``emit`` on each pair of values of two rows, or of rows and a scalar."""
        like = next(t for t in sig.args if isinstance(t, TILE.Rows))
        values = (self.per_slot(context, b, t, v, like) for t, v in zip(sig.args, (x, y), strict=True))
        return pack(b, [emit(*pair) for pair in zip(*values, strict=True)])

    def row_addresses(self, context: Any, b: ir.IRBuilder, ty: Any, x: Any, index_ty: Any, index: Any, m: Any) -> tuple:
        """Address of each row that this lane has, of a tensor whose last axes are not indexed; shape and strides."""
        data, shape, strides = self.unpack_tensor(context, b, ty, x)
        addresses = [b.ptrtoint(data, I64)] * slots_of(m)
        for (t, v), stride in zip(self.index_entries(context, b, index_ty, index), strides, strict=False):
            if isinstance(t, TILE.Rows):
                offsets = [b.mul(b.sext(i, I64), stride) for i in unpack(b, v)]
            else:
                offsets = [b.mul(self.scalar(context, b, t, v, "i64"), stride)] * len(addresses)
            addresses = [b.add(a, o) for a, o in zip(addresses, offsets, strict=True)]
        return addresses, shape, strides

    def load_rows(self, context: Any, b: ir.IRBuilder, sig: Any, x: ir.Value, index: ir.Value, valid: Any) -> ir.Value:
        ty = sig.args[0]
        addresses, _, _ = self.row_addresses(context, b, ty, x, sig.args[1], index, sig.return_type)
        pairs = zip(addresses, unpack(b, valid), strict=True)
        return pack(b, [bits_to_float32(b, load_bits(b, a, ty.dtype, v), ty.dtype) for a, v in pairs])

    def load_integers(
        self, context: Any, b: ir.IRBuilder, sig: Any, x: ir.Value, index: ir.Value, valid: Any
    ) -> ir.Value:
        ty = sig.args[0]
        addresses, _, _ = self.row_addresses(context, b, ty, x, sig.args[1], index, sig.return_type)
        pairs = zip(addresses, unpack(b, valid), strict=True)
        return pack(b, [as_int32(b, load_bits(b, a, ty.dtype, v)) for a, v in pairs])

    def store_rows(
        self, context: Any, b: ir.IRBuilder, sig: Any, x: ir.Value, index: ir.Value, values: ir.Value, valid: Any
    ) -> ir.Value:
        ty = sig.args[0]
        addresses, _, _ = self.row_addresses(context, b, ty, x, sig.args[1], index, sig.args[2])
        first_lane = b.icmp_signed("==", column_of_lane(b, sig.args[2]), const(I32, 0))
        rows = complete_rows(b, sig.args[2], values)
        for a, value, v in zip(addresses, rows, is_writer(b, sig.args[2], unpack(b, valid)), strict=True):
            if ty.dtype == "int32":
                store_bits(b, a, value, b.and_(v, first_lane))
            else:
                store_float32(b, a, value, ty.dtype, b.and_(v, first_lane))
        return context.get_dummy_value()

    def over_block(self, b: ir.IRBuilder, ty: Any, x: ir.Value, combine: Callable) -> ir.Value:
        """Combine float32 rows over the block; a float64."""
        value = functools.reduce(combine, complete_rows(b, ty, x))
        alike = threads_per_row(ty.hw) or 4  # lanes side by side that have the same rows
        value = over_lanes(b, value, combine, LANES, alike)
        return b.fpext(self.over_warps(b, value, combine, ty.hw[1], max(1, alike // LANES)), F64)

    @staticmethod
    def over_warps(b: ir.IRBuilder, value: ir.Value, combine: Callable, count: int, step: int = 1) -> ir.Value:
        """Combine what each lane of a warp has over ``count`` warps side by side, or over every ``step`` of them."""
        if count == step:
            return value
        room = b.module.globals.get("over_warps")
        if room is None:
            room = ir.GlobalVariable(b.module, ir.ArrayType(F32, 32), "over_warps", addrspace=3)
            room.linkage, room.initializer, room.align = "internal", ir.Constant(room.value_type, ir.Undefined), 16
        start, warp = b.trunc(b.ptrtoint(room, I64), I32), b.lshr(thread(b), const(I32, 5))
        with b.if_then(b.icmp_signed("==", lane_index(b), const(I32, 0))):
            own = b.add(start, b.shl(warp, const(I32, 2)))
            asm(b, "st.shared.b32 [$0], $1;", VOID, "r,f,~{memory}", [own, value], effect=True)
        barrier(b)
        first = b.add(start, b.shl(b.mul(b.udiv(warp, const(I32, count)), const(I32, count)), const(I32, 2)))
        at_once = next(n for n in (4, 2, 1) if count % n == 0)
        parts = [x for i in range(0, count, at_once) for x in load_shared(b, first, 4 * i, at_once)]
        barrier(b)  # before the next number is written there
        return tree(b, parts[::step], combine)

    def total(self, context: Any, b: ir.IRBuilder, sig: Any, x: ir.Value) -> ir.Value:
        return self.over_block(b, sig.args[0], x, b.fadd)

    def largest(self, context: Any, b: ir.IRBuilder, sig: Any, x: ir.Value) -> ir.Value:
        return self.over_block(b, sig.args[0], x, functools.partial(fmax, b))
