"""Operands and stages: fetch, acquire, release."""

from __future__ import annotations

import contextlib
import functools
from typing import Any

from llvmlite import ir

from rocmkern.tile._lowering.hip.barriers import after_writing, before_writing, reading
from rocmkern.tile._lowering.hip.emit import (
    GLOBAL,
    LOCAL,
    POINTER,
    Lane,
    aggregate_of,
    array_of,
    elements_of,
    flags_of,
    from_group,
    items_of,
    keep_order,
    math,
    opaque,
    schedule_no_further,
    shared_code,
    shuffle,
    thread_index,
    uniform,
    vector_of,
    wave_index,
)
from rocmkern.tile._lowering.hip.fetches import Fetch, block_of
from rocmkern.tile._lowering.hip.layouts import (
    ACCESS,
    CHUNKS,
    CHUNKS_OF_ROWS,
    COPY_MEMBERS,
    ELEMENTS,
    LANE_LOCAL,
    LANE_SOURCE,
    WHOLE_ROWS,
    WHOLE_ROWS_OF_PAGES,
    Copy,
    LaneLayout,
    Pages,
    Parked,
    Weights,
    Window,
    operand_element,
)
from rocmkern.tile._lowering.hip.memory import (
    CHUNK_BYTES,
    bfloat16_bits,
    bfloat16_weights,
    in_space,
    is_below,
    load_from,
    local_room,
    memory_int,
    remaining,
    store_to,
    widen,
)
from rocmkern.tile._lowering.hip.quantized import decode_as
from rocmkern.tile._lowering.hip.softmax import SoftmaxLowering
from rocmkern.tile._lowering.hip.spots import Spot
from rocmkern.tile._lowering.shared.atoms import Atom
from rocmkern.tile._lowering.shared.ir_types import F16, I8, I32, I64, const
from rocmkern.tile._lowering.shared.tensors import call, if_else
from rocmkern.tile.formats import FORMATS
from rocmkern.tile.language.kinds import DTYPES


