"""How values lie in the lanes of a block: data models, slots of rows, elements of tiles, lines."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

from llvmlite import ir
from numba.cuda import types
from numba.cuda.core.errors import TypingError
from numba.cuda.datamodel import models
from numba.cuda.extending import register_model

from rocmkern.tile._lowering.cuda.backend import NUMBA, TILE
from rocmkern.tile._lowering.cuda.emit import LANES, lane_index, over_lanes, over_warps_by_lane, pack, thread, unpack
from rocmkern.tile._lowering.cuda.quantized import NumberReader, raw_words
from rocmkern.tile._lowering.shared.ir_types import F32, I1, I32, I64, const
from rocmkern.tile._lowering.shared.tensors import register_tensor_model
from rocmkern.tile.formats import FORMATS
from rocmkern.tile.language.kinds import DTYPES, threads_per_row, vector_width


def _check_layout(ty: Any) -> None:
    """Refuse what does not fit the layout."""
    if isinstance(ty, types.BaseTuple):
        for each in ty:
            _check_layout(each)
    elif isinstance(ty, TILE.Rows | TILE.Tile) and is_line(ty):
        Lines.check(ty)
        return
    elif isinstance(ty, TILE.Operand | TILE.Stage) and is_line(ty):
        raise TypingError(f"{ty.hw[0]}: a kernel with products needs a configuration with threads_per_row=0")
    if isinstance(ty, TILE.Rows | TILE.Tile | TILE.Operand):
        step = 16 * warps_of_rows(ty)
        if ty.m % step:
            raise TypingError(
                f"{ty.hw[0]} with rows spread over {warps_of_rows(ty)} waves: rows come in multiples of 16 a wave, "
                f"{step} a block; got {ty.m}"
            )
    widths = {TILE.Tile: ("n",), TILE.Operand: ("k",), TILE.Stage: ("n", "k")}.get(type(ty), ())
    for name in widths:
        if getattr(ty, name) % 16:
            raise TypingError(f"{ty.hw[0]}: {name} of {ty} must be a multiple of 16, got {getattr(ty, name)}")
    if isinstance(ty, TILE.Operand | TILE.Stage) and ty.dtype not in ("float32", "float16", "bfloat16"):
        raise TypingError(f"{ty.hw[0]}: products take float32, float16 and bfloat16, got {ty}")


def checked(rule: Callable) -> Callable:
    @functools.wraps(rule)
    def typed(*args: Any) -> Any:
        result = rule(*args)
        if isinstance(result, HeldRows):  # a rule that returns the type of an argument
            result = TILE.Rows(result.m, result.kind, result.hw)
        _check_layout(result)
        return result

    return typed


def is_line(ty: Any) -> bool:
    """Whether rows lie along lanes."""
    return threads_per_row(ty.hw) > 0


def is_shared(ty: Any) -> bool:
    """Whether every warp has all rows, and keys of its own."""
    return ty.hw[2] == "split_kv"


def warps_of_rows(ty: Any) -> int:
    """Warps that rows are spread over."""
    return 1 if is_shared(ty) else ty.hw[1]


def slots_of(ty: Any) -> int:
    """Rows that a lane has a part of."""
    return ty.m // Lines.teams(ty) if is_line(ty) else 2 * m_tiles(ty)


def m_tiles(ty: Any) -> int:
    """m-tiles (16 rows) of one warp."""
    return ty.m // (16 * warps_of_rows(ty))


def columns_of(ty: Any) -> int:
    return ty.n if isinstance(ty, TILE.Tile) else ty.k


def is_packed(ty: Any) -> bool:
    """Whether a value holds 16-bit elements in pairs, for mma.sync."""
    return isinstance(ty, TILE.Operand | TILE.Stage | SimpleNamespace) and ty.dtype != "float32"


def storage(ty: Any) -> ir.ArrayType:
    """What one lane holds of rows, a tile or an operand."""
    if isinstance(ty, TILE.Rows):
        width = ty.width if isinstance(ty, HeldRows) else 1
        return ir.ArrayType({"f32": F32, "i32": I32, "i1": I1}[ty.kind], width * slots_of(ty))
    per_lane = ty.m * columns_of(ty) // (LANES * warps_of_rows(ty))
    return ir.ArrayType(I32, per_lane // 2) if is_packed(ty) else ir.ArrayType(F32, per_lane)


class ArrayModel(models.PrimitiveModel):
    """An array of scalars, as `storage` says."""

    def __init__(self, manager: Any, ty: Any):
        super().__init__(manager, ty, storage(ty))


for _type in (TILE.Rows, TILE.Tile, TILE.Operand):
    register_model(_type)(ArrayModel)
register_model(TILE.Config)(models.OpaqueModel)


class HeldRows(TILE.Rows):
    """Rows of f32 as `softmax_step` holds them between its steps; other operations take them by `complete_rows`."""

    #: Values for each row of a lane.
    width = 1

    def __init__(self, m: int, hw: tuple):
        super().__init__(m, "f32", hw)
        self.name = f"cuda.{type(self).__name__}({m},{hw})"

    def unify(self, typingctx: Any, other: Any) -> Any:
        """A variable that also holds ordinary rows holds these."""
        return self if isinstance(other, TILE.Rows) and other.kind == "f32" and other.m == self.m else None


class PartialRows(HeldRows):
    """Rows that are the sum of what the lanes that share them hold: a running sum that is added up at its end."""


class BlockSums(PartialRows):
    """Rows, of which every warp has all, that are the sum of what lanes and warps hold."""


class BaseRows(HeldRows):
    """Rows near a running maximum; after those of a lane come the maxima themselves."""

    width = 2


for _type in (PartialRows, BlockSums, BaseRows):
    register_model(_type)(ArrayModel)


class StoredOperand(TILE.Operand):
    """[m, k] left operand of a product with a stage of ``dtype``, kept in shared memory: registers hold its address.

    It lies there as a window does, of m rows: first the 16 rows of each warp, then the next 16 of each. So wgmma reads
    the 64 rows of four warps by a descriptor, as it reads a stage. Where every warp has all rows, each has its own.
    """

    def __init__(self, m: int, k: int, dtype: str, hw: tuple):
        super().__init__(m, k, dtype, hw)
        self.name = f"cuda.StoredOperand({m},{k},{dtype},{hw})"

    @property
    def window(self) -> SimpleNamespace:
        """What lies there, as a stage."""
        return SimpleNamespace(n=self.m, k=self.k, dtype=self.dtype, hw=self.hw)

    @property
    def copies(self) -> int:
        """Windows that it takes."""
        return self.hw[1] // warps_of_rows(self)


@register_model(StoredOperand)
class _StoredOperandModel(models.PrimitiveModel):
    def __init__(self, manager: Any, ty: Any):
        super().__init__(manager, ty, I32)


PAGED_MEMBERS = ("table", "entries", "entry_stride", "page_rows", "page_stride", "pages")
#: Columns that a warp copies together in `matvec` of packed numbers, best first.
MATVEC_CHUNKS = (512, 256, 1024)
#: A loaded operand of more 32-bit registers than this goes to shared memory.
OPERAND_REGISTERS = 32


def rule_of_softmax_step(rule: Callable) -> Callable:
    """The typing rule of `softmax_step`: what it holds of rows; see `HeldRows`."""

    @functools.wraps(rule)
    def typed(*args: Any) -> Any:
        p, m, sums, acc = rule(*args)
        if is_line(p):
            raise TypingError("softmax_step: a kernel with products needs a configuration with threads_per_row=0")
        return types.Tuple((p, BaseRows(m.m, m.hw), PartialRows(sums.m, sums.hw), acc))

    return typed


def rule_of_scores(rule: Callable) -> Callable:
    """The typing rule of tiles with a column for each key: a warp that has all rows has a part of the columns."""

    @functools.wraps(rule)
    def typed(*args: Any) -> Any:
        ty = rule(*args)
        if not isinstance(ty, TILE.Tile) or not is_shared(ty):
            return ty
        if ty.n % (16 * ty.hw[1]) or any(isinstance(x, TILE.Operand) and not is_packed(x) for x in args):
            raise TypingError(f"{ty.hw[0]} with split_kv=True: 16 keys a wave, of 2 bytes each; got {ty}")
        return TILE.Tile(ty.m, ty.n // ty.hw[1], ty.hw)

    return typed


def rule_of_weighted(rule: Callable) -> Callable:
    """The typing rule of `dot_nn` and `dot_nn_where`, for the weights of `rule_of_scores`."""

    @functools.wraps(rule)
    def typed(a: Any, b: Any, *acc: Any) -> Any:
        if isinstance(a, TILE.Operand) and is_shared(a):
            a = TILE.Operand(a.m, a.k * a.hw[1], a.dtype, a.hw)
        return rule(a, b, *acc)

    return typed


class JoinedTile(TILE.Tile):
    """What is left of an [m, n] tile of all warps when their parts of it were added up: each warp has n columns."""

    def __init__(self, m: int, n: int, hw: tuple):
        super().__init__(m, n, hw)
        self.name = f"cuda.JoinedTile({m},{n},{hw})"


register_model(JoinedTile)(ArrayModel)


def rule_of_softmax_end(rule: Callable) -> Callable:
    """The typing rule of `softmax_end`: warps that have all rows share out the columns."""

    @functools.wraps(rule)
    def typed(*args: Any) -> Any:
        m, sums, acc = rule(*args)
        if is_shared(acc):
            if acc.n % (8 * acc.hw[1]):
                raise TypingError(f"softmax_end: {acc} has no multiple of 8 columns for each of {acc.hw[1]} waves")
            acc = JoinedTile(acc.m, acc.n // acc.hw[1], acc.hw)
        return types.Tuple((m, sums, acc))

    return typed


def rule_of_store_tile(rule: Callable) -> Callable:
    """The typing rule of `store_tile`: of rows that all warps have, only joined ones are stored."""

    @functools.wraps(rule)
    def typed(x: Any, index: Any, col0: Any, tile: Any, valid: Any) -> Any:
        if isinstance(tile, TILE.Tile) and is_shared(tile) and not isinstance(tile, JoinedTile):
            raise TypingError(
                f"{tile.hw[0]} with split_kv=True: store_tile is for what softmax_end returns; got {tile}"
            )
        return rule(x, index, col0, tile, valid)

    return typed


def rule_of_load_rowdot(rule: Callable) -> Callable:
    """The typing rule of `load_rowdot`: its sums stay partial where rows lie along lanes."""

    @functools.wraps(rule)
    def typed(*args: Any) -> Any:
        ty = rule(*args)
        return PartialRows(ty.m, ty.hw) if is_line(ty) else ty

    return typed


def chunk_columns(format: str, columns: int) -> int:
    """The best of `MATVEC_CHUNKS` for so many columns of a warp; 0 if there is none."""
    kind = FORMATS[format]

    def fits(n: int) -> bool:
        return columns > 0 and columns % n == 0 and n // kind.elements * kind.nbytes % 8 == 0

    return next((n for n in MATVEC_CHUNKS if fits(n)), 0)


def rule_of_matvec(rule: Callable) -> Callable:
    """The typing rule of `matvec`: sums stay partial; rows that all warps have are packed numbers."""
    of_lines = rule_of_load_rowdot(rule)

    @functools.wraps(rule)
    def typed(cfg: Any, x: Any, index: Any, col0: Any, n: Any, vector: Any, valid: Any) -> Any:
        ty = of_lines(cfg, x, index, col0, n, vector, valid)
        if not is_shared(ty):
            return ty
        packed = isinstance(x, TILE.Quantized) and x.format in NumberReader.FORMATS and x.alignment % 8 == 0
        if not packed or vector.dtype not in ("float16", "bfloat16"):
            formats = ", ".join(NumberReader.FORMATS)
            raise TypingError(
                f"matvec: with split_kv=True float16, bfloat16 and {formats}, aligned to 8 bytes; got {x} and {vector}"
            )
        own, rest = divmod(n.literal_value, ty.hw[1])
        if rest or not chunk_columns(x.format, own):
            raise TypingError(
                f"matvec: {n.literal_value} columns of {x.format} for {ty.hw[1]} waves are not whole chunks of one of "
                f"{MATVEC_CHUNKS} columns, with a multiple of 8 bytes, for each"
            )
        return BlockSums(ty.m, ty.hw)

    return typed


def rule_of_add(rule: Callable) -> Callable:
    """The typing rule of ``+``: rows along lanes stay partial beside others."""

    @functools.wraps(rule)
    def typed(a: Any, b: Any) -> Any:
        ty = rule(a, b)
        both = isinstance(a, TILE.Rows) and isinstance(b, TILE.Rows)
        if both and any(isinstance(t, BlockSums) for t in (a, b)):
            return BlockSums(ty.m, ty.hw)
        partial = isinstance(a, PartialRows) or isinstance(b, PartialRows)
        return PartialRows(ty.m, ty.hw) if both and partial and is_line(ty) else ty

    return typed


def rule_of_load_operand(rule: Callable) -> Callable:
    """The typing rule of `load_operand`, with the choice of where the operand is kept."""

    @functools.wraps(rule)
    def typed(*args: Any) -> Any:
        ty = rule(*args)
        _check_layout(ty)
        shared = args[0].cfg.shared_operands or storage(ty).count > OPERAND_REGISTERS
        stored = is_packed(ty) and shared
        return StoredOperand(ty.m, ty.k, ty.dtype, ty.hw) if stored else ty

    return typed


class OwnStage(TILE.Stage):
    """[n, k] windows of which each warp copies the rows that are its own keys, and reads no others.

    So warps do not wait for each other. ``num_stages`` windows are on their way.
    """

    def __init__(self, st: Any, num_stages: int):
        super().__init__(st.n, st.k, st.dtype, st.hw, st.source, st.paged, st.format)
        self.num_stages = num_stages
        self.name = f"cuda.OwnStage({self.name},{num_stages})"

    @property
    def of_warp(self) -> Any:
        """The rows of one warp as a stage of a block of one warp."""
        arch, warps, *rest = self.hw
        return TILE.Stage(self.n // warps, self.k, self.dtype, (arch, 1, *rest), self.source, self.paged, self.format)


def rows_per_pass(ty: Any) -> int:
    """Rows of a window that the block's threads copy at once, each 16 bytes; 0 if that is no whole number."""
    if isinstance(ty, OwnStage):
        ty = ty.of_warp
    threads, chunks = LANES * ty.hw[1], ty.k * DTYPES[ty.dtype] // 16
    rows, rest = divmod(threads, chunks)
    return 0 if rest or ty.n % max(rows, 1) or (rows % 8 and 8 % rows) else rows


