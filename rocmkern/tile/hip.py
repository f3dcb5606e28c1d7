"""The tile language on AMD GPUs: a block is `waves` waves, and a tile lies in the registers of its lanes.

Layout. A wave owns consecutive tile rows, 16 at a time. Lane ``l`` holds row ``l % 16`` of such a row block, and the
lane groups ``l // 16`` share its columns as `atoms.Atom` says (8 instead of 16 where a configuration asks for it). This
is the layout of a *transposed* product (``S^T = K Q^T``), in which a query row belongs to a lane: row statistics are
almost local, and weights become the operand of the next product without leaving it (one exchange of half-waves on
gfx11, none elsewhere).

=========  ==========================================================================================================
Rows       one value per row block; lane groups hold copies
Tile       float32, a vector of ``atom.registers`` for every (row block, 16 columns)
Operand    for matrix instructions a run of ``atom.run`` elements for every (row block, 16 elements of the reduced
           axis), in local memory where they would take too many registers (see `Parked`); where there are none for
           the dtype it is stored as a Tile
Stage      a window in local memory, and the next window in registers on its way there
=========  ==========================================================================================================

The configuration of a kernel without products may ask for rows along lanes instead: see `LineLayout`.

float32 products are float32 FMAs: those of CDNA's matrix instructions, elsewhere of the vector unit. For the latter,
local memory holds the 16 columns of a tile permuted so that a lane group's columns are consecutive (on gfx11).

A matrix instruction wants the reduced axis contiguous, so `dot_nt` reads a stage row by row, and `dot_nn` and `dot_tn`
read it column by column. A stage for matrix instructions therefore has two copies, and LLVM deletes the one that no
product reads, with everything that fills it (a local variable that is only written to is dead: its GlobalOpt pass).
"""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from llvmlite import ir
from numba.core import types
from numba.core.datamodel import models
from numba.core.errors import TypingError
from numba.hip.typing_lowering.models import register_model
from numba.hip.typing_lowering.registries import impl_registry, typing_registry

from rocmkern.tile import api, entry, squares
from rocmkern.tile.activations import Activations
from rocmkern.tile.angles import cos_sin, rotated
from rocmkern.tile.architectures import architecture
from rocmkern.tile.atoms import ATOMS, Atom
from rocmkern.tile.binding import bind, bind_device_functions
from rocmkern.tile.formats import FORMATS, Format
from rocmkern.tile.lanes import LaneReader
from rocmkern.tile.numba_core import numba_core
from rocmkern.tile.tensors import (
    F16,
    F32,
    F64,
    I1,
    I8,
    I16,
    I32,
    I64,
    TensorLowering,
    as_int32,
    call,
    const,
    from_byte,
    register_tensor_model,
)
from rocmkern.tile.types import DTYPES, QUANTIZED, make_types

NUMBA = numba_core(typing_registry, impl_registry, register_model)
TILE = make_types(types, TypingError, "hip")

LOG2_E = 1.4426950408889634
NEG_INF = float("-inf")
#: A row's maximum may lag behind by this much, in base-2 exponent, before the accumulator is rescaled.
LAZY_EXPONENT = 8.0
#: Up to this base-2 exponent a maximum times the scale may be rounded (by 1/2 at most) before it is subtracted.
HUGE_EXPONENT = 2.0**24
#: tanh(x) = x + x^3 * P(x^2) for |x| < 0.6: minimax fit of P in relative error (3e-9).
TANH_SMALL = 0.6
TANH_COEFFICIENTS = (-0.33333298, 0.13331924, -0.05378383, 0.02079597, -0.00589515)
#: Bytes between the rows of a stage, so that 16 lanes that read 16 rows at one column hit different banks.
ROW_PADDING = 16
CHUNK_BYTES = 16

#: Operands this long wait in local memory; in a block of one wave, those of more registers than the second number.
PARKED_LENGTH, PARKED_REGISTERS = 256, 32

#: Registers of one group of loads from local memory in a product; two groups are alive at a time.
LOAD_AHEAD = 16

#: The value of a stage: its first member that belongs to a copy, and what the members of a copy are.
COPY_MEMBERS = 5
LANE_LOCAL, LANE_SOURCE, ACCESS, CHUNKS = 1, 2, 3, 4
#: How a source can be read; see `HipLowering.access`.
ELEMENTS, CHUNKS_OF_ROWS, WHOLE_ROWS = 0, 1, 2

GLOBAL, LOCAL = 1, 3  # LLVM address spaces
#: Control word of a DPP instruction that takes a value from another lane of 16: by exclusive or with its low bits.
DPP_ROW_XMASK = 0x160
POINTER = ir.PointerType(I8)
#: Bit patterns of infinity.
INFINITY = {"float32": 0x7F800000, "float16": 0x7C00, "bfloat16": 0x7F80}


def atom_of(arch: str, wave_rows: int = 16) -> Atom:
    """Layout of tiles on an architecture, with so many rows of a tile side by side in a wave."""
    if wave_rows == 16:
        return ATOMS[architecture(arch).matrix or "fma"]
    atom = ATOMS["fma-8"]
    if wave_rows != atom.rows or architecture(arch).wave != atom.wave:
        allowed = "16 rows of a tile" if architecture(arch).wave != atom.wave else f"16 or {atom.rows} rows of a tile"
        raise TypingError(f"a wave on {arch} has {allowed} side by side, not {wave_rows}")
    return atom


def bound_config(cfg: api.Config) -> entry.BoundConfig:
    """The configuration as a constant of a generated module."""
    return entry.BoundConfig(TILE.Config(cfg))


# --------------------------------------------------------------------------------------------------- shapes and layouts


def _is_line(ty: Any) -> bool:
    """Whether rows lie along lanes."""
    return ty.hw[2] == "line"


class Layout:
    """How a tile type is spread over lanes: what `Rows`, `Tile` and `Operand` types say about registers.

    Attributes
    ----------
    row_blocks : int
        Rows that a lane has a part of.
    registers : int
        Columns in a vector of a tile.
    """

    def __new__(cls, ty: Any) -> Layout:
        return super().__new__(LineLayout if _is_line(ty) else Layout)

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
        first = b.mul(_wave_index(b, self.atom), const(I32, rows * self.row_blocks))
        first = b.add(first, _Lane(b, self.atom).row)
        return [b.add(first, const(I32, rows * i)) for i in range(self.row_blocks)]

    def columns_of(self, c: int) -> ir.Constant:
        """Columns of vector ``c`` of a row in the first lane; this one's are `first_column` further."""
        atom = self.atom
        return ir.Constant(
            ir.VectorType(I32, atom.registers), [16 * c + atom.register_step * i for i in range(atom.registers)]
        )

    def first_column(self, b: ir.IRBuilder) -> ir.Value:
        """See `columns_of`; i32."""
        return b.mul(_Lane(b, self.atom).group, const(I32, self.atom.group_step))

    def is_first(self, b: ir.IRBuilder) -> ir.Value:
        """Whether this lane is the first of those that share its rows."""
        return b.icmp_unsigned("==", _Lane(b, self.atom).group, const(I32, 0))

    def over_lanes(self, b: ir.IRBuilder, join: Callable, value: ir.Value) -> ir.Value:
        """Join a value over the lanes that share rows."""
        return _over_groups(b, self.atom, join, value)


class LineLayout(Layout):
    """Rows along lanes, for kernels without products: consecutive rows belong to a wave, each to all of its lanes.

    Lane ``l`` has 8 columns from ``8 * l`` on of every ``8 * wave``: 16 bytes of a half type.
    """

    def __init__(self, ty: Any):
        self.arch, self.waves, _ = ty.hw
        self.atom = atom_of(self.arch)
        self.m = ty.m
        self.row_blocks = ty.m // self.waves
        self.registers = api.LINE_COLUMNS
        self.width = self.registers * self.atom.wave

    def vectors(self, columns: int) -> int:
        return columns // self.width

    def row_numbers(self, b: ir.IRBuilder) -> list:
        first = b.mul(_wave_index(b, self.atom), const(I32, self.row_blocks))
        return [b.add(first, const(I32, i)) for i in range(self.row_blocks)]

    def columns_of(self, c: int) -> ir.Constant:
        return ir.Constant(ir.VectorType(I32, self.registers), [self.width * c + i for i in range(self.registers)])

    def first_column(self, b: ir.IRBuilder) -> ir.Value:
        return b.mul(_Lane(b, self.atom).index, const(I32, self.registers))

    def is_first(self, b: ir.IRBuilder) -> ir.Value:
        return b.icmp_unsigned("==", _Lane(b, self.atom).index, const(I32, 0))

    def over_lanes(self, b: ir.IRBuilder, join: Callable, value: ir.Value) -> ir.Value:
        distance = 1
        while distance < self.atom.wave:
            value = join(value, _from_lane(b, self.atom, value, distance))
            distance *= 2
        return value


@dataclass(frozen=True)
class Copy:
    """One copy of a stage's window in local memory, and how the lanes of the block bring it there.

    A lane moves blocks of ``block_rows`` x ``block_columns`` elements.

    Attributes
    ----------
    transposed : bool
        Whether local memory holds the window column by column.
    ld : int
        Elements between rows (columns, if transposed) in local memory.
    local_bytes : int
        Bytes of an element there: 4 if it holds float32, whatever the dtype of the source.
    per_lane : int
        Blocks of a lane; the last ones may not exist.
    rows_apart : int or None
        If the blocks of a lane lie below each other and all exist, their distance.
    """

    transposed: bool
    lines: int
    ld: int
    local_bytes: int
    block_rows: int
    block_columns: int
    blocks: int
    per_lane: int
    chunk: ir.VectorType
    rows_apart: int | None

    @property
    def bytes(self) -> int:
        return self.lines * self.ld * self.local_bytes