class StageLowering(SoftmaxLowering):
    """Operands and staged sources."""

    def stage(
        self, context: Any, b: ir.IRBuilder, sig: Any, cfg: Any, source: Any, n: Any, k: Any, *_: Any
    ) -> ir.Value:
        window = Window(sig.return_type)
        data, shape, strides = self.unpack_tensor(context, b, sig.args[1], source)
        members = [data, *shape, *strides]
        for copy in window.copies:
            pointer = b.addrspacecast(local_room(b, "rocmkern_stage", copy.places.bytes), POINTER)
            row, column, _ = block_of(b, window, copy, 0, thread_index(b))
            inside = self.spot(b, window, copy, row, column).at()
            outside = b.mul(row, b.trunc(strides[0], I32))
            outside = b.add(outside, b.mul(column, const(I32, window.source_bytes)))
            # Each takes one register; of known origin they would be extended to two, or taken apart again.
            inside, outside = (opaque(b, x, "v") for x in (inside, outside))
            chunks = ir.Constant(ir.ArrayType(copy.chunk, copy.per_lane * copy.block_rows), ir.Undefined)
            members += [pointer, inside, outside, self.access(b, window, copy, members[:5]), chunks]
        if window.paged:
            paging = window.value_type().elements[-Pages.MEMBERS :]
            members += [ir.Constant(ty, None if ty == POINTER else 0) for ty in paging]
        return aggregate_of(b, window.value_type(), members)

    def paged(
        self, context: Any, b: ir.IRBuilder, sig: Any, st: Any, cache: Any, head: Any, table: Any, stop: Any
    ) -> ir.Value:
        window = Window(sig.args[0])
        if not window.paged:
            return st
        data, (pages, _, page_rows, columns), strides = self.unpack_tensor(context, b, sig.args[1], cache)
        entries, (length,), (entry_stride,) = self.unpack_tensor(context, b, sig.args[3], table)
        offset = b.mul(self.scalar(context, b, sig.args[2], head, "i64"), strides[1])
        rows = self.scalar(context, b, sig.args[4], stop, "i64")
        source = [b.gep(data, [offset], source_etype=I8), rows, columns, strides[2], strides[3]]
        members = items_of(b, st)
        members[:5] = source
        # What an entry of the table, 32 bits, can name.
        pages = b.trunc(math(b, "smin", pages, const(I64, (1 << 31) - 1)), I32)
        regular = Pages.are_regular(b, page_rows, b.zext(pages, I64), strides[0], strides[2], entry_stride)
        for number, copy in enumerate(window.copies):
            access = self.access(b, window, copy, source, strides[0])
            best = b.and_(b.icmp_signed("==", access, const(I32, WHOLE_ROWS)), regular)
            members[self.member(number, ACCESS)] = b.select(best, const(I32, WHOLE_ROWS_OF_PAGES), access)
        paging = [entries, b.trunc(length, I32), entry_stride, b.trunc(page_rows, I32), strides[0], pages]
        members[-Pages.MEMBERS :] = paging
        return aggregate_of(b, window.value_type(), members)

    def fetch_quantized(self, b: ir.IRBuilder, ty: Any, st: ir.Value, row0: ir.Value, col0: ir.Value) -> ir.Value:
        """Load and decode this lane's part of a window of a quantized source."""
        window, kind = Window(ty), FORMATS[ty.format]
        source, rows, columns, row_stride, _ = items_of(b, st)[:5]
        base, thread = in_space(b, source, GLOBAL), opaque(b, thread_index(b), "v")
        some = b.and_(b.icmp_signed("<", row0, rows), b.icmp_signed("<", col0, columns))

        def chunks(copy: Copy) -> list:
            out, width = [], copy.block_columns
            for i in range(copy.per_lane):
                row, column, _ = block_of(b, window, copy, i, thread)
                column = b.add(col0, b.zext(column, I64))
                for r in range(copy.block_rows):
                    number = b.add(row0, b.zext(b.add(row, const(I32, r)), I64))
                    ok = b.and_(b.icmp_signed("<", number, rows), b.icmp_signed("<", column, columns))
                    line = b.gep(base, [b.mul(b.select(ok, number, row0), row_stride)], source_etype=I8)
                    items = decode_as(b, kind, line, b.select(ok, column, const(I64, 0)), width, window.dtype)
                    out.append(b.select(ok, b.bitcast(items, copy.chunk), const(copy.chunk, 0)))
            return out

        for number, copy in enumerate(window.copies):
            nothing = [const(copy.chunk, 0)] * (copy.per_lane * copy.block_rows)
            found = if_else(b, some, lambda copy=copy: chunks(copy), lambda nothing=nothing: nothing)
            st = b.insert_value(st, array_of(b, found), self.member(number, CHUNKS))
        keep_order(b)
        return st

    def fetch(self, context: Any, b: ir.IRBuilder, sig: Any, st: ir.Value, *start: ir.Value) -> ir.Value:
        window, source = Window(sig.args[0]), items_of(b, st)[:5]
        row0, *col0 = (self.scalar(context, b, t, v, "i64") for t, v in zip(sig.args[1:], start, strict=True))
        if sig.args[0].format:
            return self.fetch_quantized(b, sig.args[0], st, row0, (*col0, const(I64, 0))[0])
        if col0:
            # The source from that column on: a narrower one, which may have to be read in another way.
            source[0] = b.gep(source[0], [b.mul(col0[0], source[4])], source_etype=I8)
            source[2] = uniform(b, b.sub(source[2], col0[0]))
        pages, there = Pages(b, st) if window.paged else None, None
        if pages is not None and window.source == window.dtype and window.item_bytes == 2:
            # Looked up for both copies: LLVM keeps a branch even if the copy that it is for is deleted. With float32,
            # and elements that are converted, attention would not have enough scalar registers.
            access = b.extract_value(st, self.member(len(window.copies) - 1, ACCESS))
            inside = b.icmp_signed("<=", b.add(row0, const(I64, window.n)), source[1])
            regular = b.icmp_unsigned("==", opaque(b, access, "s"), const(I32, WHOLE_ROWS_OF_PAGES))
            there = pages.have_all(b, window, row0, b.and_(inside, regular))
        for number, copy in enumerate(window.copies):
            lane = b.extract_value(st, self.member(number, LANE_SOURCE))
            access = b.extract_value(st, self.member(number, ACCESS))
            if col0:
                access = uniform(b, self.access_from(b, window, copy, access, col0[0], source[2]))
            chunks = Fetch(b, window, copy, source, lane, access, row0, pages).chunks(there)
            st = b.insert_value(st, array_of(b, chunks), self.member(number, CHUNKS))
        keep_order(b)
        return st

    @staticmethod
    def member(copy: int, which: int) -> int:
        """Number of a copy's member in the value of a stage."""
        return COPY_MEMBERS + 5 * copy + which

    @staticmethod
    def access(
        b: ir.IRBuilder, window: Window, copy: Copy, source: list, page_stride: ir.Value | None = None
    ) -> ir.Value:
        """How the rows of a source can be read: WHOLE_ROWS, CHUNKS_OF_ROWS or ELEMENTS."""
        source, _, columns, row_stride, column_stride = source
        size, width = window.source_bytes, copy.block_columns

        def unlike(x: ir.Value, y: ir.Value) -> ir.Value:
            return b.icmp_signed("!=", x, y)

        bits = b.or_(b.ptrtoint(source, I64), row_stride)
        bits = b.and_(bits if page_stride is None else b.or_(bits, page_stride), const(I64, size * width - 1))
        bits = b.or_(bits, b.and_(columns, const(I64, width - 1)))
        slow = b.or_(unlike(column_stride, const(I64, size)), unlike(bits, const(I64, 0)))
        # A window's rows must lie within 2 GiB for 32-bit offsets.
        near = b.icmp_unsigned("<", row_stride, const(I64, (1 << 31) // window.n))
        fits = b.and_(near, b.icmp_signed(">=", columns, const(I64, window.k)))
        fast = b.select(fits, const(I32, WHOLE_ROWS), const(I32, CHUNKS_OF_ROWS))
        return b.select(slow, const(I32, ELEMENTS), fast)

    @staticmethod
    def access_from(
        b: ir.IRBuilder, window: Window, copy: Copy, access: ir.Value, col0: ir.Value, columns: ir.Value
    ) -> ir.Value:
        """How the rows of a source can be read from a column on, ``columns`` of which are left."""
        odd = b.and_(b.trunc(col0, I32), const(I32, copy.block_columns - 1))
        narrow = b.icmp_signed("<", columns, const(I64, window.k))
        most = b.select(narrow, const(I32, CHUNKS_OF_ROWS), const(I32, WHOLE_ROWS))
        most = b.select(b.icmp_signed("!=", odd, const(I32, 0)), const(I32, ELEMENTS), most)
        return b.select(b.icmp_unsigned("<", access, most), access, most)

    def acquire(self, context: Any, b: ir.IRBuilder, sig: Any, st: ir.Value) -> ir.Value:
        window, thread = Window(sig.args[0]), thread_index(b)
        before_writing(b)
        for number, copy in enumerate(window.copies):
            local, chunks = self.room(b, st, number), items_of(b, b.extract_value(st, self.member(number, CHUNKS)))
            commit = self.commit_transposed if copy.transposed else self.commit
            for i in range(copy.per_lane):
                exists, below = None, 0
                if copy.rows_apart is None:
                    row, column, exists = block_of(b, window, copy, i, thread)
                    spot = self.spot(b, window, copy, row, column)
                else:
                    spot = Spot(b, copy.places, b.extract_value(st, self.member(number, LANE_LOCAL)))
                    below = i * copy.rows_apart * (copy.shared_bytes if copy.transposed else copy.pitch)
                some = chunks[i * copy.block_rows : (i + 1) * copy.block_rows]
                with contextlib.nullcontext() if exists is None else b.if_then(exists):
                    commit(b, window, copy, local, spot, below, some)
        after_writing(b)
        return st

    @staticmethod
    def spot(b: ir.IRBuilder, window: Window, copy: Copy, row: ir.Value, column: ir.Value) -> Spot:
        """Where a block lies in shared memory."""
        if not window.matrix and window.atom.register_step == 2:
            # Even columns of a tile first, then odd ones: see `position`.
            column = b.or_(b.and_(column, const(I32, ~15)), b.lshr(b.and_(column, const(I32, 15)), const(I32, 1)))
        line, place = (column, row) if copy.transposed else (row, column)
        return Spot.of(b, copy.places, line, b.mul(place, const(I32, copy.shared_bytes)))

    @staticmethod
    def commit(
        b: ir.IRBuilder, window: Window, copy: Copy, local: ir.Value, spot: Spot, below: int, chunks: list
    ) -> None:
        """Write one block, which is one chunk of a row, to shared memory, ``below`` bytes on from a spot."""
        if window.matrix:
            store_to(b, chunks[0], local, spot.at(0, below), CHUNK_BYTES)
            return
        items = ir.VectorType(memory_int(window.dtype), copy.block_columns)
        floats = widen(b, b.bitcast(chunks[0], items), window.dtype)
        if window.atom.register_step == 1:
            for part in range(0, copy.block_columns, 4):
                run = shuffle(b, floats, floats, range(part, part + 4))
                store_to(b, run, local, spot.at(0, below + 4 * part), 16)
            return
        for odd in (0, 1):
            run = shuffle(b, floats, floats, range(odd, copy.block_columns, 2))
            store_to(b, run, local, spot.at(0, below + 32 * odd), 8)

    @staticmethod
    def commit_transposed(
        b: ir.IRBuilder, window: Window, copy: Copy, local: ir.Value, spot: Spot, below: int, chunks: list
    ) -> None:
        """Write one block, each column in one piece of 16 bytes."""
        lines, size = [elements_of(b, chunk) for chunk in chunks], copy.shared_bytes
        for c in range(copy.block_columns):
            offset = spot.at(c, below)
            if size == 4:
                store_to(b, vector_of(b, [line[c] for line in lines]), local, offset, CHUNK_BYTES)
                continue
            # v_perm takes the low or the high halves of two rows.
            halves = const(I32, 0x07060302 if c % 2 else 0x05040100)
            words = [
                call(b, "llvm.amdgcn.perm", I32, [lines[r + 1][c // 2], lines[r][c // 2], halves])
                for r in range(0, copy.block_rows, 2)
            ]
            store_to(b, vector_of(b, words), local, offset, CHUNK_BYTES)

    @staticmethod
    def room(b: ir.IRBuilder, st: ir.Value, copy: int) -> ir.Value:
        """Where a copy of a window lies."""
        return in_space(b, b.extract_value(st, COPY_MEMBERS + 5 * copy), LOCAL)

    def local(self, b: ir.IRBuilder, st: ir.Value, copy: int = 0) -> ir.Value:
        """Where a copy of a window lies that is read."""
        reading(b)
        return self.room(b, st, copy)

    def release(self, context: Any, b: ir.IRBuilder, sig: Any, st: ir.Value) -> ir.Value:
        # The barrier that protects the window stands at the next acquire.
        return st

    def finish(self, context: Any, b: ir.IRBuilder, sig: Any, st: ir.Value) -> ir.Value:
        return context.get_dummy_value()

    def load_operand(
        self, context: Any, b: ir.IRBuilder, sig: Any, cfg: Any, x: Any, index: Any, col0: Any, k: Any, valid: Any
    ) -> ir.Value:
        ty, out = sig.args[1], sig.return_type
        layout = LaneLayout(out)
        atom = layout.atom
        if DTYPES[out.dtype] == 4 or out.dtype not in atom.intrinsics:
            return self.join_blocks(b, self.gather(context, b, sig, x, index, col0, valid, out.k))
        data, shape, strides = self.unpack_tensor(context, b, ty, x)
        base, stride, columns = in_space(b, data, GLOBAL), strides[-1], shape[-1]
        origin = self.scalar(context, b, sig.args[3], col0, "i64")
        lane = Lane(b, atom)
        first = b.add(origin, b.zext(b.mul(lane.group, const(I32, atom.run_step)), I64))
        offsets = self.row_offsets(context, b, sig.args[2], index, strides[:-1], layout.row_blocks)
        part = min(atom.run, 8)
        element, run = operand_element(out.dtype), ir.VectorType(operand_element(out.dtype), atom.run)
        starts = [16 * t + e for t in range(out.k // 16) for e in range(0, atom.run, part)]

        def runs(parts: list) -> list:
            if part == atom.run:
                return parts
            return [shuffle(b, x, y, range(16)) for x, y in zip(parts[::2], parts[1::2], strict=True)]

        def vectors(offset: ir.Value) -> list:
            parts, ty_part = [], ir.VectorType(element, part)
            start, (left, left_again) = b.add(offset, b.shl(first, const(I64, 1))), remaining(b, first, columns, out.k)
            for column in starts:
                place = b.select(is_below(b, column, left), b.add(start, const(I64, 2 * column)), offset)
                value = load_from(b, base, place, ty_part, 2 * part)
                parts.append(b.select(is_below(b, column, left_again), value, ir.Constant(ty_part, None)))
            return runs(parts)

        def singles(offset: ir.Value) -> list:
            parts, (left, left_again) = [], remaining(b, first, columns, out.k)
            for column in starts:
                items, place = [], b.add(offset, b.mul(b.add(first, const(I64, column)), stride))
                for e in range(part):
                    value = load_from(b, base, b.select(is_below(b, column + e, left), place, offset), element, 2)
                    items.append(b.select(is_below(b, column + e, left_again), value, ir.Constant(element, None)))
                    place = b.add(place, stride)
                parts.append(vector_of(b, items))
                schedule_no_further(b)
            return runs(parts)

        bits = functools.reduce(b.or_, strides[:-1], b.ptrtoint(data, I64))
        unaligned = b.and_(bits, const(I64, 2 * part - 1))
        ragged = b.and_(b.or_(columns, origin), const(I64, part - 1))
        fast = b.and_(
            b.icmp_signed("==", stride, const(I64, 2)),
            b.icmp_signed("==", b.or_(unaligned, ragged), const(I64, 0)),
        )
        some = b.icmp_unsigned("!=", columns, const(I64, 0))
        blocks = []
        for ok, offset in zip(flags_of(b, valid), offsets, strict=True):
            blocks += if_else(
                b,
                b.and_(ok, some),
                lambda offset=offset: if_else(b, fast, lambda: vectors(offset), lambda: singles(offset)),
                lambda: [ir.Constant(run, None)] * (out.k // 16),
            )
        return self.keep_operand(b, out, blocks)

    @staticmethod
    def keep_operand(b: ir.IRBuilder, ty: Any, runs: list) -> ir.Value:
        """The value of an operand, from its fragments."""
        if not Parked.suits(ty):
            return array_of(b, runs)
        parked, lane = Parked(ty), Lane(b, LaneLayout(ty).atom)
        place = lane.row if parked.atom.run == 16 else lane.index
        place = b.add(
            b.mul(place, const(I32, parked.run_bytes)),
            b.mul(wave_index(b, parked.atom), const(I32, parked.wave_bytes)),
        )
        base = b.gep(local_room(b, "rocmkern_operand", parked.bytes), [place], source_etype=I8)
        for i, run in enumerate(runs):
            store_to(b, run, base, const(I32, i * parked.slot), CHUNK_BYTES)
        return b.addrspacecast(base, POINTER)

    def operand(self, context: Any, b: ir.IRBuilder, sig: Any, tile: ir.Value, like: Any) -> ir.Value:
        out = sig.return_type
        atom = LaneLayout(out).atom
        if DTYPES[out.dtype] == 4 or out.dtype not in atom.intrinsics:
            return tile

        weights = isinstance(sig.args[0], Weights)
        to_bfloat16 = bfloat16_weights if weights else bfloat16_bits

        def body(b: ir.IRBuilder, _: list, tile: list) -> list:
            runs = []
            for v in tile:
                if out.dtype == "float16":
                    short = b.fptrunc(v, ir.VectorType(F16, atom.registers))
                else:
                    short = to_bfloat16(b, v)
                runs.append(self.exchange_halves(b, atom, short) if atom.run == 16 else short)
            return runs

        name = f"operand_{out.hw[0]}_{out.hw[1]}x{out.hw[2]}_{out.dtype}_{out.m}x{out.k}_{int(weights)}"
        return self.keep_operand(b, out, shared_code(b, name, [], items_of(b, tile), body))

    @staticmethod
    def exchange_halves(b: ir.IRBuilder, atom: Atom, short: ir.Value) -> ir.Value:
        """gfx11: a lane holds every other column; bring in the rest from the other half of the wave, in order."""
        upper = b.icmp_unsigned("!=", Lane(b, atom).group, const(I32, 0))
        # Byte selectors of v_perm over (other, own): low halves, then high halves, with group 0's element first.
        low = b.select(upper, const(I32, 0x01000504), const(I32, 0x05040100))
        high = b.select(upper, const(I32, 0x03020706), const(I32, 0x07060302))
        words = []
        for own in elements_of(b, b.bitcast(short, ir.VectorType(I32, 4))):
            other = from_group(b, atom, own, 1)
            words += [call(b, "llvm.amdgcn.perm", I32, [other, own, selector]) for selector in (low, high)]
        return b.bitcast(vector_of(b, words), ir.VectorType(short.type.element, 16))
