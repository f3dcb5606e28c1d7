"""The grid, and rows: one number for each row of a tile; loads, stores, reductions over a block."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from llvmlite import ir

from rocmkern.tile._lowering.hip.backend import NUMBA, TILE
from rocmkern.tile._lowering.hip.emit import (
    GLOBAL,
    POINTER,
    array_of,
    flags_of,
    items_of,
    launch_words,
    local_barrier,
    math,
    opaque,
    over_lanes,
    thread_index,
    uniform,
    word_at,
)
from rocmkern.tile._lowering.hip.layouts import LaneLayout, LineLayout
from rocmkern.tile._lowering.hip.memory import (
    in_space,
    load_from,
    local_room,
    memory_int,
    narrowed,
    over_waves,
    store_to,
    widen,
)
from rocmkern.tile._lowering.shared.ir_types import F32, F64, I8, I32, I64, const
from rocmkern.tile._lowering.shared.tensors import TensorLowering, as_int32, call, if_else
from rocmkern.tile.language.kinds import DTYPES


class RowLowering(TensorLowering):
    """The block, and operations on rows and scalars."""

    def config(self, context: Any, b: ir.IRBuilder, sig: Any, bound: ir.Value, *_: Any) -> ir.Value:
        return bound

    def tensor(self, context: Any, b: ir.IRBuilder, sig: Any, dtype: Any, *words: ir.Value) -> ir.Value:
        n = sig.return_type.ndim
        data, shape, strides = self.pointer(b, words[0]), list(words[1 : n + 1]), list(words[n + 1 :])
        return self.pack_tensor(context, b, sig.return_type, data, shape, strides)

    @staticmethod
    def pointer(b: ir.IRBuilder, word: ir.Value) -> ir.Value:
        """A generic pointer that was cast from global memory: LLVM sees through it and never emits a flat access."""
        return b.addrspacecast(b.inttoptr(word, ir.PointerType(I8, GLOBAL)), POINTER)

    def pack_tensor(self, context: Any, b: ir.IRBuilder, ty: Any, data: ir.Value, shape: list, strides: list) -> Any:
        return self.numbered(context, b, ty, super().pack_tensor(context, b, ty, data, shape, strides), const(I64, -1))

    @staticmethod
    def numbered(context: Any, b: ir.IRBuilder, ty: Any, x: ir.Value, number: ir.Value) -> ir.Value:
        """A tensor whose first word has this number among the words of a launch; -1: it is no argument."""
        proxy = NUMBA.cgutils.create_struct_proxy(ty)(context, b, x)
        proxy.number = number
        return proxy._getvalue()

    def argument(self, context: Any, b: ir.IRBuilder, sig: Any, x: ir.Value, number: Any) -> ir.Value:
        return self.numbered(context, b, sig.return_type, x, const(I64, sig.args[1].literal_value))

    def reread(self, context: Any, b: ir.IRBuilder, sig: Any, x: ir.Value) -> ir.Value:
        ty = sig.return_type
        data, shape, strides = self.unpack_tensor(context, b, ty, x)
        number = NUMBA.cgutils.create_struct_proxy(ty)(context, b, x).number

        def again() -> list:
            # Of unknown origin, so that they are not read before a loop that this is in.
            words = opaque(b, launch_words(b), "s")
            first, *others = (word_at(b, words, b.add(number, const(I64, i))) for i in range(1 + 2 * ty.ndim))
            return [self.pointer(b, first), *others]

        # Once all is inlined, the number is known.
        is_argument = b.icmp_signed(">=", number, const(I64, 0))
        data, *words = if_else(b, is_argument, again, lambda: [data, *shape, *strides])
        new = super().pack_tensor(context, b, ty, data, words[: ty.ndim], words[ty.ndim :])
        return self.numbered(context, b, ty, new, number)

    def block_id(self, context: Any, b: ir.IRBuilder, sig: Any, cfg: Any, axis: ir.Value) -> ir.Value:
        ids = [call(b, f"llvm.amdgcn.workgroup.id.{x}", I32, []) for x in "xyz"]
        axis = self.scalar(context, b, sig.args[1], axis, "i64")
        chosen = ids[0]
        for i in (1, 2):
            chosen = b.select(b.icmp_signed("==", axis, const(I64, i)), ids[i], chosen)
        return b.zext(chosen, I64)

    def operator_getitem(self, context: Any, b: ir.IRBuilder, sig: Any, x: ir.Value, index: ir.Value) -> ir.Value:
        item = super().operator_getitem(context, b, sig, x, index)
        # A number is loaded into vector registers, where everything computed from it would stay as well. That is right
        # for floats: arithmetic on them takes place there, and scalar registers are few.
        return uniform(b, item) if isinstance(item.type, ir.IntType) else item

    def row_index(self, context: Any, b: ir.IRBuilder, sig: Any, *_: Any) -> ir.Value:
        return array_of(b, LaneLayout(sig.return_type).row_numbers(b))

    def full_rows(self, context: Any, b: ir.IRBuilder, sig: Any, cfg: Any, m: Any, value: ir.Value) -> ir.Value:
        number = self.number_of_rows(context, b, sig.args[2], value, sig.return_type.kind)
        return array_of(b, [number] * LaneLayout(sig.return_type).row_blocks)

    def row_values(self, context: Any, b: ir.IRBuilder, like: Any, ty: Any, value: ir.Value, kind: str) -> ir.Value:
        """Rows as they are, or a scalar as rows."""
        if isinstance(ty, TILE.Rows):
            return value
        scalar = self.scalar(context, b, ty, value, kind)
        return array_of(b, [scalar] * LaneLayout(like).row_blocks)

    def on_rows(
        self, context: Any, b: ir.IRBuilder, sig: Any, args: tuple, body: Callable, join: Callable = array_of
    ) -> ir.Value:
        """Apply ``body(kind, *values)`` per row to rows and scalars."""
        like = next(t for t in sig.args if isinstance(t, TILE.Rows))
        values = [
            items_of(b, self.row_values(context, b, like, t, v, like.kind)) for t, v in zip(sig.args, args, strict=True)
        ]
        return join(b, [body(like.kind, *xs) for xs in zip(*values, strict=True)])

    def where(self, context: Any, b: ir.IRBuilder, sig: Any, condition: Any, x: Any, y: Any) -> ir.Value:
        out = sig.return_type
        sides = [
            items_of(b, self.row_values(context, b, out, t, v, out.kind))
            for t, v in zip(sig.args[1:], (x, y), strict=True)
        ]
        return array_of(b, [b.select(c, *xy) for c, *xy in zip(flags_of(b, condition), *sides, strict=True)])

    def minimum(self, context: Any, b: ir.IRBuilder, sig: Any, *args: Any) -> ir.Value:
        return self.on_rows(
            context, b, sig, args, lambda kind, x, y: math(b, "minnum" if kind == "f32" else "smin", x, y)
        )

    def maximum(self, context: Any, b: ir.IRBuilder, sig: Any, *args: Any) -> ir.Value:
        return self.on_rows(
            context, b, sig, args, lambda kind, x, y: math(b, "maxnum" if kind == "f32" else "smax", x, y)
        )

    def last_to_arrive(
        self, context: Any, b: ir.IRBuilder, sig: Any, cfg: Any, counters: Any, index: Any, count: Any
    ) -> ir.Value:
        address, last = self.counter(context, b, sig, counters, index, count)
        room, zero = local_room(b, "arrived", 4), const(I32, 0)
        # Every wave makes what it wrote visible to the device, then one lane counts for the block.
        b.fence("release", "agent")
        local_barrier(b)
        with b.if_then(b.icmp_unsigned("==", thread_index(b), zero)):
            place = b.inttoptr(address, ir.PointerType(I32, GLOBAL))
            before = b.atomic_rmw("add", place, const(I32, 1), "monotonic")
            is_last = b.icmp_unsigned("==", before, last)
            with b.if_then(is_last):
                b.store_atomic(zero, place, "monotonic", 4)
            store_to(b, b.zext(is_last, I32), room, zero, 4)
        local_barrier(b)
        arrived = load_from(b, room, zero, I32, 4)
        local_barrier(b)  # before the next answer is written there
        b.fence("acquire", "agent")
        return b.icmp_unsigned("!=", math(b, "amdgcn.readfirstlane", arrived), zero)

    def row_offsets(self, context: Any, b: ir.IRBuilder, ty: Any, value: Any, strides: list, blocks: int) -> list:
        """Byte offset of every row (per row block) that an index of rows and scalars selects."""
        offsets = [const(I64, 0)] * blocks
        for (t, v), stride in zip(self.index_entries(context, b, ty, value), strides, strict=False):
            if isinstance(t, TILE.Rows):
                parts = [b.mul(b.sext(i, I64), stride) for i in items_of(b, v)]
            else:
                parts = [b.mul(self.scalar(context, b, t, v, "i64"), stride)] * blocks
            offsets = [b.add(x, y) for x, y in zip(offsets, parts, strict=True)]
        return offsets

    def load_rows(self, context: Any, b: ir.IRBuilder, sig: Any, x: Any, index: Any, valid: Any) -> ir.Value:
        ty = sig.args[0]
        data, _, strides = self.unpack_tensor(context, b, ty, x)
        base, blocks = in_space(b, data, GLOBAL), LaneLayout(sig.return_type).row_blocks
        offsets = self.row_offsets(context, b, sig.args[1], index, strides, blocks)

        integers = sig.return_type.kind == "i32"
        zero = const(I32 if integers else F32, 0)

        def one(offset: ir.Value) -> list:
            bits = load_from(b, base, offset, memory_int(ty.dtype), DTYPES[ty.dtype])
            return [as_int32(b, bits) if integers else widen(b, bits, ty.dtype)]

        return array_of(
            b,
            [
                if_else(b, ok, lambda offset=offset: one(offset), lambda: [zero])[0]
                for ok, offset in zip(flags_of(b, valid), offsets, strict=True)
            ],
        )

    load_integers = load_rows

    def store_rows(self, context: Any, b: ir.IRBuilder, sig: Any, x: Any, index: Any, values: Any, valid: Any) -> Any:
        ty, layout = sig.args[0], LaneLayout(sig.args[2])
        data, _, strides = self.unpack_tensor(context, b, ty, x)
        base = in_space(b, data, GLOBAL)
        offsets = self.row_offsets(context, b, sig.args[1], index, strides, layout.row_blocks)
        first = layout.is_first(b)
        for ok, offset, value in zip(flags_of(b, valid), offsets, items_of(b, values), strict=True):
            with b.if_then(b.and_(ok, first)):
                bits = value if ty.dtype == "int32" else narrowed(b, value, ty.dtype)
                store_to(b, bits, base, offset, DTYPES[ty.dtype])
        return context.get_dummy_value()

    def over_block(self, b: ir.IRBuilder, ty: Any, x: ir.Value, join: Callable) -> ir.Value:
        """Join float32 rows over the block; the result is a float64 in scalar registers."""
        layout = LaneLayout(ty)
        atom = layout.atom
        value = functools.reduce(join, items_of(b, x))
        # Over the lanes of a wave that have different rows, then over such waves.
        first, end = (layout.lanes, atom.wave) if isinstance(layout, LineLayout) else (1, atom.rows)
        value = over_lanes(b, atom, join, value, first, end)
        value = over_waves(b, atom, join, value, layout.waves, max(1, first // atom.wave))
        bits = math(b, "amdgcn.readfirstlane", b.bitcast(value, I32))
        return b.fpext(b.bitcast(bits, F32), F64)

    def total(self, context: Any, b: ir.IRBuilder, sig: Any, x: Any) -> ir.Value:
        return self.over_block(b, sig.args[0], x, b.fadd)

    def largest(self, context: Any, b: ir.IRBuilder, sig: Any, x: Any) -> ir.Value:
        return self.over_block(b, sig.args[0], x, lambda u, v: math(b, "maxnum", u, v))
