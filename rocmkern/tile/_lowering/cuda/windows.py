"""Shared memory: windows of stages, their pitch and swizzle, what a function has given out of it."""

from __future__ import annotations

import weakref
from typing import Any

from llvmlite import ir

from rocmkern.architectures import architecture
from rocmkern.tile._lowering.cuda.emit import VOID, asm, asm_many, barrier, meet_in_warp
from rocmkern.tile._lowering.cuda.layouts import OwnStage, is_packed, is_shared, keys_of_warp, warp_index
from rocmkern.tile._lowering.shared.ir_types import F32, I8, I16, I32, const
from rocmkern.tile.language.kinds import DTYPES

#: Shared-memory arrays are called this plus the bytes a launch needs up to their end; all start at the same address.
SHARED_MEMORY_SYMBOL = "rocmkern_shared_"
#: What is given out of shared memory starts at a multiple of this: the pattern of the swizzle.
SHARED_ALIGNMENT = 1024


def wait_for_fetches(b: ir.IRBuilder, ty: Any) -> None:
    """Until the copies of all threads have arrived in shared memory, where the products with a stage can read them."""
    asm(b, "cp.async.wait_group 0;", VOID, "~{memory}", [], effect=True)
    if is_for_groups(ty):
        # wgmma reads shared memory past the order that ordinary accesses have among themselves.
        asm(b, "fence.proxy.async.shared::cta;", VOID, "~{memory}", [], effect=True)
    barrier(b)


def wait_for_own_fetches(b: ir.IRBuilder, ahead: int) -> None:
    """Until all but the last ``ahead`` windows, or other groups of copies, that this warp fetched have arrived."""
    asm(b, f"cp.async.wait_group {ahead};", VOID, "~{memory}", [], effect=True)
    meet_in_warp(b)


#: Bytes of a row in a slab of a swizzled window, of 8 chunks; 8 rows are what the swizzle repeats after.
SLAB_ROW = 128


def is_swizzled(ty: Any) -> bool:
    """Whether the chunks of a window are permuted among rows of 128 bytes, see `pitch`.

    So a whole line of the source goes to a whole line of shared memory, which its copy is quickest for: an H200 read
    2 GB in 472 us into such windows, and in 494 us where each row began 16 bytes further into a line.
    """
    return is_packed(ty) and ty.k * DTYPES[ty.dtype] % SLAB_ROW == 0


def is_for_groups(ty: Any) -> bool:
    """Whether wgmma reads a window, which takes whole groups of four warps with rows of their own."""
    groups = ty.hw[1] % 4 == 0 and not is_shared(ty)
    return architecture(ty.hw[0]).matrix == "wgmma" and groups and is_swizzled(ty)


def pitch(ty: Any) -> int:
    """Bytes from row to row of a window, or of a slab of it.

    A swizzled window is cut into slabs of 8 chunks of 16 bytes, one after the other; in row r of a slab, chunk c lies
    at place ``c ^ (r % 8)``. In others a row is an odd number of chunks. Either way 8 consecutive rows lie in different
    banks, whichever chunk is read.
    """
    if is_swizzled(ty):
        return SLAB_ROW
    chunks = ty.k * DTYPES[ty.dtype] // 16
    return 16 * (chunks | 1)


class Chunks:
    """Addresses of 16-byte chunks of a window: of row ``row`` and chunk ``chunk``, and of others relative to it."""

    def __init__(self, b: ir.IRBuilder, ty: Any, window: ir.Value, row: ir.Value, chunk: ir.Value):
        self.b, self.ty = b, ty
        if is_swizzled(ty):
            seven = const(I32, 7)
            slab = b.mul(b.lshr(chunk, const(I32, 3)), const(I32, ty.n * SLAB_ROW))
            place = b.shl(b.and_(b.xor(chunk, row), seven), const(I32, 4))
            self.first = b.add(b.add(window, slab), b.add(b.mul(row, const(I32, SLAB_ROW)), place))
        else:
            self.first = b.add(window, b.add(b.mul(row, const(I32, pitch(ty))), b.shl(chunk, const(I32, 4))))
        self.bases = {0: self.first}

    def at(self, rows: int, chunks: int = 0) -> tuple[ir.Value, int]:
        """Address and constant offset of the chunk so many rows and chunks on.

        The bits that are set in ``chunks`` must not be set in ``chunk``, and those of ``rows`` below 8 not in ``row``.
        """
        if not is_swizzled(self.ty):
            return self.first, rows * pitch(self.ty) + 16 * chunks
        turn = 16 * ((chunks ^ rows) % 8)
        if turn not in self.bases:
            self.bases[turn] = self.b.xor(self.first, const(I32, turn))
        return self.bases[turn], rows * SLAB_ROW + chunks // 8 * self.ty.n * SLAB_ROW


