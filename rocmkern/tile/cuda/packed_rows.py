"""Packed bytes of rows that lie along the lanes of a warp, brought to local memory by that warp for itself.

Blocks of 17 or 18 bytes are no whole number of words: read by lanes from global memory, a row is asked for in many
small pieces that touch the same cache lines again and again, and every word that is on its way takes a register.
Copies of 16 or 8 bytes do not, and local memory is fast for any stride.
"""

from __future__ import annotations

import functools
from typing import Any

from llvmlite import ir

from rocmkern.tile.cuda.emit import LANES, VOID, any_in_warp, asm, meet_in_warp, thread
from rocmkern.tile.cuda.layouts import Lines, columns_of, is_line, slots_of
from rocmkern.tile.cuda.quantised import Load
from rocmkern.tile.cuda.windows import read_shared
from rocmkern.tile.formats import FORMATS
from rocmkern.tile.tensors import I32, I64, const
from rocmkern.tile.types import line_lanes

#: Bytes of the smaller and the larger copies: rows and their parts are whole copies at multiples of these.
SMALL, LARGE = 8, 16


def row_bytes(source: Any, ty: Any) -> int:
    """Bytes of the part of a row that a tile is wide."""
    kind = FORMATS[source.format]
    return columns_of(ty) // kind.elements * kind.nbytes


def piece_bytes(source: Any, ty: Any) -> int:
    """Bytes of a copy, of which addresses in global and in local memory are multiples."""
    return LARGE if source.alignment == LARGE and row_bytes(source, ty) % LARGE == 0 else SMALL


def pitch(source: Any, ty: Any) -> int:
    """Bytes from row to row in local memory: an odd number of pieces, so that rows side by side lie in other banks."""
    piece = piece_bytes(source, ty)
    return piece * (row_bytes(source, ty) // piece | 1)


def are_staged(source: Any, ty: Any) -> bool:
    """Whether rows of a quantised source take this way: their parts are whole pieces at aligned addresses."""
    whole = columns_of(ty) % FORMATS[source.format].elements == 0 and row_bytes(source, ty) % SMALL == 0
    return is_line(ty) and line_lanes(ty.hw) <= LANES and source.alignment >= SMALL and whole


def local_bytes(source: Any, ty: Any) -> int:
    """Local memory that `bring` takes, with room for a word that a lane reads and does not need behind the last row."""
    return slots_of(ty) * Lines.teams(ty) * pitch(source, ty) + SMALL


def bring(
    b: ir.IRBuilder,
    source: Any,
    ty: Any,
    memory: ir.Value,
    rows: list[ir.Value],
    valid: list[ir.Value],
    col0: ir.Value,
    extent: ir.Value,
) -> list[ir.Value]:
    """Where the bytes of a lane's rows, from column ``col0`` (i64) on, lie in local memory (i32): they have arrived.

    ``rows`` are their addresses, ``extent`` (i64) their number of columns. What does not exist is zeros.
    """
    kind, size, lanes = FORMATS[source.format], row_bytes(source, ty), line_lanes(ty.hw)
    piece = piece_bytes(source, ty)
    offset = b.mul(b.and_(thread(b), const(I32, lanes - 1)), const(I32, piece))
    own = b.add(memory, b.mul(b.udiv(thread(b), const(I32, lanes)), const(I32, pitch(source, ty))))
    apart = Lines.teams(ty) * pitch(source, ty)
    nbytes = b.mul(b.sdiv(extent, const(I64, kind.elements)), const(I64, kind.nbytes))
    rows = [b.add(row, b.zext(offset, I64)) for row in rows]
    missing = functools.reduce(b.or_, [b.not_(exists) for exists in valid])

    start = b.mul(b.udiv(col0, const(I64, columns_of(ty))), const(I64, size))
    into, left = b.add(own, offset), b.sub(nbytes, start)
    here, some = [b.add(row, start) for row in rows], b.icmp_signed("<", left, const(I64, size))
    # What this warp has read of the part before may be overwritten.
    meet_in_warp(b)
    with b.if_else(any_in_warp(b, b.or_(missing, some))) as (yes, no):
        with yes:
            left = b.trunc(b.select(some, left, const(I64, size)), I32)
            there = [b.select(exists, left, const(I32, 0)) for exists in valid]
            copy_pieces(b, (size, lanes, piece), into, apart, here, offset, there)
        with no:
            copy_pieces(b, (size, lanes, piece), into, apart, here, offset)
    asm(b, "cp.async.wait_all;", VOID, "~{memory}", [], effect=True)
    meet_in_warp(b)
    return [b.add(own, const(I32, apart * slot)) for slot in range(len(rows))]


def local_load(b: ir.IRBuilder) -> Load:
    """A `Load` from local memory, which goes on behind a source."""
    return lambda address, needed, nbytes, count: read_shared(b, address, nbytes)


def copy_pieces(
    b: ir.IRBuilder,
    sizes: tuple[int, int, int],
    into: ir.Value,
    apart: int,
    rows: list[ir.Value],
    offset: ir.Value,
    there: list[ir.Value] | None = None,
) -> None:
    """Copy bytes of each row, a piece by each of its lanes at a time, to places that are so far ``apart``.

    ``sizes`` are these bytes, the lanes of a row, and the bytes of a piece. ``into`` and ``rows`` are the lane's,
    ``offset`` bytes behind the first ones. Of a row there are only so many bytes as ``there`` says, and zeros follow;
    None is all.
    """
    size, lanes, piece = sizes
    for first in range(0, size, lanes * piece):
        # Lanes whose piece is beyond the part have none to fill.
        guarded = size - first < lanes * piece
        inside = b.icmp_unsigned("<", offset, const(I32, size - first))
        code = ["{.reg .pred p; setp.ne.b32 p, $0, 0;" if guarded else "{"]
        guard, args, letters = "@p " if guarded else "", [b.zext(inside, I32), into], ["r", "r"]
        for slot, row in enumerate(rows):
            source, nbytes = f"[${len(args)}+{first}]", ""
            args.append(row)
            letters.append("l")
            if there is not None:
                left = b.sub(there[slot], b.add(offset, const(I32, first)))
                left = b.select(b.icmp_signed("<", left, const(I32, piece)), left, const(I32, piece))
                nbytes = f", ${len(args)}"
                args.append(b.select(b.icmp_signed(">", left, const(I32, 0)), left, const(I32, 0)))
                letters.append("r")
            copy = f"cp.async.{'cg' if piece == LARGE else 'ca'}.shared.global"
            code.append(f"{guard}{copy} [$1+{slot * apart + first}], {source}, {piece}{nbytes};")
        asm(b, " ".join([*code, "}"]), VOID, ",".join([*letters, "~{memory}"]), args, effect=True)
