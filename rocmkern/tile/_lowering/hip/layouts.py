"""How values lie in the lanes of a block and in shared memory: layouts, windows, copies, data models."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from llvmlite import ir
from numba.core import types
from numba.core.datamodel import models
from numba.core.errors import TypingError
from numba.hip.typing_lowering.models import register_model

from rocmkern.tile._lowering.hip.backend import NUMBA, TILE, atom_of
from rocmkern.tile._lowering.hip.emit import (
    GLOBAL,
    POINTER,
    Lane,
    any_lane,
    math,
    opaque,
    over_groups,
    over_lanes,
    thread_index,
    wave_index,
)
from rocmkern.tile._lowering.hip.memory import CHUNK_BYTES, in_space, load_from, over_waves
from rocmkern.tile._lowering.shared.banks import Places, places
from rocmkern.tile._lowering.shared.ir_types import F16, F32, I1, I8, I16, I32, I64, const
from rocmkern.tile._lowering.shared.tensors import call, if_else, register_tensor_model
from rocmkern.tile.language.kinds import DTYPES, threads_per_row, vector_width

#: Lanes of a wave of 64 that write 16 bytes each in the same cycle.
WRITTEN_TOGETHER = 8
#: Operands this long wait in shared memory; in a block of one wave, those of more registers than the second number.
PARKED_LENGTH, PARKED_REGISTERS = 256, 32
#: The value of a stage: its first member that belongs to a copy, and what the members of a copy are.
COPY_MEMBERS = 5
LANE_LOCAL, LANE_SOURCE, ACCESS, CHUNKS = 1, 2, 3, 4
#: How a source can be read; see `StageLowering.access`. The last: whole rows of regular pages.
ELEMENTS, CHUNKS_OF_ROWS, WHOLE_ROWS, WHOLE_ROWS_OF_PAGES = 0, 1, 2, 3


def is_line(ty: Any) -> bool:
    """Whether rows lie along lanes."""
    return threads_per_row(ty.hw) > 0


class LaneLayout:
    """How a tile type is spread over lanes: what `Rows`, `Tile` and `Operand` types say about registers.

    Attributes
    ----------
    row_blocks : int
        Rows that a lane has a part of.
    registers : int
        Columns in a vector of a tile.
    """

    def __new__(cls, ty: Any) -> LaneLayout:
        return super().__new__(LineLayout if is_line(ty) else LaneLayout)

    def __init__(self, ty: Any):
        self.arch, self.waves, wave_rows = ty.hw
        self.atom = atom_of(self.arch, wave_rows)
        self.m = ty.m
        self.row_blocks = ty.m // (wave_rows * self.waves)
        self.registers = self.atom.registers

    def vectors(self, columns: int) -> int:
        """Vectors of a row in a lane."""
        return columns // 16

    def tile(self, columns: int) -> ir.ArrayType:
        """LLVM type of a float32 tile."""
        return ir.ArrayType(ir.VectorType(F32, self.registers), self.row_blocks * self.vectors(columns))

    def row_numbers(self, b: ir.IRBuilder) -> list:
        """The tile rows of this lane, i32."""
        rows = self.atom.rows
        first = b.mul(wave_index(b, self.atom), const(I32, rows * self.row_blocks))
        first = b.add(first, Lane(b, self.atom).row)
        return [b.add(first, const(I32, rows * i)) for i in range(self.row_blocks)]

    def columns_of(self, c: int) -> ir.Constant:
        """Columns of vector ``c`` of a row in the first lane; this one's are `first_column` further."""
        atom = self.atom
        return ir.Constant(
            ir.VectorType(I32, atom.registers), [16 * c + atom.register_step * i for i in range(atom.registers)]
        )

    def first_column(self, b: ir.IRBuilder) -> ir.Value:
        """See `columns_of`; i32."""
        return b.mul(Lane(b, self.atom).group, const(I32, self.atom.group_step))

    def is_first(self, b: ir.IRBuilder) -> ir.Value:
        """Whether this lane is the first of those that share its rows."""
        return b.icmp_unsigned("==", Lane(b, self.atom).group, const(I32, 0))

    def over_lanes(self, b: ir.IRBuilder, join: Callable, value: ir.Value) -> ir.Value:
        """Join a value over the lanes that share rows."""
        return over_groups(b, self.atom, join, value)


