"""Windows on their way to shared memory: by cp.async where a source allows it, else element by element."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

from llvmlite import ir
from numba.cuda import cgutils

from rocmkern.tile._lowering.cuda.emit import LANES, PTX_TYPE, VOID, any_in_warp, asm, call_outlined, thread
from rocmkern.tile._lowering.cuda.layouts import (
    PAGED_MEMBERS,
    looked_up_members,
    looked_up_rows,
    rows_per_pass,
    worker_of,
)
from rocmkern.tile._lowering.cuda.memory import (
    REGISTERS,
    bits_to_float32,
    float32_to_pairs,
    join_pairs,
    load_bits,
    load_piece,
)
from rocmkern.tile._lowering.cuda.quantized import (
    decode_unit,
    ends_within_word,
    load_from,
    raw_words,
    reaches_beyond,
    unit_elements,
    units_per_thread,
)
from rocmkern.tile._lowering.cuda.softmax import SoftmaxLowering
from rocmkern.tile._lowering.cuda.windows import Chunks, states
from rocmkern.tile._lowering.shared.ir_types import I1, I8, I16, I32, I64, const
from rocmkern.tile._lowering.shared.tensors import call, from_byte, if_else
from rocmkern.tile.language.kinds import DTYPES

#: No page, and the offset of no row, in `FetchLowering.copy_looked_up`.
NO_ROW = 0xFFFFFFFF


class FetchLowering(SoftmaxLowering):
    """How a window is brought."""

    @staticmethod
    def paged_row(b: ir.IRBuilder, window: SimpleNamespace, row: ir.Value, exists: ir.Value) -> tuple:
        """Address of a row (i64) of a paged source, and whether it exists: its page must, too. No jumps."""
        row, page_rows = b.trunc(b.add(window.row0, row), I32), b.trunc(window.page_rows, I32)
        number, line = (b.zext(f(row, page_rows), I64) for f in (b.udiv, b.urem))
        exists = b.and_(exists, b.icmp_signed("<", number, window.entries))
        entry = load_bits(b, b.add(window.table, b.mul(number, window.entry_stride)), "int32", exists)
        page = b.sext(entry, I64)
        exists = b.and_(exists, b.icmp_unsigned("<", page, window.pages))
        offset = b.add(b.mul(page, window.page_stride), b.mul(line, window.row_stride))
        return b.add(window.source, b.select(exists, offset, const(I64, 0))), exists

    @staticmethod
    def units(b: ir.IRBuilder, ty: Any, st: Any) -> Iterator[tuple]:
        """This thread's parts of the window of a quantized source that is being fetched.

        Yields the address of the row, the first column, whether that exists, the row and the chunk of 16 bytes in the
        window, and whether the window has such a part.
        """
        unit, threads = unit_elements(ty), LANES * ty.hw[1]
        across, total = ty.k // unit, ty.n * ty.k // unit
        for i in range(units_per_thread(ty)):
            number = b.add(thread(b), const(I32, i * threads))
            inside = b.icmp_unsigned("<", number, const(I32, total)) if (i + 1) * threads > total else const(I1, 1)
            row, column = (
                b.udiv(number, const(I32, across)),
                b.mul(b.urem(number, const(I32, across)), const(I32, unit)),
            )
            place = row, b.udiv(column, const(I32, 16 // DTYPES[ty.dtype]))
            row, column = b.add(st.row0, b.zext(row, I64)), b.add(st.col0, b.zext(column, I64))
            exists = b.and_(b.icmp_signed("<", row, st.rows), b.icmp_signed("<", column, st.columns))
            yield b.add(st.source, b.mul(row, st.row_stride)), column, b.and_(exists, inside), place, inside

    def fetch_quantized(self, b: ir.IRBuilder, ty: Any, st: Any) -> None:
        """Load the bytes of this thread's part of a window into registers; they are decoded when they have arrived."""

        def loaded(cautious: bool) -> list[ir.Value]:
            raw: list[list[ir.Value]] = []
            for row, column, exists, _, _ in self.units(b, ty, st):
                decode_unit(b, ty.format, row, column, unit_elements(ty), load_from(b, exists, raw, cautious))
            return list(itertools.chain(*raw))

        if reaches_beyond(ty.format, unit_elements(ty)):
            ragged = ends_within_word(b, ty.format, st.source, st.rows, st.row_stride, st.columns)
            raw = if_else(b, ragged, lambda: loaded(True), lambda: loaded(False))
        else:
            raw = loaded(False)
        for name, word in zip(raw_words(ty), raw, strict=True):
            setattr(st, name, word)

    def acquire_quantized(self, b: ir.IRBuilder, ty: Any, st: Any) -> None:
        """Decode what was loaded and write it to the window; what does not exist was read as zeros."""
        raw, into = iter([getattr(st, name) for name in raw_words(ty)]), b.sub(st.both, st.window)
        for row, column, _, place, inside in self.units(b, ty, st):
            numbers = decode_unit(b, ty.format, row, column, unit_elements(ty), lambda *_: [next(raw)])
            words = float32_to_pairs(b, numbers, ty.dtype)
            (window_row, chunk), flag = place, b.zext(inside, I32)
            for i in range(0, len(words), 4):
                address = Chunks(b, ty, into, window_row, b.add(chunk, const(I32, i // 4))).first
                code = "{.reg .pred p; setp.ne.b32 p, $1, 0; @p st.shared.v4.b32 [$0], {$2, $3, $4, $5};}"
                asm(b, code, VOID, "r,r,r,r,r,r,~{memory}", [address, flag, *words[i : i + 4]], effect=True)

    @staticmethod
    def irregularity(b: ir.IRBuilder, ty: Any, st: Any, others: ir.Value | None = None) -> ir.Value:
        """Bits that are 0 where windows from column 0 on consist of whole aligned chunks (i32); see `fetch_regular`.

        They are not 0, either, where ``others`` are not.
        """
        if not rows_per_pass(ty) or ty.source != ty.dtype:
            return const(I32, 1)
        size = const(I64, DTYPES[ty.source])
        strides = b.or_(st.row_stride, st.page_stride) if ty.paged else st.row_stride
        bits = b.or_(b.or_(st.source, strides), b.mul(st.columns, size))
        bits = b.or_(b.and_(bits, const(I64, 15)), b.xor(st.column_stride, size))
        if ty.paged:
            # Offsets are kept in 32 bits, as multiples of 16 bytes, and keys and pages in 31.
            span = b.add(b.mul(st.pages, st.page_stride), b.mul(st.page_rows, st.row_stride))
            bits = b.or_(bits, b.lshr(b.or_(strides, span), const(I64, 36)))
            bits = b.or_(bits, b.lshr(b.or_(st.pages, st.page_rows), const(I64, 31)))
            bits = b.or_(bits, others)
        # A vote is what the compiler does not compute again in every step of a loop, and it is the same in all lanes.
        return b.zext(any_in_warp(b, b.icmp_signed("!=", bits, const(I64, 0))), I32)

    @staticmethod
    def is_regular(b: ir.IRBuilder, ty: Any, st: Any) -> ir.Value:
        """Whether `fetch_regular` copies the window that is being fetched."""
        column = b.and_(b.trunc(st.col0, I32), const(I32, 16 // DTYPES[ty.source] - 1))
        return b.icmp_signed("==", b.or_(st.irregular, column), const(I32, 0))

    @staticmethod
    def fetched_window(b: ir.IRBuilder, ty: Any, st: Any, into: ir.Value) -> SimpleNamespace:
        """The window that is being fetched: where it lies, where it goes, and what can be said of its layout."""
        size = const(I64, DTYPES[ty.source])
        source, columns = b.add(st.source, b.mul(st.col0, st.column_stride)), b.sub(st.columns, st.col0)
        row_bytes = b.mul(columns, size)
        strides = b.or_(st.row_stride, st.page_stride) if ty.paged else st.row_stride
        unaligned = b.and_(b.or_(source, strides), const(I64, 15))
        in_chunks = b.and_(b.icmp_signed("==", unaligned, const(I64, 0)), b.icmp_signed("==", st.column_stride, size))
        whole = b.icmp_signed("==", b.and_(row_bytes, const(I64, 15)), const(I64, 0))
        paging = {name: getattr(st, name) for name in (*PAGED_MEMBERS, "row0")} if ty.paged else {}
        return SimpleNamespace(
            source=source if ty.paged else b.add(source, b.mul(st.row0, st.row_stride)),
            rows=b.sub(st.rows, st.row0),
            columns=columns,
            row_stride=st.row_stride,
            column_stride=st.column_stride,
            into=into,
            row_bytes=row_bytes,
            in_chunks=in_chunks,
            whole=b.and_(in_chunks, whole),
            **paging,
        )

    @staticmethod
    def fetch_regular(b: ir.IRBuilder, ty: Any, st: Any, window: ir.Value, ahead: int) -> None:
        """Start to copy a window 16 bytes at a time; what lies past the end of the source becomes 0.

        The next one will be the one so many rows ahead.

        There is no jump in it: a jump in a main loop would keep the compiler from mixing the copies with the products
        around them. A window of another layout becomes 0, and `acquire` copies it.
        """
        rows, size = rows_per_pass(ty), const(I64, DTYPES[ty.source])
        chunks = ty.k * DTYPES[ty.dtype] // 16
        worker = worker_of(b, ty)
        row, chunk = b.udiv(worker, const(I32, chunks)), b.urem(worker, const(I32, chunks))
        column = b.zext(b.shl(chunk, const(I32, 4)), I64)
        places = Chunks(b, ty, window, row, chunk)
        columns = b.mul(b.sub(st.columns, st.col0), size)
        exists = b.and_(FetchLowering.is_regular(b, ty, st), b.icmp_signed("<", column, columns))
        if ty.paged and looked_up_members(ty):
            FetchLowering.copy_looked_up(b, ty, st, places, exists, b.add(column, b.mul(st.col0, size)), ahead)
            return
        # Rows of this thread that are left of the source, from its first on.
        rest = b.sub(st.rows, st.row0)
        many = b.icmp_signed(">", rest, const(I64, ty.n))
        left = b.sub(b.trunc(b.select(many, const(I64, ty.n), rest), I32), row)
        left = b.select(exists, left, const(I32, 0))
        column = b.add(column, b.mul(st.col0, size))
        address = b.add(
            b.add(st.source, b.add(b.mul(b.zext(row, I64), st.row_stride), column)), b.mul(st.row0, st.row_stride)
        )
        step = b.mul(st.row_stride, const(I64, rows))
        for first in range(0, ty.n, rows):
            into, offset = places.at(first)
            copy = f"cp.async.cg.shared.global.L2::128B [$0+{offset}], [$1], 16, p;"
            if ty.paged:
                inside, this = b.icmp_signed(">", left, const(I32, first)), b.zext(b.add(row, const(I32, first)), I64)
                address, exists = FetchLowering.paged_row(b, st, this, inside)
                address, skip = b.add(address, column), b.zext(b.not_(exists), I32)
                code = f"{{.reg .pred p; setp.ne.b32 p, $2, 0; {copy}}}"
            else:
                skip, code = left, f"{{.reg .pred p; setp.le.s32 p, $2, {first}; {copy}}}"
            asm(b, code, VOID, "r,l,r,~{memory}", [into, address, skip], effect=True)
            address = b.add(address, step)

    @staticmethod
    def copy_looked_up(
        b: ir.IRBuilder, ty: Any, st: Any, places: Chunks, exists: ir.Value, column: ir.Value, ahead: int
    ) -> None:
        """`fetch_regular` of a paged source, from a byte of its rows on; exists: whether this thread has any of them.

        Each row of a warp is looked up once, by a lane of its own, which tells the lanes that copy it. Entries of the
        table are loaded one window ahead, so that nobody waits for them in a loop over consecutive windows.
        """
        chunks, per_pass, worker = ty.k * DTYPES[ty.dtype] // 16, rows_per_pass(ty), worker_of(b, ty)
        beside = min(chunks, LANES)  # lanes that copy parts of the same row: each looks up those of other passes
        row = b.add(b.mul(b.urem(worker, const(I32, beside)), const(I32, per_pass)), b.udiv(worker, const(I32, chunks)))
        keys = [
            b.add(b.trunc(st.row0, I32), b.add(row, const(I32, first))) for first in range(0, ty.n, beside * per_pass)
        ]
        offsets = [FetchLowering.offset_of(b, st, *found) for found in FetchLowering.looked_up(b, ty, st, keys, ahead)]
        end, source = b.select(exists, const(I32, NO_ROW), const(I32, 0)), b.add(st.source, column)
        for number, first in enumerate(range(0, ty.n, per_pass)):
            into, place = places.at(first)
            segments = (LANES - beside) << 8 | LANES - 1
            code = f"shfl.sync.idx.b32 $0, $1, {number % beside}, {segments:#x}, 0xffffffff;"
            offset = asm(b, code, I32, "=r,r", [offsets[number // beside]], effect=True)
            code = (
                "{.reg .pred p; .reg .b64 a; setp.ge.u32 p, $1, $2; mad.wide.u32 a, $1, 16, $3; "
                f"cp.async.cg.shared.global.L2::128B [$0+{place}], [a], 16, p;}}"
            )
            asm(b, code, VOID, "r,r,r,l,~{memory}", [into, offset, end, source], effect=True)

    @staticmethod
    def looked_up(b: ir.IRBuilder, ty: Any, st: Any, keys: list[ir.Value], ahead: int) -> list[list[ir.Value]]:
        """`look_up` of the rows that are this lane's, which are so many ahead in the next window."""
        names = looked_up_rows(ty)

        def load() -> list[ir.Value]:
            found = if_else(
                b,
                b.icmp_signed("==", keys[0], st.next_key),
                lambda: [getattr(st, name) for name in itertools.chain(*names)],
                lambda: [x for key in keys for x in FetchLowering.look_up(b, st, key)],
                likely=True,
            )
            return [*found, *(x for key in keys for x in FetchLowering.look_up(b, st, b.add(key, const(I32, ahead))))]

        # A source beside another one, of the same rows of the same table, needs what the other one found. The compiler
        # sees that it does: both times these are the same values.
        state, page_rows = states[b.function], (st.divisor, st.reciprocal)
        given = [*keys, const(I32, ahead), st.table, st.entry_stride, st.listed, *page_rows]
        last = state.looked_up
        if last is not None and last.block is b.block and [x.type for x in last.given] == [x.type for x in given]:
            same = [b.icmp_signed("==", x, y) for x, y in zip(last.given, given, strict=True)]
            results = if_else(b, functools.reduce(b.and_, same), lambda: last.results, load, likely=True)
        else:
            results = load()
        state.looked_up = SimpleNamespace(block=b.block, given=given, results=results)
        for name, value in zip(itertools.chain(*names), results[len(results) // 2 :], strict=True):
            setattr(st, name, value)
        st.next_key = b.add(keys[0], const(I32, ahead))
        return [results[i : i + 2] for i in range(0, len(results) // 2, 2)]

    @staticmethod
    def look_up(b: ir.IRBuilder, st: Any, key: ir.Value) -> list[ir.Value]:
        """Page of a row of the source, `NO_ROW` if the table has none, and the row's number in the page."""
        number = call(b, "llvm.nvvm.mulhi.ui", I32, [key, st.reciprocal])
        line = b.sub(key, b.mul(number, st.divisor))
        # The reciprocal was rounded down, so the quotient may be too small, by 1.
        small = b.icmp_unsigned(">=", line, st.divisor)
        number, line = b.add(number, b.zext(small, I32)), b.select(small, b.sub(line, st.divisor), line)
        address = b.add(st.table, b.mul(b.zext(number, I64), st.entry_stride))
        code = f"{{.reg .pred p; setp.lt.u32 p, $2, $3; mov.b32 $0, {NO_ROW}; @p ld.global.L2::128B.b32 $0, [$1];}}"
        return [asm(b, code, I32, "=&r,l,r,r", [address, key, st.listed], effect=True), line]

    @staticmethod
    def offset_of(b: ir.IRBuilder, st: Any, page: ir.Value, line: ir.Value) -> ir.Value:
        """Pieces of 16 bytes from the start of the source to a row, `NO_ROW` if there is no such page."""
        of_page, of_row = (
            b.mul(x, b.trunc(b.lshr(stride, const(I64, 4)), I32))
            for x, stride in ((page, st.page_stride), (line, st.row_stride))
        )
        there = b.icmp_unsigned("<", page, b.trunc(st.pages, I32))
        return b.select(there, b.add(of_page, of_row), const(I32, NO_ROW))

    def fetch_irregular(self, b: ir.IRBuilder, ty: Any, window: SimpleNamespace) -> None:
        """Copy a window that `fetch_regular` could not, and filled with zeros."""
        converted = ty.source != ty.dtype
        with b.if_else(window.whole if converted else window.in_chunks) as (yes, no):
            with yes:
                self.fetch_outlined(b, ty, window, self.fetch_bytes if converted else self.fetch_chunks)
            with no:
                self.fetch_outlined(b, ty, window, self.fetch_elements)

    @staticmethod
    def fetch_outlined(b: ir.IRBuilder, ty: Any, window: SimpleNamespace, fetch: Callable) -> None:
        """``fetch(b, ty, window)`` in a function of its own, see `call_outlined`."""
        fields = ["source", "rows", "columns", "row_stride", "column_stride", "into", "row_bytes"]
        if ty.paged:
            fields += [*PAGED_MEMBERS, "row0"]

        def body(b: ir.IRBuilder, *values: ir.Value) -> None:
            fetch(b, ty, SimpleNamespace(**dict(zip(fields, values, strict=True))))

        name = f"{fetch.__name__}_{ty.n}_{ty.k}_{ty.source}_{ty.dtype}_{ty.hw[1]}_{int(ty.paged)}"
        call_outlined(b, name, [getattr(window, field) for field in fields], body)

    @staticmethod
    def fetch_chunks(b: ir.IRBuilder, ty: Any, window: SimpleNamespace) -> None:
        """Copy a window 16 bytes at a time, asynchronously; what lies past the end of the source becomes 0."""
        size, threads = DTYPES[ty.dtype], LANES * ty.hw[1]
        chunks = ty.k * size // 16
        loop = cgutils.for_range_slice(b, worker_of(b, ty), const(I32, ty.n * chunks), const(I32, threads), I32)
        with loop as (at, _):
            row, chunk = b.udiv(at, const(I32, chunks)), b.urem(at, const(I32, chunks))
            into = Chunks(b, ty, window.into, row, chunk).first
            wide_row, column = b.zext(row, I64), b.shl(b.zext(chunk, I64), const(I64, 4))
            address, exists = FetchLowering.row_of(b, ty, window, wide_row)
            left = b.select(exists, b.sub(window.row_bytes, column), const(I64, 0))
            address = b.add(address, column)
            some = b.and_(b.icmp_signed(">", left, const(I64, 0)), b.icmp_signed("<", left, const(I64, 16)))
            with b.if_else(some, likely=False) as (yes, no):
                with yes:
                    # An asynchronous copy of fewer bytes would still be a read of 16, some of them beyond the source.
                    elements = []
                    for i in range(0, 16, size):
                        there = b.icmp_signed(">", left, const(I64, i))
                        elements.append(load_bits(b, b.add(address, const(I64, i)), ty.dtype, there))
                    words = join_pairs(b, elements, ty.dtype)
                    code = "st.shared.v4.b32 [$0], {$1, $2, $3, $4};"
                    asm(b, code, VOID, "r,r,r,r,r,~{memory}", [into, *words], effect=True)
                with no:
                    nbytes = b.select(b.icmp_signed(">", left, const(I64, 0)), const(I32, 16), const(I32, 0))
                    code = "cp.async.cg.shared.global [$0], [$1], 16, $2;"
                    asm(b, code, VOID, "r,l,r,~{memory}", [into, address, nbytes], effect=True)
        # A wait is for groups: copies that belong to none may still be on their way behind it.
        asm(b, "cp.async.commit_group;", VOID, "~{memory}", [], effect=True)

    @staticmethod
    def row_of(b: ir.IRBuilder, ty: Any, window: SimpleNamespace, row: ir.Value) -> tuple:
        """Address of a row of a window (i64), and whether it exists."""
        exists = b.icmp_signed("<", row, window.rows)
        if ty.paged:
            return FetchLowering.paged_row(b, window, row, exists)
        return b.add(window.source, b.mul(row, window.row_stride)), exists

    @staticmethod
    def fetch_bytes(b: ir.IRBuilder, ty: Any, window: SimpleNamespace) -> None:
        """Copy and convert a window of elements of 8 bits, 16 at a time."""
        threads, chunks, size = LANES * ty.hw[1], ty.k // 16, DTYPES[ty.dtype]
        loop = cgutils.for_range_slice(b, worker_of(b, ty), const(I32, ty.n * chunks), const(I32, threads), I32)
        with loop as (at, _):
            row, chunk = b.udiv(at, const(I32, chunks)), b.urem(at, const(I32, chunks))
            column = b.shl(b.zext(chunk, I64), const(I64, 4))
            address, exists = FetchLowering.row_of(b, ty, window, b.zext(row, I64))
            exists = b.and_(exists, b.icmp_signed("<", column, window.row_bytes))
            words = load_piece(b, b.add(address, column), 16, exists)
            values = [b.lshr(word, const(I32, shift)) for word in words for shift in (0, 8, 16, 24)]
            floats = [from_byte(b, b.trunc(value, I8), ty.source) for value in values]
            packed = float32_to_pairs(b, floats, ty.dtype)
            for i in range(size):
                place = Chunks(b, ty, window.into, row, b.add(b.mul(chunk, const(I32, size)), const(I32, i))).first
                code, four = "st.shared.v4.b32 [$0], {$1, $2, $3, $4};", packed[4 * i : 4 * i + 4]
                asm(b, code, VOID, "r,r,r,r,r,~{memory}", [place, *four], effect=True)

    @staticmethod
    def fetch_elements(b: ir.IRBuilder, ty: Any, window: SimpleNamespace) -> None:
        """Copy a window element by element, for sources that are not aligned to 16 bytes or not dense."""
        size, threads = DTYPES[ty.dtype], LANES * ty.hw[1]
        bits = 8 * size
        loop = cgutils.for_range_slice(b, worker_of(b, ty), const(I32, ty.n * ty.k), const(I32, threads), I32)
        with loop as (at, _):
            row, column = b.udiv(at, const(I32, ty.k)), b.urem(at, const(I32, ty.k))
            wide_row, wide_column = b.zext(row, I64), b.zext(column, I64)
            address, exists = FetchLowering.row_of(b, ty, window, wide_row)
            inside = b.and_(exists, b.icmp_signed("<", wide_column, window.columns))
            value = load_bits(b, b.add(address, b.mul(wide_column, window.column_stride)), ty.source, inside)
            if ty.source != ty.dtype:
                value = bits_to_float32(b, value, ty.source)
                if size == 2:
                    value = asm(b, f"cvt.rn.{PTX_TYPE[ty.dtype]}.f32 $0, $1;", I16, "=h,f", [value])
                else:
                    value = b.bitcast(value, I32)
            byte = b.mul(column, const(I32, size))
            place = Chunks(b, ty, window.into, row, b.lshr(byte, const(I32, 4))).first
            into = b.or_(place, b.and_(byte, const(I32, 15)))
            letter = REGISTERS[f"b{bits}"][0]
            asm(
                b,
                f"st.shared.b{bits} [$0], $1;",
                VOID,
                f"r,{letter},~{{memory}}",
                [into, value],
                effect=True,
            )