def window_bytes(ty: Any) -> int:
    slabs = ty.k * DTYPES[ty.dtype] // SLAB_ROW if is_swizzled(ty) else 1
    return ty.n * pitch(ty) * slabs


def own_part(b: ir.IRBuilder, ty: Any, window: ir.Value) -> tuple[Any, ir.Value]:
    """The part of a window whose rows are this warp's keys, as a window: all of it, unless every warp has all rows."""
    if isinstance(ty, OwnStage):
        return ty.of_warp, b.add(window, b.mul(warp_index(b), const(I32, window_bytes(ty.of_warp))))
    return ty, b.add(window, b.mul(keys_of_warp(b, ty, ty.n // ty.hw[1]), const(I32, pitch(ty))))


def load_shared(b: ir.IRBuilder, address: ir.Value, offset: int, count: int = 1, ty: ir.Type = F32) -> list[ir.Value]:
    """``count`` (1, 2, 4) consecutive words."""
    letter = "f" if ty == F32 else "r"
    if count == 1:
        return [asm(b, f"ld.shared.b32 $0, [$1+{offset}];", ty, f"={letter},r", [address], effect=True)]
    results = ", ".join(f"${i}" for i in range(count))
    code = f"ld.shared.v{count}.b32 {{{results}}}, [${count}+{offset}];"
    return asm_many(b, code, [ty] * count, ",".join([f"={letter}"] * count) + ",r", [address], effect=True)


def read_shared(b: ir.IRBuilder, address: ir.Value, nbytes: int) -> list[ir.Value]:
    """1, 2, 4 or 16 bytes, aligned to their number, as i32 words, which the compiler may read once for several uses."""
    kind = {1: I8, 2: I16, 4: I32, 16: ir.VectorType(I32, 4)}[nbytes]
    value = b.load(b.inttoptr(address, ir.PointerType(kind, addrspace=3)), align=nbytes)
    if nbytes == 16:
        return [b.extract_element(value, const(I32, i)) for i in range(4)]
    return [value if nbytes == 4 else b.zext(value, I32)]


def ldmatrix(b: ir.IRBuilder, address: ir.Value, offset: int, transposed: bool) -> list[ir.Value]:
    """Four 8 x 8 matrices of 16-bit elements; lane l gives the address of row ``l % 8`` of matrix ``l / 8``."""
    trans = ".trans" if transposed else ""
    code = f"ldmatrix.sync.aligned.m8n8.x4{trans}.shared.b16 {{$0, $1, $2, $3}}, [$4+{offset}];"
    return asm_many(b, code, [I32] * 4, "=r,=r,=r,=r,r", [address], effect=True)


class FunctionState:
    """What the stages of one function share while it is lowered.

    Attributes
    ----------
    bytes : int
        Shared memory that has been given out.
    settled : Block or None
        Block in which the last thing that happened to stages is an acquire.
    met : Block or None
        Block in which all threads have met since anything but an acquire happened to stages.
    started : (Block, int) or None
        Block in which products were started since the last acquire of a ring, and their number.
    own_ahead : int
        Windows of all `OwnStage` that may still be on their way when one of each was acquired.
    page_rows : (Block, Value) or None
        Block in which `paged` was last used first, and the rows of those pages.
    looked_up : SimpleNamespace or None
        What the last fetch of a paged stage looked up, given what, and the block that it ended in.
    """

    def __init__(self) -> None:
        self.bytes = self.own_ahead = 0
        self.settled: ir.Block | None = None
        self.met: ir.Block | None = None
        self.started: tuple[ir.Block, int] | None = None
        self.page_rows: tuple[ir.Block, ir.Value] | None = None
        self.looked_up: Any = None


states: weakref.WeakKeyDictionary[ir.Function, FunctionState] = weakref.WeakKeyDictionary()
