"""Operands and stages: made, fetched, acquired, released."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.cuda import cgutils
from numba.cuda.core.errors import TypingError

from rocmkern.tile._lowering.cuda.emit import (
    VOID,
    asm,
    barrier,
    meet_in_warp,
    pack,
    to_fragments,
    unpack,
)
from rocmkern.tile._lowering.cuda.fetches import FetchLowering
from rocmkern.tile._lowering.cuda.layouts import (
    PAGED_MEMBERS,
    OwnStage,
    StoredOperand,
    column_of_lane,
    is_packed,
    looked_up_members,
    row_of_lane,
    rows_per_pass,
    stored_row,
    warp_index,
    warps_of_rows,
)
from rocmkern.tile._lowering.cuda.memory import (
    pairs_to_float32,
)
from rocmkern.tile._lowering.cuda.quantized import (
    raw_words,
)
from rocmkern.tile._lowering.cuda.rings import RingStage, acquire_ring, fetch_ring, finish_ring, new_ring, release_ring
from rocmkern.tile._lowering.cuda.windows import (
    SHARED_ALIGNMENT,
    SHARED_MEMORY_SYMBOL,
    Chunks,
    FunctionState,
    is_for_groups,
    own_part,
    states,
    wait_for_fetches,
    wait_for_own_fetches,
    window_bytes,
)
from rocmkern.tile._lowering.shared.ir_types import I1, I32, I64, const
from rocmkern.tile.language.kernel import DEVICE_FUNCTIONS


class StageLowering(FetchLowering):
    """Operands and staged sources."""

    def operand(self, context: Any, b: ir.IRBuilder, sig: Any, tile: ir.Value, like: Any) -> ir.Value:
        if not is_packed(sig.return_type):
            return tile
        return pack(b, to_fragments(b, unpack(b, tile), sig.return_type.dtype))

    def load_operand(
        self, context: Any, b: ir.IRBuilder, sig: Any, cfg: Any, x: Any, index: Any, col0: Any, k: Any, valid: Any
    ) -> ir.Value:
        ty = sig.return_type
        values = self.gather(context, b, sig, x, index, col0, valid)
        if not is_packed(ty):
            values = pairs_to_float32(b, values, ty.dtype)
        if not isinstance(ty, StoredOperand):
            return pack(b, values)
        size = window_bytes(ty.window)
        address = self.shared_memory(context, b, "load_operand", ty.copies * size)
        if ty.copies > 1:
            address = b.add(address, b.mul(warp_index(b), const(I32, size)))
        self.store_operand(b, ty, address, values)
        return address

    @staticmethod
    def store_operand(b: ir.IRBuilder, ty: StoredOperand, address: ir.Value, fragments: list[ir.Value]) -> None:
        """Write the fragments of all warps into a window, where products can read them."""
        row = b.add(stored_row(b, ty), row_of_lane(b))
        steps, warps = ty.k // 16, warps_of_rows(ty)
        chunks = Chunks(b, ty.window, b.add(address, b.shl(column_of_lane(b), const(I32, 1))), row, const(I32, 0))
        for i, word in enumerate(fragments):
            tile, step, (half, below) = i // (4 * steps), i // 4 % steps, divmod(i % 4, 2)
            place, offset = chunks.at(16 * warps * tile + 8 * below, 2 * step + half)
            asm(b, f"st.shared.b32 [$0+{offset}], $1;", VOID, "r,r,~{memory}", [place, word], effect=True)
        if ty.copies > 1:
            meet_in_warp(b)
            return
        if is_for_groups(ty.window):
            asm(b, "fence.proxy.async.shared::cta;", VOID, "~{memory}", [], effect=True)
        barrier(b)

    @staticmethod
    def shared_memory(context: Any, b: ir.IRBuilder, operation: str, nbytes: int) -> ir.Value:
        """Address of shared memory that no other value of the kernel has (i32)."""
        name = context.fndesc.modname, context.fndesc.qualname
        if name in [(fn.__module__, fn.__qualname__) for fn in DEVICE_FUNCTIONS]:
            # It is compiled on its own, and would give out the same shared memory as its caller.
            raise TypingError(
                f"{operation}: {name[1]} is a device function; make the {operation} in the kernel and pass it"
            )
        state = states.setdefault(b.function, FunctionState())
        first = -(-state.bytes // SHARED_ALIGNMENT) * SHARED_ALIGNMENT
        state.bytes = first + nbytes
        return b.add(StageLowering.local_symbol(b, state.bytes), const(I32, first))

    @staticmethod
    def local_symbol(b: ir.IRBuilder, end: int) -> ir.Value:
        """Where the shared memory of a block begins (i32), for use up to byte ``end``."""
        symbol = f"{SHARED_MEMORY_SYMBOL}{end}"
        memory = b.module.globals.get(symbol)
        if memory is None:
            memory = ir.GlobalVariable(b.module, ir.ArrayType(ir.IntType(8), 0), symbol, addrspace=3)
            memory.linkage, memory.align = "external", SHARED_ALIGNMENT
        return b.trunc(b.ptrtoint(memory, I64), I32)

    def stage(
        self, context: Any, b: ir.IRBuilder, sig: Any, cfg: Any, source: ir.Value, n: Any, k: Any, *_: Any
    ) -> ir.Value:
        ty = sig.return_type
        if isinstance(ty, RingStage):
            memory = self.shared_memory(context, b, "stage", ty.nbytes)
            return new_ring(context, b, ty, sig.args[1], source, memory)
        own = isinstance(ty, OwnStage)
        windows = ty.num_stages + 1 if own else 2
        memory = self.shared_memory(context, b, "stage", windows * window_bytes(ty))
        data, shape, strides = self.unpack_tensor(context, b, sig.args[1], source)
        st = cgutils.create_struct_proxy(ty)(context, b)
        st.source = b.ptrtoint(data, I64)
        st.rows, st.columns = shape
        st.row_stride, st.column_stride = strides
        for name in raw_words(ty):
            setattr(st, name, const(I32, 0))
        st.window = b.add(memory, const(I32, window_bytes(ty)))
        st.both, st.row0, st.col0 = b.add(memory, st.window), const(I64, 0), const(I64, 0)
        if own:
            states[b.function].own_ahead += ty.num_stages - 1
            # The first acquire moves on from the last window to the first one.
            st.window = b.add(memory, const(I32, ty.num_stages * window_bytes(ty)))
            st.filled = st.memory = memory
        if not ty.paged:
            st.irregular = self.irregularity(b, ty, st)
            return st._getvalue()
        for name in PAGED_MEMBERS:
            setattr(st, name, const(I64, 0))
        for name in ("irregular", *looked_up_members(ty)):
            setattr(st, name, const(I32, 0))
        return st._getvalue()

    def paged(
        self, context: Any, b: ir.IRBuilder, sig: Any, stage: Any, cache: Any, head: Any, table: Any, stop: Any
    ) -> ir.Value:
        ty = sig.args[0]
        if not ty.paged:
            return stage
        st = cgutils.create_struct_proxy(ty)(context, b, stage)
        data, shape, strides = self.unpack_tensor(context, b, sig.args[1], cache)
        st.source = b.add(b.ptrtoint(data, I64), b.mul(self.scalar(context, b, sig.args[2], head, "i64"), strides[1]))
        st.pages, st.page_rows, st.columns = shape[0], shape[2], shape[3]
        st.page_stride, st.row_stride, st.column_stride = strides[0], strides[2], strides[3]
        entries, (st.entries,), (st.entry_stride,) = self.unpack_tensor(context, b, sig.args[3], table)
        st.table, st.rows = b.ptrtoint(entries, I64), self.scalar(context, b, sig.args[4], stop, "i64")
        state, page_rows = states.setdefault(b.function, FunctionState()), st.page_rows
        if looked_up_members(ty):
            # Sources beside each other divide by the rows of the first one's pages; those with others are irregular. So
            # what they find in the same table is the same, see `looked_up`.
            if state.page_rows is None or state.page_rows[0] is not b.block:
                state.page_rows = b.block, page_rows
            page_rows = state.page_rows[1]
            # Keys and extents are below 2 ** 31, see `irregularity`.
            listed = b.mul(st.entries, page_rows)
            listed = b.select(b.icmp_signed("<", st.rows, listed), st.rows, listed)
            listed = b.select(b.icmp_signed(">", listed, const(I64, 0)), listed, const(I64, 0))
            st.listed, st.divisor = b.trunc(listed, I32), b.trunc(page_rows, I32)
            st.reciprocal, st.next_key = b.udiv(const(I32, -1), st.divisor), const(I32, -1)
        st.irregular = self.irregularity(b, ty, st, b.xor(page_rows, st.page_rows))
        return st._getvalue()

    def fetch(self, context: Any, b: ir.IRBuilder, sig: Any, stage: ir.Value, *start: ir.Value) -> ir.Value:
        ty = sig.args[0]
        st = cgutils.create_struct_proxy(ty)(context, b, stage)
        starts = [self.scalar(context, b, t, v, "i64") for t, v in zip(sig.args[1:], start, strict=True)]
        row0, col0 = (*starts, const(I64, 0))[:2]
        self.unsettle(b)
        if isinstance(ty, RingStage):
            fetch_ring(b, ty, st, row0, col0)
            return st._getvalue()
        st.row0, st.col0 = row0, col0
        if isinstance(ty, OwnStage):
            self.fetch_own(b, ty, st)
            return st._getvalue()
        if ty.format:
            self.fetch_quantized(b, ty, st)
            return st._getvalue()
        if rows_per_pass(ty) and ty.source == ty.dtype:
            self.fetch_regular(b, ty, st, b.sub(st.both, st.window), ty.n)
        asm(b, "cp.async.commit_group;", VOID, "~{memory}", [], effect=True)
        return st._getvalue()

    def fetch_own(self, b: ir.IRBuilder, ty: OwnStage, st: Any) -> None:
        """Start to copy this warp's rows of a window, as a block of one warp does."""
        row0, (part, into) = st.row0, own_part(b, ty, st.filled)
        st.row0 = b.add(row0, b.zext(b.mul(warp_index(b), const(I32, part.n)), I64))
        irregular = const(I1, 1)
        if rows_per_pass(part) and part.source == part.dtype:
            irregular = b.not_(self.is_regular(b, part, st))
            self.fetch_regular(b, part, st, into, ty.n)
        with b.if_then(irregular, likely=False):
            wait_for_own_fetches(b, 0)  # for the zeros
            self.fetch_irregular(b, part, self.fetched_window(b, part, st, into))
        if part.paged and looked_up_members(part):
            states[b.function].looked_up.block = b.block
        asm(b, "cp.async.commit_group;", VOID, "~{memory}", [], effect=True)
        st.row0, st.filled = row0, self.next_own(b, ty, st, st.filled)

    @staticmethod
    def next_own(b: ir.IRBuilder, ty: OwnStage, st: Any, window: ir.Value) -> ir.Value:
        """The window after ``window``."""
        last = b.add(st.memory, const(I32, ty.num_stages * window_bytes(ty)))
        after = b.add(window, const(I32, window_bytes(ty)))
        return b.select(b.icmp_signed("==", window, last), st.memory, after)

    def acquire(self, context: Any, b: ir.IRBuilder, sig: Any, stage: ir.Value) -> ir.Value:
        ty = sig.args[0]
        st = cgutils.create_struct_proxy(ty)(context, b, stage)
        if isinstance(ty, RingStage):
            acquire_ring(b, ty, st)
            return st._getvalue()
        state = states.get(b.function)
        if isinstance(ty, OwnStage):
            if state is None or state.settled is not b.block:
                wait_for_own_fetches(b, state.own_ahead if state is not None else 0)
            if state is not None:
                state.settled = b.block
            st.window = self.next_own(b, ty, st, st.window)
            return st._getvalue()
        if ty.format:
            self.acquire_quantized(b, ty, st)
            wait_for_fetches(b, ty)
            if state is not None:
                state.settled = state.met = b.block
            st.window = b.sub(st.both, st.window)
            return st._getvalue()
        window = self.fetched_window(b, ty, st, b.sub(st.both, st.window))
        # One wait and one barrier serve all acquires that follow each other: every fetch before them has arrived, and
        # all threads are done with the windows that the next fetches overwrite.
        settled = state is not None and state.settled is b.block
        with b.if_then(b.not_(self.is_regular(b, ty, st)), likely=False):
            wait_for_fetches(b, ty)  # for the zeros
            self.fetch_irregular(b, ty, window)
            if settled:
                wait_for_fetches(b, ty)
        if not settled:
            wait_for_fetches(b, ty)
        if state is not None:
            state.settled = state.met = b.block
        st.window = b.sub(st.both, st.window)
        return st._getvalue()

    def release(self, context: Any, b: ir.IRBuilder, sig: Any, stage: ir.Value) -> ir.Value:
        self.unsettle(b)
        if isinstance(sig.args[0], RingStage):
            release_ring(b)
        return stage

    def finish(self, context: Any, b: ir.IRBuilder, sig: Any, stage: ir.Value) -> ir.Value:
        ty = sig.args[0]
        if isinstance(ty, RingStage):
            finish_ring(b, ty, cgutils.create_struct_proxy(ty)(context, b, stage))
        return context.get_dummy_value()

    @staticmethod
    def unsettle(b: ir.IRBuilder) -> None:
        """The next acquire needs a barrier of its own: something was fetched, read or released."""
        state = states.get(b.function)
        if state is not None:
            state.settled = state.met = None