class Window:
    """Geometry of a stage: `n` rows of `k` elements.

    Attributes
    ----------
    matrix : bool
        Whether products with this stage use a matrix instruction; then local memory holds the elements as they are.
        Otherwise it holds float32.
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
        arch, self.waves, wave_rows = ty.hw
        self.atom = atom_of(arch, wave_rows)
        self.matrix = ty.dtype in self.atom.intrinsics
        self.item_bytes, self.source_bytes = DTYPES[ty.dtype], DTYPES[ty.source]
        self.threads = self.waves * self.atom.wave
        self.copies = [self.copy(1, CHUNK_BYTES // self.item_bytes)]
        if self.matrix:
            # As many rows at a time as fill 16 bytes of a column; as wide as leaves work for every lane.
            rows = CHUNK_BYTES // self.item_bytes
            widths = [w for w in (8, 4) if w <= rows and self.n * self.k // (rows * w) >= self.threads]
            self.copies.append(self.copy(rows, max(widths, default=2)))

    def copy(self, rows: int, columns: int) -> Copy:
        transposed, local_bytes = rows > 1, self.item_bytes if self.matrix else 4
        lines, length = (self.k, self.n) if transposed else (self.n, self.k)
        blocks, across = self.n * self.k // (rows * columns), self.k // columns
        return Copy(
            transposed=transposed,
            lines=lines,
            ld=length + ROW_PADDING // local_bytes,
            local_bytes=local_bytes,
            block_rows=rows,
            block_columns=columns,
            blocks=blocks,
            per_lane=-(-blocks // self.threads),
            rows_apart=self.threads // across * rows if self.threads % across == 0 == blocks % self.threads else None,
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
            members += [POINTER, I32, I64, I32, I64, I64]
        return ir.LiteralStructType(members)


class Pages:
    """The page table of a stage: where it lies, its entries and stride; rows, stride and number of the pages."""

    MEMBERS = 6

    def __init__(self, b: ir.IRBuilder, st: ir.Value):
        first = len(st.type.elements) - self.MEMBERS
        self.table, self.entries, self.entry_stride, self.page_rows, self.page_stride, self.pages = (
            b.extract_value(st, first + i) for i in range(self.MEMBERS)
        )

    def line(self, b: ir.IRBuilder, row: ir.Value, ok: ir.Value, row_stride: ir.Value) -> tuple[ir.Value, ir.Value]:
        """Byte offset of a row (i64) from the first page, and whether it exists; where it does not, of the first."""
        short = b.trunc(b.select(ok, row, const(I64, 0)), I32)
        number, line = b.udiv(short, self.page_rows), b.urem(short, self.page_rows)
        ok = b.and_(ok, b.icmp_unsigned("<", number, self.entries))
        entry = b.mul(b.zext(number, I64), self.entry_stride)

        def look() -> list:
            return [b.sext(_load(b, _in_space(b, self.table, GLOBAL), entry, I32, 4), I64)]

        (page,) = _branch(b, ok, look, lambda: [const(I64, -1)])
        ok = b.icmp_unsigned("<", page, self.pages)
        offset = b.add(b.mul(page, self.page_stride), b.mul(b.zext(line, I64), row_stride))
        return b.select(ok, offset, const(I64, 0)), ok


class Parked:
    """Geometry of an operand that waits in local memory, because a lane cannot hold it besides the tiles around it.

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
        layout = Layout(ty)
        self.atom, self.row_blocks, self.steps = layout.atom, layout.row_blocks, ty.k // 16
        self.run = ir.VectorType(operand_element(ty.dtype), self.atom.run)
        self.run_bytes = self.atom.run * DTYPES[ty.dtype]
        self.slot = 16 * (16 // self.atom.run) * self.run_bytes
        self.wave_bytes = self.row_blocks * self.steps * self.slot
        self.bytes = layout.waves * self.wave_bytes

    @staticmethod
    def suits(ty: Any) -> bool:
        """Whether an operand is parked. A block of one wave holds all of the next windows in its registers as well."""
        layout = Layout(ty)
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
    if isinstance(ty, TILE.Rows | TILE.Tile) and _is_line(ty):
        width = Layout(ty).width
        if ty.m % ty.hw[1] or getattr(ty, "n", 0) % width:
            raise TypingError(
                f"{ty.hw[0]} with line=True and {ty.hw[1]} waves: rows in multiples of the waves, columns in multiples "
                f"of {width}; got {ty}"
            )
        return
    if isinstance(ty, TILE.Operand | TILE.Stage) and _is_line(ty):
        raise TypingError(f"{ty.hw[0]}: a kernel with products needs a configuration with line=False")
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


def _checked(rule: Callable) -> Callable:
    @functools.wraps(rule)
    def typed(*args: Any) -> Any:
        result = rule(*args)
        _check(result)
        return result

    return typed


# --------------------------------------------------------------------------------------------------------- data models


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
        super().__init__(manager, ty, ir.ArrayType(element, Layout(ty).row_blocks))


@register_model(TILE.Tile)
class _TileModel(models.PrimitiveModel):
    def __init__(self, manager: Any, ty: Any):
        super().__init__(manager, ty, Layout(ty).tile(ty.n))


@register_model(TILE.Operand)
class _OperandModel(models.PrimitiveModel):
    def __init__(self, manager: Any, ty: Any):
        layout = Layout(ty)
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


register_tensor_model(NUMBA, TILE)


# ------------------------------------------------------------------------------------------------------ small helpers


def _items(b: ir.IRBuilder, aggregate: ir.Value) -> list:
    return [b.extract_value(aggregate, i) for i in range(len(aggregate.type.elements))]


def _aggregate(b: ir.IRBuilder, ty: ir.Type, items: list) -> ir.Value:
    value = ir.Constant(ty, ir.Undefined)
    for i, item in enumerate(items):
        value = b.insert_value(value, item, i)
    return value


def _array(b: ir.IRBuilder, items: list) -> ir.Value:
    return _aggregate(b, ir.ArrayType(items[0].type, len(items)), items)


def _flags(b: ir.IRBuilder, rows: ir.Value) -> list:
    """Boolean rows as bits."""
    return [b.trunc(x, I1) for x in _items(b, rows)]


def _flag_rows(b: ir.IRBuilder, flags: list) -> ir.Value:
    return _array(b, [b.zext(x, I8) for x in flags])


def _elements(b: ir.IRBuilder, vector: ir.Value) -> list:
    return [b.extract_element(vector, const(I32, i)) for i in range(vector.type.count)]


def _vector(b: ir.IRBuilder, items: list) -> ir.Value:
    value = ir.Constant(ir.VectorType(items[0].type, len(items)), ir.Undefined)
    for i, item in enumerate(items):
        value = b.insert_element(value, item, const(I32, i))
    return value


def _splat(b: ir.IRBuilder, x: ir.Value, n: int) -> ir.Value:
    v = b.insert_element(ir.Constant(ir.VectorType(x.type, n), ir.Undefined), x, const(I32, 0))
    return b.shuffle_vector(v, v, const(ir.VectorType(I32, n), 0))


def _shuffle(b: ir.IRBuilder, v: ir.Value, w: ir.Value, order: Any) -> ir.Value:
    order = list(order)
    return b.shuffle_vector(v, w, ir.Constant(ir.VectorType(I32, len(order)), order))


def _type_suffix(ty: ir.Type) -> str:
    if isinstance(ty, ir.VectorType):
        return f"v{ty.count}{_type_suffix(ty.element)}"
    return f"i{ty.width}" if isinstance(ty, ir.IntType) else {F16: "f16", F32: "f32"}[ty]


def _math(b: ir.IRBuilder, name: str, *args: ir.Value) -> ir.Value:
    """Call ``llvm.<name>`` overloaded on the type of its arguments."""
    return call(b, f"llvm.{name}.{_type_suffix(args[0].type)}", args[0].type, list(args))


def _each(b: ir.IRBuilder, vector: ir.Value, body: Callable) -> ir.Value:
    return _vector(b, [body(x) for x in _elements(b, vector)])


def _exp2(b: ir.IRBuilder, x: ir.Value) -> ir.Value:
    return _math(b, "amdgcn.exp2", x)


def _divide(b: ir.IRBuilder, x: ir.Value, y: ir.Value) -> ir.Value:
    """x / y to two units in the last place, y being neither very small nor very large."""
    return b.fmul(x, _math(b, "amdgcn.rcp", y))


ACTIVATIONS = Activations(exp2=_exp2, divide=_divide)


def _tree(b: ir.IRBuilder, join: Callable, xs: list) -> ir.Value:
    """Join vectors pairwise, then their elements."""
    while len(xs) > 1:
        xs = [join(x, y) for x, y in itertools.zip_longest(xs[::2], xs[1::2]) if y is not None] + xs[len(xs) & ~1 :]
    elements = _elements(b, xs[0])
    while len(elements) > 1:
        elements = [join(x, y) for x, y in zip(elements[::2], elements[1::2], strict=True)]
    return elements[0]


def _largest(b: ir.IRBuilder, vectors: list) -> ir.Value:
    """The largest element, found three at a time: there is an instruction for that."""

    def larger(x: ir.Value, y: ir.Value) -> ir.Value:
        return _math(b, "maxnum", x, y)

    xs = [x for v in vectors for x in _elements(b, v)]
    while len(xs) > 1:
        xs = [functools.reduce(larger, xs[i : i + 3]) for i in range(0, len(xs), 3)]
    return xs[0]


def _branch(b: ir.IRBuilder, condition: ir.Value, yes: Callable, no: Callable) -> list:
    """``yes()`` or ``no()``, which emit code and return equally many values."""
    with b.if_else(condition) as (then, otherwise):
        with then:
            left, left_block = yes(), b.block
        with otherwise:
            right, right_block = no(), b.block
            left_end, right_end = left_block, right_block
    joined = []
    for x, y in zip(left, right, strict=True):
        phi = b.phi(x.type)
        phi.add_incoming(x, left_end)
        phi.add_incoming(y, right_end)
        joined.append(phi)
    return joined


def _if(b: ir.IRBuilder, condition: ir.Value, values: list, body: Callable) -> list:
    """``body()``, which returns new values, if the condition holds; else ``values``.

    For tiles use this and not `_branch`. LLVM makes two conditional blocks of if and else, one after the other, even
    where all lanes take the same way: what the second one starts from stays alive during the first.
    """
    start = b.block
    with b.if_then(condition):
        new, end = body(), b.block
    joined = []
    for x, y in zip(new, values, strict=True):
        phi = b.phi(x.type)
        phi.add_incoming(x, end)
        phi.add_incoming(y, start)
        joined.append(phi)
    return joined


def _loop(b: ir.IRBuilder, count: int, values: list, body: Callable) -> list:
    """``values = body(i, values)`` for i in 0 .. count - 1, as a loop that LLVM does not unroll."""
    bound, before, head = _opaque(b, const(I32, count), "s"), b.block, b.append_basic_block("loop")
    b.branch(head)
    b.position_at_end(head)
    number, phis = b.phi(I32), [b.phi(x.type) for x in values]
    new = body(number, phis)
    following = b.add(number, const(I32, 1))
    for phi, first, then in zip([number, *phis], [const(I32, 0), *values], [following, *new], strict=True):
        phi.add_incoming(first, before)
        phi.add_incoming(then, b.block)
    done = b.append_basic_block("done")
    b.cbranch(b.icmp_unsigned("<", following, bound), head, done)
    b.position_at_end(done)
    return new


def _shared(b: ir.IRBuilder, name: str, args: list, own: list, body: Callable) -> list:
    """``body(b, args, own)``, a list of values, as a call of an internal function that is inlined later.

    Where both branches of a kernel end in the same calls, LLVM makes one of the two, provided that at most one argument
    differs: ``own`` is passed as one. So both branches share the code, and a tile does not have to live in two places
    (see `_if`).
    """
    state = ir.LiteralStructType([x.type for x in own])
    types_ = [*(x.type for x in args), state]

    def emit(function: ir.Function) -> tuple:
        inner = ir.IRBuilder(function.append_basic_block("entry"))
        return inner, body(inner, list(function.args[:-1]), _items(inner, function.args[-1]))

    name = f"rocmkern_{name}"
    function = b.module.globals.get(name)
    if function is None:
        # Only the body tells the types of the results: it is made once more, and thrown away.
        _, trial = emit(ir.Function(ir.Module(), ir.FunctionType(ir.VoidType(), types_), name))
        results = ir.LiteralStructType([x.type for x in trial])
        function = ir.Function(b.module, ir.FunctionType(results, types_), name)
        function.linkage = "internal"
        # All lanes take part: it must not be copied into branches that only some of them take.
        function.attributes.add("noduplicate")
        inner, values = emit(function)
        inner.ret(_aggregate(inner, results, values))
    return _items(b, b.call(function, [*args, _aggregate(b, state, own)]))


def _flat(blocks: list) -> list:
    return list(itertools.chain(*blocks))


def _in_blocks(values: list, size: int) -> list:
    return [values[i : i + size] for i in range(0, len(values), size)]


def _thread(b: ir.IRBuilder) -> ir.Value:
    return call(b, "llvm.amdgcn.workitem.id.x", I32, [])


class _Lane:
    """Where this lane stands in its wave, as i32 values."""

    def __init__(self, b: ir.IRBuilder, atom: Atom):
        self.atom = atom
        self.index = b.and_(_thread(b), const(I32, atom.wave - 1))
        self.row = b.and_(self.index, const(I32, atom.rows - 1))
        self.group = b.lshr(self.index, const(I32, atom.rows.bit_length() - 1))


def _wave_index(b: ir.IRBuilder, atom: Atom) -> ir.Value:
    return b.lshr(_thread(b), const(I32, atom.wave.bit_length() - 1))


def _from_group(b: ir.IRBuilder, atom: Atom, value: ir.Value, distance: int) -> ir.Value:
    """A 32-bit value of the lane with the same row in the group ``distance`` away (exclusive or)."""
    if distance == 0:
        return value
    bits = b.bitcast(value, I32)
    lanes = atom.rows * distance
    # All lanes are active, so that the value for lanes that are not (the first one) never counts.
    nothing = ir.Constant(I32, ir.Undefined)
    if atom.wave == 32 and lanes < 16:
        control = [const(I32, x) for x in (DPP_ROW_XMASK + lanes, 0xF, 0xF)]
        bits = call(b, "llvm.amdgcn.update.dpp.i32", I32, [nothing, bits, *control, const(I1, 1)])
    elif atom.wave == 32:
        # Lane n of a half wave takes what lane n (or 8 lanes on) of the other one has.
        selectors = [const(I32, 0x76543210), const(I32, 0xFEDCBA98 - (1 << 32))]
        selectors = selectors[::-1] if lanes & 8 else selectors
        bits = call(b, "llvm.amdgcn.permlanex16.i32", I32, [nothing, bits, *selectors, const(I1, 0), const(I1, 1)])
    else:
        lane = b.xor(_Lane(b, atom).index, const(I32, lanes))
        bits = call(b, "llvm.amdgcn.ds.bpermute", I32, [b.shl(lane, const(I32, 2)), bits])
    return b.bitcast(bits, value.type)


def _from_lane(b: ir.IRBuilder, atom: Atom, value: ir.Value, distance: int) -> ir.Value:
    """A 32-bit value of the lane ``distance`` away (exclusive or)."""
    lane = b.xor(_Lane(b, atom).index, const(I32, distance))
    bits = call(b, "llvm.amdgcn.ds.bpermute", I32, [b.shl(lane, const(I32, 2)), b.bitcast(value, I32)])
    return b.bitcast(bits, value.type)


def _over_groups(b: ir.IRBuilder, atom: Atom, join: Callable, value: ir.Value) -> ir.Value:
    distance = 1
    while distance < atom.groups:
        value = join(value, _from_group(b, atom, value, distance))
        distance *= 2
    return value


def _any_lane(b: ir.IRBuilder, atom: Atom, condition: ir.Value) -> ir.Value:
    """Whether a condition holds in any lane of the wave (uniform)."""
    mask = ir.IntType(atom.wave)
    votes = call(b, f"llvm.amdgcn.ballot.i{atom.wave}", mask, [condition])
    return b.icmp_unsigned("!=", votes, const(mask, 0))


class _LocalFence(ir.instructions.Fence):
    """A workgroup fence; metadata restricts it to local memory, so that global loads stay in flight."""

    def descr(self, buf: list) -> None:
        buf.append(f'fence syncscope("workgroup") {self.ordering}{self._stringify_metadata(leading_comma=True)}\n')


def _local_barrier(b: ir.IRBuilder) -> None:
    def fence(ordering: str) -> None:
        instruction = _LocalFence(b.block, ordering)
        names = [ir.MetaDataString(b.module, s) for s in ("amdgpu-synchronize-as", "local")]
        instruction.set_metadata("mmra", b.module.add_metadata(names))
        b._insert(instruction)

    fence("release")
    call(b, "llvm.amdgcn.s.barrier", ir.VoidType(), [])
    fence("acquire")


def _keep_order(b: ir.IRBuilder) -> None:
    """Keep loads above this point: LLVM would sink a prefetch to its use."""
    b.call(ir.InlineAsm(ir.FunctionType(ir.VoidType(), []), "", "~{memory}", side_effect=True), [])


def _uniform(b: ir.IRBuilder, value: ir.Value) -> ir.Value:
    """An i64 or i32 that is the same in all lanes, in scalar registers: LLVM may have put it elsewhere."""
    if value.type == I32:
        return _math(b, "amdgcn.readfirstlane", value)
    parts = _each(b, b.bitcast(value, ir.VectorType(I32, 2)), lambda x: _math(b, "amdgcn.readfirstlane", x))
    return b.bitcast(parts, I64)


def _opaque(b: ir.IRBuilder, value: ir.Value, register: str) -> ir.Value:
    """The same value, of unknown origin: what is computed from it stays where it is, instead of moving out of a loop.

    ``register`` is "s" for a value that is the same in all lanes, else "v".
    """
    if register == "s" and isinstance(value.type, ir.IntType) and not isinstance(value, ir.Constant):
        value = _uniform(b, value)
    ty = ir.FunctionType(value.type, [value.type])
    return b.call(ir.InlineAsm(ty, "", f"={register},0", side_effect=True), [value])


def _pinned(b: ir.IRBuilder, vector: ir.Value) -> ir.Value:
    """The same vector. What it is computed from stays here: LLVM would move it behind branches, away from its loads."""
    return _each(b, vector, lambda x: _opaque(b, x, "v"))


def _pipelined(b: ir.IRBuilder, steps: list, load: Callable, use: Callable, registers: int) -> None:
    """``use(step, load(step))`` for each step, with the loads one group of steps ahead and no further.

    Left alone, LLVM loads everything first, more than there are registers. A load takes ``registers`` of them.
    """
    size = max(1, LOAD_AHEAD // registers)
    groups = [steps[i : i + size] for i in range(0, len(steps), size)]
    ahead = [load(step) for step in groups[0]]
    for i, group in enumerate(groups):
        loaded, ahead = ahead, [load(step) for step in groups[i + 1]] if i + 1 < len(groups) else []
        for step, value in zip(group, loaded, strict=True):
            use(step, value)
        _schedule_no_further(b)


def _matrix_instruction(b: ir.IRBuilder, window: Window, right: ir.Value, left: ir.Value, total: ir.Value) -> ir.Value:
    """``total + right @ left`` for one tile each."""
    atom, name = window.atom, window.atom.intrinsics[window.dtype]
    if isinstance(total, ir.Constant) and "wmma" in name:
        # LLVM keeps a tile of zeros in registers to start from, though the instruction takes a constant.
        instruction = "v_" + "_".join(name.split(".")[2:6])
        ty = ir.FunctionType(total.type, [right.type, left.type])
        return b.call(ir.InlineAsm(ty, f"{instruction} $0, $1, $2, 0", "=&v,v,v"), [right, left])
    pairs = [(right, left)]
    if window.item_bytes == 4:  # an instruction takes one element a lane, and sums over the lane groups
        pairs = zip(_elements(b, right), _elements(b, left), strict=True)
    for x, y in pairs:
        total = call(b, name, total.type, [x, y, total, *[const(I32, 0)] * atom.trailing])
    return total


def _schedule_no_further(b: ir.IRBuilder) -> None:
    """No instruction is moved across this point."""
    call(b, "llvm.amdgcn.sched.barrier", ir.VoidType(), [const(I32, 0)])


def _remaining(b: ir.IRBuilder, first: ir.Value, columns: ir.Value, most: int) -> tuple:
    """How many of the ``most`` columns from ``first`` exist (i32), twice.

    The copies look different to LLVM: one for addresses, one for the values that were loaded. Otherwise the outcome of
    every comparison would wait in a register from before the load until after it.
    """
    left = _math(b, "smax", _math(b, "smin", b.sub(columns, first), const(I64, most)), const(I64, 0))
    left = b.trunc(left, I32)
    return _opaque(b, left, "v"), _opaque(b, left, "v")


def _below(b: ir.IRBuilder, column: int, left: ir.Value) -> ir.Value:
    return b.icmp_unsigned(">", left, const(I32, column))


def _in_space(b: ir.IRBuilder, pointer: ir.Value, space: int) -> ir.Value:
    return b.addrspacecast(pointer, ir.PointerType(I8, space))


def _local_room(b: ir.IRBuilder, name: str, size: int) -> ir.Value:
    """Pointer to bytes of local memory: one variable for each call, which is made where an operation is expanded."""
    room = ir.GlobalVariable(b.module, ir.ArrayType(I8, size), b.module.get_unique_name(name), LOCAL)
    room.linkage, room.align = "internal", CHUNK_BYTES
    room.initializer = ir.Constant(room.value_type, ir.Undefined)
    return b.bitcast(room, ir.PointerType(I8, LOCAL))


def _load(b: ir.IRBuilder, base: ir.Value, offset: ir.Value, ty: ir.Type, align: int) -> ir.Value:
    """Load a ``ty`` at a byte offset."""
    address = b.gep(base, [offset], source_etype=I8)
    return b.load(b.bitcast(address, ir.PointerType(ty, base.type.addrspace)), align=align)


def _store(b: ir.IRBuilder, value: ir.Value, base: ir.Value, offset: ir.Value, align: int) -> None:
    address = b.gep(base, [offset], source_etype=I8)
    b.store(value, b.bitcast(address, ir.PointerType(value.type, base.type.addrspace)), align=align)


def _bfloat16_bits(b: ir.IRBuilder, x: ir.Value) -> ir.Value:
    """Round float32 (scalar or vector) to bfloat16, to nearest even; NaN stays NaN."""
    ty = I32 if x.type == F32 else ir.VectorType(I32, x.type.count)
    short = I16 if x.type == F32 else ir.VectorType(I16, x.type.count)
    bits = b.bitcast(x, ty)
    odd = b.and_(b.lshr(bits, const(ty, 16)), const(ty, 1))
    rounded = b.add(b.add(bits, odd), const(ty, 0x7FFF))
    quiet = b.or_(bits, const(ty, 0x400000))
    chosen = b.select(b.fcmp_unordered("uno", x, x), quiet, rounded)
    return b.trunc(b.lshr(chosen, const(ty, 16)), short)


def _widen(b: ir.IRBuilder, bits: ir.Value, dtype: str) -> ir.Value:
    """Elements as they lie in memory (integers; scalar or vector) as float32."""

    def like(element: ir.Type) -> ir.Type:
        return ir.VectorType(element, bits.type.count) if isinstance(bits.type, ir.VectorType) else element

    if dtype == "float32":
        return b.bitcast(bits, like(F32))
    if dtype == "float16":
        return b.fpext(b.bitcast(bits, like(F16)), like(F32))
    if dtype == "bfloat16":
        return b.bitcast(b.shl(b.zext(bits, like(I32)), const(like(I32), 16)), like(F32))
    if dtype == "bool":
        return b.uitofp(b.icmp_unsigned("!=", bits, const(bits.type, 0)), like(F32))
    if dtype in QUANTIZED:
        return from_byte(b, bits, dtype)
    return (b.uitofp if dtype == "uint8" else b.sitofp)(bits, like(F32))


def _narrow(b: ir.IRBuilder, x: ir.Value, dtype: str) -> ir.Value:
    """A float32 (scalar or vector) as it lies in memory."""
    if dtype == "float16":
        return b.fptrunc(x, ir.VectorType(F16, x.type.count) if isinstance(x.type, ir.VectorType) else F16)
    if dtype == "bfloat16":
        return _bfloat16_bits(b, x)
    if dtype == "float32":
        return x
    raise TypingError(f"float32 values can be stored as float32, float16 and bfloat16, not as {dtype}")


def _decode(b: ir.IRBuilder, kind: Format, row: ir.Value, column: ir.Value, count: int) -> list:
    """Elements ``column`` (i64) to ``column + count`` of a row of blocks in global memory, as float32.

    They belong to one block, and ``count`` divides ``column``. ROCm allows unaligned loads of 4 bytes and more; what is
    shorter is taken out of aligned words, none of which lies beyond the bytes that are asked for.
    """
    block = b.mul(b.udiv(column, const(I64, kind.elements)), const(I64, kind.nbytes))
    start = b.gep(row, [block], source_etype=I8)

    def words(offset: ir.Value, nbytes: int) -> list:
        whole, rest = divmod(nbytes, 4)
        found, place = [], b.zext(offset, I64)
        if whole:
            found = _elements(b, _load(b, start, place, ir.VectorType(I32, whole), 1))
        place = b.add(place, const(I64, 4 * whole))
        if rest == 1:
            found.append(b.zext(_load(b, start, place, I8, 1), I32))
        elif rest:
            shift = b.and_(b.add(b.ptrtoint(start, I64), place), const(I64, 3))
            low = _load(b, start, b.sub(place, shift), I32, 4)
            end = b.add(place, const(I64, rest - 1))
            high = _load(b, start, b.sub(end, b.and_(b.add(shift, const(I64, rest - 1)), const(I64, 3))), I32, 4)
            found.append(_math(b, "fshr", high, low, b.shl(b.trunc(shift, I32), const(I32, 3))))
        return found

    first = b.and_(b.trunc(column, I32), const(I32, kind.elements - 1))
    reader, step = LaneReader(b, words), count if count >= 4 else 1
    runs = [kind.emit(b, reader, b.add(first, const(I32, i)), step) for i in range(0, count, step)]
    return _flat(runs)


def _memory_int(dtype: str) -> ir.IntType:
    return ir.IntType(8 * DTYPES[dtype])


# ------------------------------------------------------------------------------------------------------------ lowering


class HipLowering(TensorLowering):
    """One method per operation: see `binding.bind`."""

    # ------------------------------------------------------------------------------------------------ launch, grid
    def config(self, context: Any, b: ir.IRBuilder, sig: Any, bound: ir.Value, *_: Any) -> ir.Value:
        return bound

    def tensor(self, context: Any, b: ir.IRBuilder, sig: Any, dtype: Any, *words: ir.Value) -> ir.Value:
        n = sig.return_type.ndim
        # A generic pointer that was cast from global memory: LLVM sees through it and never emits a flat access.
        data = b.addrspacecast(b.inttoptr(words[0], ir.PointerType(I8, GLOBAL)), POINTER)
        return self.pack_tensor(context, b, sig.return_type, data, list(words[1 : n + 1]), list(words[n + 1 :]))

    def block_id(self, context: Any, b: ir.IRBuilder, sig: Any, cfg: Any, axis: ir.Value) -> ir.Value:
        ids = [call(b, f"llvm.amdgcn.workgroup.id.{x}", I32, []) for x in "xyz"]
        axis = self.scalar(context, b, sig.args[1], axis, "i64")
        chosen = ids[0]
        for i in (1, 2):
            chosen = b.select(b.icmp_signed("==", axis, const(I64, i)), ids[i], chosen)
        return b.zext(chosen, I64)

    # -------------------------------------------------------------------------------------------------------- rows
    def row_index(self, context: Any, b: ir.IRBuilder, sig: Any, *_: Any) -> ir.Value:
        return _array(b, Layout(sig.return_type).row_numbers(b))

    def full_rows(self, context: Any, b: ir.IRBuilder, sig: Any, cfg: Any, m: Any, value: ir.Value) -> ir.Value:
        return self.row_values(context, b, sig.return_type, sig.args[2], value, "f32")

    def row_values(self, context: Any, b: ir.IRBuilder, like: Any, ty: Any, value: ir.Value, kind: str) -> ir.Value:
        """Rows as they are, or a scalar as rows."""
        if isinstance(ty, TILE.Rows):
            return value
        scalar = self.scalar(context, b, ty, value, kind)
        return _array(b, [scalar] * Layout(like).row_blocks)

    def on_rows(
        self, context: Any, b: ir.IRBuilder, sig: Any, args: tuple, body: Callable, join: Callable = _array
    ) -> ir.Value:
        """Apply ``body(kind, *values)`` per row to rows and scalars."""
        like = next(t for t in sig.args if isinstance(t, TILE.Rows))
        values = [
            _items(b, self.row_values(context, b, like, t, v, like.kind)) for t, v in zip(sig.args, args, strict=True)
        ]
        return join(b, [body(like.kind, *xs) for xs in zip(*values, strict=True)])

    def where(self, context: Any, b: ir.IRBuilder, sig: Any, condition: Any, x: Any, y: Any) -> ir.Value:
        out = sig.return_type
        sides = [
            _items(b, self.row_values(context, b, out, t, v, out.kind))
            for t, v in zip(sig.args[1:], (x, y), strict=True)
        ]
        return _array(b, [b.select(c, *xy) for c, *xy in zip(_flags(b, condition), *sides, strict=True)])

    def minimum(self, context: Any, b: ir.IRBuilder, sig: Any, *args: Any) -> ir.Value:
        return self.on_rows(
            context, b, sig, args, lambda kind, x, y: _math(b, "minnum" if kind == "f32" else "smin", x, y)
        )

    def maximum(self, context: Any, b: ir.IRBuilder, sig: Any, *args: Any) -> ir.Value:
        return self.on_rows(
            context, b, sig, args, lambda kind, x, y: _math(b, "maxnum" if kind == "f32" else "smax", x, y)
        )

    def reciprocal_or_zero(self, context: Any, b: ir.IRBuilder, sig: Any, x: Any) -> ir.Value:
        def one(_: str, v: ir.Value) -> ir.Value:
            return b.select(b.fcmp_ordered("==", v, const(F32, 0.0)), const(F32, 0.0), b.fdiv(const(F32, 1.0), v))

        return self.on_rows(context, b, sig, (x,), one)

    def log2(self, context: Any, b: ir.IRBuilder, sig: Any, x: Any) -> ir.Value:
        return self.on_rows(context, b, sig, (x,), lambda _, v: _math(b, "amdgcn.log", v))

    def sqrt(self, context: Any, b: ir.IRBuilder, sig: Any, x: Any) -> ir.Value:
        return self.on_rows(context, b, sig, (x,), lambda _, v: _math(b, "sqrt", v))

    def row_offsets(self, context: Any, b: ir.IRBuilder, ty: Any, value: Any, strides: list, blocks: int) -> list:
        """Byte offset of every row (per row block) that an index of rows and scalars selects."""
        offsets = [const(I64, 0)] * blocks
        for (t, v), stride in zip(self.index_entries(context, b, ty, value), strides, strict=False):
            if isinstance(t, TILE.Rows):
                parts = [b.mul(b.sext(i, I64), stride) for i in _items(b, v)]
            else:
                parts = [b.mul(self.scalar(context, b, t, v, "i64"), stride)] * blocks
            offsets = [b.add(x, y) for x, y in zip(offsets, parts, strict=True)]
        return offsets

    def load_rows(self, context: Any, b: ir.IRBuilder, sig: Any, x: Any, index: Any, valid: Any) -> ir.Value:
        ty = sig.args[0]
        data, _, strides = self.unpack_tensor(context, b, ty, x)
        base, blocks = _in_space(b, data, GLOBAL), Layout(sig.return_type).row_blocks
        offsets = self.row_offsets(context, b, sig.args[1], index, strides, blocks)

        integers = sig.return_type.kind == "i32"
        zero = const(I32 if integers else F32, 0)

        def one(offset: ir.Value) -> list:
            bits = _load(b, base, offset, _memory_int(ty.dtype), DTYPES[ty.dtype])
            return [as_int32(b, bits) if integers else _widen(b, bits, ty.dtype)]

        return _array(
            b,
            [
                _branch(b, ok, lambda offset=offset: one(offset), lambda: [zero])[0]
                for ok, offset in zip(_flags(b, valid), offsets, strict=True)
            ],
        )

    load_integers = load_rows

    def store_rows(self, context: Any, b: ir.IRBuilder, sig: Any, x: Any, index: Any, values: Any, valid: Any) -> Any:
        ty, layout = sig.args[0], Layout(sig.args[2])
        data, _, strides = self.unpack_tensor(context, b, ty, x)
        base = _in_space(b, data, GLOBAL)
        offsets = self.row_offsets(context, b, sig.args[1], index, strides, layout.row_blocks)
        first = layout.is_first(b)
        for ok, offset, value in zip(_flags(b, valid), offsets, _items(b, values), strict=True):
            with b.if_then(b.and_(ok, first)):
                bits = value if ty.dtype == "int32" else _narrow(b, value, ty.dtype)
                _store(b, bits, base, offset, DTYPES[ty.dtype])
        return context.get_dummy_value()

    def over_block(self, b: ir.IRBuilder, ty: Any, x: ir.Value, join: Callable) -> ir.Value:
        """Join float32 rows over the block; the result is a float64 in scalar registers."""
        layout = Layout(ty)
        atom, waves = layout.atom, layout.waves
        value = functools.reduce(join, _items(b, x))
        rows = 1 if _is_line(ty) else atom.rows  # of different lanes
        for distance in (1 << i for i in range(rows.bit_length() - 1)):
            lane = b.shl(b.xor(_Lane(b, atom).index, const(I32, distance)), const(I32, 2))
            other = call(b, "llvm.amdgcn.ds.bpermute", I32, [lane, b.bitcast(value, I32)])
            value = join(value, b.bitcast(other, F32))
        if waves > 1:
            room = _local_room(b, "over_block", 4 * waves)
            with b.if_then(b.icmp_unsigned("==", _Lane(b, atom).index, const(I32, 0))):
                _store(b, value, room, b.shl(_wave_index(b, atom), const(I32, 2)), 4)
            _local_barrier(b)
            value = functools.reduce(join, [_load(b, room, const(I32, 4 * i), F32, 4) for i in range(waves)])
            _local_barrier(b)  # before the next value is written there
        bits = _math(b, "amdgcn.readfirstlane", b.bitcast(value, I32))
        return b.fpext(b.bitcast(bits, F32), F64)

    def total(self, context: Any, b: ir.IRBuilder, sig: Any, x: Any) -> ir.Value:
        return self.over_block(b, sig.args[0], x, b.fadd)

    def largest(self, context: Any, b: ir.IRBuilder, sig: Any, x: Any) -> ir.Value:
        return self.over_block(b, sig.args[0], x, lambda u, v: _math(b, "maxnum", u, v))

    # ------------------------------------------------------------------------------------------------------- tiles
    def tile_blocks(self, b: ir.IRBuilder, ty: Any, value: ir.Value, columns: int | None = None) -> list:
        """The vectors of a tile, one list per row block."""
        vectors, per_block = _items(b, value), Layout(ty).vectors(columns or ty.n)
        return [vectors[i : i + per_block] for i in range(0, len(vectors), per_block)]

    @staticmethod
    def join_blocks(b: ir.IRBuilder, blocks: list) -> ir.Value:
        return _array(b, [v for block in blocks for v in block])

    def on_tile(self, b: ir.IRBuilder, ty: Any, value: ir.Value, body: Callable, *rows: ir.Value) -> ir.Value:
        """Apply ``body(vector, tile column index, *row values)`` to every vector."""
        parts = list(zip(*(_items(b, r) for r in rows), strict=True)) or [()] * Layout(ty).row_blocks
        blocks = self.tile_blocks(b, ty, value)
        return self.join_blocks(
            b, [[body(v, c, *row) for c, v in enumerate(block)] for block, row in zip(blocks, parts, strict=True)]
        )

    @staticmethod
    def group_column(b: ir.IRBuilder, atom: Atom, group: ir.Value | None = None) -> ir.Value:
        return b.mul(_Lane(b, atom).group if group is None else group, const(I32, atom.group_step))

    def zeros(self, context: Any, b: ir.IRBuilder, sig: Any, *_: Any) -> ir.Value:
        return ir.Constant(Layout(sig.return_type).tile(sig.return_type.n), None)

    @staticmethod
    def walk(b: ir.IRBuilder, atom: Atom, start: ir.Value, stride: ir.Value, n: int) -> Any:
        """For each 16 columns of a tile: (column of the register, its byte offset), found by adding up.

        A product for every column would be cheaper in instructions, but LLVM computes them all first and spills them.
        """
        step = b.mul(stride, const(I64, atom.register_step))
        across = b.mul(stride, const(I64, 16))
        for c in range(n // 16):
            places = [(16 * c, start)]
            for i in range(1, atom.registers):
                places.append((16 * c + atom.register_step * i, b.add(places[-1][1], step)))
            yield places
            start = b.add(start, across)

    def gather(
        self, context: Any, b: ir.IRBuilder, sig: Any, x: Any, index: Any, col0: Any, valid: Any, n: int
    ) -> list:
        """Blocks of float32 vectors in tile layout: ``x[index, col0 + column]``."""
        ty, layout = sig.args[1], Layout(sig.return_type)
        if isinstance(layout, LineLayout):
            return self.gather_lines(context, b, sig, x, index, col0, valid, layout)
        atom, size = layout.atom, DTYPES[ty.dtype]
        kind = FORMATS[ty.format] if isinstance(ty, TILE.Quantized) else None
        data, shape, strides = self.unpack_tensor(context, b, ty, x)
        base = _in_space(b, data, GLOBAL)
        # What is computed from them is not kept in scalar registers around a loop.
        stride, columns = _opaque(b, strides[-1], "s"), _opaque(b, shape[-1], "s")
        first = b.add(self.scalar(context, b, sig.args[3], col0, "i64"), b.zext(self.group_column(b, atom), I64))
        offsets = self.row_offsets(context, b, sig.args[2], index, strides[:-1], layout.row_blocks)

        def block(offset: ir.Value) -> list:
            vectors, (left, left_again) = [], _remaining(b, first, columns, n)
            for group in self.walk(b, atom, b.add(offset, b.mul(first, stride)), stride, n):
                items = []
                for column, place in group:
                    place = b.select(_below(b, column, left), place, offset)
                    value = _widen(b, _load(b, base, place, _memory_int(ty.dtype), size), ty.dtype)
                    items.append(b.select(_below(b, column, left_again), value, const(F32, 0.0)))
                vectors.append(_vector(b, items))
                _schedule_no_further(b)
            return vectors

        def decoded(offset: ir.Value) -> list:
            vectors, (left, left_again) = [], _remaining(b, first, columns, n)
            row = b.gep(base, [offset], source_etype=I8)
            for c in range(n // 16):
                items = []
                for i in range(atom.registers):
                    column = 16 * c + atom.register_step * i
                    place = b.select(_below(b, column, left), b.add(first, const(I64, column)), const(I64, 0))
                    (value,) = _decode(b, kind, row, place, 1)
                    items.append(b.select(_below(b, column, left_again), value, const(F32, 0.0)))
                vectors.append(_vector(b, items))
                _schedule_no_further(b)
            return vectors

        nothing = [const(ir.VectorType(F32, atom.registers), 0.0)] * (n // 16)
        some = b.icmp_unsigned("!=", columns, const(I64, 0))
        load = decoded if kind else block
        return [
            _branch(b, b.and_(ok, some), lambda offset=offset: load(offset), lambda: nothing)
            for ok, offset in zip(_flags(b, valid), offsets, strict=True)
        ]

    def place_lines(
        self, context: Any, b: ir.IRBuilder, ty: Any, x: Any, index_ty: Any, index: Any, col0: ir.Value, layout: Any
    ) -> SimpleNamespace:
        """Where a tile of rows along lanes lies in a tensor.

        ``offsets`` has the byte offset of each row's first column, ``first`` is this lane's first column, ``wide`` says
        whether the elements lie side by side and in whole 16-byte pieces.
        """
        data, shape, strides = self.unpack_tensor(context, b, ty, x)
        size, stride, columns = const(I64, DTYPES[ty.dtype]), strides[-1], shape[-1]
        bits = [b.ptrtoint(data, I64), *strides[:-1], b.mul(col0, size), b.mul(columns, size)]
        aligned = b.icmp_signed("==", b.and_(functools.reduce(b.or_, bits), const(I64, CHUNK_BYTES - 1)), const(I64, 0))
        wide = b.and_(b.icmp_signed("==", stride, size), aligned)
        return SimpleNamespace(
            base=_in_space(b, data, GLOBAL),
            offsets=self.row_offsets(context, b, index_ty, index, strides[:-1], layout.row_blocks),
            first=b.add(col0, b.zext(layout.first_column(b), I64)),
            stride=stride,
            columns=columns,
            wide=wide if DTYPES[ty.dtype] in (2, 4) else const(I1, 0),
        )

    def gather_lines(
        self, context: Any, b: ir.IRBuilder, sig: Any, x: Any, index: Any, col0: Any, valid: Any, layout: LineLayout
    ) -> list:
        """`gather` for rows along lanes."""
        ty, n = sig.args[1], sig.return_type.n
        dtype, size, registers = ty.dtype, DTYPES[ty.dtype], layout.registers
        start = self.scalar(context, b, sig.args[3], col0, "i64")
        at = self.place_lines(context, b, ty, x, sig.args[2], index, start, layout)
        vectors, (left, left_again) = layout.vectors(n), _remaining(b, at.first, at.columns, n)
        element = _memory_int(dtype)

        def in_pieces(offset: ir.Value) -> list:
            count, piece = CHUNK_BYTES // size, ir.VectorType(element, CHUNK_BYTES // size)
            place, nothing = b.add(offset, b.mul(at.first, const(I64, size))), const(ir.VectorType(F32, count), 0.0)
            columns = [layout.width * c + e for c in range(vectors) for e in range(0, registers, count)]
            loaded = []
            for column in columns:
                here = b.add(place, const(I64, column * size))
                loaded.append(_load(b, at.base, b.select(_below(b, column, left), here, offset), piece, CHUNK_BYTES))
            # All loads are on their way before the first one is looked at.
            _schedule_no_further(b)
            parts = [
                b.select(_below(b, column, left_again), _widen(b, bits, dtype), nothing)
                for column, bits in zip(columns, loaded, strict=True)
            ]
            if count == registers:
                return parts
            return [_shuffle(b, *pair, range(registers)) for pair in zip(parts[::2], parts[1::2], strict=True)]

        def one_by_one(offset: ir.Value) -> list:
            out, place = [], b.add(offset, b.mul(at.first, at.stride))
            for c in range(vectors):
                items = []
                here = b.add(place, b.mul(at.stride, const(I64, layout.width * c)))
                for e in range(registers):
                    column = layout.width * c + e
                    safe = b.select(_below(b, column, left), here, offset)
                    value = _widen(b, _load(b, at.base, safe, element, size), dtype)
                    items.append(b.select(_below(b, column, left_again), value, const(F32, 0.0)))
                    here = b.add(here, at.stride)
                out.append(_vector(b, items))
                _schedule_no_further(b)
            return out

        def row(offset: ir.Value) -> list:
            if isinstance(at.wide, ir.Constant):
                return one_by_one(offset)
            return _branch(b, at.wide, lambda: in_pieces(offset), lambda: one_by_one(offset))

        zeros = [const(ir.VectorType(F32, registers), 0.0)] * vectors
        some = b.icmp_signed(">", at.columns, const(I64, 0))
        return [
            _branch(b, b.and_(ok, some), lambda offset=offset: row(offset), lambda: zeros)
            for ok, offset in zip(_flags(b, valid), at.offsets, strict=True)
        ]

    def store_lines(
        self, context: Any, b: ir.IRBuilder, sig: Any, x: Any, index: Any, col0: Any, tile: Any, valid: Any
    ) -> None:
        """`store_tile` for rows along lanes."""
        ty, tile_ty = sig.args[0], sig.args[3]
        layout, size = Layout(tile_ty), DTYPES[ty.dtype]
        count, registers = CHUNK_BYTES // size, layout.registers
        start = self.scalar(context, b, sig.args[2], col0, "i64")
        at = self.place_lines(context, b, ty, x, sig.args[1], index, start, layout)
        left, _ = _remaining(b, at.first, at.columns, tile_ty.n)

        def in_pieces(block: list, offset: ir.Value) -> None:
            place = b.add(offset, b.mul(at.first, const(I64, size)))
            for c, vector in enumerate(block):
                for e in range(0, registers, count):
                    column = layout.width * c + e
                    part = vector if count == registers else _shuffle(b, vector, vector, range(e, e + count))
                    with b.if_then(_below(b, column, left)):
                        here = b.add(place, const(I64, column * size))
                        _store(b, _narrow(b, part, ty.dtype), at.base, here, CHUNK_BYTES)

        def one_by_one(block: list, offset: ir.Value) -> None:
            place = b.add(offset, b.mul(at.first, at.stride))
            for c, vector in enumerate(block):
                here = b.add(place, b.mul(at.stride, const(I64, layout.width * c)))
                for e, value in enumerate(_elements(b, vector)):
                    with b.if_then(_below(b, layout.width * c + e, left)):
                        _store(b, _narrow(b, value, ty.dtype), at.base, here, size)
                    here = b.add(here, at.stride)

        for ok, offset, block in zip(_flags(b, valid), at.offsets, self.tile_blocks(b, tile_ty, tile), strict=True):
            with b.if_then(ok), b.if_else(at.wide) as (then, otherwise):
                with then:
                    in_pieces(block, offset)
                with otherwise:
                    one_by_one(block, offset)

    def load_tile(
        self, context: Any, b: ir.IRBuilder, sig: Any, cfg: Any, x: Any, index: Any, col0: Any, n: Any, valid: Any
    ) -> ir.Value:
        return self.join_blocks(b, self.gather(context, b, sig, x, index, col0, valid, sig.return_type.n))

    def store_tile(
        self, context: Any, b: ir.IRBuilder, sig: Any, x: Any, index: Any, col0: Any, tile: Any, valid: Any
    ) -> Any:
        ty, tile_ty = sig.args[0], sig.args[3]
        layout, size = Layout(tile_ty), DTYPES[ty.dtype]
        if isinstance(layout, LineLayout):
            self.store_lines(context, b, sig, x, index, col0, tile, valid)
            return context.get_dummy_value()
        atom = layout.atom
        data, shape, strides = self.unpack_tensor(context, b, ty, x)
        base, stride, columns = _in_space(b, data, GLOBAL), strides[-1], shape[-1]
        origin = self.scalar(context, b, sig.args[2], col0, "i64")
        first = b.add(origin, b.zext(self.group_column(b, atom), I64))
        offsets = self.row_offsets(context, b, sig.args[1], index, strides[:-1], layout.row_blocks)
        whole = b.icmp_signed("<=", b.add(origin, const(I64, tile_ty.n)), columns)

        def write(block: list, offset: ir.Value, guarded: bool) -> None:
            start, (left, _) = b.add(offset, b.mul(first, stride)), _remaining(b, first, columns, tile_ty.n)
            for vector, group in zip(block, self.walk(b, atom, start, stride, tile_ty.n), strict=True):
                for value, (column, place) in zip(_elements(b, vector), group, strict=True):
                    with b.if_then(_below(b, column, left)) if guarded else contextlib.nullcontext():
                        _store(b, _narrow(b, value, ty.dtype), base, place, size)

        for ok, offset, block in zip(_flags(b, valid), offsets, self.tile_blocks(b, tile_ty, tile), strict=True):
            with b.if_then(ok), b.if_else(whole) as (then, otherwise):
                with then:
                    write(block, offset, False)
                with otherwise:
                    write(block, offset, True)
        return context.get_dummy_value()

    def reduce_rows(self, b: ir.IRBuilder, ty: Any, tile: ir.Value, join: Callable) -> list:
        layout = Layout(ty)
        return [layout.over_lanes(b, join, _tree(b, join, block)) for block in self.tile_blocks(b, ty, tile)]

    def rowmax(self, context: Any, b: ir.IRBuilder, sig: Any, tile: Any) -> ir.Value:
        return _array(b, self.reduce_rows(b, sig.args[0], tile, lambda x, y: _math(b, "maxnum", x, y)))

    def rowsum(self, context: Any, b: ir.IRBuilder, sig: Any, tile: Any) -> ir.Value:
        return _array(b, self.reduce_rows(b, sig.args[0], tile, b.fadd))

    def rowdot(self, context: Any, b: ir.IRBuilder, sig: Any, x: Any, y: Any) -> ir.Value:
        products = _array(b, [b.fmul(u, v) for u, v in zip(_items(b, x), _items(b, y), strict=True)])
        return _array(b, self.reduce_rows(b, sig.args[0], products, b.fadd))

    def exp2(self, context: Any, b: ir.IRBuilder, sig: Any, x: Any) -> ir.Value:
        if isinstance(sig.args[0], TILE.Rows):
            return self.on_rows(context, b, sig, (x,), lambda _, v: _exp2(b, v))
        return self.on_tile(b, sig.args[0], x, lambda v, c: _each(b, v, lambda e: _exp2(b, e)))

    def copy(self, context: Any, b: ir.IRBuilder, sig: Any, tile: Any) -> ir.Value:
        return tile  # an SSA value

    def tanh(self, context: Any, b: ir.IRBuilder, sig: Any, tile: Any) -> ir.Value:
        def one(x: ir.Value) -> ir.Value:
            size, square = _math(b, "fabs", x), b.fmul(x, x)
            series = const(F32, TANH_COEFFICIENTS[-1])
            for coefficient in TANH_COEFFICIENTS[-2::-1]:
                series = _math(b, "fma", series, square, const(F32, coefficient))
            small = _math(b, "fma", b.fmul(x, square), series, x)
            power = b.fadd(_exp2(b, b.fmul(size, const(F32, 2 * LOG2_E))), const(F32, 1.0))
            large = _math(b, "fma", _math(b, "amdgcn.rcp", power), const(F32, -2.0), const(F32, 1.0))
            is_small = b.fcmp_ordered("<", size, const(F32, TANH_SMALL))
            return b.select(is_small, small, _math(b, "copysign", large, x))

        return self.on_tile(b, sig.args[0], tile, lambda v, c: _each(b, v, one))

    def rounded(self, context: Any, b: ir.IRBuilder, sig: Any, tile: Any, like: Any) -> ir.Value:
        dtype = sig.args[1].dtype
        if dtype == "float32":
            return tile

        def one(x: ir.Value) -> ir.Value:
            return _widen(b, b.bitcast(_narrow(b, x, dtype), I16), dtype)

        return self.on_tile(b, sig.args[0], tile, lambda v, c: _each(b, v, one))

    def pad_columns(
        self, context: Any, b: ir.IRBuilder, sig: Any, tile: Any, col0: Any, stop: Any, value: Any
    ) -> ir.Value:
        ty = sig.args[0]
        layout = Layout(ty)
        first, end = (self.scalar(context, b, t, v, "i32") for t, v in zip(sig.args[1:3], (col0, stop), strict=True))
        left = _splat(b, b.sub(end, b.add(first, layout.first_column(b))), layout.registers)
        filling = _splat(b, self.scalar(context, b, sig.args[3], value, "f32"), layout.registers)

        def body(v: ir.Value, c: int) -> ir.Value:
            return b.select(b.icmp_signed("<", layout.columns_of(c), left), v, filling)

        return self.on_tile(b, ty, tile, body)

    def activation(self, context: Any, b: ir.IRBuilder, sig: Any, tile: Any, name: str) -> ir.Value:
        emit = getattr(ACTIVATIONS, name)
        return self.on_tile(b, sig.args[0], tile, lambda v, c: _each(b, v, lambda x: emit(b, x)))

    silu = functools.partialmethod(activation, name="silu")
    gelu = functools.partialmethod(activation, name="gelu")
    gelu_tanh = functools.partialmethod(activation, name="gelu_tanh")
    relu = functools.partialmethod(activation, name="relu")

    def absolute(self, context: Any, b: ir.IRBuilder, sig: Any, tile: Any) -> ir.Value:
        return self.on_tile(b, sig.args[0], tile, lambda v, c: _math(b, "fabs", v))

    def rotations(
        self, context: Any, b: ir.IRBuilder, sig: Any, cfg: Any, position: Any, frequencies: Any, col0: Any, n: Any
    ) -> ir.Value:
        ty = sig.return_type[0]
        atom = Layout(ty).atom
        data, (columns,), (stride,) = self.unpack_tensor(context, b, sig.args[2], frequencies)
        base = _in_space(b, data, GLOBAL)
        first = b.add(self.scalar(context, b, sig.args[3], col0, "i64"), b.zext(self.group_column(b, atom), I64))

        def load() -> list:
            turns, (left, left_again) = [], _remaining(b, first, columns, ty.n)
            for group in self.walk(b, atom, b.mul(first, stride), stride, ty.n):
                for column, place in group:
                    turn = _load(b, base, b.select(_below(b, column, left), place, const(I64, 0)), I64, 8)
                    turns.append(b.select(_below(b, column, left_again), turn, const(I64, 0)))
            return turns

        some = b.icmp_signed(">", columns, const(I64, 0))
        turns = _branch(b, some, load, lambda: [const(I64, 0)] * (ty.n // 16 * atom.registers))
        pairs = [[cos_sin(b, p, turn) for turn in turns] for p in _items(b, position)]
        tiles = [
            self.join_blocks(
                b,
                [
                    [_vector(b, [pair[which] for pair in some]) for some in _in_blocks(row, atom.registers)]
                    for row in pairs
                ],
            )
            for which in (0, 1)
        ]
        return context.make_tuple(b, sig.return_type, tiles)

    def rotate(self, context: Any, b: ir.IRBuilder, sig: Any, x: Any, y: Any, cos: Any, sin: Any) -> ir.Value:
        points = [rotated(b, *values) for values in zip(*(_items(b, t) for t in (x, y, cos, sin)), strict=True)]
        return context.make_tuple(b, sig.return_type, [_array(b, list(part)) for part in zip(*points, strict=True)])

    def at_least(self, context: Any, b: ir.IRBuilder, sig: Any, tile: Any, bound: Any) -> ir.Value:
        ty, bound_ty = sig.args
        floats = ir.VectorType(F32, Layout(ty).registers)
        rows = self.row_values(context, b, ty, bound_ty, bound, "f32")

        def body(v: ir.Value, c: int, least: ir.Value) -> ir.Value:
            above = b.fcmp_ordered(">=", v, _splat(b, least, floats.count))
            return b.select(above, const(floats, 1.0), const(floats, 0.0))

        return self.on_tile(b, ty, tile, body, rows)

    def distance(self, context: Any, b: ir.IRBuilder, sig: Any, cfg: Any, position: Any, col0: Any, n: Any) -> ir.Value:
        ty = sig.return_type
        layout = Layout(ty)
        start = b.add(self.scalar(context, b, sig.args[2], col0, "i32"), layout.first_column(b))

        def block(p: ir.Value) -> list:
            relative = _splat(b, b.sub(p, start), layout.registers)
            floats = ir.VectorType(F32, layout.registers)
            return [b.sitofp(b.sub(relative, layout.columns_of(c)), floats) for c in range(layout.vectors(ty.n))]

        return self.join_blocks(b, [block(p) for p in _items(b, position)])

    def mask_outside(self, context: Any, b: ir.IRBuilder, sig: Any, tile: Any, col0: Any, low: Any, high: Any) -> Any:
        ty = sig.args[0]
        layout = Layout(ty)
        start = b.add(self.scalar(context, b, sig.args[1], col0, "i32"), layout.first_column(b))
        nothing = const(ir.VectorType(F32, layout.registers), NEG_INF)

        def body(v: ir.Value, c: int, lo: ir.Value, hi: ir.Value) -> ir.Value:
            numbers = layout.columns_of(c)
            above = b.icmp_signed(">=", numbers, _splat(b, b.sub(lo, start), layout.registers))
            below = b.icmp_signed("<=", numbers, _splat(b, b.sub(hi, start), layout.registers))
            return b.select(b.and_(above, below), v, nothing)

        return self.on_tile(b, ty, tile, body, low, high)

    def mask_where(self, context: Any, b: ir.IRBuilder, sig: Any, tile: Any, visible: Any) -> ir.Value:
        floats = ir.VectorType(F32, Layout(sig.args[0]).registers)
        return _array(
            b,
            [
                b.select(b.fcmp_unordered("!=", seen, const(floats, 0.0)), v, const(floats, NEG_INF))
                for v, seen in zip(_items(b, tile), _items(b, visible), strict=True)
            ],
        )

    def square_step(self, context: Any, b: ir.IRBuilder, sig: Any, tile: Any, m: Any, total: Any) -> ir.Value:
        ty = sig.args[0]
        sizes = self.on_tile(b, ty, tile, lambda v, c: _math(b, "fabs", v))
        largest = self.reduce_rows(b, ty, sizes, lambda x, y: _math(b, "maxnum", x, y))
        old = _items(b, m)
        new = [_math(b, "maxnum", x, y) for x, y in zip(old, largest, strict=True)]
        scales = [squares.unit(b, x, lambda b, x: _math(b, "sqrt", x)) for x in new]
        parts = self.on_tile(
            b, ty, tile, lambda v, c, s: squares.square(b, v, _splat(b, s, v.type.count)), _array(b, scales)
        )
        sums = []
        for before, now, sum_before, scale, more in zip(
            old, new, _items(b, total), scales, self.reduce_rows(b, ty, parts, b.fadd), strict=True
        ):
            sums.append(b.fadd(squares.rescale(b, sum_before, before, now, scale), more))
        return context.make_tuple(b, sig.return_type, [_array(b, new), _array(b, sums)])

    def softmax_step(
        self, context: Any, b: ir.IRBuilder, sig: Any, s: Any, scale: Any, m: Any, l: Any, acc: Any
    ) -> ir.Value:
        s_ty, acc_ty = sig.args[0], sig.args[4]
        if _is_line(s_ty):
            raise TypingError("softmax_step: a kernel with products needs a configuration with line=False")
        scale = self.scalar(context, b, sig.args[1], scale, "f32")
        parts = [_items(b, x) for x in (m, l, acc)]
        rows, tiles = len(parts[0]), len(parts[2])

        def body(b: ir.IRBuilder, args: list, scores: list) -> list:
            m, l, acc = args[1 : 1 + rows], args[1 + rows : 1 + 2 * rows], args[1 + 2 * rows :]
            return self.softmax(b, Layout(s_ty).atom, args[0], m, l, acc, scores)

        arch, waves, wave_rows = s_ty.hw
        name = f"softmax_{arch}_{waves}x{wave_rows}_{s_ty.m}x{s_ty.n}x{acc_ty.n}"
        values = _shared(b, name, [scale, *_flat(parts)], _items(b, s), body)
        ends = [0, *itertools.accumulate((len(values) - 2 * rows - tiles, rows, rows, tiles))]
        out = [_array(b, values[i:j]) for i, j in itertools.pairwise(ends)]
        return context.make_tuple(b, sig.return_type, out)

    def softmax(
        self, b: ir.IRBuilder, atom: Atom, scale: ir.Value, old: list, old_sums: list, old_tiles: list, scores: list
    ) -> list:
        """Weights, maxima, sums and accumulator, one after the other."""
        negative_scale = b.fneg(scale)
        per_block, columns = len(scores) // len(old), len(old_tiles) // len(old)

        # A weight is 2 ** (s * scale + offset), offset = -m * scale. The rounding of the offset is the same in all
        # weights, sums and rescalings of a row, so that it cancels.
        old_offsets = [b.fmul(x, negative_scale) for x in old]

        # Each lane looks at its own part of the rows. Only when a maximum has grown by more than float32 can bear does
        # a wave find the new ones. A comparison with NaN (rows that have seen nothing but -inf) counts as grown.
        highest = [_largest(b, block) for block in _in_blocks(scores, per_block)]
        grown = const(I1, 0)
        for high, offset in zip(highest, old_offsets, strict=True):
            excess = _math(b, "fma", high, scale, offset)
            grown = b.or_(grown, b.fcmp_unordered(">", excess, const(F32, LAZY_EXPONENT)))
            grown = b.or_(grown, self.is_huge(b, offset))

        def rescale() -> list:
            maxima, offsets, sums, tiles, moved = [], [], [], [], []
            for r, before in enumerate(old):
                new = _over_groups(b, atom, lambda x, y: _math(b, "maxnum", x, y), highest[r])
                new = _math(b, "maxnum", before, new)
                base = b.select(b.fcmp_ordered("==", new, const(F32, NEG_INF)), const(F32, 0.0), new)
                offset = b.fmul(base, negative_scale)
                huge = self.is_huge(b, offset)
                exact = b.or_(huge, self.is_huge(b, old_offsets[r]))
                change = b.select(exact, b.fmul(b.fsub(before, base), scale), b.fsub(offset, old_offsets[r]))
                shrink = _exp2(b, change)
                factor = _splat(b, shrink, atom.registers)
                zero = const(F32, 0.0)
                # Where the product is too large to be rounded, the maximum is subtracted before it.
                less = _splat(b, b.select(huge, base, zero), atom.registers)
                maxima.append(new)
                offsets.append(b.select(huge, zero, offset))
                sums.append(b.fmul(old_sums[r], shrink))
                tiles += [b.fmul(v, factor) for v in old_tiles[r * columns : (r + 1) * columns]]
                moved += [b.fsub(v, less) for v in scores[r * per_block : (r + 1) * per_block]]
            return [*maxima, *offsets, *sums, *tiles, *moved]

        parts = [old, old_offsets, old_sums, old_tiles, scores]
        joined = iter(_if(b, _any_lane(b, atom, grown), _flat(parts), rescale))
        maxima, offsets, sums, tiles, scores = ([next(joined) for _ in part] for part in parts)

        factor = _splat(b, scale, atom.registers)
        addends = [_splat(b, offset, atom.registers) for offset in offsets for _ in range(per_block)]
        powers = [_math(b, "fma", v, factor, x) for v, x in zip(scores, addends, strict=True)]
        p = [_each(b, v, lambda e: _exp2(b, e)) for v in powers]
        for r, block in enumerate(_in_blocks(p, per_block)):
            sums[r] = b.fadd(sums[r], _over_groups(b, atom, b.fadd, _tree(b, b.fadd, block)))
        return [*p, *maxima, *sums, *tiles]

    @staticmethod
    def is_huge(b: ir.IRBuilder, offset: ir.Value) -> ir.Value:
        """Whether an offset's rounding makes weights too large; also true of a row that has seen only -inf."""
        return b.fcmp_unordered(">", _math(b, "fabs", offset), const(F32, HUGE_EXPONENT))

    # ------------------------------------------------------------------------------------------------------ stages
    def stage(
        self, context: Any, b: ir.IRBuilder, sig: Any, cfg: Any, source: Any, n: Any, k: Any, *_: Any
    ) -> ir.Value:
        window = Window(sig.return_type)
        data, shape, strides = self.unpack_tensor(context, b, sig.args[1], source)
        members = [data, *shape, *strides]
        for copy in window.copies:
            pointer = b.addrspacecast(_local_room(b, "rocmkern_stage", copy.bytes), POINTER)
            row, column, _ = self.block(b, window, copy, 0, _thread(b))
            inside = self.local_offset(b, window, copy, row, column)
            outside = b.mul(row, b.trunc(strides[0], I32))
            outside = b.add(outside, b.mul(column, const(I32, window.source_bytes)))
            # Each takes one register; of known origin they would be extended to two, or taken apart again.
            inside, outside = (_opaque(b, x, "v") for x in (inside, outside))
            chunks = ir.Constant(ir.ArrayType(copy.chunk, copy.per_lane * copy.block_rows), ir.Undefined)
            members += [pointer, inside, outside, self.access(b, window, copy, members[:5]), chunks]
        if window.paged:
            paging = window.value_type().elements[-Pages.MEMBERS :]
            members += [ir.Constant(ty, None if ty == POINTER else 0) for ty in paging]
        return _aggregate(b, window.value_type(), members)

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
        members = _items(b, st)
        members[:5] = source
        for number, copy in enumerate(window.copies):
            members[self.member(number, ACCESS)] = self.access(b, window, copy, source, strides[0])
        paging = [entries, b.trunc(length, I32), entry_stride, b.trunc(page_rows, I32), strides[0], pages]
        members[-Pages.MEMBERS :] = paging
        return _aggregate(b, window.value_type(), members)

    @staticmethod
    def block(b: ir.IRBuilder, window: Window, copy: Copy, i: int, thread: ir.Value) -> tuple:
        """First row and column (i32) of this lane's i-th block, and whether there is such a block (None: always)."""
        number = b.add(thread, const(I32, i * window.threads))
        across = const(I32, window.k // copy.block_columns)
        exists = None
        if (i + 1) * window.threads > copy.blocks:
            exists = b.icmp_unsigned("<", number, const(I32, copy.blocks))
            number = b.select(exists, number, const(I32, 0))
        row = b.mul(b.udiv(number, across), const(I32, copy.block_rows))
        return row, b.mul(b.urem(number, across), const(I32, copy.block_columns)), exists

    def fetch_quantised(self, b: ir.IRBuilder, ty: Any, st: ir.Value, row0: ir.Value, col0: ir.Value) -> ir.Value:
        """Load and decode this lane's part of a window of a quantised source."""
        window, kind = Window(ty), FORMATS[ty.format]
        source, rows, columns, row_stride, _ = _items(b, st)[:5]
        base, thread = _in_space(b, source, GLOBAL), _opaque(b, _thread(b), "v")
        some = b.and_(b.icmp_signed("<", row0, rows), b.icmp_signed("<", col0, columns))

        def chunks(copy: Copy) -> list:
            out, width = [], copy.block_columns
            for i in range(copy.per_lane):
                row, column, _ = self.block(b, window, copy, i, thread)
                column = b.add(col0, b.zext(column, I64))
                for r in range(copy.block_rows):
                    number = b.add(row0, b.zext(b.add(row, const(I32, r)), I64))
                    ok = b.and_(b.icmp_signed("<", number, rows), b.icmp_signed("<", column, columns))
                    line = b.gep(base, [b.mul(b.select(ok, number, row0), row_stride)], source_etype=I8)
                    numbers = _decode(b, kind, line, b.select(ok, column, const(I64, 0)), width)
                    numbers = [b.select(ok, x, const(F32, 0.0)) for x in numbers]
                    items = _vector(b, [_narrow(b, x, window.dtype) for x in numbers])
                    out.append(b.bitcast(items, copy.chunk))
            return out

        for number, copy in enumerate(window.copies):
            nothing = [const(copy.chunk, 0)] * (copy.per_lane * copy.block_rows)
            found = _branch(b, some, lambda copy=copy: chunks(copy), lambda nothing=nothing: nothing)
            st = b.insert_value(st, _array(b, found), self.member(number, CHUNKS))
        _keep_order(b)
        return st

    def fetch(self, context: Any, b: ir.IRBuilder, sig: Any, st: ir.Value, *start: ir.Value) -> ir.Value:
        window, source = Window(sig.args[0]), _items(b, st)[:5]
        row0, *col0 = (self.scalar(context, b, t, v, "i64") for t, v in zip(sig.args[1:], start, strict=True))
        if sig.args[0].format:
            return self.fetch_quantised(b, sig.args[0], st, row0, (*col0, const(I64, 0))[0])
        if col0:
            # The source from that column on: a narrower one, which may have to be read in another way.
            source[0] = b.gep(source[0], [b.mul(col0[0], source[4])], source_etype=I8)
            source[2] = b.sub(source[2], col0[0])
        for number, copy in enumerate(window.copies):
            lane = b.extract_value(st, self.member(number, LANE_SOURCE))
            access = b.extract_value(st, self.member(number, ACCESS))
            if col0:
                access = self.access_from(b, window, copy, access, col0[0], source[2])
            pages = Pages(b, st) if window.paged else None
            chunks = self.fetch_copy(b, window, copy, source, lane, access, row0, pages)
            st = b.insert_value(st, _array(b, chunks), self.member(number, CHUNKS))
        _keep_order(b)
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

    def fetch_copy(
        self,
        b: ir.IRBuilder,
        window: Window,
        copy: Copy,
        source: list,
        lane: ir.Value,
        access: ir.Value,
        row0: ir.Value,
        pages: Pages | None,
    ) -> list:
        """Load this lane's part of a window: a chunk for every row of every block."""
        source, rows, columns, row_stride, column_stride = source
        # The best way is known before a loop. For the others, what is computed from these would also be kept around it,
        # a lane mask for each comparison, if their origin were known.
        whole_rows = b.icmp_unsigned("==", access, const(I32, WHOLE_ROWS))
        columns, access = _opaque(b, columns, "s"), _opaque(b, access, "s")
        base, size, width = _in_space(b, source, GLOBAL), window.source_bytes, copy.block_columns
        chunk_bytes = size * width

        def load(base: ir.Value, offset: ir.Value) -> ir.Value:
            """A chunk of a row, converted."""
            if window.source == window.dtype:
                return _load(b, base, offset, copy.chunk, chunk_bytes)
            return converted(_load(b, base, offset, ir.VectorType(I8, width), chunk_bytes))

        def converted(values: ir.Value) -> ir.Value:
            floats = _widen(b, values, window.source)
            if window.dtype == "float16":
                floats = b.fptrunc(floats, ir.VectorType(F16, width))
            return b.bitcast(_bfloat16_bits(b, floats) if window.dtype == "bfloat16" else floats, copy.chunk)

        def places(thread: ir.Value, row_stride: ir.Value) -> Any:
            """Offset of each chunk's row, its first column, and whether the row exists."""
            for i in range(copy.per_lane):
                row, column, _ = self.block(b, window, copy, i, thread)
                for r in range(copy.block_rows):
                    number = b.add(row0, b.zext(b.add(row, const(I32, r)), I64))
                    ok = b.icmp_signed("<", number, rows)
                    if pages is None:
                        offset = b.mul(b.select(ok, number, row0), row_stride)
                    else:
                        offset, ok = pages.line(b, number, ok, row_stride)
                    yield offset, b.zext(column, I64), ok

        def whole() -> list:
            """A window that lies inside the source: a uniform address and a 32-bit offset for each lane."""
            out, at = [], 0
            line = b.add(b.ptrtoint(base, I64), b.mul(row0, row_stride))
            line = b.inttoptr(_uniform(b, line), base.type)
            # LLVM would extend the offset to 64 bits outside of a loop, and would no longer know that it is short.
            offset = _opaque(b, lane, "v")
            for i in range(copy.per_lane):
                down = i * (copy.rows_apart or 0)
                if copy.rows_apart is None:
                    row, column, _ = self.block(b, window, copy, i, _thread(b))
                    offset = b.add(b.mul(row, b.trunc(row_stride, I32)), b.mul(column, const(I32, size)))
                    offset = _opaque(b, offset, "v")
                for number in range(down, down + copy.block_rows):
                    # LLVM would derive the address of each line from the one before, in 64 bits a lane.
                    line = b.gep(line, [b.mul(row_stride, const(I64, number - at))], source_etype=I8)
                    line, at = _opaque(b, line, "s"), number
                    out.append(load(line, b.zext(offset, I64)))
            return out

        def vectors() -> list:
            out = []
            for offset, column, ok in places(_opaque(b, _thread(b), "v"), _opaque(b, row_stride, "s")):
                ok = b.and_(ok, b.icmp_signed("<", column, columns))
                address = b.select(ok, b.add(offset, b.mul(column, const(I64, size))), offset)
                out.append(b.select(ok, load(base, address), const(copy.chunk, 0)))
            return out

        def singles() -> list:
            out, item = [], _memory_int(window.source)
            for offset, column, ok in places(_opaque(b, _thread(b), "v"), _opaque(b, row_stride, "s")):
                place, items = b.add(offset, b.mul(column, column_stride)), []
                left, left_again = _remaining(b, column, b.select(ok, columns, const(I64, 0)), width)
                for e in range(width):
                    value = _load(b, base, b.select(_below(b, e, left), place, offset), item, size)
                    items.append(b.select(_below(b, e, left_again), value, const(item, 0)))
                    place = b.add(place, column_stride)
                chunk = _vector(b, items)
                out.append(b.bitcast(chunk, copy.chunk) if window.source == window.dtype else converted(chunk))
                _schedule_no_further(b)
            return out

        some = b.and_(b.icmp_signed("<", row0, rows), b.icmp_signed(">", columns, const(I64, 0)))
        inside = b.icmp_signed("<=", b.add(row0, const(I64, window.n)), rows)
        best = b.and_(inside, whole_rows)
        slow = b.icmp_unsigned("==", access, const(I32, ELEMENTS))
        nothing = [const(copy.chunk, 0)] * (copy.per_lane * copy.block_rows)

        def otherwise() -> list:
            return _branch(b, some, lambda: _branch(b, slow, singles, vectors), lambda: nothing)

        # Pages lie apart: a window of theirs has no uniform distance from row to row.
        return otherwise() if pages is not None else _branch(b, best, whole, otherwise)

    def acquire(self, context: Any, b: ir.IRBuilder, sig: Any, st: ir.Value) -> ir.Value:
        window, thread = Window(sig.args[0]), _thread(b)
        _local_barrier(b)
        for number, copy in enumerate(window.copies):
            local, chunks = self.local(b, st, number), _items(b, b.extract_value(st, self.member(number, CHUNKS)))
            commit = self.commit_transposed if copy.transposed else self.commit
            for i in range(copy.per_lane):
                exists = None
                if copy.rows_apart is None:
                    row, column, exists = self.block(b, window, copy, i, thread)
                    offset = self.local_offset(b, window, copy, row, column)
                else:
                    step = copy.local_bytes * (1 if copy.transposed else copy.ld)
                    offset = b.extract_value(st, self.member(number, LANE_LOCAL))
                    offset = b.add(offset, const(I32, i * copy.rows_apart * step))
                some = chunks[i * copy.block_rows : (i + 1) * copy.block_rows]
                with contextlib.nullcontext() if exists is None else b.if_then(exists):
                    commit(b, window, copy, local, offset, some)
        _local_barrier(b)
        return st

    @staticmethod
    def local_offset(b: ir.IRBuilder, window: Window, copy: Copy, row: ir.Value, column: ir.Value) -> ir.Value:
        """Byte offset of a block in local memory."""
        if not window.matrix and window.atom.register_step == 2:
            # Even columns of a tile first, then odd ones: see `position`.
            column = b.or_(b.and_(column, const(I32, ~15)), b.lshr(b.and_(column, const(I32, 15)), const(I32, 1)))
        line, place = (column, row) if copy.transposed else (row, column)
        line = b.mul(line, const(I32, copy.ld * copy.local_bytes))
        return b.add(line, b.mul(place, const(I32, copy.local_bytes)))

    @staticmethod
    def commit(b: ir.IRBuilder, window: Window, copy: Copy, local: ir.Value, start: ir.Value, chunks: list) -> None:
        """Write one block, which is one chunk of a row, to local memory."""
        if window.matrix:
            _store(b, chunks[0], local, start, CHUNK_BYTES)
            return
        items = ir.VectorType(_memory_int(window.dtype), copy.block_columns)
        floats = _widen(b, b.bitcast(chunks[0], items), window.dtype)
        if window.atom.register_step == 1:
            for part in range(0, copy.block_columns, 4):
                _store(
                    b, _shuffle(b, floats, floats, range(part, part + 4)), local, b.add(start, const(I32, 4 * part)), 16
                )
            return
        for odd in (0, 1):
            run = _shuffle(b, floats, floats, range(odd, copy.block_columns, 2))
            _store(b, run, local, b.add(start, const(I32, 32 * odd)), 8)

    @staticmethod
    def commit_transposed(
        b: ir.IRBuilder, window: Window, copy: Copy, local: ir.Value, start: ir.Value, chunks: list
    ) -> None:
        """Write one block, each column in one piece of 16 bytes."""
        lines, size = [_elements(b, chunk) for chunk in chunks], copy.local_bytes
        for c in range(copy.block_columns):
            offset = b.add(start, const(I32, size * copy.ld * c))
            if size == 4:
                _store(b, _vector(b, [line[c] for line in lines]), local, offset, CHUNK_BYTES)
                continue
            # v_perm takes the low or the high halves of two rows.
            halves = const(I32, 0x07060302 if c % 2 else 0x05040100)
            words = [
                call(b, "llvm.amdgcn.perm", I32, [lines[r + 1][c // 2], lines[r][c // 2], halves])
                for r in range(0, copy.block_rows, 2)
            ]
            _store(b, _vector(b, words), local, offset, CHUNK_BYTES)

    @staticmethod
    def local(b: ir.IRBuilder, st: ir.Value, copy: int = 0) -> ir.Value:
        return _in_space(b, b.extract_value(st, COPY_MEMBERS + 5 * copy), LOCAL)

    def release(self, context: Any, b: ir.IRBuilder, sig: Any, st: ir.Value) -> ir.Value:
        # The barrier that protects the window stands at the next acquire.
        return st

    # ---------------------------------------------------------------------------------------------------- operands
    def load_operand(
        self, context: Any, b: ir.IRBuilder, sig: Any, cfg: Any, x: Any, index: Any, col0: Any, k: Any, valid: Any
    ) -> ir.Value:
        ty, out = sig.args[1], sig.return_type
        layout = Layout(out)
        atom = layout.atom
        if DTYPES[out.dtype] == 4 or out.dtype not in atom.intrinsics:
            return self.join_blocks(b, self.gather(context, b, sig, x, index, col0, valid, out.k))
        data, shape, strides = self.unpack_tensor(context, b, ty, x)
        base, stride, columns = _in_space(b, data, GLOBAL), strides[-1], shape[-1]
        origin = self.scalar(context, b, sig.args[3], col0, "i64")
        lane = _Lane(b, atom)
        first = b.add(origin, b.zext(b.mul(lane.group, const(I32, atom.run_step)), I64))
        offsets = self.row_offsets(context, b, sig.args[2], index, strides[:-1], layout.row_blocks)
        part = min(atom.run, 8)
        element, run = operand_element(out.dtype), ir.VectorType(operand_element(out.dtype), atom.run)
        starts = [16 * t + e for t in range(out.k // 16) for e in range(0, atom.run, part)]

        def runs(parts: list) -> list:
            if part == atom.run:
                return parts
            return [_shuffle(b, x, y, range(16)) for x, y in zip(parts[::2], parts[1::2], strict=True)]

        def vectors(offset: ir.Value) -> list:
            parts, ty_part = [], ir.VectorType(element, part)
            start, (left, left_again) = b.add(offset, b.shl(first, const(I64, 1))), _remaining(b, first, columns, out.k)
            for column in starts:
                place = b.select(_below(b, column, left), b.add(start, const(I64, 2 * column)), offset)
                value = _load(b, base, place, ty_part, 2 * part)
                parts.append(b.select(_below(b, column, left_again), value, ir.Constant(ty_part, None)))
            return runs(parts)

        def singles(offset: ir.Value) -> list:
            parts, (left, left_again) = [], _remaining(b, first, columns, out.k)
            for column in starts:
                items, place = [], b.add(offset, b.mul(b.add(first, const(I64, column)), stride))
                for e in range(part):
                    value = _load(b, base, b.select(_below(b, column + e, left), place, offset), element, 2)
                    items.append(b.select(_below(b, column + e, left_again), value, ir.Constant(element, None)))
                    place = b.add(place, stride)
                parts.append(_vector(b, items))
                _schedule_no_further(b)
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
        for ok, offset in zip(_flags(b, valid), offsets, strict=True):
            blocks += _branch(
                b,
                b.and_(ok, some),
                lambda offset=offset: _branch(b, fast, lambda: vectors(offset), lambda: singles(offset)),
                lambda: [ir.Constant(run, None)] * (out.k // 16),
            )
        return self.keep_operand(b, out, blocks)

    @staticmethod
    def keep_operand(b: ir.IRBuilder, ty: Any, runs: list) -> ir.Value:
        """The value of an operand, from its fragments."""
        if not Parked.suits(ty):
            return _array(b, runs)
        parked, lane = Parked(ty), _Lane(b, Layout(ty).atom)
        place = lane.row if parked.atom.run == 16 else lane.index
        place = b.add(
            b.mul(place, const(I32, parked.run_bytes)),
            b.mul(_wave_index(b, parked.atom), const(I32, parked.wave_bytes)),
        )
        base = b.gep(_local_room(b, "rocmkern_operand", parked.bytes), [place], source_etype=I8)
        for i, run in enumerate(runs):
            _store(b, run, base, const(I32, i * parked.slot), CHUNK_BYTES)
        return b.addrspacecast(base, POINTER)

    def operand(self, context: Any, b: ir.IRBuilder, sig: Any, tile: ir.Value, like: Any) -> ir.Value:
        out = sig.return_type
        atom = Layout(out).atom
        if DTYPES[out.dtype] == 4 or out.dtype not in atom.intrinsics:
            return tile

        def body(b: ir.IRBuilder, _: list, tile: list) -> list:
            runs = []
            for v in tile:
                if out.dtype == "float16":
                    short = b.fptrunc(v, ir.VectorType(F16, atom.registers))
                else:
                    short = _bfloat16_bits(b, v)
                runs.append(self.exchange_halves(b, atom, short) if atom.run == 16 else short)
            return runs

        name = f"operand_{out.hw[0]}_{out.hw[1]}x{out.hw[2]}_{out.dtype}_{out.m}x{out.k}"
        return self.keep_operand(b, out, _shared(b, name, [], _items(b, tile), body))

    @staticmethod
    def exchange_halves(b: ir.IRBuilder, atom: Atom, short: ir.Value) -> ir.Value:
        """gfx11: a lane holds every other column; bring in the rest from the other half of the wave, in order."""
        upper = b.icmp_unsigned("!=", _Lane(b, atom).group, const(I32, 0))
        # Byte selectors of v_perm over (other, own): low halves, then high halves, with group 0's element first.
        low = b.select(upper, const(I32, 0x01000504), const(I32, 0x05040100))
        high = b.select(upper, const(I32, 0x03020706), const(I32, 0x07060302))
        words = []
        for own in _elements(b, b.bitcast(short, ir.VectorType(I32, 4))):
            other = _from_group(b, atom, own, 1)
            words += [call(b, "llvm.amdgcn.perm", I32, [other, own, selector]) for selector in (low, high)]
        return b.bitcast(_vector(b, words), ir.VectorType(short.type.element, 16))

    # ---------------------------------------------------------------------------------------------------- products
    def dot_nt(self, context: Any, b: ir.IRBuilder, sig: Any, left: Any, st: Any, acc: Any = None) -> ir.Value:
        return self.product(b, sig, left, st, acc, 0, self.fma_nt)

    def dot_nn(self, context: Any, b: ir.IRBuilder, sig: Any, left: Any, st: Any, acc: Any = None) -> ir.Value:
        return self.product_nn(b, sig, left, st, acc, const(I1, 0))

    def dot_nn_where(self, context: Any, b: ir.IRBuilder, sig: Any, left: Any, st: Any, acc: Any) -> ir.Value:
        return self.product_nn(b, sig, left, st, acc, const(I1, 1))

    def product_nn(
        self, b: ir.IRBuilder, sig: Any, left: ir.Value, st: ir.Value, acc: Any, where: ir.Value
    ) -> ir.Value:
        """`dot_nn_where` or `dot_nn`, as ``where`` says at run time."""
        window, out = Window(sig.args[1]), sig.return_type
        if isinstance(sig.args[0], TILE.Stage):
            return self.product(b, sig, left, st, acc, len(window.copies) - 1, self.fma_nn)
        sums, left = self.start_of(b, out, acc), self.operand_blocks(b, sig.args[0], left)
        per_row, columns, copy = len(left[0]), len(sums[0]), len(window.copies) - 1

        def body(b: ir.IRBuilder, args: list, own: list) -> list:
            left, local, where = _in_blocks(args[:-1], per_row), args[-1], own[0]

            def multiply(sums: list) -> list:
                if window.matrix:
                    return self.multiply(b, window, left, self.fragments(b, window, local, copy), sums)
                return self.fma_nn(b, window, left, local, sums)

            def exact() -> list:
                return self.exact_nn(b, window, left, local, _in_blocks(own[1:], columns))

            (special,) = _if(b, where, [where], lambda: [self.any_special(b, window, local)])
            tiles = _if(b, special, own[1:], exact)
            return _if(b, b.not_(special), tiles, lambda: _flat(multiply(_in_blocks(tiles, columns))))

        arch, waves, wave_rows = out.hw
        name = f"nn_{arch}_{waves}x{wave_rows}_{window.dtype}_{out.m}x{out.n}x{window.n}"
        args = [*_flat(left), self.local(b, st, copy)]
        return _array(b, _shared(b, name, args, [where, *_flat(sums)], body))

    def operand_blocks(self, b: ir.IRBuilder, ty: Any, value: ir.Value) -> list:
        """Fragments of an operand, or of a stage on the left, for each row block."""
        if isinstance(ty, TILE.Stage):
            return self.stage_blocks(b, ty, value)
        if not Parked.suits(ty):
            return self.tile_blocks(b, ty, value, ty.k)
        parked = Parked(ty)
        return [[self.parked(b, parked, value, r, t) for t in range(parked.steps)] for r in range(parked.row_blocks)]

    def stage_blocks(self, b: ir.IRBuilder, ty: Any, st: ir.Value) -> list:
        """The rows of a stage that belong to this wave, as an operand has them."""
        layout, window, local = Layout(SimpleNamespace(m=ty.n, hw=ty.hw)), Window(ty), self.local(b, st)
        lane, steps = _Lane(b, layout.atom), range(ty.k // 16)
        row0 = b.mul(_wave_index(b, layout.atom), const(I32, 16 * layout.row_blocks))
        if window.matrix:
            fragment = self.fragments(b, window, local, 0, row0)
            return [[fragment(r, t) for t in steps] for r in range(layout.row_blocks)]
        pitch, run = 4 * window.copies[0].ld, ir.VectorType(F32, layout.atom.registers)
        start = b.add(b.mul(b.add(row0, lane.row), const(I32, pitch)), self.position(b, window, lane.group))
        return [
            [_load(b, local, b.add(start, const(I32, 16 * r * pitch + 64 * t)), run, 16) for t in steps]
            for r in range(layout.row_blocks)
        ]

    @staticmethod
    def parked(b: ir.IRBuilder, parked: Parked, value: ir.Value, r: int, t: int) -> ir.Value:
        """One fragment of a parked operand."""
        offset = const(I32, (r * parked.steps + t) * parked.slot)
        return _load(b, _in_space(b, value, LOCAL), offset, parked.run, CHUNK_BYTES)

    def product(
        self, b: ir.IRBuilder, sig: Any, left: ir.Value, st: ir.Value, acc: Any, copy: int, fma: Callable
    ) -> ir.Value:
        """``acc + left @ right``; ``copy`` is the copy of the stage that matrix instructions read."""
        window, sums = Window(sig.args[1]), self.start_of(b, sig.return_type, acc)
        if window.matrix:
            fragment = self.fragments(b, window, self.local(b, st, copy), copy)
            if not isinstance(sig.args[0], TILE.Stage) and Parked.suits(sig.args[0]):
                return self.join_blocks(b, self.multiply_parked(b, window, sig.args[0], left, fragment, sums))
            left = self.operand_blocks(b, sig.args[0], left)
            return self.join_blocks(b, self.multiply(b, window, left, fragment, sums))
        left = self.operand_blocks(b, sig.args[0], left)
        sums = fma(b, window, left, self.local(b, st), sums)
        return self.join_blocks(b, [[_pinned(b, v) for v in block] for block in sums])

    def start_of(self, b: ir.IRBuilder, out: Any, acc: Any) -> list:
        if acc is None:
            layout = Layout(out)
            zero = ir.Constant(ir.VectorType(F32, layout.atom.registers), None)
            return [[zero] * (out.n // 16) for _ in range(layout.row_blocks)]
        return self.tile_blocks(b, out, acc)

    @staticmethod
    def multiply(b: ir.IRBuilder, window: Window, left: list, fragment: Callable, sums: list) -> list:
        """``sums + left @ right`` by matrix instructions; ``fragment(c, t)`` is tile (t, c) of right, transposed."""
        out = [list(block) for block in sums]

        def use(step: tuple, right: ir.Value) -> None:
            c, t = step
            for r, block in enumerate(left):
                out[r][c] = _matrix_instruction(b, window, right, block[t], out[r][c])

        steps = list(itertools.product(range(len(sums[0])), range(len(left[0]))))
        _pipelined(b, steps, lambda step: fragment(*step), use, window.atom.run * window.item_bytes // 4)
        return out

    def multiply_parked(
        self, b: ir.IRBuilder, window: Window, ty: Any, left: ir.Value, fragment: Callable, sums: list
    ) -> list:
        """`multiply` with a left operand in local memory: each of its fragments is read once."""
        parked, out = Parked(ty), [list(block) for block in sums]
        ours: dict[int, ir.Value] = {}

        def load(step: tuple) -> tuple:
            t, r, c = step
            mine = self.parked(b, parked, left, r, t) if c == 0 else None
            return mine, fragment(c, t)

        def use(step: tuple, loaded: tuple) -> None:
            _, r, c = step
            ours[r] = loaded[0] or ours[r]
            out[r][c] = _matrix_instruction(b, window, loaded[1], ours[r], out[r][c])

        steps = list(itertools.product(range(parked.steps), range(parked.row_blocks), range(len(sums[0]))))
        _pipelined(b, steps, load, use, 2 * parked.run_bytes // 4)
        return out

    def fragments(
        self, b: ir.IRBuilder, window: Window, local: ir.Value, copy: int, first: ir.Value | None = None
    ) -> Callable:
        """``fragment(c, t)``: lanes are 16 lines of a copy, from line ``first + 16 c``; runs start at ``16 t``."""
        atom, lane, ld = window.atom, _Lane(b, window.atom), window.copies[copy].ld
        ty = ir.VectorType(operand_element(window.dtype), atom.run)
        size = window.item_bytes
        line = lane.row if first is None else b.add(lane.row, first)
        start = b.add(b.mul(line, const(I32, size * ld)), b.mul(lane.group, const(I32, size * atom.run_step)))

        def fragment(c: int, t: int) -> ir.Value:
            offset = b.add(start, const(I32, size * (16 * c * ld + 16 * t)))
            return _load(b, local, offset, ty, min(size * atom.run, CHUNK_BYTES))

        return fragment

    # float32: a lane multiplies its own elements of the reduced axis, then those of the other groups.
    @staticmethod
    def spread(b: ir.IRBuilder, atom: Atom, left: list) -> Callable:
        """``spread(d, t)[row block][i]``: elements of left that the group at distance ``d`` holds."""

        @functools.cache
        def elements(d: int, t: int) -> list:
            return [[_from_group(b, atom, x, d) for x in _elements(b, block[t])] for block in left]

        return elements

    @staticmethod
    def first_row(b: ir.IRBuilder, window: Window, group: ir.Value) -> ir.Value:
        return b.mul(group, const(I32, window.atom.group_step * window.copies[0].ld * 4))

    @staticmethod
    def position(b: ir.IRBuilder, window: Window, group: ir.Value) -> ir.Value:
        """Byte offset, in a tile's 16 columns in local memory, of the columns of a group."""
        return b.mul(group, const(I32, window.atom.registers * 4))

    def fma_nt(self, b: ir.IRBuilder, window: Window, left: list, local: ir.Value, sums: list) -> list:
        atom, lane, ld = window.atom, _Lane(b, window.atom), window.copies[0].ld
        lefts, run = self.spread(b, atom, left), ir.VectorType(F32, atom.registers)
        out = [[_elements(b, v) for v in block] for block in sums]
        starts = [
            b.add(self.first_row(b, window, lane.group), self.position(b, window, b.xor(lane.group, const(I32, d))))
            for d in range(atom.groups)
        ]

        def load(step: tuple) -> ir.Value:
            d, t, c, i = step
            row = 16 * c + atom.register_step * i
            return _load(b, local, b.add(starts[d], const(I32, 4 * (row * ld + 16 * t))), run, 16)

        def use(step: tuple, rights: ir.Value) -> None:
            d, t, c, i = step
            for xs, block in zip(lefts(d, t), out, strict=True):
                for x, y in zip(xs, _elements(b, rights), strict=True):
                    block[c][i] = _math(b, "fma", x, y, block[c][i])

        axes = atom.groups, len(left[0]), len(sums[0]), atom.registers
        _pipelined(b, list(itertools.product(*map(range, axes))), load, use, atom.registers)
        return [[_vector(b, v) for v in block] for block in out]

    def fma_nn(self, b: ir.IRBuilder, window: Window, left: list, local: ir.Value, sums: list) -> list:
        atom, lane, ld = window.atom, _Lane(b, window.atom), window.copies[0].ld
        lefts, run = self.spread(b, atom, left), ir.VectorType(F32, atom.registers)
        out = [list(block) for block in sums]
        starts = [
            b.add(self.first_row(b, window, b.xor(lane.group, const(I32, d))), self.position(b, window, lane.group))
            for d in range(atom.groups)
        ]

        def load(step: tuple) -> ir.Value:
            d, t, i, c = step
            row = 16 * t + atom.register_step * i
            return _load(b, local, b.add(starts[d], const(I32, 4 * (row * ld + 16 * c))), run, 16)

        def use(step: tuple, right: ir.Value) -> None:
            d, t, i, c = step
            for xs, block in zip(lefts(d, t), out, strict=True):
                block[c] = _math(b, "fma", _splat(b, xs[i], atom.registers), right, block[c])

        axes = atom.groups, len(left[0]), atom.registers, len(sums[0])
        _pipelined(b, list(itertools.product(*map(range, axes))), load, use, atom.registers)
        return out

    def dot_tn(self, context: Any, b: ir.IRBuilder, sig: Any, left: Any, right: Any, acc: Any = None) -> ir.Value:
        out, layout = sig.return_type, Layout(sig.return_type)
        a, window = Window(sig.args[0]), Window(sig.args[1])
        sums, atom = self.start_of(b, out, acc), layout.atom
        a_local, local = self.local(b, left), self.local(b, right)
        row0 = b.mul(_wave_index(b, atom), const(I32, atom.rows * layout.row_blocks))
        if window.matrix:
            lefts = self.fragments(b, a, self.local(b, left, 1), 1, row0)
            fragment = self.fragments(b, window, self.local(b, right, 1), 1)
            blocks = [[lefts(r, t) for t in range(window.n // 16)] for r in range(layout.row_blocks)]
            return self.join_blocks(b, self.multiply(b, window, blocks, fragment, sums))
        lane, registers = _Lane(b, atom), atom.registers
        # Where column `lane.row` of a tile lies: see `commit`.
        column = lane.row
        if atom.register_step == 2:
            odd = b.shl(b.and_(lane.row, const(I32, 1)), const(I32, 3))
            column = b.add(odd, b.lshr(lane.row, const(I32, 1)))
        a_start = b.mul(b.add(row0, column), const(I32, 4))
        start, run = self.position(b, window, lane.group), ir.VectorType(F32, registers)

        def load(k: int) -> tuple:
            a_row, row = const(I32, 4 * k * a.copies[0].ld), const(I32, 4 * k * window.copies[0].ld)
            xs = [b.add(a_start, b.add(a_row, const(I32, 4 * atom.rows * r))) for r in range(layout.row_blocks)]
            ys = [b.add(start, b.add(row, const(I32, 64 * c))) for c in range(out.n // 16)]
            return [_load(b, a_local, x, F32, 4) for x in xs], [_load(b, local, y, run, 16) for y in ys]

        def use(k: int, loaded: tuple) -> None:
            for x, block in zip(loaded[0], sums, strict=True):
                for c, y in enumerate(loaded[1]):
                    block[c] = _math(b, "fma", _splat(b, x, registers), y, block[c])

        _pipelined(b, list(range(window.n)), load, use, registers * out.n // 16)
        return self.join_blocks(b, sums)

    @staticmethod
    def any_special(b: ir.IRBuilder, window: Window, local: ir.Value) -> ir.Value:
        """Whether the window holds a NaN or an infinity: each wave looks at all of the copy that dot_nn reads."""
        copy, wave, lane = window.copies[-1], window.atom.wave, _Lane(b, window.atom)
        item = ir.IntType(8 * copy.local_bytes)
        vector = ir.VectorType(item, CHUNK_BYTES // copy.local_bytes)
        per_line = window.n * window.k // copy.lines // vector.count
        chunks = copy.lines * per_line
        infinity = INFINITY[window.dtype if window.matrix else "float32"]
        largest = const(vector, 0)
        for i in range(-(-chunks // wave)):
            number = b.add(lane.index, const(I32, i * wave))
            if (i + 1) * wave > chunks:
                number = _math(b, "umin", number, const(I32, chunks - 1))
            line = b.mul(b.udiv(number, const(I32, per_line)), const(I32, copy.ld * copy.local_bytes))
            offset = b.add(line, b.mul(b.urem(number, const(I32, per_line)), const(I32, CHUNK_BYTES)))
            bits = _load(b, local, offset, vector, CHUNK_BYTES)
            largest = _math(b, "umax", largest, b.and_(bits, const(vector, (1 << (item.width - 1)) - 1)))
        worst = _tree(b, lambda x, y: _math(b, "umax", x, y), [largest])
        return _any_lane(b, window.atom, b.icmp_unsigned(">=", worst, const(item, infinity)))

    def exact_nn(self, b: ir.IRBuilder, window: Window, left: list, local: ir.Value, sums: list) -> list:
        """``sums + left @ right``, element by element; where left is 0 the product is 0, whatever right is.

        It happens seldom, so it is a small loop for each tile column, over the 32-bit words of left. Registers cannot
        be numbered at run time: instead the words take turns in being the first.
        """
        blocks = len(left)
        add = self.add_exact_matrix if window.matrix else self.add_exact_fma
        per_run = left[0][0].type.count * window.item_bytes // 4 if window.matrix else window.atom.registers
        vector = ir.VectorType(I32, per_run)
        words = [[w for run in block for w in _elements(b, b.bitcast(run, vector))] for block in left]
        steps, out = len(words[0]), []

        def step(n: ir.Value, values: list, c: int) -> list:
            totals, queue = values[:blocks], values[blocks:]
            t, word = b.udiv(n, const(I32, per_run)), b.urem(n, const(I32, per_run))
            totals = add(b, window, local, c, t, word, queue[::steps], totals)
            for r in range(blocks):
                totals += [*queue[r * steps + 1 : (r + 1) * steps], queue[r * steps]]
            return totals

        for c in range(len(sums[0])):
            start = [*(block[c] for block in sums), *(w for block in words for w in block)]
            out.append(_loop(b, steps, start, lambda n, values, c=c: step(n, values, c))[:blocks])
        return [column[r] for r in range(blocks) for column in out]

    @staticmethod
    def add_exact_matrix(
        b: ir.IRBuilder, window: Window, local: ir.Value, c: int, t: ir.Value, word: ir.Value, left: list, sums: list
    ) -> list:
        """The part of `exact_nn` for tile column ``c`` and word ``word`` of run ``t``: a vector for each row block."""
        atom, lane, size = window.atom, _Lane(b, window.atom), window.item_bytes
        item, pitch = _memory_int(window.dtype), window.copies[-1].ld * size
        few = ir.VectorType(item, 4 // size)
        line = b.mul(lane.group, const(I32, atom.group_step * pitch))
        start = b.add(line, b.add(b.mul(t, const(I32, 16 * size)), b.mul(word, const(I32, 4))))
        totals = [_elements(b, v) for v in sums]
        for d in range(16 // atom.run):
            place = b.add(start, b.mul(b.xor(lane.group, const(I32, d)), const(I32, size * atom.run_step)))
            weights = []
            for bits in left:
                bits = b.bitcast(_from_group(b, atom, bits, d), few)
                weights.append(_elements(b, _widen(b, bits, window.dtype)))
            for i in range(atom.registers):
                offset = b.add(place, const(I32, (16 * c + atom.register_step * i) * pitch))
                values = _load(b, local, offset, few, 4)
                for e, y in enumerate(_elements(b, _widen(b, values, window.dtype))):
                    for total, xs in zip(totals, weights, strict=True):
                        seen = b.select(b.fcmp_ordered("==", xs[e], const(F32, 0.0)), const(F32, 0.0), y)
                        total[i] = _math(b, "fma", xs[e], seen, total[i])
            _schedule_no_further(b)
        return [_vector(b, total) for total in totals]

    def add_exact_fma(
        self,
        b: ir.IRBuilder,
        window: Window,
        local: ir.Value,
        c: int,
        t: ir.Value,
        word: ir.Value,
        left: list,
        sums: list,
    ) -> list:
        """As `add_exact_matrix`, for stages of float32 that lie row by row, and tile ``t`` of left."""
        atom, lane, pitch = window.atom, _Lane(b, window.atom), 4 * window.copies[0].ld
        run = ir.VectorType(F32, atom.registers)
        totals, column = list(sums), self.position(b, window, lane.group)
        first = b.add(b.mul(t, const(I32, 16)), b.mul(word, const(I32, atom.register_step)))
        for d in range(atom.groups):
            row = b.add(first, b.mul(b.xor(lane.group, const(I32, d)), const(I32, atom.group_step)))
            place = b.add(column, b.mul(row, const(I32, pitch)))
            ys = _load(b, local, b.add(place, const(I32, 64 * c)), run, 16)
            for r, bits in enumerate(left):
                x = b.bitcast(_from_group(b, atom, bits, d), F32)
                seen = b.select(b.fcmp_ordered("==", x, const(F32, 0.0)), const(run, 0.0), ys)
                totals[r] = _math(b, "fma", _splat(b, x, atom.registers), seen, totals[r])
            _schedule_no_further(b)
        return totals

    # --------------------------------------------------------------------------------------------------- operators
    def arithmetic(self, context: Any, b: ir.IRBuilder, sig: Any, x: Any, y: Any, on_float: Any, on_int: Any) -> Any:
        ty = sig.args[0]
        if not isinstance(ty, TILE.Tile):
            return self.on_rows(
                context, b, sig, (x, y), lambda kind, u, v: (on_float if kind == "f32" else on_int)(u, v)
            )
        registers = Layout(ty).registers
        if isinstance(sig.args[1], TILE.Tile):
            return _array(b, [on_float(u, v) for u, v in zip(_items(b, x), _items(b, y), strict=True)])
        rows = self.row_values(context, b, ty, sig.args[1], y, "f32")
        return self.on_tile(b, ty, x, lambda v, c, row: on_float(v, _splat(b, row, registers)), rows)

    def operator_add(self, context: Any, b: ir.IRBuilder, sig: Any, x: Any, y: Any) -> ir.Value:
        return self.arithmetic(context, b, sig, x, y, b.fadd, b.add)

    def operator_sub(self, context: Any, b: ir.IRBuilder, sig: Any, x: Any, y: Any) -> ir.Value:
        return self.arithmetic(context, b, sig, x, y, b.fsub, b.sub)

    def operator_mul(self, context: Any, b: ir.IRBuilder, sig: Any, x: Any, y: Any) -> ir.Value:
        return self.arithmetic(context, b, sig, x, y, b.fmul, b.mul)

    def operator_floordiv(self, context: Any, b: ir.IRBuilder, sig: Any, x: Any, y: Any) -> ir.Value:
        return self.on_rows(context, b, sig, (x, y), lambda _, u, v: self.floor_divide(b, u, v)[0])

    def operator_mod(self, context: Any, b: ir.IRBuilder, sig: Any, x: Any, y: Any) -> ir.Value:
        return self.on_rows(context, b, sig, (x, y), lambda _, u, v: self.floor_divide(b, u, v)[1])

    @staticmethod
    def floor_divide(b: ir.IRBuilder, x: ir.Value, y: ir.Value) -> tuple:
        """Quotient and remainder of Python's integer division."""
        quotient = b.sdiv(x, y)
        rest = b.sub(x, b.mul(quotient, y))
        inexact = b.icmp_signed("!=", rest, const(I32, 0))
        adjust = b.and_(inexact, b.icmp_signed("<", b.xor(rest, y), const(I32, 0)))
        return b.sub(quotient, b.zext(adjust, I32)), b.select(adjust, b.add(rest, y), rest)

    def compare(self, context: Any, b: ir.IRBuilder, sig: Any, x: Any, y: Any, relation: str) -> ir.Value:
        def one(kind: str, u: ir.Value, v: ir.Value) -> ir.Value:
            if kind != "f32":
                return b.icmp_signed(relation, u, v)
            # A comparison with NaN is false, except !=.
            return (b.fcmp_unordered if relation == "!=" else b.fcmp_ordered)(relation, u, v)

        return self.on_rows(context, b, sig, (x, y), one, _flag_rows)

    operator_lt = functools.partialmethod(compare, relation="<")
    operator_le = functools.partialmethod(compare, relation="<=")
    operator_gt = functools.partialmethod(compare, relation=">")
    operator_ge = functools.partialmethod(compare, relation=">=")
    operator_eq = functools.partialmethod(compare, relation="==")
    operator_ne = functools.partialmethod(compare, relation="!=")

    def operator_and(self, context: Any, b: ir.IRBuilder, sig: Any, x: Any, y: Any) -> ir.Value:
        return _array(b, [b.and_(u, v) for u, v in zip(_items(b, x), _items(b, y), strict=True)])


@functools.cache
def _install_operations() -> None:
    # numba-hip rewrites llvmlite's typed pointers (``i8*``) to opaque ones, but not pointers to vectors and arrays.
    ir.types.ir_layer_typed_pointers_enabled = False
    rules = {op: _checked(rule) for op, rule in TILE.rules.items()}
    tile = SimpleNamespace(**{**vars(TILE), "rules": rules})
    bind(NUMBA, tile, HipLowering(NUMBA, tile))


def install() -> None:
    """Make the tile language, and the device functions defined so far, known to numba-hip."""
    _install_operations()
    bind_device_functions(NUMBA)  # numba-hip looks at its registries again before each compilation