class LineLayout(LaneLayout):
    """Rows along lanes, for kernels without products: each row belongs to a *team* of ``line`` lanes side by side.

    With T teams in the block, team ``t`` has the rows ``t``, ``t + T``, ... Its lane ``l`` has c columns from ``c * l``
    on of every ``c * line``, c being ``vector_width`` of the configuration: 8 are 16 bytes of a half type.
    """

    def __init__(self, ty: Any):
        self.arch, self.waves, _ = ty.hw
        self.atom = atom_of(self.arch)
        self.m = ty.m
        self.lanes = threads_per_row(ty.hw)
        self.teams = self.atom.wave * self.waves // self.lanes
        self.row_blocks = ty.m // max(1, self.teams)
        self.registers = vector_width(ty.hw)
        self.width = self.registers * self.lanes

    def check(self, ty: Any) -> None:
        """Raise where a type cannot be laid out."""
        threads = self.atom.wave * self.waves
        if self.lanes & (self.lanes - 1) or threads % self.lanes or self.atom.wave < self.lanes < threads:
            what = f"is no power of two that divides {self.atom.wave}, nor a block's {threads}"
            raise TypingError(f"{self.arch}: threads_per_row={self.lanes} {what}")
        if ty.m % self.teams or getattr(ty, "n", 0) % self.width:
            raise TypingError(
                f"{self.arch} with threads_per_row={self.lanes} and {self.waves} waves: rows in multiples of "
                f"{self.teams}, columns in multiples of {self.width}; got {ty}"
            )

    def vectors(self, columns: int) -> int:
        return columns // self.width

    def row_numbers(self, b: ir.IRBuilder) -> list:
        first = b.lshr(thread_index(b), const(I32, self.lanes.bit_length() - 1))
        return [b.add(first, const(I32, i)) for i in range(0, self.m, self.teams)]

    def columns_of(self, c: int) -> ir.Constant:
        return ir.Constant(ir.VectorType(I32, self.registers), [self.width * c + i for i in range(self.registers)])

    def first_column(self, b: ir.IRBuilder) -> ir.Value:
        return b.mul(self.lane(b), const(I32, self.registers))

    def is_first(self, b: ir.IRBuilder) -> ir.Value:
        return b.icmp_unsigned("==", self.lane(b), const(I32, 0))

    def lane(self, b: ir.IRBuilder) -> ir.Value:
        """Number of this lane in its team, i32."""
        return b.and_(thread_index(b), const(I32, self.lanes - 1))

    def over_lanes(self, b: ir.IRBuilder, join: Callable, value: ir.Value) -> ir.Value:
        value = over_lanes(b, self.atom, join, value, 1, min(self.lanes, self.atom.wave))
        return over_waves(b, self.atom, join, value, max(1, self.lanes // self.atom.wave))


@dataclass(frozen=True)
class Copy:
    """One copy of a stage's window in shared memory, and how the lanes of the block bring it there.

    A lane moves blocks of ``block_rows`` x ``block_columns`` elements.

    Attributes
    ----------
    transposed : bool
        Whether shared memory holds the window column by column.
    places : Places
        Where the bytes of its lines lie: rows, or columns if transposed.
    shared_bytes : int
        Bytes of an element there: 4 if it holds float32, whatever the dtype of the source.
    per_lane : int
        Blocks of a lane; the last ones may not exist.
    rows_apart : int or None
        If the blocks of a lane lie below each other and all exist, their distance: a power of two.
    """

    transposed: bool
    places: Places
    shared_bytes: int
    block_rows: int
    block_columns: int
    blocks: int
    per_lane: int
    chunk: ir.VectorType
    rows_apart: int | None

    @property
    def pitch(self) -> int:
        """Bytes from line to line before they are placed: from row to row of a window of float32 for FMAs."""
        return self.places.pitch


class Window:
    """Geometry of a stage: `n` rows of `k` elements.

    Attributes
    ----------
    matrix : bool
        Whether products with this stage use a matrix instruction; then shared memory holds the elements as they are.
        Otherwise it holds float32.
    read_bytes : int
        Bytes of an access to an operand of a matrix instruction there; 0 without one.
    source : str
        Element type of the source; elements of 8 bits are converted to ``dtype`` when they are fetched.
    paged : bool
        Whether a page table says where rows lie; the value of the stage then ends with what `Page` reads.
    copies : list of Copy
        By rows; for matrix instructions also by columns.
    """

    def __init__(self, ty: Any):
        self.n, self.k, self.dtype = ty.n, ty.k, ty.dtype
        self.source, self.paged = ty.source, ty.paged
        self.arch, self.waves, wave_rows = ty.hw
        self.atom = atom_of(self.arch, wave_rows)
        self.matrix = ty.dtype in self.atom.intrinsics
        self.item_bytes, self.source_bytes = DTYPES[ty.dtype], DTYPES[ty.source]
        self.threads = self.waves * self.atom.wave
        self.read_bytes = min(self.atom.run * self.item_bytes, CHUNK_BYTES) if self.matrix else 0
        self.copies = [self.copy(1, CHUNK_BYTES // self.item_bytes)]
        if self.matrix:
            # As many rows at a time as fill 16 bytes of a column; as wide as leaves work for every lane. Lanes that
            # write in the same cycle have the same rows.
            rows = CHUNK_BYTES // self.item_bytes
            widths = [w for w in (8, 4) if w <= rows and self.n * self.k // (rows * w) >= self.threads]
            if self.atom.wave == 64:
                widths = [w for w in widths if self.k // w >= WRITTEN_TOGETHER]
            self.copies.append(self.copy(rows, max(widths, default=2)))

    def copy(self, rows: int, columns: int) -> Copy:
        transposed, shared_bytes = rows > 1, self.item_bytes if self.matrix else 4
        lines, length = (self.k, self.n) if transposed else (self.n, self.k)
        blocks, across = self.n * self.k // (rows * columns), self.k // columns
        apart = self.threads // across * rows
        regular = self.threads % across == 0 == blocks % self.threads and apart & (apart - 1) == 0
        return Copy(
            transposed=transposed,
            places=places(self.arch, lines, length * shared_bytes, self.read_bytes),
            shared_bytes=shared_bytes,
            block_rows=rows,
            block_columns=columns,
            blocks=blocks,
            per_lane=-(-blocks // self.threads),
            rows_apart=apart if regular else None,
            chunk=ir.VectorType(I32, columns * self.item_bytes // 4),
        )

    def value_type(self) -> ir.Type:
        """Source pointer, rows, columns, both strides; then for each copy (from `COPY_MEMBERS` on) where it lies,
        the lane's offset in it and in a window of the source, how the source can be read, and the chunks in flight.
        """
        members = [POINTER, I64, I64, I64, I64]
        for copy in self.copies:
            members += [POINTER, I32, I32, I32, ir.ArrayType(copy.chunk, copy.per_lane * copy.block_rows)]
        if self.paged:
            members += [POINTER, I32, I64, I32, I64, I32]
        return ir.LiteralStructType(members)


class Pages:
    """The page table of a stage: where it lies, its entries and stride; rows, stride and number of the pages.

    Pages are *regular* if they have a power of two of rows, all offsets in the cache have 32 bits, and the table has
    its entries side by side: then a row is found without a division. Scalar registers are few: what can be computed
    again in every step is not kept.
    """

    MEMBERS = 6

    def __init__(self, b: ir.IRBuilder, st: ir.Value):
        first = len(st.type.elements) - self.MEMBERS
        self.table, self.entries, self.entry_stride, self.page_rows, self.page_stride, self.pages = (
            b.extract_value(st, first + i) for i in range(self.MEMBERS)
        )

    @staticmethod
    def are_regular(
        b: ir.IRBuilder, page_rows: ir.Value, pages: ir.Value, page_stride: ir.Value, row_stride: ir.Value, entry: Any
    ) -> ir.Value:
        """Whether pages are regular: of i64, ``entry`` being the table's stride."""
        few = functools.partial(b.icmp_unsigned, "<")
        short = [few(x, const(I64, 1 << 31)) for x in (page_rows, pages, page_stride, row_stride)]
        end = b.add(b.mul(pages, page_stride), b.mul(page_rows, row_stride))
        power = b.icmp_signed("==", b.and_(page_rows, b.sub(page_rows, const(I64, 1))), const(I64, 0))
        # The rows of a block of `Copy` lie in one page.
        several = b.icmp_signed(">=", page_rows, const(I64, CHUNK_BYTES // 2))
        dense = b.icmp_signed("==", entry, const(I64, 4))
        return functools.reduce(b.and_, [*short, few(end, const(I64, 1 << 32)), power, several, dense])

    def shift(self, b: ir.IRBuilder) -> ir.Value:
        """The binary logarithm of the rows of a regular page."""
        return call(b, "llvm.cttz.i32", I32, [opaque(b, self.page_rows, "s"), const(I1, 1)])

    def have_all(self, b: ir.IRBuilder, window: Window, row0: ir.Value, plain: ir.Value) -> ir.Value:
        """Whether all rows of a window from ``row0`` on have pages, if ``plain``: that pages are regular; else False.

        The lanes of a wave look at the rows 0, 8, 16, ... of the window, beyond which there is no other page.
        """
        step = CHUNK_BYTES // 2
        first = b.trunc(row0, I32)
        last = b.lshr(b.add(first, const(I32, window.n - 1)), self.shift(b))
        listed = b.and_(plain, b.icmp_unsigned("<", last, self.entries))

        def look() -> list:
            lane = b.mul(Lane(b, window.atom).index, const(I32, step))
            lane = math(b, "umin", lane, const(I32, window.n - step))
            (entry,) = self.entries_of(b, [b.add(first, lane)])
            missing = any_lane(b, window.atom, b.icmp_unsigned(">=", entry, self.pages))
            return [b.zext(b.not_(missing), I32)]

        (found,) = if_else(b, listed, look, lambda: [const(I32, 0)])
        return b.icmp_unsigned("!=", found, const(I32, 0))

    def entries_of(self, b: ir.IRBuilder, rows: list) -> list:
        """The entries of the table for rows (i32) of regular pages."""
        table, shift = in_space(b, self.table, GLOBAL), self.shift(b)
        places = [b.zext(b.shl(b.lshr(row, shift), const(I32, 2)), I64) for row in rows]
        return [load_from(b, table, place, I32, 4) for place in places]

    def offset(self, b: ir.IRBuilder, entry: ir.Value, row: ir.Value, row_stride: ir.Value) -> ir.Value:
        """Byte offset (i32) of a row of a regular page, from the first page."""
        line = b.and_(row, b.sub(opaque(b, self.page_rows, "s"), const(I32, 1)))
        of_page = b.mul(entry, b.trunc(self.page_stride, I32))
        return b.add(of_page, b.mul(line, b.trunc(row_stride, I32)))

    def line(self, b: ir.IRBuilder, row: ir.Value, ok: ir.Value, row_stride: ir.Value) -> tuple[ir.Value, ir.Value]:
        """Byte offset of a row (i64) from the first page, and whether it exists; where it does not, of the first."""
        short = b.trunc(b.select(ok, row, const(I64, 0)), I32)
        number, line = b.udiv(short, self.page_rows), b.urem(short, self.page_rows)
        ok = b.and_(ok, b.icmp_unsigned("<", number, self.entries))
        entry = b.mul(b.zext(number, I64), self.entry_stride)

        def look() -> list:
            return [load_from(b, in_space(b, self.table, GLOBAL), entry, I32, 4)]

        (page,) = if_else(b, ok, look, lambda: [const(I32, -1)])
        ok = b.icmp_unsigned("<", page, self.pages)
        offset = b.add(b.mul(b.sext(page, I64), self.page_stride), b.mul(b.zext(line, I64), row_stride))
        return b.select(ok, offset, const(I64, 0)), ok


class Parked:
    """Geometry of an operand that waits in shared memory, because a lane cannot hold it besides the tiles around it.

    Every lane reads what it wrote itself, or what a lane with the same row wrote that holds the same: no barrier is
    needed.

    Attributes
    ----------
    slot : int
        Bytes of one fragment: of all lanes of a wave, for one row block and 16 elements of the reduced axis.
    bytes : int
        Bytes of the operand, for a block.
    """

    def __init__(self, ty: Any):
        layout = LaneLayout(ty)
        self.atom, self.row_blocks, self.steps = layout.atom, layout.row_blocks, ty.k // 16
        self.run = ir.VectorType(operand_element(ty.dtype), self.atom.run)
        self.run_bytes = self.atom.run * DTYPES[ty.dtype]
        self.slot = 16 * (16 // self.atom.run) * self.run_bytes
        self.wave_bytes = self.row_blocks * self.steps * self.slot
        self.bytes = layout.waves * self.wave_bytes

    @staticmethod
    def suits(ty: Any) -> bool:
        """Whether an operand is parked. A block of one wave holds all of the next windows in its registers as well."""
        layout = LaneLayout(ty)
        atom = layout.atom
        if ty.dtype not in atom.intrinsics or atom.wave == 64:  # waves of 64 have 512 registers
            return False
        registers = layout.row_blocks * ty.k // 16 * atom.run * DTYPES[ty.dtype] // 4
        return ty.k >= PARKED_LENGTH or (layout.waves == 1 and registers > PARKED_REGISTERS)


def operand_element(dtype: str) -> ir.Type:
    """Element of an operand of a matrix instruction."""
    return {"float32": F32, "float16": F16, "bfloat16": I16}[dtype]


def _check(ty: Any) -> None:
    """Raise where a type cannot be laid out on its architecture."""
    if isinstance(ty, types.BaseTuple):
        for t in ty:
            _check(t)
        return
    if isinstance(ty, TILE.Rows | TILE.Tile) and is_line(ty):
        LineLayout(ty).check(ty)
        return
    if isinstance(ty, TILE.Operand | TILE.Stage) and is_line(ty):
        raise TypingError(f"{ty.hw[0]}: a kernel with products needs a configuration with threads_per_row=0")
    if isinstance(ty, TILE.Rows | TILE.Tile | TILE.Operand):
        arch, waves, wave_rows = ty.hw
        atom_of(arch, wave_rows)
        if ty.m % (wave_rows * waves):
            raise TypingError(
                f"{waves} waves take tile rows in multiples of {wave_rows} a wave, {wave_rows * waves} a block; "
                f"got {ty.m}"
            )
    if isinstance(ty, TILE.Operand | TILE.Stage) and ty.dtype not in ("float32", "float16", "bfloat16"):
        raise TypingError(f"products take float32, float16 and bfloat16, got {ty.dtype}")
    for axis in ("n", "k"):
        if isinstance(ty, TILE.Tile | TILE.Operand | TILE.Stage) and getattr(ty, axis, 16) % 16:
            raise TypingError(f"tiles on {ty.hw[0]} have a multiple of 16 columns, got {getattr(ty, axis)}")


class Weights(TILE.Tile):
    """[m, n] weights of `softmax_step`: none is negative, and where one is NaN, the sum of its row is NaN as well."""

    def __init__(self, m: int, n: int, hw: tuple):
        super().__init__(m, n, hw)
        self.name = f"hip.Weights({m},{n},{hw})"

    @property
    def tile(self) -> Any:
        """What they are for every operation but `operand`."""
        return TILE.Tile(self.m, self.n, self.hw)

    def unify(self, typingctx: Any, other: Any) -> Any:
        """A variable that also holds another tile holds a tile."""
        return self.tile if other == self.tile else None


def checked(rule: Callable) -> Callable:
    @functools.wraps(rule)
    def typed(*args: Any) -> Any:
        result = rule(*(x.tile if isinstance(x, Weights) else x for x in args))
        _check(result)
        return result

    return typed


def rule_of_softmax_step(rule: Callable) -> Callable:
    """The typing rule of `softmax_step`: its first result are weights."""

    @functools.wraps(rule)
    def typed(*args: Any) -> Any:
        p, *others = rule(*args)
        return types.Tuple((Weights(p.m, p.n, p.hw), *others))

    return typed


@register_model(TILE.Config)
class _ConfigModel(models.PrimitiveModel):
    """Nothing: all of a configuration is in its type."""

    def __init__(self, manager: Any, ty: Any):
        super().__init__(manager, ty, I8)


@register_model(TILE.Rows)
class _RowsModel(models.PrimitiveModel):
    """Booleans are bytes: LLVM does not take arrays of bits out of memory."""

    def __init__(self, manager: Any, ty: Any):
        element = {"f32": F32, "i32": I32, "i1": I8}[ty.kind]
        super().__init__(manager, ty, ir.ArrayType(element, LaneLayout(ty).row_blocks))


@register_model(Weights)
@register_model(TILE.Tile)
class _TileModel(models.PrimitiveModel):
    def __init__(self, manager: Any, ty: Any):
        super().__init__(manager, ty, LaneLayout(ty).tile(ty.n))


@register_model(TILE.Operand)
class _OperandModel(models.PrimitiveModel):
    def __init__(self, manager: Any, ty: Any):
        layout = LaneLayout(ty)
        if Parked.suits(ty):
            super().__init__(manager, ty, POINTER)  # where this lane's part lies
        elif ty.dtype in layout.atom.intrinsics:
            run = ir.VectorType(operand_element(ty.dtype), layout.atom.run)
            super().__init__(manager, ty, ir.ArrayType(run, layout.row_blocks * ty.k // 16))
        else:
            super().__init__(manager, ty, layout.tile(ty.k))


@register_model(TILE.Stage)
class _StageModel(models.PrimitiveModel):
    def __init__(self, manager: Any, ty: Any):
        super().__init__(manager, ty, Window(ty).value_type())


# The number of the first word of an argument; -1 for other tensors.
register_tensor_model(NUMBA, TILE, ("number", types.int64))


@NUMBA.lowering_registry.lower_cast(Weights, TILE.Tile)
def _weights_as_tile(context: Any, b: ir.IRBuilder, source: Any, target: Any, value: ir.Value) -> ir.Value:
    return value
