"""The window of a stage on its way: this lane's chunks of it, in registers."""

from __future__ import annotations

from collections.abc import Iterator

from llvmlite import ir

from rocmkern.tile._lowering.hip.emit import (
    GLOBAL,
    opaque,
    pinned,
    schedule_no_further,
    splat,
    thread_index,
    uniform,
    vector_of,
)
from rocmkern.tile._lowering.hip.layouts import (
    ELEMENTS,
    WHOLE_ROWS,
    WHOLE_ROWS_OF_PAGES,
    Copy,
    Pages,
    Window,
)
from rocmkern.tile._lowering.hip.memory import (
    bfloat16_bits,
    in_space,
    is_below,
    load_from,
    memory_int,
    remaining,
    widen,
)
from rocmkern.tile._lowering.shared.tensors import F16, I8, I32, I64, const, if_else


def block_of(b: ir.IRBuilder, window: Window, copy: Copy, i: int, thread: ir.Value) -> tuple:
    """First row and column (i32) of this lane's i-th block, and whether there is such a block (None: always)."""
    number = b.add(thread, const(I32, i * window.threads))
    across = const(I32, window.k // copy.block_columns)
    exists = None
    if (i + 1) * window.threads > copy.blocks:
        exists = b.icmp_unsigned("<", number, const(I32, copy.blocks))
        number = b.select(exists, number, const(I32, 0))
    row = b.mul(b.udiv(number, across), const(I32, copy.block_rows))
    return row, b.mul(b.urem(number, across), const(I32, copy.block_columns)), exists


class Fetch:
    """Loads a lane's part of a window: a chunk for every row of every block.

    Where the window lies inside the source, in whole rows, addresses are uniform and each lane adds a short offset.
    Elsewhere chunks are loaded as vectors, or element by element.
    """

    def __init__(
        self,
        b: ir.IRBuilder,
        window: Window,
        copy: Copy,
        source: list,
        lane: ir.Value,
        access: ir.Value,
        row0: ir.Value,
        pages: Pages | None,
    ):
        self.b, self.window, self.copy, self.lane, self.row0, self.pages = b, window, copy, lane, row0, pages
        source, self.rows, columns, self.row_stride, self.column_stride = source
        # The best way is known before a loop. For the others, what is computed from these would also be kept around it,
        # a lane mask for each comparison, if their origin were known.
        self.whole_rows = b.icmp_unsigned("==", access, const(I32, WHOLE_ROWS))
        self.columns, self.access = opaque(b, columns, "s"), opaque(b, access, "s")
        self.base, self.nbytes = in_space(b, source, GLOBAL), window.source_bytes * copy.block_columns

    def chunks(self, there: ir.Value | None) -> list:
        """The chunks.

        ``there``: whether the window lies inside a paged source, and all its pages are there and regular; None: this is
        not known.
        """
        b, pages = self.b, self.pages
        some = b.and_(b.icmp_signed("<", self.row0, self.rows), b.icmp_signed(">", self.columns, const(I64, 0)))
        inside = b.icmp_signed("<=", b.add(self.row0, const(I64, self.window.n)), self.rows)
        best = b.and_(inside, self.whole_rows)
        slow = b.icmp_unsigned("==", self.access, const(I32, ELEMENTS))
        nothing = [const(self.copy.chunk, 0)] * (self.copy.per_lane * self.copy.block_rows)

        def otherwise() -> list:
            return if_else(b, some, lambda: if_else(b, slow, self.singles, self.vectors), lambda: nothing)

        if pages is None:
            return if_else(b, best, self.whole, otherwise)
        if there is None:
            return otherwise()
        # Pages lie apart: each block of rows has a page of its own, which may be missing.
        best = b.and_(there, b.icmp_unsigned("==", self.access, const(I32, WHOLE_ROWS_OF_PAGES)))
        return if_else(b, best, lambda: self.in_pages(pages), otherwise)

    def load(self, base: ir.Value, offset: ir.Value) -> ir.Value:
        """A chunk of a row, converted."""
        b, window = self.b, self.window
        if window.source == window.dtype:
            return load_from(b, base, offset, self.copy.chunk, self.nbytes)
        return self.converted(load_from(b, base, offset, ir.VectorType(I8, self.copy.block_columns), self.nbytes))

    def converted(self, values: ir.Value) -> ir.Value:
        """Elements of the source as a chunk of the window."""
        b, window = self.b, self.window
        floats = widen(b, values, window.source)
        if window.dtype == "float16":
            floats = b.fptrunc(floats, ir.VectorType(F16, self.copy.block_columns))
        return b.bitcast(bfloat16_bits(b, floats) if window.dtype == "bfloat16" else floats, self.copy.chunk)

    def places(self, thread: ir.Value, row_stride: ir.Value) -> Iterator[tuple]:
        """Offset of each chunk's row, its first column, and whether the row exists."""
        b, copy, row0, pages = self.b, self.copy, self.row0, self.pages
        for i in range(copy.per_lane):
            row, column, _ = block_of(b, self.window, copy, i, thread)
            for r in range(copy.block_rows):
                number = b.add(row0, b.zext(b.add(row, const(I32, r)), I64))
                ok = b.icmp_signed("<", number, self.rows)
                if pages is None:
                    offset = b.mul(b.select(ok, number, row0), row_stride)
                else:
                    offset, ok = pages.line(b, number, ok, row_stride)
                yield offset, b.zext(column, I64), ok

    def whole(self) -> list:
        """A window that lies inside the source: a uniform address and a 32-bit offset for each lane."""
        b, copy, row_stride = self.b, self.copy, self.row_stride
        out, at = [], 0
        line = b.add(b.ptrtoint(self.base, I64), b.mul(self.row0, row_stride))
        line = b.inttoptr(uniform(b, line), self.base.type)
        # LLVM would extend the offset to 64 bits outside of a loop, and would no longer know that it is short.
        offset = opaque(b, self.lane, "v")
        for i in range(copy.per_lane):
            down = i * (copy.rows_apart or 0)
            if copy.rows_apart is None:
                row, column, _ = block_of(b, self.window, copy, i, thread_index(b))
                offset = b.add(
                    b.mul(row, b.trunc(row_stride, I32)), b.mul(column, const(I32, self.window.source_bytes))
                )
                offset = opaque(b, offset, "v")
            for number in range(down, down + copy.block_rows):
                # LLVM would derive the address of each line from the one before, in 64 bits a lane.
                line = b.gep(line, [b.mul(row_stride, const(I64, number - at))], source_etype=I8)
                line, at = opaque(b, line, "s"), number
                out.append(self.load(line, b.zext(offset, I64)))
        return out

    def vectors(self) -> list:
        """A window whose rows are read a vector at a time, as far as they exist."""
        b, copy, base = self.b, self.copy, self.base
        out = []
        for offset, column, ok in self.places(opaque(b, thread_index(b), "v"), opaque(b, self.row_stride, "s")):
            ok = b.and_(ok, b.icmp_signed("<", column, self.columns))
            address = b.select(ok, b.add(offset, b.mul(column, const(I64, self.window.source_bytes))), offset)
            if self.window.atom.wave == 32:
                out.append(b.select(ok, self.load(base, address), const(copy.chunk, 0)))
            else:
                # A lane mask would take two scalar registers from before the load until after it.
                bits = opaque(b, b.sext(ok, I32), "v")
                out.append(b.and_(self.load(base, address), splat(b, bits, copy.chunk.count)))
        return out

    def singles(self) -> list:
        """A window of any strides."""
        b, window, copy = self.b, self.window, self.copy
        out, item = [], memory_int(window.source)
        for offset, column, ok in self.places(opaque(b, thread_index(b), "v"), opaque(b, self.row_stride, "s")):
            place, items = b.add(offset, b.mul(column, self.column_stride)), []
            left, left_again = remaining(b, column, b.select(ok, self.columns, const(I64, 0)), copy.block_columns)
            for e in range(copy.block_columns):
                value = load_from(
                    b, self.base, b.select(is_below(b, e, left), place, offset), item, window.source_bytes
                )
                items.append(b.select(is_below(b, e, left_again), value, const(item, 0)))
                place = b.add(place, self.column_stride)
            chunk = vector_of(b, items)
            # Converted at once: left alone, LLVM loads all chunks first, and keeps a lane mask for each element.
            same = window.source == window.dtype
            out.append(b.bitcast(chunk, copy.chunk) if same else pinned(b, self.converted(chunk)))
            schedule_no_further(b)
        return out

    def blocks(self) -> list:
        """The first row, in the source, and the column of each block."""
        b, window, copy = self.b, self.window, self.copy
        thread, first = opaque(b, thread_index(b), "v"), b.trunc(self.row0, I32)
        if copy.rows_apart is None:
            places = (block_of(b, window, copy, i, thread) for i in range(copy.per_lane))
            return [(b.add(first, row), column) for row, column, _ in places]
        row, column, _ = block_of(b, window, copy, 0, thread)
        first = b.add(first, row)
        return [(b.add(first, const(I32, i * copy.rows_apart)), column) for i in range(copy.per_lane)]

    def in_pages(self, pages: Pages) -> list:
        """A window of pages that are all there: uniform addresses and a 32-bit offset for each block."""
        b, row_stride = self.b, self.row_stride
        offsets, line, places = [], self.base, self.blocks()
        entries = pages.entries_of(b, [row for row, _ in places])
        for entry, (row, column) in zip(entries, places, strict=True):
            offset = b.add(pages.offset(b, entry, row, row_stride), b.mul(column, const(I32, self.window.source_bytes)))
            offsets.append(b.zext(offset, I64))
        lines = []
        for r in range(self.copy.block_rows):
            # As in a window without pages.
            line = opaque(b, b.gep(line, [row_stride], source_etype=I8) if r else line, "s")
            lines.append([self.load(line, offset) for offset in offsets])
        return [chunk for block in zip(*lines, strict=True) for chunk in block]
