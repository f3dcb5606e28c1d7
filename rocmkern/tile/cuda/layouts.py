"""How values lie in the lanes of a block: data models, slots of rows, elements of tiles, lines."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

from llvmlite import ir
from numba.cuda import types
from numba.cuda.core.errors import TypingError
from numba.cuda.datamodel import models
from numba.cuda.extending import register_model

from rocmkern.tile.cuda.backend import NUMBA, TILE
from rocmkern.tile.cuda.emit import LANES, lane_index, pack, reduce_quad, thread, unpack
from rocmkern.tile.cuda.quantised import raw_words
from rocmkern.tile.tensors import F32, I1, I32, I64, const, register_tensor_model
from rocmkern.tile.types import DTYPES


def _check_layout(ty: Any) -> None:
    """Refuse what does not fit the layout."""
    if isinstance(ty, types.BaseTuple):
        for each in ty:
            _check_layout(each)
    elif isinstance(ty, TILE.Rows | TILE.Tile) and is_line(ty):
        if ty.m % ty.hw[1] or getattr(ty, "n", 0) % Lines.columns(ty):
            raise TypingError(
                f"{ty.hw[0]} with line=True and {ty.hw[1]} waves: rows in multiples of the waves, columns in multiples "
                f"of {Lines.columns(ty)}; got {ty}"
            )
        return
    elif isinstance(ty, TILE.Operand | TILE.Stage) and is_line(ty):
        raise TypingError(f"{ty.hw[0]}: a kernel with products needs a configuration with line=False")
    if isinstance(ty, TILE.Rows | TILE.Tile | TILE.Operand):
        step = 16 * ty.hw[1]
        if ty.m % step:
            raise TypingError(
                f"{ty.hw[0]} with {ty.hw[1]} waves a block: rows come in multiples of 16 a wave, "
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
    return isinstance(ty.hw[2], str)


def slots_of(ty: Any) -> int:
    """Rows that a lane has a part of."""
    return ty.m // ty.hw[1] if is_line(ty) else 2 * m_tiles(ty)


def m_tiles(ty: Any) -> int:
    """m-tiles (16 rows) of one warp."""
    return ty.m // (16 * ty.hw[1])


def columns_of(ty: Any) -> int:
    return ty.n if isinstance(ty, TILE.Tile) else ty.k


def is_packed(ty: Any) -> bool:
    """Whether a value holds 16-bit elements in pairs, for mma.sync."""
    return isinstance(ty, TILE.Operand | TILE.Stage) and ty.dtype != "float32"


def storage(ty: Any) -> ir.ArrayType:
    """What one lane holds of rows, a tile or an operand."""
    if isinstance(ty, TILE.Rows):
        width = ty.width if isinstance(ty, HeldRows) else 1
        return ir.ArrayType({"f32": F32, "i32": I32, "i1": I1}[ty.kind], width * slots_of(ty))
    per_lane = ty.m // ty.hw[1] * columns_of(ty) // LANES
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


class BaseRows(HeldRows):
    """Rows near a running maximum; after those of a lane come the maxima themselves."""

    width = 2


for _type in (PartialRows, BaseRows):
    register_model(_type)(ArrayModel)


class StoredOperand(TILE.Operand):
    """[m, k] left operand of a product with a stage of ``dtype``, kept in local memory: registers hold its address.

    Each lane reads back only what it wrote itself: 16 bytes for each fragment, those of a warp side by side.
    """

    def __init__(self, m: int, k: int, dtype: str, hw: tuple):
        super().__init__(m, k, dtype, hw)
        self.name = f"cuda.StoredOperand({m},{k},{dtype},{hw})"

    @property
    def nbytes(self) -> int:
        """Local memory that it takes."""
        return self.m * self.k * DTYPES[self.dtype]

    @property
    def fragment_bytes(self) -> int:
        """Bytes from one fragment of a lane to its next."""
        return 16 * LANES * self.hw[1]


@register_model(StoredOperand)
class _StoredOperandModel(models.PrimitiveModel):
    def __init__(self, manager: Any, ty: Any):
        super().__init__(manager, ty, I32)


PAGED_MEMBERS = ("table", "entries", "entry_stride", "page_rows", "page_stride", "pages")
#: A loaded operand of more 32-bit registers than this goes to local memory.
OPERAND_REGISTERS = 32


def rule_of_softmax_step(rule: Callable) -> Callable:
    """The typing rule of `softmax_step`: what it holds of rows; see `HeldRows`."""

    @functools.wraps(rule)
    def typed(*args: Any) -> Any:
        p, m, sums, acc = rule(*args)
        if is_line(p):
            raise TypingError("softmax_step: a kernel with products needs a configuration with line=False")
        return types.Tuple((p, BaseRows(m.m, m.hw), PartialRows(sums.m, sums.hw), acc))

    return typed


def rule_of_load_rowdot(rule: Callable) -> Callable:
    """The typing rule of `load_rowdot`: its sums stay partial where rows lie along lanes."""

    @functools.wraps(rule)
    def typed(*args: Any) -> Any:
        ty = rule(*args)
        return PartialRows(ty.m, ty.hw) if is_line(ty) else ty

    return typed


def rule_of_add(rule: Callable) -> Callable:
    """The typing rule of ``+``: rows along lanes stay partial beside others."""

    @functools.wraps(rule)
    def typed(a: Any, b: Any) -> Any:
        ty = rule(a, b)
        both = isinstance(a, TILE.Rows) and isinstance(b, TILE.Rows)
        partial = isinstance(a, PartialRows) or isinstance(b, PartialRows)
        return PartialRows(ty.m, ty.hw) if both and partial and is_line(ty) else ty

    return typed


def rule_of_load_operand(rule: Callable) -> Callable:
    """The typing rule of `load_operand`, with the choice of where the operand is kept."""

    @functools.wraps(rule)
    def typed(*args: Any) -> Any:
        ty = rule(*args)
        _check_layout(ty)
        stored = is_packed(ty) and storage(ty).count > OPERAND_REGISTERS
        return StoredOperand(ty.m, ty.k, ty.dtype, ty.hw) if stored else ty

    return typed


@register_model(TILE.Stage)
class StageModel(models.StructModel):
    """The source (address, extents, strides in bytes), and shared-memory addresses of the two windows.

    ``window`` is the one in use, ``both`` the sum of both; the one being fetched starts at ``row0`` and ``col0``.
    ``irregular`` is 0 where rows consist of whole aligned chunks of 16 bytes.
    A paged one also has the table, its entries and stride, and rows, stride and number of the pages.
    """

    WIDE = ("source", "rows", "columns", "row_stride", "column_stride", "row0", "col0")
    NARROW = ("window", "both", "irregular")
    MEMBERS = WIDE + NARROW

    def __init__(self, manager: Any, ty: Any):
        members = [(name, types.int64) for name in self.WIDE] + [(name, types.int32) for name in self.NARROW]
        if ty.paged:
            members += [(name, types.int64) for name in PAGED_MEMBERS]
        # The bytes of this thread's part of the next window of a quantised source, on their way.
        members += [(name, types.int32) for name in raw_words(ty)]
        super().__init__(manager, ty, members)


register_tensor_model(NUMBA, TILE)


def first_row(b: ir.IRBuilder, ty: Any) -> ir.Value:
    """First tile row of this thread's warp."""
    return b.mul(b.lshr(thread(b), const(I32, 5)), const(I32, ty.m // ty.hw[1]))


def rows_of_stage(ty: Any) -> Any:
    """A stage on the left of a product, as something that has rows."""
    return SimpleNamespace(m=ty.n, hw=ty.hw)


def row_of_lane(b: ir.IRBuilder) -> ir.Value:
    """Row of this lane in an m-tile; its other one is 8 below."""
    return b.lshr(lane_index(b), const(I32, 2))


def column_of_lane(b: ir.IRBuilder, ty: Any = None) -> ir.Value:
    """First of this lane's columns: of its two in every 8, unless the rows of ``ty`` lie along lanes."""
    if ty is not None and is_line(ty):
        return b.mul(lane_index(b), const(I32, Lines.wide(ty)))
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
    """The layout of rows along lanes: consecutive rows belong to a warp, each to all of its lanes.

    Lane ``l`` has c columns from ``c * l`` on of every ``32 * c``, c being ``line_columns`` of the configuration: 8 are
    one 16-byte piece of a half type, two of float32.

    =====  ====================================================
    tile   ``[row of the warp][32 * c columns][c]`` float32 per lane
    rows   ``[row of the warp]``, the same in all lanes
    =====  ====================================================
    """

    @staticmethod
    def wide(ty: Any) -> int:
        """Columns side by side in a lane."""
        return int(ty.hw[2].removeprefix("line"))

    @classmethod
    def columns(cls, ty: Any) -> int:
        """Columns of all lanes."""
        return LANES * cls.wide(ty)

    @classmethod
    def elements(cls, ty: Any) -> Iterator[tuple[int, int]]:
        """As `elements_of`."""
        for slot in range(slots_of(ty)):
            for first in range(0, columns_of(ty), cls.columns(ty)):
                for e in range(cls.wide(ty)):
                    yield slot, first + e

    @classmethod
    def pieces(cls, b: ir.IRBuilder, place: SimpleNamespace, dtype: str, shape: Any) -> Iterator[tuple]:
        """(address, whether it exists) of each 16-byte piece of a lane, in the order of storage."""
        size, count = DTYPES[dtype], 16 // DTYPES[dtype]
        column = b.zext(column_of_lane(b, shape), I64)
        rest, offset = b.sub(place.rest, column), b.mul(column, const(I64, size))
        rows = [b.add(row, offset) for row in place.rows]
        firsts = range(0, columns_of(shape), cls.columns(shape))
        starts = [first + e for first in firsts for e in range(0, cls.wide(shape), count)]
        inside = {c: b.icmp_signed(">", rest, const(I64, c)) for c in starts}
        for slot, row in enumerate(rows):
            for c in starts:
                yield b.add(row, const(I64, c * size)), b.and_(place.exists[slot], inside[c])


def complete_rows(b: ir.IRBuilder, ty: Any, value: ir.Value) -> list[ir.Value]:
    """The values of rows; partial ones are added up."""
    values = unpack(b, value)
    if isinstance(ty, PartialRows):
        return [reduce_quad(b, x, b.fadd, LANES if is_line(ty) else 4) for x in values]
    return values[: slots_of(ty)]


def partial_rows(b: ir.IRBuilder, ty: Any, value: ir.Value) -> list[ir.Value]:
    """The values of rows as `PartialRows`: the first of the lanes that share them has them."""
    if isinstance(ty, PartialRows):
        return unpack(b, value)
    first = b.icmp_signed("==", column_of_lane(b, ty), const(I32, 0))
    return [b.select(first, x, const(F32, 0.0)) for x in complete_rows(b, ty, value)]


def base_rows(b: ir.IRBuilder, ty: Any, value: ir.Value) -> list[ir.Value]:
    """The values of rows as `BaseRows`: maxima are their own bases."""
    return unpack(b, value) if isinstance(ty, BaseRows) else 2 * complete_rows(b, ty, value)


@NUMBA.lowering_registry.lower_cast(TILE.Rows, PartialRows)
def _cast_to_partial_rows(context: Any, b: ir.IRBuilder, source: Any, target: Any, value: ir.Value) -> ir.Value:
    return pack(b, partial_rows(b, source, value))


@NUMBA.lowering_registry.lower_cast(TILE.Rows, BaseRows)
def _cast_to_base_rows(context: Any, b: ir.IRBuilder, source: Any, target: Any, value: ir.Value) -> ir.Value:
    return pack(b, base_rows(b, source, value))
