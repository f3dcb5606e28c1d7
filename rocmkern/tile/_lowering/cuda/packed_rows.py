"""Packed bytes of rows, which each warp brings to shared memory for itself.

Blocks of 17 or 18 bytes are no whole number of words: read by lanes from global memory, a row is asked for in many
small pieces that touch the same cache lines again and again, and every word that is on its way takes a register.
Copies of 16 or 8 bytes do not, and shared memory is fast for any stride.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass

from llvmlite import ir

from rocmkern.tile._lowering.cuda.emit import LANES, VOID, any_in_warp, asm, lane_index, meet_in_warp
from rocmkern.tile._lowering.shared.ir_types import I32, I64, const
from rocmkern.tile.formats import FORMATS

#: Bytes of the smaller and the larger copies: rows and their parts are whole copies at multiples of these.
SMALL, LARGE = 8, 16


@dataclass(frozen=True)
class Chunk:
    """``columns`` of each of ``rows`` rows of a format whose rows start at multiples of ``alignment`` bytes."""

    format: str
    columns: int
    rows: int
    alignment: int

    @property
    def row_bytes(self) -> int:
        """Bytes of a row of it."""
        kind = FORMATS[self.format]
        return self.columns // kind.elements * kind.nbytes

    @property
    def piece(self) -> int:
        """Bytes of a copy, of which addresses in global and in shared memory are multiples."""
        return LARGE if self.alignment % LARGE == 0 and self.row_bytes % LARGE == 0 else SMALL

    @property
    def pitch(self) -> int:
        """Bytes from row to row in shared memory: an odd number of pieces; 8 rows of large ones lie in other banks."""
        return self.piece * (self.row_bytes // self.piece | 1)

    @property
    def nbytes(self) -> int:
        """Shared memory that it takes, with room for a word that is read and not needed behind the last row."""
        return self.rows * self.pitch + LARGE


def bring(
    b: ir.IRBuilder,
    chunk: Chunk,
    memory: ir.Value,
    count: int,
    rows: list[ir.Value],
    exists: list[ir.Value],
    column: ir.Value,
    extent: ir.Value,
) -> list[ir.Value]:
    """Start copies of ``count`` chunks side by side, a group of copies for each; where in shared memory they begin.

    ``rows`` are the addresses of this lane's rows: l / 4 of lane l, and every eighth row behind it. The first chunk
    begins at ``column``, a whole number of blocks, of ``extent`` columns (i64). What does not exist becomes zeros.
    ``memory`` has room for `shared_bytes`.
    """
    kind, size, lane = FORMATS[chunk.format], chunk.row_bytes, lane_index(b)
    start = b.mul(b.udiv(column, const(I64, kind.elements)), const(I64, kind.nbytes))
    end = b.mul(b.udiv(extent, const(I64, kind.elements)), const(I64, kind.nbytes))
    most, left = size * count, b.sub(end, start)
    left = b.trunc(b.select(b.icmp_signed("<", left, const(I64, most)), left, const(I64, most)), I32)
    # What this warp has read before may be overwritten.
    meet_in_warp(b)
    with b.if_then(b.icmp_signed("==", b.and_(lane, const(I32, 3)), const(I32, 0))):
        own = b.add(memory, b.shl(b.lshr(lane, const(I32, 2)), const(I32, 3)))
        for slot, (row, there) in enumerate(zip(rows, exists, strict=True)):
            begin = b.select(there, b.add(row, start), const(I64, 0))
            b.store(begin, b.inttoptr(b.add(own, const(I32, 64 * slot)), ir.PointerType(I64, addrspace=3)))
    meet_in_warp(b)
    missing = functools.reduce(b.or_, [b.not_(there) for there in exists])
    ragged = any_in_warp(b, b.or_(missing, b.icmp_signed("<", left, const(I32, most))))
    chunks = [b.add(memory, const(I32, 8 * chunk.rows + number * chunk.nbytes)) for number in range(count)]
    pieces = list(_pieces(b, chunk, memory))
    with b.if_else(ragged) as (yes, no):
        with yes:
            _copy(b, chunk, chunks, pieces, left)
        with no:
            _copy(b, chunk, chunks, pieces, None)
    return chunks


def shared_bytes(chunk: Chunk, count: int) -> int:
    """Shared memory that `bring` takes: the addresses of the rows, and then the chunks."""
    return 8 * chunk.rows + count * chunk.nbytes


def _pieces(b: ir.IRBuilder, chunk: Chunk, memory: ir.Value) -> Iterator[tuple[ir.Value, ir.Value, ir.Value, ir.Value]]:
    """This lane's pieces: address of the row (0: none), offset in it, place in the chunk, whether it is one.

    The binary digits of their number in a row say how many lanes go side by side through how many rows at a time.
    """
    lane, number = lane_index(b), chunk.row_bytes // chunk.piece
    before = number - number % LANES
    widths = [(first, LANES) for first in range(0, before, LANES)]
    for width in (16, 8, 4, 2, 1):
        if number & width:
            widths.append((before, width))
            before += width
    for first, width in widths:
        piece = b.mul(b.add(b.and_(lane, const(I32, width - 1)), const(I32, first)), const(I32, chunk.piece))
        row_of_lane = b.lshr(lane, const(I32, width.bit_length() - 1))
        for row0 in range(0, chunk.rows, LANES // width):
            row = b.add(row_of_lane, const(I32, row0))
            is_one = b.icmp_signed("<", row, const(I32, chunk.rows))
            row = b.select(is_one, row, const(I32, 0))
            entry = b.add(memory, b.shl(row, const(I32, 3)))
            begin = b.load(b.inttoptr(entry, ir.PointerType(I64, addrspace=3)))
            yield begin, piece, b.add(b.mul(row, const(I32, chunk.pitch)), piece), is_one


def _copy(b: ir.IRBuilder, chunk: Chunk, chunks: list[ir.Value], pieces: list[tuple], left: ir.Value | None) -> None:
    """Copy pieces of all chunks; of each row there are ``left`` bytes from its address on, None is all."""
    size, piece = chunk.row_bytes, chunk.piece
    copy = f"@p cp.async.{'cg' if piece == LARGE else 'ca'}.shared.global"
    for number, target in enumerate(chunks):
        for begin, offset, place, is_one in pieces:
            source, nbytes = b.add(begin, b.zext(offset, I64)), const(I32, piece)
            if left is not None:
                rest = b.sub(left, b.add(offset, const(I32, number * size)))
                nbytes = b.select(b.icmp_signed("<", rest, const(I32, piece)), rest, const(I32, piece))
                there = b.and_(b.icmp_signed(">", nbytes, const(I32, 0)), b.icmp_signed("!=", begin, const(I64, 0)))
                nbytes = b.select(there, nbytes, const(I32, 0))
            code = f"{{.reg .pred p; setp.ne.b32 p, $3, 0; {copy} [$0], [$1+{number * size}], {piece}, $2;}}"
            args = [b.add(target, place), source, nbytes, b.zext(is_one, I32)]
            asm(b, code, VOID, "r,l,r,r,~{memory}", args, effect=True)
        asm(b, "cp.async.commit_group;", VOID, "~{memory}", [], effect=True)