def looked_up_rows(ty: Any) -> list[tuple[str, str]]:
    """Members of a stage of a paged source for the rows that each lane looks up for its warp: page, row in it.

    There are none where every thread looks up what it copies.
    """
    if isinstance(ty, OwnStage):
        ty = ty.of_warp
    chunks, per_pass = ty.k * DTYPES[ty.dtype] // 16, rows_per_pass(ty)
    if not per_pass or ty.source != ty.dtype or (LANES % chunks and chunks % LANES):
        return []
    return [(f"page{i}", f"line{i}") for i in range(-(-ty.n // (per_pass * min(chunks, LANES))))]


def looked_up_members(ty: Any) -> list[str]:
    """Members of a stage of a paged source that looks rows up one window ahead."""
    rows = looked_up_rows(ty)
    return ["listed", "divisor", "reciprocal", "next_key", *itertools.chain(*rows)] if rows else []


@register_model(TILE.Stage)
class StageModel(models.StructModel):
    """The source (address, extents, strides in bytes), and shared-memory addresses of the two windows.

    ``window`` is the one in use, ``both`` the sum of both; the one being fetched starts at ``row0`` and ``col0``.
    ``irregular`` is 0 where rows consist of whole aligned chunks of 16 bytes.
    A paged one also has the table, its entries and stride, and rows, stride and number of the pages; the rows that the
    table lists, at most ``rows``; the divisor that gives their pages, and its reciprocal ``(2 ** 32 - 1) // divisor``;
    and what this lane found in the table for the window whose first row for it is ``next_key``, which is the one that
    is fetched next in a loop. An `OwnStage` has ``num_stages + 1`` windows from ``memory`` on, and ``filled`` is the
    one that is fetched next.
    """

    WIDE = ("source", "rows", "columns", "row_stride", "column_stride", "row0", "col0")
    NARROW = ("window", "both", "irregular")
    MEMBERS = WIDE + NARROW

    def __init__(self, manager: Any, ty: Any):
        members = [(name, types.int64) for name in self.WIDE] + [(name, types.int32) for name in self.NARROW]
        if ty.paged:
            members += [(name, types.int64) for name in PAGED_MEMBERS]
            members += [(name, types.int32) for name in looked_up_members(ty)]
        if isinstance(ty, OwnStage):
            members += [("filled", types.int32), ("memory", types.int32)]
        # The bytes of this thread's part of the next window of a quantized source, on their way.
        members += [(name, types.int32) for name in raw_words(ty)]
        super().__init__(manager, ty, members)


register_model(OwnStage)(StageModel)
register_tensor_model(NUMBA, TILE)


def first_row(b: ir.IRBuilder, ty: Any) -> ir.Value:
    """First tile row of this thread's warp; of this thread where rows lie along lanes."""
    if is_line(ty):
        return b.udiv(thread(b), const(I32, threads_per_row(ty.hw)))
    return const(I32, 0) if is_shared(ty) else b.mul(warp_index(b), const(I32, ty.m // ty.hw[1]))


def stored_row(b: ir.IRBuilder, ty: Any) -> ir.Value:
    """Row of a `StoredOperand`'s window where this warp's rows begin."""
    return const(I32, 0) if is_shared(ty) else b.shl(warp_index(b), const(I32, 4))


def warp_index(b: ir.IRBuilder) -> ir.Value:
    """Number of this thread's warp in the block."""
    return b.lshr(thread(b), const(I32, 5))


def worker_of(b: ir.IRBuilder, ty: Any) -> ir.Value:
    """Number of this thread among those that copy a window together: of a block, or of a warp with keys of its own."""
    return lane_index(b) if is_shared(ty) and not ty.format else thread(b)


def keys_of_warp(b: ir.IRBuilder, ty: Any, keys: int) -> ir.Value:
    """First key, of those of a window, that this warp computes with where it has ``keys`` of its own."""
    return b.mul(warp_index(b), const(I32, keys)) if is_shared(ty) else const(I32, 0)


def is_writer(b: ir.IRBuilder, ty: Any, exists: list[ir.Value]) -> list[ir.Value]:
    """Which rows of this lane are for it to write: of rows that all warps have, the first one writes."""
    if not is_shared(ty):
        return exists
    first = b.icmp_signed("==", warp_index(b), const(I32, 0))
    return [b.and_(x, first) for x in exists]


def rows_of_stage(ty: Any) -> Any:
    """A stage on the left of a product, as something that has rows."""
    return SimpleNamespace(m=ty.n, hw=ty.hw)


def row_of_lane(b: ir.IRBuilder) -> ir.Value:
    """Row of this lane in an m-tile; its other one is 8 below."""
    return b.lshr(lane_index(b), const(I32, 2))


def column_of_lane(b: ir.IRBuilder, ty: Any = None) -> ir.Value:
    """First of this lane's columns: of its two in every 8, unless the rows of ``ty`` lie along lanes."""
    if ty is not None and is_line(ty):
        return b.mul(b.and_(thread(b), const(I32, threads_per_row(ty.hw) - 1)), const(I32, Lines.wide(ty)))
    return b.shl(b.and_(lane_index(b), const(I32, 3)), const(I32, 1))


def elements_of(ty: Any) -> Iterator[tuple[int, int]]:
    """(slot of its row, column less the lane's) of each element of a tile, in the order of storage."""
    if is_line(ty):
        yield from Lines.elements(ty)
        return
    for i in range(m_tiles(ty)):
        for j in range(columns_of(ty) // 8):
            for half in (0, 1):
                for e in (0, 1):
                    yield 2 * i + half, 8 * j + e


class Lines:
    """The layout of rows along lanes: each row belongs to a *team* of ``line`` consecutive lanes of the block.

    With T teams in the block, team ``t`` has the rows ``t``, ``t + T``, ... Its lane ``l`` has c columns from ``c * l``
    on of every ``c * line``, c being ``vector_width``: 8 are one 16-byte piece of a half type, two of float32.

    =====  ============================================================
    tile   ``[row of the team][c * line columns][c]`` float32 per lane
    rows   ``[row of the team]``, the same in all its lanes
    =====  ============================================================
    """

    @staticmethod
    def wide(ty: Any) -> int:
        """Columns side by side in a lane."""
        return vector_width(ty.hw)

    @staticmethod
    def teams(ty: Any) -> int:
        """Teams of a block."""
        return LANES * ty.hw[1] // threads_per_row(ty.hw)

    @classmethod
    def width(cls, ty: Any) -> int:
        """Columns of a row that its lanes hold side by side."""
        return cls.wide(ty) * threads_per_row(ty.hw)

    @classmethod
    def check(cls, ty: Any) -> None:
        """Refuse what does not fit."""
        lanes, threads = threads_per_row(ty.hw), LANES * ty.hw[1]
        if lanes & (lanes - 1) or threads % lanes or LANES < lanes < threads:
            what = f"threads_per_row={lanes} is no power of two that divides {LANES}, nor a block's {threads}"
            raise TypingError(f"{ty.hw[0]}: {what}")
        if cls.wide(ty) % 4:
            raise TypingError(f"{ty.hw[0]}: vector_width={cls.wide(ty)} is no multiple of 4")
        if ty.m % cls.teams(ty) or getattr(ty, "n", 0) % cls.width(ty):
            raise TypingError(
                f"{ty.hw[0]} with threads_per_row={lanes} and {ty.hw[1]} waves: rows in multiples of {cls.teams(ty)}, "
                f"columns in multiples of {cls.width(ty)}; got {ty}"
            )

    @classmethod
    def elements(cls, ty: Any) -> Iterator[tuple[int, int]]:
        """As `elements_of`."""
        for slot in range(slots_of(ty)):
            for first in range(0, columns_of(ty), cls.width(ty)):
                for e in range(cls.wide(ty)):
                    yield slot, first + e

    @classmethod
    def piece_bytes(cls, dtype: str, shape: Any, tensors: int = 1) -> int:
        """Bytes that a lane moves at once: of whole columns, with one element of each of ``tensors`` side by side."""
        return min(16, cls.wide(shape) * tensors * DTYPES[dtype])

    @classmethod
    def pieces(
        cls, b: ir.IRBuilder, place: SimpleNamespace, dtype: str, shape: Any, tensors: int = 1
    ) -> Iterator[tuple]:
        """(address, whether it exists) of each piece of a lane, see `piece_bytes`, in the order of storage."""
        size = tensors * DTYPES[dtype]
        count = cls.piece_bytes(dtype, shape, tensors) // size
        column = b.zext(column_of_lane(b, shape), I64)
        rest, offset, most = b.sub(place.rest, column), b.mul(column, const(I64, size)), const(I64, columns_of(shape))
        # Compared in 32 bits.
        rest = b.trunc(b.select(b.icmp_signed("<", rest, most), rest, most), I32)
        rows = [b.add(row, offset) for row in place.rows]
        firsts = range(0, columns_of(shape), cls.width(shape))
        starts = [first + e for first in firsts for e in range(0, cls.wide(shape), count)]
        inside = {c: b.icmp_signed(">", rest, const(I32, c)) for c in starts}
        for slot, row in enumerate(rows):
            for c in starts:
                yield b.add(row, const(I64, c * size)), b.and_(place.exists[slot], inside[c])


def complete_rows(b: ir.IRBuilder, ty: Any, value: ir.Value) -> list[ir.Value]:
    """The values of rows; partial ones are added up."""
    values = unpack(b, value)
    if isinstance(ty, BlockSums) or (isinstance(ty, PartialRows) and threads_per_row(ty.hw) > LANES):
        values = over_warps_by_lane(b, values, ty.hw[1])
    if isinstance(ty, PartialRows):
        return [over_lanes(b, x, b.fadd, threads_per_row(ty.hw) or 4) for x in values]
    return values[: slots_of(ty)]


def partial_rows(b: ir.IRBuilder, target: Any, ty: Any, value: ir.Value) -> list[ir.Value]:
    """The values of rows as ``target``, `PartialRows`: the first of the lanes that share them has them."""
    if isinstance(ty, PartialRows):
        return unpack(b, value)
    first = b.icmp_signed("==", column_of_lane(b, ty), const(I32, 0))
    if isinstance(target, BlockSums):
        first = b.and_(first, b.icmp_signed("==", warp_index(b), const(I32, 0)))
    return [b.select(first, x, const(F32, 0.0)) for x in complete_rows(b, ty, value)]


def base_rows(b: ir.IRBuilder, ty: Any, value: ir.Value) -> list[ir.Value]:
    """The values of rows as `BaseRows`: maxima are their own bases."""
    return unpack(b, value) if isinstance(ty, BaseRows) else 2 * complete_rows(b, ty, value)


@NUMBA.lowering_registry.lower_cast(TILE.Rows, PartialRows)
def _cast_to_partial_rows(context: Any, b: ir.IRBuilder, source: Any, target: Any, value: ir.Value) -> ir.Value:
    return pack(b, partial_rows(b, target, source, value))


@NUMBA.lowering_registry.lower_cast(TILE.Rows, BaseRows)
def _cast_to_base_rows(context: Any, b: ir.IRBuilder, source: Any, target: Any, value: ir.Value) -> ir.Value:
    return pack(b, base_rows(b, source, value))
