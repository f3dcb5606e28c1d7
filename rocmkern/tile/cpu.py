"""The tile language on a CPU: a block is one thread, and a tile is a small float32 buffer.

Layout. With 16 or more rows a tile is stored column by column, ``value[c * m + r]``, so that SIMD lanes run over rows:
row statistics are vertical, and a product reads the keys in place, one broadcast number at a time. With fewer rows
(decoding) it is stored row by row, ``value[r * n + c]``, and lanes run over columns. `Rows` are one LLVM vector with an
element per row. LLVM splits vectors to what the host has; only the matrix micro-kernel and the polynomials look at the
host's width.

A stage is a view of the source where that holds float32 in unit stride, and a converted copy of the window otherwise.
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir
from numba.core import cgutils, types
from numba.core.datamodel import models
from numba.core.datamodel.registry import register_default
from numba.core.errors import TypingError
from numba.core.imputils import Registry as LoweringRegistry
from numba.core.imputils import impl_ret_borrowed, impl_ret_new_ref
from numba.core.registry import cpu_target
from numba.core.typing.templates import Registry as TypingRegistry

from rocmkern.architectures import architecture
from rocmkern.tile import codes, entry, squares
from rocmkern.tile.activations import Activations
from rocmkern.tile.angles import cos_sin, rotated
from rocmkern.tile.binding import bind, bind_functions
from rocmkern.tile.formats import FORMATS, RUN, Format
from rocmkern.tile.language.kernel import Config
from rocmkern.tile.language.kinds import DTYPES, QUANTIZED
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
    at,
    call,
    const,
    from_byte,
    if_else,
    joined,
    register_tensor_model,
    to_byte,
)
from rocmkern.tile.types import make_types

NUMBA = numba_core(TypingRegistry(), LoweringRegistry(), register_default)
TILE = make_types(types, TypingError, "cpu")

LOG2_E = 1.4426950408889634
#: A row's maximum may lag behind by this much, in base-2 exponent, before the accumulator is rescaled.
LAZY_EXPONENT = 8.0
PAGED_MEMBERS = ["entries", "entry_stride", "page_rows", "page_stride", "pages"]
#: Column storage (lanes over rows) starts at this many rows.
LANES_FROM = 16


def bound_config(cfg: Config) -> entry.BoundConfig:
    """The configuration as a constant of a generated module."""
    return entry.BoundConfig(TILE.Config(cfg))


# --------------------------------------------------------------------------------------------------------- data models


@register_default(TILE.Config)
class _ConfigModel(models.PrimitiveModel):
    """The block's grid index."""

    def __init__(self, manager: Any, ty: Any):
        super().__init__(manager, ty, ir.ArrayType(I64, 3))


@register_default(TILE.Rows)
class _RowsModel(models.PrimitiveModel):
    """One vector; booleans are bytes 0 or 1, because vectors of bits are awkward in memory."""

    def __init__(self, manager: Any, ty: Any):
        super().__init__(manager, ty, ir.VectorType({"f32": F32, "i32": I32, "i1": I8}[ty.kind], ty.m))


class _BufferModel(models.StructModel):
    """A reference-counted float32 buffer."""

    def __init__(self, manager: Any, ty: Any):
        members = [("meminfo", types.MemInfoPointer(types.voidptr)), ("data", types.voidptr)]
        super().__init__(manager, ty, members)


register_default(TILE.Tile)(_BufferModel)
register_default(TILE.Operand)(_BufferModel)


@register_default(TILE.Stage)
class _StageModel(models.StructModel):
    """The source (address, extents, strides in bytes), where the fetched window starts, and the window in use.

    The window is ``count`` rows of ``cols`` float32, ``ld`` elements apart: in the source itself or in the buffer. Of a
    quantized source it is the row of blocks where it starts, and ``ld`` the first column, until a product decodes it.
    A paged one also has the table, its length and stride, and rows, stride and number of the pages.
    """

    def __init__(self, manager: Any, ty: Any):
        members: list[tuple[str, Any]] = [("meminfo", types.MemInfoPointer(types.voidptr))]
        members += [("source", types.voidptr), ("window", types.voidptr)]
        numbers = ["rows", "columns", "row_stride", "col_stride", "row0", "col0", "count", "cols", "ld"]
        if ty.paged:
            members.append(("table", types.voidptr))
            numbers += PAGED_MEMBERS
        members += [(name, types.int64) for name in numbers]
        super().__init__(manager, ty, members)


register_tensor_model(NUMBA, TILE)


# ------------------------------------------------------------------------------------------------------ small helpers


def _vec(ty: ir.Type, n: int) -> ir.VectorType:
    return ir.VectorType(ty, n)


def _splat(b: ir.IRBuilder, x: ir.Value, n: int) -> ir.Value:
    v = b.insert_element(ir.Constant(_vec(x.type, n), ir.Undefined), x, const(I32, 0))
    return b.shuffle_vector(v, v, const(_vec(I32, n), 0))


def _shuffle(b: ir.IRBuilder, x: ir.Value, y: ir.Value, order: list[int]) -> ir.Value:
    return b.shuffle_vector(x, y, ir.Constant(_vec(I32, len(order)), order))


def _slice(b: ir.IRBuilder, x: ir.Value, start: int, n: int) -> ir.Value:
    return x if (start, n) == (0, x.type.count) else _shuffle(b, x, x, list(range(start, start + n)))


def _concat(b: ir.IRBuilder, parts: list[ir.Value]) -> ir.Value:
    while len(parts) > 1:
        n = parts[0].type.count
        parts = [_shuffle(b, parts[i], parts[i + 1], list(range(2 * n))) for i in range(0, len(parts), 2)]
    return parts[0]


def _element(b: ir.IRBuilder, x: ir.Value, i: int) -> ir.Value:
    return b.extract_element(x, const(I32, i))


def _reduce(b: ir.IRBuilder, x: ir.Value, combine: Any) -> ir.Value:
    """Combine all elements of a vector, halves first."""
    while x.type.count > 1:
        half = x.type.count // 2
        x = combine(_slice(b, x, 0, half), _slice(b, x, half, half))
    return _element(b, x, 0)


def _any(b: ir.IRBuilder, x: ir.Value) -> ir.Value:
    """Whether any element of a vector of i1 is set."""
    bits = b.bitcast(x, ir.IntType(x.type.count))
    return b.icmp_unsigned("!=", bits, const(bits.type, 0))


def _all(b: ir.IRBuilder, x: ir.Value) -> ir.Value:
    """Whether all elements of a vector of i1 are set."""
    bits = b.bitcast(x, ir.IntType(x.type.count))
    return b.icmp_unsigned("==", bits, const(bits.type, -1))


def _iota(n: int) -> ir.Constant:
    return ir.Constant(_vec(I32, n), list(range(n)))


def _fma(b: ir.IRBuilder, x: ir.Value, y: ir.Value, z: ir.Value) -> ir.Value:
    suffix = f"v{x.type.count}f32" if isinstance(x.type, ir.VectorType) else "f32"
    return call(b, f"llvm.fma.{suffix}", x.type, [x, y, z])


def _fmax(b: ir.IRBuilder, x: ir.Value, y: ir.Value) -> ir.Value:
    """max(x, y), and y where x is NaN: one instruction on x86."""
    return b.select(b.fcmp_ordered(">", x, y), x, y)


def _loop(b: ir.IRBuilder, stop: Any, step: int = 1, start: Any = 0) -> Any:
    i64 = [x if isinstance(x, ir.Value) else const(I64, x) for x in (start, stop, step)]
    return cgutils.for_range_slice(b, i64[0], i64[1], i64[2], I64)


def _smin(b: ir.IRBuilder, x: ir.Value, y: ir.Value) -> ir.Value:
    return b.select(b.icmp_signed("<", x, y), x, y)


def _smax(b: ir.IRBuilder, x: ir.Value, y: ir.Value) -> ir.Value:
    return b.select(b.icmp_signed(">", x, y), x, y)


def _floor_to(b: ir.IRBuilder, x: ir.Value, n: int) -> ir.Value:
    """x rounded down to a multiple of n, a power of two."""
    return b.and_(x, const(I64, -n))


def _pointer(b: ir.IRBuilder, base: ir.Value, index: ir.Value, ty: ir.Type = F32) -> ir.Value:
    """Pointer to a ``ty`` (float32 or a vector of it) at a float32 index from an i8 pointer."""
    return at(b, base, b.mul(index, const(I64, 4)), ty)


def _load(b: ir.IRBuilder, base: ir.Value, index: ir.Value, n: int = 0) -> ir.Value:
    return b.load(_pointer(b, base, index, _vec(F32, n) if n else F32), align=4)


def _store(b: ir.IRBuilder, value: ir.Value, base: ir.Value, index: ir.Value) -> None:
    b.store(value, _pointer(b, base, index, value.type), align=4)


def _transpose(b: ir.IRBuilder, rows: list[ir.Value]) -> list[ir.Value]:
    """Transpose n vectors of n elements: log2(n) perfect shuffles."""
    n = len(rows)
    low = [x for i in range(n // 2) for x in (i, n + i)]
    high = [x for i in range(n // 2, n) for x in (i, n + i)]
    stages = n.bit_length() - 1
    for _ in range(stages):
        pairs = [(rows[i], rows[i + n // 2]) for i in range(n // 2)]
        rows = [_shuffle(b, x, y, order) for x, y in pairs for order in (low, high)]
    return rows


@functools.cache
def _polynomial(name: str) -> tuple[float, ...]:
    """Coefficients, highest power first, by Chebyshev interpolation.

    ``exp2``: 2 ** f on -0.5 .. 0.5, relative error 2e-9.
    ``tanh``: (tanh(x) / x - 1) / x**2 as a polynomial in x**2 on 0 .. 0.625, relative error of tanh below 1e-8.
    """
    if name == "exp2":
        fit = np.polynomial.Chebyshev.interpolate(np.exp2, 6, domain=[-0.5, 0.5])
    else:
        top = 0.65**2
        fit = np.polynomial.Chebyshev.interpolate(
            lambda z: (np.tanh(np.sqrt(z)) / np.sqrt(z) - 1) / z, 5, domain=[1e-9, top]
        )
    return tuple(fit.convert(kind=np.polynomial.Polynomial).coef[::-1])


def _horner(b: ir.IRBuilder, x: ir.Value, coefficients: tuple[float, ...]) -> ir.Value:
    total = const(x.type, coefficients[0])
    for c in coefficients[1:]:
        total = _fma(b, total, x, const(x.type, c))
    return total


def _exp2(b: ir.IRBuilder, x: ir.Value) -> ir.Value:
    """2 ** x of a vector, x <= 128: exactly 0 below 2 ** -126, NaN stays NaN."""
    n = x.type.count
    x = b.select(b.fcmp_ordered("<", x, const(x.type, -127.0)), const(x.type, -127.0), x)
    whole = call(b, f"llvm.rint.v{n}f32", x.type, [x])
    power = _horner(b, b.fsub(x, whole), _polynomial("exp2"))
    # 2 ** whole by its exponent bits; -127 gives the bits of 0.
    exponent = b.add(b.fptosi(whole, _vec(I32, n)), const(_vec(I32, n), 127))
    return b.fmul(power, b.bitcast(b.shl(exponent, const(_vec(I32, n), 23)), x.type))


def _tanh(b: ir.IRBuilder, x: ir.Value) -> ir.Value:
    """tanh of a vector: a polynomial near 0, 1 - 2 / (exp(2 |x|) + 1) elsewhere."""
    n, one = x.type.count, const(x.type, 1.0)
    size = call(b, f"llvm.fabs.v{n}f32", x.type, [x])
    square = b.fmul(x, x)
    near = _fma(b, b.fmul(x, square), _horner(b, square, _polynomial("tanh")), x)
    capped = b.select(b.fcmp_ordered(">", size, const(x.type, 10.0)), const(x.type, 10.0), size)
    grown = b.fadd(_exp2(b, b.fmul(capped, const(x.type, 2 * LOG2_E))), one)
    far = call(b, f"llvm.copysign.v{n}f32", x.type, [b.fsub(one, b.fdiv(const(x.type, 2.0), grown)), x])
    return b.select(b.fcmp_ordered("<", size, const(x.type, 0.625)), near, far)


ACTIVATIONS = Activations(exp2=_exp2, divide=ir.IRBuilder.fdiv)

# ------------------------------------------------------------------------------------- element types in memory <-> f32

_STORAGE = {
    "float32": F32, "float16": F16, "bfloat16": I16, "bool": I8, "int32": I32, "int64": I64, "uint8": I8,
    "int8": I8, "float8_e4m3fn": I8, "float8_e5m2": I8,
}  # fmt: skip


def _from_memory(b: ir.IRBuilder, x: ir.Value, dtype: str) -> ir.Value:
    """A loaded element or vector as float32."""
    wide = (lambda ty: _vec(ty, x.type.count)) if isinstance(x.type, ir.VectorType) else (lambda ty: ty)
    if dtype == "float32":
        return x
    if dtype == "float16":
        return b.fpext(x, wide(F32))
    if dtype == "bfloat16":
        return b.bitcast(b.shl(b.zext(x, wide(I32)), const(wide(I32), 16)), wide(F32))
    if dtype == "bool":
        return b.uitofp(b.icmp_unsigned("!=", x, const(x.type, 0)), wide(F32))
    if dtype in QUANTIZED:
        return from_byte(b, x, dtype)
    return (b.uitofp if dtype == "uint8" else b.sitofp)(x, wide(F32))


def _to_memory(b: ir.IRBuilder, x: ir.Value, dtype: str) -> ir.Value:
    """float32 rounded to the element type, to nearest even."""
    wide = (lambda ty: _vec(ty, x.type.count)) if isinstance(x.type, ir.VectorType) else (lambda ty: ty)
    if dtype == "float32":
        return x
    if dtype == "float16":
        return b.fptrunc(x, wide(F16))
    if dtype == "bfloat16":
        bits = b.bitcast(x, wide(I32))
        odd = b.and_(b.lshr(bits, const(wide(I32), 16)), const(wide(I32), 1))
        rounded = b.add(bits, b.add(odd, const(wide(I32), 0x7FFF)))
        # Rounding could carry a NaN into infinity: keep it a quiet NaN instead.
        nan = b.or_(bits, const(wide(I32), 0x400000))
        bits = b.select(b.fcmp_unordered("uno", x, x), nan, rounded)
        return b.trunc(b.lshr(bits, const(wide(I32), 16)), wide(I16))
    if dtype in QUANTIZED:
        return to_byte(b, x, dtype)
    raise TypingError(f"a tile cannot be stored as {dtype}")


# --------------------------------------------------------------------------------------------------- quantized sources


class _Block:
    """A `formats.BlockReader`: `RUN` elements are one vector."""

    def __init__(self, b: ir.IRBuilder, start: ir.Value, arch: str):
        self.b, self.start, self.arch = b, start, arch

    def load(self, offset: ir.Value, ty: ir.Type) -> ir.Value:
        return self.b.load(at(self.b, self.start, self.b.zext(offset, I64), ty), align=1)

    def byte(self, offset: ir.Value) -> ir.Value:
        return self.b.zext(self.load(offset, I8), I32)

    def short(self, offset: ir.Value) -> ir.Value:
        return self.b.zext(self.load(offset, I16), I32)

    def word(self, offset: ir.Value) -> ir.Value:
        return self.load(offset, I32)

    def half(self, offset: ir.Value) -> ir.Value:
        return self.b.fpext(self.load(offset, F16), F32)

    def fields(self, offset: ir.Value, count: int, width: int, step: int = 1) -> list[ir.Value]:
        b, wide = self.b, _vec(I32, count)
        packed = self.load(offset, _vec(I8, count * width // 8))
        if width == 8:
            return [b.zext(packed, wide)]
        places = [divmod(i * width, 8) for i in range(count)]
        low = b.zext(_shuffle(b, packed, packed, [byte for byte, _ in places]), wide)
        if 8 % width:
            following = [min(byte + 1, packed.type.count - 1) for byte, _ in places]
            low = b.or_(low, b.shl(b.zext(_shuffle(b, packed, packed, following), wide), const(wide, 8)))
        shifted = b.lshr(low, ir.Constant(wide, [shift for _, shift in places]))
        return [b.and_(shifted, const(wide, (1 << width) - 1))]

    def nibbles(self, offset: ir.Value, count: int, shift: ir.Value, numbers: tuple, step: int = 1) -> None:
        """`fields` and `lookup` are as good."""

    def whole_bytes(self, kind: str, offset: ir.Value, count: int) -> None:
        """`fields` does it."""

    def power(self, offset: ir.Value) -> ir.Value:
        return codes.emit_e8m0(self.b, self.byte(offset))

    def joined_bits(
        self, low: ir.Value, low_shift: ir.Value, high: ir.Value, high_shift: ir.Value, width: int, less: int,
        count: int,
    ) -> None:  # fmt: skip
        """`fields` does it."""

    def five_bits(
        self, low: ir.Value, shift: ir.Value, plane: ir.Value, first: ir.Value, less: int, count: int
    ) -> list[ir.Value]:
        b, wide = self.b, _vec(I32, count)
        (packed,) = self.fields(low, count, 8)
        nibbles = b.and_(b.lshr(packed, _splat(b, shift, count)), const(wide, 15))
        bits = _splat(b, b.lshr(self.word(plane), first), count)
        fifth = b.and_(b.lshr(bits, ir.Constant(wide, list(range(count)))), const(wide, 1))
        code = b.or_(nibbles, b.shl(fifth, const(wide, 4)))
        return [b.sitofp(b.sub(code, const(wide, less)), _vec(F32, count))]

    def lookup(self, numbers: tuple, lanes: list[ir.Value]) -> list[ir.Value] | None:
        floats = _vec(F32, 16)
        if not architecture(self.arch).permutes:
            return None
        # vpermps takes the low four bits of each index.
        table = ir.Constant(floats, list(numbers))
        return [call(self.b, "llvm.x86.avx512.permvar.sf.512", floats, [table, x]) for x in lanes]


def _runs(b: ir.IRBuilder, kind: Format, row: ir.Value, column: ir.Value, width: int, arch: str) -> list:
    """Elements ``column .. column + width`` of a row of blocks, `RUN` at a time: (offset from column, `formats.Run`).

    ``column`` is a multiple of ``width``, which divides a block or is one. All are decoded before one can be stored:
    what they share is loaded once.
    """
    block = b.udiv(column, const(I64, kind.elements))
    start = b.gep(row, [b.mul(block, const(I64, kind.nbytes))])
    # Where a run starts in its block is a constant if that is known: then so are the positions of its bits.
    first = const(I32, 0)
    if width < kind.elements:
        first = b.and_(b.trunc(column, I32), const(I32, kind.elements - 1))
    runs = []
    for offset in range(0, width, RUN):
        place = const(I32, offset) if width == kind.elements else b.add(first, const(I32, offset))
        runs.append((offset, kind.emit(b, _Block(b, start, arch), place, RUN)))
    return runs


def _decode(b: ir.IRBuilder, kind: Format, row: ir.Value, column: ir.Value, width: int, arch: str) -> list:
    """`_runs` with the elements of each as one vector."""
    return [(offset, *run.elements(b)) for offset, run in _runs(b, kind, row, column, width, arch)]


# ------------------------------------------------------------------------------------------------------------ lowering

VECTOR_WIDTH = {"cpu-avx512": 16, "cpu-avx2": 8, "cpu-portable": 4}


class CpuLowering(TensorLowering):
    """One method per operation: see `binding.bind`."""

    # ------------------------------------------------------------------------------------------------- storage
    @staticmethod
    def width(ty: Any) -> int:
        """float32 lanes of the host's vectors."""
        return VECTOR_WIDTH[ty.hw[0]]

    def by_column(self, ty: Any) -> bool:
        """Whether lanes run over rows (column storage); it needs whole vectors in powers of two."""
        return ty.m >= LANES_FROM and ty.m & (ty.m - 1) == 0

    def new(self, context: Any, b: ir.IRBuilder, ty: Any) -> ir.Value:
        """A new buffer for a tile or an operand."""
        columns = ty.n if isinstance(ty, TILE.Tile) else ty.k
        value = cgutils.create_struct_proxy(ty)(context, b)
        size = context.get_constant(types.uintp, ty.m * columns * 4)
        value.meminfo = context.nrt.meminfo_alloc_aligned(b, size, context.get_constant(types.uint32, 64))
        value.data = context.nrt.meminfo_data(b, value.meminfo)
        return value._getvalue()

    @staticmethod
    def data(context: Any, b: ir.IRBuilder, ty: Any, value: ir.Value) -> ir.Value:
        return cgutils.create_struct_proxy(ty)(context, b, value).data

    def map(self, context: Any, b: ir.IRBuilder, ty: Any, value: ir.Value, body: Any, rows: tuple = ()) -> ir.Value:
        """Replace each vector of a tile by ``body(index, vector, rows, column)`` in place and return the tile.

        ``rows`` arrive as vectors that fit; ``index`` is where the vector lies in the buffer, ``column()`` its columns.
        """
        data = self.data(context, b, ty, value)
        for index, vector, parts, column in self.vectors(b, ty, data, rows):
            _store(b, body(index, vector, parts, column), data, index)
        return impl_ret_borrowed(context, b, ty, value)

    def vectors(self, b: ir.IRBuilder, ty: Any, data: ir.Value, rows: tuple = ()) -> Any:
        """Emit loops over a tile's storage; yields once per loop body (index, vector, rows, column)."""
        if self.by_column(ty):
            n = min(ty.m, 4 * self.width(ty))
            for r0 in range(0, ty.m, n):
                parts = [_slice(b, r, r0, n) for r in rows]
                with _loop(b, ty.n) as (c, _):
                    index = b.add(b.mul(c, const(I64, ty.m)), const(I64, r0))
                    yield index, _load(b, data, index, n), parts, lambda c=c, n=n: _splat(b, b.trunc(c, I32), n)
        else:
            n = self.chunk(ty)
            for r in range(ty.m):
                parts = [_splat(b, _element(b, x, r), n) for x in rows]
                with _loop(b, ty.n, n) as (c, _):
                    index = b.add(c, const(I64, r * ty.n))
                    yield (
                        index,
                        _load(b, data, index, n),
                        parts,
                        lambda c=c, n=n: b.add(_splat(b, b.trunc(c, I32), n), _iota(n)),
                    )

    def chunk(self, ty: Any) -> int:
        """Vector length for row storage: a power of two that divides the columns."""
        n = 4 * self.width(ty)
        while ty.n % n:
            n //= 2
        return n

    def reduce_rows(self, b: ir.IRBuilder, ty: Any, data: ir.Value, identity: float, combine: Any, body: Any) -> Any:
        """Rows: ``combine`` over each row of ``body(index, vector, part_of_rows)``."""
        if self.by_column(ty):
            n = min(ty.m, 4 * self.width(ty))
            totals = []
            for r0 in range(0, ty.m, n):
                total = cgutils.alloca_once_value(b, const(_vec(F32, n), identity))
                with _loop(b, ty.n) as (c, _):
                    index = b.add(b.mul(c, const(I64, ty.m)), const(I64, r0))
                    b.store(combine(b.load(total), body(index, _load(b, data, index, n), (r0, n))), total)
                totals.append(b.load(total))
            return _concat(b, totals)
        n, result = self.chunk(ty), ir.Constant(_vec(F32, ty.m), ir.Undefined)
        for r in range(ty.m):
            total = cgutils.alloca_once_value(b, const(_vec(F32, n), identity))
            with _loop(b, ty.n, n) as (c, _):
                index = b.add(c, const(I64, r * ty.n))
                b.store(combine(b.load(total), body(index, _load(b, data, index, n), (r, 0))), total)
            result = b.insert_element(result, _reduce(b, b.load(total), combine), const(I32, r))
        return result

    def row_part(self, b: ir.IRBuilder, ty: Any, rows: ir.Value, part: tuple[int, int]) -> ir.Value:
        """The part of ``rows`` that goes with a vector of `reduce_rows`."""
        start, n = part
        return _slice(b, rows, start, n) if n else _splat(b, _element(b, rows, start), self.chunk(ty))

    # ------------------------------------------------------------------------------------------------- grid, config
    def config(self, context: Any, b: ir.IRBuilder, sig: Any, bound: Any, *index: ir.Value) -> ir.Value:
        value = ir.Constant(ir.ArrayType(I64, 3), ir.Undefined)
        for axis, i in enumerate(index):
            value = b.insert_value(value, i, axis)
        return value

    def block_id(self, context: Any, b: ir.IRBuilder, sig: Any, cfg: ir.Value, axis: Any) -> ir.Value:
        return b.extract_value(cfg, sig.args[1].literal_value)

    # ------------------------------------------------------------------------------------------------------- rows
    def row_value(self, context: Any, b: ir.IRBuilder, ty: Any, value: ir.Value, rows: Any) -> ir.Value:
        """Rows as they are, or a scalar in every row."""
        if isinstance(ty, TILE.Rows):
            return value
        return _splat(b, self.scalar(context, b, ty, value, rows.kind), rows.m)

    def row_index(self, context: Any, b: ir.IRBuilder, sig: Any, *_: Any) -> ir.Value:
        return _iota(sig.return_type.m)

    def full_rows(self, context: Any, b: ir.IRBuilder, sig: Any, cfg: Any, m: Any, value: ir.Value) -> ir.Value:
        rows = sig.return_type
        return _splat(b, self.number_of_rows(context, b, sig.args[2], value, rows.kind), rows.m)

    def where(self, context: Any, b: ir.IRBuilder, sig: Any, condition: ir.Value, x: ir.Value, y: ir.Value) -> ir.Value:
        x, y = (self.row_value(context, b, t, v, sig.return_type) for t, v in zip(sig.args[1:], (x, y), strict=True))
        return b.select(b.icmp_unsigned("!=", condition, const(condition.type, 0)), x, y)

    def extreme(self, name: str, comparison: str) -> Any:
        def emit(context: Any, b: ir.IRBuilder, sig: Any, x: ir.Value, y: ir.Value) -> ir.Value:
            ty = sig.return_type
            x, y = (self.row_value(context, b, t, v, ty) for t, v in zip(sig.args, (x, y), strict=True))
            if ty.kind == "i32":
                return b.select(b.icmp_signed(comparison, x, y), x, y)
            return call(b, f"llvm.{name}.v{ty.m}f32", x.type, [x, y])

        return emit

    @property
    def minimum(self) -> Any:
        return self.extreme("minnum", "<")

    @property
    def maximum(self) -> Any:
        return self.extreme("maxnum", ">")

    def reciprocal_or_zero(self, context: Any, b: ir.IRBuilder, sig: Any, x: ir.Value) -> ir.Value:
        zero = const(x.type, 0.0)
        return b.select(b.fcmp_ordered("==", x, zero), zero, b.fdiv(const(x.type, 1.0), x))

    def log2(self, context: Any, b: ir.IRBuilder, sig: Any, x: ir.Value) -> ir.Value:
        # Once per block: not worth a polynomial.
        for r in range(x.type.count):
            x = b.insert_element(x, call(b, "llvm.log2.f32", F32, [_element(b, x, r)]), const(I32, r))
        return x

    def sqrt(self, context: Any, b: ir.IRBuilder, sig: Any, x: ir.Value) -> ir.Value:
        return call(b, f"llvm.sqrt.v{x.type.count}f32", x.type, [x])

    def row_addresses(
        self, context: Any, b: ir.IRBuilder, ty: Any, x: ir.Value, index_ty: Any, index: ir.Value, m: int
    ) -> tuple:
        """Address of each row of a tensor (an array of m x i64 in memory), with the last extent and stride."""
        data, shape, strides = self.unpack_tensor(context, b, ty, x)
        wide = _vec(I64, m)
        address = _splat(b, b.ptrtoint(data, I64), m)
        for (t, v), stride in zip(self.index_entries(context, b, index_ty, index), strides, strict=False):
            i = b.sext(v, wide) if isinstance(t, TILE.Rows) else _splat(b, self.scalar(context, b, t, v, "i64"), m)
            address = b.add(address, b.mul(i, _splat(b, stride, m)))
        return self.spill(b, address), shape[-1], strides[-1]

    @staticmethod
    def spill(b: ir.IRBuilder, vector: ir.Value) -> ir.Value:
        """A vector in memory, as an i8 pointer."""
        return b.bitcast(cgutils.alloca_once_value(b, vector), ir.PointerType(I8))

    @staticmethod
    def pick(b: ir.IRBuilder, array: ir.Value, i: ir.Value, ty: ir.Type, size: int) -> ir.Value:
        """Element i of a spilled vector."""
        return b.load(at(b, array, b.mul(i, const(I64, size)), ty), align=size)

    def load_rows(self, context: Any, b: ir.IRBuilder, sig: Any, x: ir.Value, index: ir.Value, valid: Any) -> ir.Value:
        ty, m = sig.args[0], sig.return_type.m
        addresses, _, _ = self.row_addresses(context, b, ty, x, sig.args[1], index, m)
        flags, out = self.spill(b, valid), self.spill(b, const(_vec(F32, m), 0.0))
        with _loop(b, m) as (r, _), b.if_then(self.flag(b, flags, r)):
            address = b.inttoptr(self.pick(b, addresses, r, I64, 8), ir.PointerType(_STORAGE[ty.dtype]))
            _store(b, _from_memory(b, b.load(address, align=1), ty.dtype), out, r)
        return b.load(b.bitcast(out, ir.PointerType(_vec(F32, m))), align=4)

    def load_integers(
        self, context: Any, b: ir.IRBuilder, sig: Any, x: ir.Value, index: ir.Value, valid: Any
    ) -> ir.Value:
        ty, m = sig.args[0], sig.return_type.m
        addresses, _, _ = self.row_addresses(context, b, ty, x, sig.args[1], index, m)
        flags, out = self.spill(b, valid), self.spill(b, const(_vec(I32, m), 0))
        with _loop(b, m) as (r, _), b.if_then(self.flag(b, flags, r)):
            address = b.inttoptr(self.pick(b, addresses, r, I64, 8), ir.PointerType(_STORAGE[ty.dtype]))
            b.store(as_int32(b, b.load(address, align=1)), _pointer(b, out, r, I32), align=4)
        return b.load(b.bitcast(out, ir.PointerType(_vec(I32, m))), align=4)

    def store_rows(
        self, context: Any, b: ir.IRBuilder, sig: Any, x: ir.Value, index: ir.Value, values: Any, valid: Any
    ) -> ir.Value:
        ty, m = sig.args[0], sig.args[2].m
        addresses, _, _ = self.row_addresses(context, b, ty, x, sig.args[1], index, m)
        flags, out = self.spill(b, valid), self.spill(b, values)
        with _loop(b, m) as (r, _), b.if_then(self.flag(b, flags, r)):
            address = b.inttoptr(self.pick(b, addresses, r, I64, 8), ir.PointerType(_STORAGE[ty.dtype]))
            if ty.dtype == "int32":
                value = self.pick(b, out, r, I32, 4)
            else:
                value = _to_memory(b, _load(b, out, r), ty.dtype)
            b.store(value, address, align=1)
        return context.get_dummy_value()

    def last_to_arrive(
        self, context: Any, b: ir.IRBuilder, sig: Any, cfg: Any, counters: Any, index: Any, count: Any
    ) -> ir.Value:
        address, last = self.counter(context, b, sig, counters, index, count)
        place = b.inttoptr(address, ir.PointerType(I32))
        is_last = b.icmp_unsigned("==", b.atomic_rmw("add", place, const(I32, 1), "acq_rel"), last)
        with b.if_then(is_last):
            b.store_atomic(const(I32, 0), place, "monotonic", 4)
        return is_last

    def total(self, context: Any, b: ir.IRBuilder, sig: Any, x: ir.Value) -> ir.Value:
        return b.fpext(_reduce(b, x, b.fadd), F64)

    def largest(self, context: Any, b: ir.IRBuilder, sig: Any, x: ir.Value) -> ir.Value:
        # Not `_fmax`, which may do anything with NaN.
        return b.fpext(_reduce(b, x, lambda u, v: call(b, f"llvm.maxnum.v{u.type.count}f32", u.type, [u, v])), F64)

    def flag(self, b: ir.IRBuilder, flags: ir.Value, r: ir.Value) -> ir.Value:
        return b.icmp_unsigned("!=", self.pick(b, flags, r, I8, 1), const(I8, 0))

    # ------------------------------------------------------------------------------------------------------- tiles
    def zeros(self, context: Any, b: ir.IRBuilder, sig: Any, *_: Any) -> ir.Value:
        value = self.new(context, b, sig.return_type)
        cgutils.memset(
            b,
            self.data(context, b, sig.return_type, value),
            const(I64, sig.return_type.m * sig.return_type.n * 4),
            0,
        )
        return impl_ret_new_ref(context, b, sig.return_type, value)

    def load_tile(
        self, context: Any, b: ir.IRBuilder, sig: Any, cfg: Any, x: Any, index: Any, col0: Any, n: Any, valid: Any
    ) -> ir.Value:
        ty, out = sig.args[1], sig.return_type
        columns = out.n if isinstance(out, TILE.Tile) else out.k
        value = self.new(context, b, out)
        data = self.data(context, b, out, value)
        shape = SimpleNamespace(m=out.m, n=columns, hw=out.hw)
        if isinstance(ty, TILE.Quantized):
            self.load_quantized(context, b, sig, x, index, col0, shape, valid, data)
            return impl_ret_new_ref(context, b, out, value)
        window = self.window(context, b, ty, x, sig.args[2], index, sig.args[3], col0, shape, valid)
        self.transfer(b, shape, data, ty.dtype, window, load=True)
        return impl_ret_new_ref(context, b, out, value)

    load_operand = load_tile

    def load_quantized(
        self, context: Any, b: ir.IRBuilder, sig: Any, x: Any, index: Any, col0: Any, shape: Any, valid: Any, data: Any
    ) -> None:
        """Decode a tile; a run of elements exists or does not, as blocks are whole."""
        ty = sig.args[1]
        kind = FORMATS[ty.format]
        addresses, extent, _ = self.row_addresses(context, b, ty, x, sig.args[2], index, shape.m)
        first, flags = self.scalar(context, b, sig.args[3], col0, "i64"), self.spill(b, valid)
        column_step, row_step = (shape.m, 1) if self.by_column(shape) else (1, shape.n)
        unit = math.gcd(shape.n, kind.elements)
        cgutils.memset(b, data, const(I64, shape.m * shape.n * 4), 0)
        columns = _smin(b, b.sub(extent, first), const(I64, shape.n))
        with _loop(b, shape.m) as (r, _), b.if_then(self.flag(b, flags, r)), _loop(b, columns, unit) as (c, _):
            row = b.inttoptr(self.pick(b, addresses, r, I64, 8), ir.PointerType(I8))
            into = b.add(b.mul(r, const(I64, row_step)), b.mul(c, const(I64, column_step)))
            for offset, vector in _decode(b, kind, row, b.add(first, c), unit, shape.hw[0]):
                start = b.add(into, const(I64, offset * column_step))
                if column_step == 1:
                    _store(b, vector, data, start)
                    continue
                for i in range(RUN):
                    _store(b, _element(b, vector, i), data, b.add(start, const(I64, i * column_step)))

    def store_tile(
        self, context: Any, b: ir.IRBuilder, sig: Any, x: Any, index: Any, col0: Any, tile: Any, valid: Any
    ) -> ir.Value:
        ty, src = sig.args[0], sig.args[3]
        window = self.window(context, b, ty, x, sig.args[1], index, sig.args[2], col0, src, valid)
        self.transfer(b, src, self.data(context, b, src, tile), ty.dtype, window, load=False)
        return context.get_dummy_value()

    def window(
        self,
        context: Any,
        b: ir.IRBuilder,
        ty: Any,
        x: ir.Value,
        index_ty: Any,
        index: ir.Value,
        col0_ty: Any,
        col0: ir.Value,
        shape: Any,
        valid: ir.Value,
    ) -> SimpleNamespace:
        """Where the rows of a tile lie in a tensor, and how much of it exists there.

        ``row(r)`` is the address of a row, ``exists(r, n)`` whether all rows ``r .. r + n`` are there, and
        ``side_by_side(r, n)`` whether an element of each of them lies beside that of the next one.
        """
        addresses, extent, stride = self.row_addresses(context, b, ty, x, index_ty, index, shape.m)
        first = self.scalar(context, b, col0_ty, col0, "i64")
        left = b.sub(extent, first)
        flags, offset = self.spill(b, valid), b.mul(first, stride)

        def exists(r: ir.Value, n: int) -> ir.Value:
            some = b.load(at(b, flags, r, _vec(I8, n)), align=1)
            return b.not_(_any(b, b.icmp_unsigned("==", some, const(some.type, 0))))

        def side_by_side(r: ir.Value, n: int) -> ir.Value:
            places = b.load(at(b, addresses, b.mul(r, const(I64, 8)), _vec(I64, n)), align=8)
            steps = ir.Constant(places.type, [i * DTYPES[ty.dtype] for i in range(n)])
            expected = b.add(_splat(b, _element(b, places, 0), n), steps)
            return _all(b, b.icmp_signed("==", places, expected))

        return SimpleNamespace(
            row=lambda r: b.add(self.pick(b, addresses, r, I64, 8), offset),
            exists=exists,
            stride=stride,
            columns=_smax(b, const(I64, 0), _smin(b, left, const(I64, shape.n))),
            side_by_side=side_by_side,
        )

    def transfer(self, b: ir.IRBuilder, ty: Any, data: ir.Value, dtype: str, window: Any, load: bool) -> None:
        """Copy between a tile's buffer and memory. Loading, what does not exist becomes 0."""
        w, storage, size = self.width(ty), _STORAGE[dtype], DTYPES[dtype]
        dense = b.icmp_signed("==", window.stride, const(I64, size))
        by_column = self.by_column(ty)
        panel = getattr(ty, "panel", ty.m)  # rows that lie side by side in column storage

        def buffer_index(r: ir.Value, c: ir.Value) -> ir.Value:
            if not by_column:
                return b.add(c, b.mul(r, const(I64, ty.n)))
            if panel == ty.m:
                return b.add(b.mul(c, const(I64, ty.m)), r)
            first = _floor_to(b, r, panel)
            return b.add(b.add(b.mul(first, const(I64, ty.n)), b.mul(c, const(I64, panel))), b.sub(r, first))

        def memory(r: ir.Value, c: ir.Value, n: int) -> ir.Value:
            step = const(I64, size) if n else window.stride
            address = b.add(window.row(r), b.mul(c, step))
            return b.inttoptr(address, ir.PointerType(_vec(storage, n) if n else storage))

        def move(r: ir.Value, c: ir.Value, n: int = 0) -> None:
            if load:
                got = b.load(memory(r, c, n), align=1)
                _store(b, _from_memory(b, got, dtype), data, buffer_index(r, c))
            else:
                b.store(_to_memory(b, _load(b, data, buffer_index(r, c), n), dtype), memory(r, c, n), align=1)

        def row_by_row(r: ir.Value, first: ir.Value) -> None:
            """Columns first .. of one row."""
            with b.if_then(window.exists(r, 1)), _loop(b, window.columns, 1, first) as (c, _):
                move(r, c)
            if load:
                start = b.select(window.exists(r, 1), window.columns, const(I64, 0))
                with _loop(b, const(I64, ty.n), 1, start) as (c, _):
                    _store(b, const(F32, 0.0), data, buffer_index(r, c))

        if by_column:
            whole = _floor_to(b, window.columns, w)
            with _loop(b, ty.m, w) as (r0, _):
                fast = b.and_(window.exists(r0, w), dense)
                with b.if_then(fast), _loop(b, whole, w) as (c0, _):
                    rows = [b.add(r0, const(I64, i)) for i in range(w)]
                    columns = [b.add(c0, const(I64, i)) for i in range(w)]
                    if load:
                        got = [_from_memory(b, b.load(memory(r, c0, w), align=1), dtype) for r in rows]
                        for c, vector in zip(columns, _transpose(b, got), strict=True):
                            _store(b, vector, data, buffer_index(r0, c))
                    else:
                        got = _transpose(b, [_load(b, data, buffer_index(r0, c), w) for c in columns])
                        for r, vector in zip(rows, got, strict=True):
                            b.store(_to_memory(b, vector, dtype), memory(r, c0, w), align=1)
                # A transposed view: its columns are what the buffer has.
                turned = b.and_(b.and_(window.exists(r0, w), b.not_(dense)), window.side_by_side(r0, w))
                with b.if_then(turned), _loop(b, window.columns) as (c, _):
                    address = b.add(window.row(r0), b.mul(c, window.stride))
                    place = b.inttoptr(address, ir.PointerType(_vec(storage, w)))
                    if load:
                        got = b.load(place, align=1)
                        _store(b, _from_memory(b, got, dtype), data, buffer_index(r0, c))
                    else:
                        b.store(_to_memory(b, _load(b, data, buffer_index(r0, c), w), dtype), place, align=1)
                first = b.select(fast, whole, b.select(turned, window.columns, const(I64, 0)))
                with _loop(b, b.add(r0, const(I64, w)), 1, r0) as (r, _):
                    row_by_row(r, first)
        else:
            with _loop(b, ty.m) as (r, _):
                whole = b.select(dense, _floor_to(b, window.columns, w), const(I64, 0))
                with b.if_then(window.exists(r, 1)), _loop(b, whole, w) as (c, _):
                    move(r, c, w)
                row_by_row(r, whole)

    def rowmax(self, context: Any, b: ir.IRBuilder, sig: Any, tile: ir.Value) -> ir.Value:
        return self.row_maximum(b, sig.args[0], self.data(context, b, sig.args[0], tile))

    def row_maximum(self, b: ir.IRBuilder, ty: Any, data: ir.Value) -> ir.Value:
        return self.reduce_rows(b, ty, data, float("-inf"), lambda m, x: _fmax(b, x, m), lambda i, x, part: x)

    def repeat_rows(self, context: Any, b: ir.IRBuilder, sig: Any, x: ir.Value, count: Any) -> ir.Value:
        m, total = sig.args[0].m, sig.return_type.m
        return _shuffle(b, x, x, [i % m for i in range(total)])

    def folded(self, b: ir.IRBuilder, sig: Any, x: ir.Value, combine: Any) -> ir.Value:
        m, total = sig.return_type.m, sig.args[0].m
        parts = [_shuffle(b, x, x, list(range(first, first + m))) for first in range(0, total, m)]
        return functools.reduce(combine, parts)

    def fold_max(self, context: Any, b: ir.IRBuilder, sig: Any, x: ir.Value, m: Any) -> ir.Value:
        ty = _vec(F32, sig.return_type.m)
        return self.folded(b, sig, x, lambda u, v: call(b, f"llvm.maxnum.v{ty.count}f32", ty, [u, v]))

    def fold_sum(self, context: Any, b: ir.IRBuilder, sig: Any, x: ir.Value, m: Any) -> ir.Value:
        ty, out = sig.args[0], sig.return_type
        if isinstance(ty, TILE.Rows):
            return self.folded(b, sig, x, b.fadd)
        value = self.new(context, b, out)
        source, result = self.data(context, b, ty, x), self.data(context, b, out, value)

        def place(t: Any, row: ir.Value, column: ir.Value) -> ir.Value:
            wide, narrow = (column, row) if self.by_column(t) else (row, column)
            return b.add(b.mul(wide, const(I64, t.m if self.by_column(t) else t.n)), narrow)

        with _loop(b, out.m) as (r, _), _loop(b, out.n) as (c, _):
            rows = [b.add(r, const(I64, first)) for first in range(0, ty.m, out.m)]
            sums = functools.reduce(b.fadd, [_load(b, source, place(ty, row, c)) for row in rows])
            _store(b, sums, result, place(out, r, c))
        return impl_ret_new_ref(context, b, out, value)

    def rowsum(self, context: Any, b: ir.IRBuilder, sig: Any, tile: ir.Value) -> ir.Value:
        ty = sig.args[0]
        return self.reduce_rows(b, ty, self.data(context, b, ty, tile), 0.0, b.fadd, lambda i, x, part: x)

    def rowdot(self, context: Any, b: ir.IRBuilder, sig: Any, x: ir.Value, y: ir.Value) -> ir.Value:
        ty = sig.args[0]
        other = self.data(context, b, ty, y)

        def product(index: ir.Value, vector: ir.Value, part: tuple) -> ir.Value:
            return b.fmul(vector, _load(b, other, index, vector.type.count))

        return self.reduce_rows(b, ty, self.data(context, b, ty, x), 0.0, b.fadd, product)

    def load_rowdot(
        self, context: Any, b: ir.IRBuilder, sig: Any, x: Any, index: Any, col0: Any, tile: Any, valid: Any
    ) -> ir.Value:
        (x_ty, index_ty, col0_ty, ty), valid_ty = sig.args[:4], sig.args[4]
        whole = TILE.Tile(valid_ty.m, ty.n, ty.hw)
        inner = SimpleNamespace(args=(None, x_ty, index_ty, col0_ty), return_type=whole)
        other = self.load_tile(context, b, inner, None, x, index, col0, None, valid)
        if whole == ty:
            result = self.rowdot(context, b, SimpleNamespace(args=(ty, ty)), other, tile)
        else:
            result = self.rowdot_of_fewer(
                b, whole, self.data(context, b, whole, other), ty, self.data(context, b, ty, tile)
            )
        context.nrt.decref(b, whole, other)
        return result

    def forget(self, context: Any, b: ir.IRBuilder, ty: Any, value: Any) -> None:
        context.nrt.decref(b, ty, value)

    def rowdot_of_fewer(self, b: ir.IRBuilder, ty: Any, x: ir.Value, few: Any, y: ir.Value) -> ir.Value:
        """`rowdot` where the rows of ``y`` take turns."""

        def element(shape: Any, data: ir.Value, row: int, column: ir.Value) -> ir.Value:
            if self.by_column(shape):
                return _load(b, data, b.add(b.mul(column, const(I64, shape.m)), const(I64, row)))
            return _load(b, data, b.add(column, const(I64, row * shape.n)))

        result = ir.Constant(_vec(F32, ty.m), ir.Undefined)
        for r in range(ty.m):
            total = cgutils.alloca_once_value(b, const(F32, 0.0))
            with _loop(b, ty.n) as (c, _):
                pair = element(ty, x, r, c), element(few, y, r % few.m, c)
                b.store(_fma(b, *pair, b.load(total)), total)
            result = b.insert_element(result, b.load(total), const(I32, r))
        return result

    def exp2(self, context: Any, b: ir.IRBuilder, sig: Any, x: ir.Value) -> ir.Value:
        def emit(v: ir.Value) -> ir.Value:
            # `_exp2` rounds the exponent: from 127.5 on that would be 128, which has no finite power.
            large = b.fcmp_ordered(">", v, const(v.type, 127.0))
            infinite = b.fcmp_ordered(">=", v, const(v.type, 128.0))
            power = _exp2(b, b.select(large, b.fsub(v, const(v.type, 1.0)), v))
            power = b.select(large, b.fadd(power, power), power)
            return b.select(infinite, const(v.type, float("inf")), power)

        if isinstance(sig.args[0], TILE.Rows):
            return emit(x)
        return self.map(context, b, sig.args[0], x, lambda i, v, rows, column: emit(v))

    def copy(self, context: Any, b: ir.IRBuilder, sig: Any, x: ir.Value) -> ir.Value:
        ty = sig.return_type
        value = self.new(context, b, ty)
        size = const(I64, ty.m * ty.n * 4)
        cgutils.raw_memcpy(b, self.data(context, b, ty, value), self.data(context, b, ty, x), size, 1)
        return impl_ret_new_ref(context, b, ty, value)

    def tanh(self, context: Any, b: ir.IRBuilder, sig: Any, x: ir.Value) -> ir.Value:
        return self.map(context, b, sig.args[0], x, lambda i, v, rows, column: _tanh(b, v))

    def rounded(self, context: Any, b: ir.IRBuilder, sig: Any, x: ir.Value, like: Any) -> ir.Value:
        dtype = sig.args[1].dtype
        if dtype == "float32":
            return impl_ret_borrowed(context, b, sig.return_type, x)

        def emit(i: Any, v: ir.Value, rows: Any, column: Any) -> ir.Value:
            return _from_memory(b, _to_memory(b, v, dtype), dtype)

        return self.map(context, b, sig.args[0], x, emit)

    def pad_columns(
        self, context: Any, b: ir.IRBuilder, sig: Any, tile: ir.Value, col0: Any, stop: Any, value: Any
    ) -> ir.Value:
        ty = sig.args[0]
        first, end = (self.scalar(context, b, t, v, "i64") for t, v in zip(sig.args[1:3], (col0, stop), strict=True))
        start = _smax(b, b.sub(end, first), const(I64, 0))
        filling, data = self.scalar(context, b, sig.args[3], value, "f32"), self.data(context, b, ty, tile)
        column_step, row_step = (ty.m, 1) if self.by_column(ty) else (1, ty.n)
        with _loop(b, const(I64, ty.n), 1, start) as (c, _), _loop(b, ty.m) as (r, _):
            _store(b, filling, data, b.add(b.mul(c, const(I64, column_step)), b.mul(r, const(I64, row_step))))
        return impl_ret_borrowed(context, b, ty, tile)

    def activation(self, context: Any, b: ir.IRBuilder, sig: Any, x: ir.Value, name: str) -> ir.Value:
        emit = getattr(ACTIVATIONS, name)
        if isinstance(sig.args[0], TILE.Rows):
            return emit(b, x)
        return self.map(context, b, sig.args[0], x, lambda i, v, rows, column: emit(b, v))

    silu = functools.partialmethod(activation, name="silu")
    gelu = functools.partialmethod(activation, name="gelu")
    gelu_tanh = functools.partialmethod(activation, name="gelu_tanh")
    relu = functools.partialmethod(activation, name="relu")

    def absolute(self, context: Any, b: ir.IRBuilder, sig: Any, x: ir.Value) -> ir.Value:
        def emit(i: Any, v: ir.Value, rows: Any, column: Any) -> ir.Value:
            return call(b, f"llvm.fabs.v{v.type.count}f32", v.type, [v])

        return self.map(context, b, sig.args[0], x, emit)

    def rotations(
        self, context: Any, b: ir.IRBuilder, sig: Any, cfg: Any, position: Any, frequencies: Any, col0: Any, n: Any
    ) -> ir.Value:
        ty = sig.return_type[0]
        data, (extent,), (stride,) = self.unpack_tensor(context, b, sig.args[2], frequencies)
        first = self.scalar(context, b, sig.args[3], col0, "i64")
        turns = self.spill(b, const(_vec(I64, ty.n), 0))
        with _loop(b, _smin(b, b.sub(extent, first), const(I64, ty.n))) as (c, _):
            turn = b.load(at(b, data, b.mul(b.add(first, c), stride), I64), align=1)
            b.store(turn, at(b, turns, b.mul(c, const(I64, 8)), I64), align=8)
        tiles = [self.new(context, b, ty) for _ in range(2)]
        cos, sin = (self.data(context, b, ty, tile) for tile in tiles)
        for index, vector, (part,), column in self.vectors(b, ty, cos, (position,)):
            c, lanes = b.zext(_element(b, column(), 0), I64), vector.type.count
            wide = I64 if self.by_column(ty) else _vec(I64, lanes)
            turn = b.load(at(b, turns, b.mul(c, const(I64, 8)), wide), align=8)
            values = cos_sin(b, part, _splat(b, turn, lanes) if self.by_column(ty) else turn)
            for value, into in zip(values, (cos, sin), strict=True):
                _store(b, value, into, index)
        return impl_ret_new_ref(context, b, sig.return_type, context.make_tuple(b, sig.return_type, tiles))

    def rotate(self, context: Any, b: ir.IRBuilder, sig: Any, x: Any, y: Any, cos: Any, sin: Any) -> ir.Value:
        ty = sig.args[0]
        left, right, cosines, sines = (self.data(context, b, ty, tile) for tile in (x, y, cos, sin))
        for index, vector, _, _ in self.vectors(b, ty, left):
            others = [_load(b, data, index, vector.type.count) for data in (right, cosines, sines)]
            for value, into in zip(rotated(b, vector, *others), (left, right), strict=True):
                _store(b, value, into, index)
        return impl_ret_borrowed(context, b, sig.return_type, context.make_tuple(b, sig.return_type, (x, y)))

    def at_least(self, context: Any, b: ir.IRBuilder, sig: Any, tile: ir.Value, bound: ir.Value) -> ir.Value:
        ty, bound_ty = sig.args
        if isinstance(bound_ty, TILE.Rows):
            rows: tuple = (bound,)
        else:
            rows, number = (), self.scalar(context, b, bound_ty, bound, "f32")

        def emit(i: Any, v: ir.Value, parts: list, column: Any) -> ir.Value:
            least = parts[0] if parts else _splat(b, number, v.type.count)
            return b.select(b.fcmp_ordered(">=", v, least), const(v.type, 1.0), const(v.type, 0.0))

        return self.map(context, b, ty, tile, emit, rows)

    def distance(
        self, context: Any, b: ir.IRBuilder, sig: Any, cfg: Any, position: ir.Value, col0: ir.Value, n: Any
    ) -> ir.Value:
        ty = sig.return_type
        value = self.new(context, b, ty)
        first = self.scalar(context, b, sig.args[2], col0, "i32")

        def emit(i: Any, v: ir.Value, rows: list, column: Any) -> ir.Value:
            lies_at = b.add(column(), _splat(b, first, v.type.count))
            return b.sitofp(b.sub(rows[0], lies_at), v.type)

        self.map(context, b, ty, value, emit, (position,))
        context.nrt.decref(b, ty, value)  # `map` returned a second reference
        return impl_ret_new_ref(context, b, ty, value)

    def mask_outside(
        self, context: Any, b: ir.IRBuilder, sig: Any, tile: Any, col0: ir.Value, low: ir.Value, high: ir.Value
    ) -> ir.Value:
        first = self.scalar(context, b, sig.args[1], col0, "i32")

        def emit(i: Any, v: ir.Value, rows: list, column: Any) -> ir.Value:
            lies_at = b.add(column(), _splat(b, first, v.type.count))
            inside = b.and_(b.icmp_signed(">=", lies_at, rows[0]), b.icmp_signed("<=", lies_at, rows[1]))
            return b.select(inside, v, const(v.type, float("-inf")))

        return self.map(context, b, sig.args[0], tile, emit, (low, high))

    def mask_where(self, context: Any, b: ir.IRBuilder, sig: Any, tile: ir.Value, visible: ir.Value) -> ir.Value:
        seen = self.data(context, b, sig.args[1], visible)

        def emit(i: ir.Value, v: ir.Value, rows: Any, column: Any) -> ir.Value:
            flags = _load(b, seen, i, v.type.count)
            hidden = b.fcmp_ordered("==", flags, const(v.type, 0.0))
            return b.select(hidden, const(v.type, float("-inf")), v)

        return self.map(context, b, sig.args[0], tile, emit)

    def multiply_add(
        self, context: Any, b: ir.IRBuilder, sig: Any, tile: ir.Value, factor: ir.Value, summand: ir.Value
    ) -> ir.Value:
        others = [self.data(context, b, ty, x) for ty, x in zip(sig.args[1:], (factor, summand), strict=True)]

        def emit(i: ir.Value, v: ir.Value, rows: Any, column: Any) -> ir.Value:
            return _fma(b, v, *(_load(b, other, i, v.type.count) for other in others))

        return self.map(context, b, sig.args[0], tile, emit)

    def softmax_step(
        self, context: Any, b: ir.IRBuilder, sig: Any, s: Any, scale: Any, m: ir.Value, l: ir.Value, acc: ir.Value
    ) -> ir.Value:
        s_ty, acc_ty = sig.args[0], sig.args[4]
        scores, rows = self.data(context, b, s_ty, s), m.type
        factor = self.scalar(context, b, sig.args[1], scale, "f32")
        wide_factor = _splat(b, factor, s_ty.m)
        low = const(rows, float("-inf"))

        # The maximum may lag behind as long as no exponent grows beyond LAZY_EXPONENT: then acc and l stay as they are.
        grown = _fmax(b, self.row_maximum(b, s_ty, scores), m)
        excess = b.fmul(b.fsub(grown, m), wide_factor)
        rescale = _any(b, b.fcmp_ordered(">", excess, const(rows, LAZY_EXPONENT)))
        new = b.select(rescale, grown, m)
        base = b.select(b.fcmp_ordered("==", new, low), const(rows, 0.0), new)
        denominator = cgutils.alloca_once_value(b, l)
        with b.if_then(rescale, likely=False):
            shrink = _exp2(b, b.fmul(b.fsub(m, base), wide_factor))
            b.store(b.fmul(l, shrink), denominator)
            data = self.data(context, b, acc_ty, acc)
            for index, vector, parts, _ in self.vectors(b, acc_ty, data, (shrink,)):
                _store(b, b.fmul(vector, parts[0]), data, index)

        def weight(index: ir.Value, vector: ir.Value, part: tuple) -> ir.Value:
            exponent = b.fmul(b.fsub(vector, self.row_part(b, s_ty, base, part)), _splat(b, factor, vector.type.count))
            p = _exp2(b, exponent)
            _store(b, p, scores, index)
            return p

        total = self.reduce_rows(b, s_ty, scores, 0.0, b.fadd, weight)
        result = context.make_tuple(b, sig.return_type, (s, new, b.fadd(b.load(denominator), total), acc))
        return impl_ret_borrowed(context, b, sig.return_type, result)

    def softmax_end(
        self, context: Any, b: ir.IRBuilder, sig: Any, scale: Any, m: ir.Value, l: ir.Value, acc: ir.Value
    ) -> ir.Value:
        result = context.make_tuple(b, sig.return_type, (m, l, acc))
        return impl_ret_borrowed(context, b, sig.return_type, result)

    def square_step(
        self, context: Any, b: ir.IRBuilder, sig: Any, tile: ir.Value, scale: ir.Value, total: ir.Value
    ) -> ir.Value:
        ty = sig.args[0]
        data = self.data(context, b, ty, tile)
        plain = self.reduce_rows(b, ty, data, 0.0, b.fadd, lambda index, vector, part: b.fmul(vector, vector))
        done = squares.is_plain(b, plain, scale)
        results = if_else(
            b,
            _all(b, done),
            lambda: squares.add_plain(b, plain, scale, total),
            lambda: self.scaled_squares(b, ty, data, scale, total),
            likely=True,
        )
        return context.make_tuple(b, sig.return_type, results)

    def multiply_rows(
        self, context: Any, b: ir.IRBuilder, sig: Any, tile: ir.Value, scale: ir.Value, factor: ir.Value
    ) -> ir.Value:
        ty = sig.args[0]
        product, ordinary = squares.joined(b, scale, factor)
        with b.if_else(_all(b, ordinary), likely=True) as (yes, no):
            with yes:
                self.map(context, b, ty, tile, lambda i, v, rows, c: b.fmul(v, rows[0]), (product,))
            with no:
                parts = (scale, factor)
                self.map(context, b, ty, tile, lambda i, v, rows, c: b.fmul(b.fmul(v, rows[0]), rows[1]), parts)
        return tile

    def scaled_squares(
        self, b: ir.IRBuilder, ty: Any, data: ir.Value, scale: ir.Value, total: ir.Value
    ) -> tuple[ir.Value, ir.Value]:
        """`square_step` where squares as they are would not do."""

        def size(index: ir.Value, vector: ir.Value, part: tuple) -> ir.Value:
            return call(b, f"llvm.fabs.v{vector.type.count}f32", vector.type, [vector])

        def square(index: ir.Value, vector: ir.Value, part: tuple) -> ir.Value:
            return squares.square(b, vector, self.row_part(b, ty, new, part))

        largest = self.reduce_rows(b, ty, data, 0.0, lambda most, x: _fmax(b, x, most), size)
        new = squares.scale_of(b, largest, scale)
        more = self.reduce_rows(b, ty, data, 0.0, b.fadd, square)
        return new, b.fadd(squares.rescale(b, total, scale, new), more)

    # --------------------------------------------------------------------------------------------------- operators
    def rows_or_tile(self, for_float: Any, for_int: Any = None) -> Any:
        """Lowering of a binary operator from the builder's method names for floats and integers."""

        def emit(context: Any, b: ir.IRBuilder, sig: Any, x: ir.Value, y: ir.Value) -> ir.Value:
            ty = sig.return_type
            x_ty, y_ty = sig.args
            if isinstance(ty, TILE.Rows):
                rows = x_ty if isinstance(x_ty, TILE.Rows) else y_ty
                x, y = (self.row_value(context, b, t, v, rows) for t, v in zip(sig.args, (x, y), strict=True))
                if rows.kind == "f32":
                    return for_float(b, x, y)
                return for_int(b, x, y)
            if isinstance(y_ty, TILE.Tile):
                other = self.data(context, b, y_ty, y)
                return self.map(
                    context, b, ty, x, lambda i, v, rows, c: for_float(b, v, _load(b, other, i, v.type.count))
                )
            if isinstance(y_ty, TILE.Rows):
                return self.map(context, b, ty, x, lambda i, v, rows, c: for_float(b, v, rows[0]), (y,))
            scalar = self.scalar(context, b, y_ty, y, "f32")
            return self.map(context, b, ty, x, lambda i, v, rows, c: for_float(b, v, _splat(b, scalar, v.type.count)))

        return emit

    @property
    def operator_add(self) -> Any:
        return self.rows_or_tile(ir.IRBuilder.fadd, ir.IRBuilder.add)

    @property
    def operator_sub(self) -> Any:
        return self.rows_or_tile(ir.IRBuilder.fsub, ir.IRBuilder.sub)

    @property
    def operator_mul(self) -> Any:
        return self.rows_or_tile(ir.IRBuilder.fmul, ir.IRBuilder.mul)

    @property
    def operator_truediv(self) -> Any:
        return self.rows_or_tile(ir.IRBuilder.fdiv)

    @property
    def operator_floordiv(self) -> Any:
        return self.rows_or_tile(None, lambda b, x, y: _floor_divide(b, x, y)[0])

    @property
    def operator_mod(self) -> Any:
        return self.rows_or_tile(None, lambda b, x, y: _floor_divide(b, x, y)[1])

    def comparison(self, symbol: str) -> Any:
        def compare(method: Any) -> Any:
            return lambda b, x, y: b.zext(method(b, symbol, x, y), _vec(I8, x.type.count))

        # Only != is true of NaN.
        floats = ir.IRBuilder.fcmp_unordered if symbol == "!=" else ir.IRBuilder.fcmp_ordered
        return self.rows_or_tile(compare(floats), compare(ir.IRBuilder.icmp_signed))

    def operator_and(self, context: Any, b: ir.IRBuilder, sig: Any, x: ir.Value, y: ir.Value) -> ir.Value:
        return b.and_(x, y)

    # --------------------------------------------------------------------------------------------------- products
    def operand(self, context: Any, b: ir.IRBuilder, sig: Any, tile: ir.Value, like: Any) -> ir.Value:
        return impl_ret_borrowed(context, b, sig.return_type, tile)

    @staticmethod
    def count_shared_memory(b: ir.IRBuilder, ty: Any) -> None:
        """Refuse a stage that does not fit beside the kernel's earlier ones."""
        limit = architecture(ty.hw[0]).shared_bytes
        total = getattr(b.function, "shared_bytes", 0) + ty.n * ty.k * DTYPES[ty.dtype]
        if total > limit:
            raise TypingError(
                f"stage: with a stage [{ty.n}, {ty.k}] of {ty.dtype} the kernel's stages take {total} bytes; "
                f"{ty.hw[0]} has {limit} bytes of shared memory; use smaller blocks"
            )
        b.function.shared_bytes = total

    def stage(
        self, context: Any, b: ir.IRBuilder, sig: Any, cfg: Any, source: ir.Value, n: Any, k: Any, *_: Any
    ) -> ir.Value:
        ty, source_ty = sig.return_type, sig.args[1]
        self.count_shared_memory(b, ty)
        data, shape, strides = self.unpack_tensor(context, b, source_ty, source)
        st = cgutils.create_struct_proxy(ty)(context, b)
        size = context.get_constant(types.uintp, ty.n * ty.k * 4)
        st.meminfo = context.nrt.meminfo_alloc_aligned(b, size, context.get_constant(types.uint32, 64))
        st.source = st.window = data
        st.rows, st.columns = shape
        st.row_stride, st.col_stride = strides
        st.row0 = st.col0 = st.count = st.cols = st.ld = const(I64, 0)
        if ty.paged:
            st.table = data
            for name in PAGED_MEMBERS:
                setattr(st, name, const(I64, 0))
        return impl_ret_new_ref(context, b, ty, st._getvalue())

    def paged(
        self, context: Any, b: ir.IRBuilder, sig: Any, stage: Any, cache: Any, head: Any, table: Any, stop: Any
    ) -> ir.Value:
        ty = sig.args[0]
        if ty.paged:
            st = cgutils.create_struct_proxy(ty)(context, b, stage)
            data, shape, strides = self.unpack_tensor(context, b, sig.args[1], cache)
            st.source = b.gep(data, [b.mul(self.scalar(context, b, sig.args[2], head, "i64"), strides[1])])
            st.pages, st.page_rows, st.page_stride = shape[0], shape[2], strides[0]
            st.columns, st.row_stride, st.col_stride = shape[3], strides[2], strides[3]
            st.table, (st.entries,), (st.entry_stride,) = self.unpack_tensor(context, b, sig.args[3], table)
            st.rows = self.scalar(context, b, sig.args[4], stop, "i64")
            stage = st._getvalue()
        return impl_ret_borrowed(context, b, sig.return_type, stage)

    def page(self, b: ir.IRBuilder, st: Any, row: ir.Value) -> tuple[ir.Value, ir.Value]:
        """Where a row of a paged stage lies, and whether its page exists (if not: the first page)."""
        number, line = b.sdiv(row, st.page_rows), b.srem(row, st.page_rows)
        listed = b.icmp_signed("<", number, st.entries)
        entry = b.mul(b.select(listed, number, const(I64, 0)), st.entry_stride)
        page = b.sext(b.load(at(b, st.table, entry, I32), align=4), I64)
        exists = b.and_(listed, b.icmp_unsigned("<", page, st.pages))
        page = b.select(exists, page, const(I64, 0))
        offset = b.add(b.mul(page, st.page_stride), b.mul(line, st.row_stride))
        return b.gep(st.source, [b.add(offset, b.mul(st.col0, st.col_stride))]), exists

    def fetch(self, context: Any, b: ir.IRBuilder, sig: Any, stage: ir.Value, *start: ir.Value) -> ir.Value:
        st = cgutils.create_struct_proxy(sig.args[0])(context, b, stage)
        starts = [self.scalar(context, b, t, v, "i64") for t, v in zip(sig.args[1:], start, strict=True)]
        st.row0, st.col0 = (*starts, const(I64, 0))[:2]
        return impl_ret_borrowed(context, b, sig.return_type, st._getvalue())

    def acquire(self, context: Any, b: ir.IRBuilder, sig: Any, stage: ir.Value) -> ir.Value:
        ty = sig.args[0]
        st = cgutils.create_struct_proxy(ty)(context, b, stage)
        storage, size, w = _STORAGE[ty.source], DTYPES[ty.source], VECTOR_WIDTH[ty.hw[0]]
        st.count = _smax(b, const(I64, 0), _smin(b, b.sub(st.rows, st.row0), const(I64, ty.n)))
        st.cols = _smax(b, const(I64, 0), _smin(b, b.sub(st.columns, st.col0), const(I64, ty.k)))
        if ty.format:
            # What is done with the bytes depends on the product, see `window_of`; until then: where they start.
            st.window, st.ld = b.gep(st.source, [b.mul(st.row0, st.row_stride)]), st.col0
            return impl_ret_borrowed(context, b, sig.return_type, st._getvalue())
        one_page = const(I1, 1)
        if ty.paged:

            def on_page() -> list[ir.Value]:
                first, exists = self.page(b, st, st.row0)
                last = b.add(b.srem(st.row0, st.page_rows), st.count)
                return [first, b.and_(exists, b.icmp_signed("<=", last, st.page_rows))]

            nothing = [st.source, const(I1, 0)]
            origin, one_page = if_else(b, b.icmp_signed(">", st.count, const(I64, 0)), on_page, lambda: nothing)
        else:
            origin = b.gep(st.source, [b.add(b.mul(st.row0, st.row_stride), b.mul(st.col0, st.col_stride))])
        buffer = context.nrt.meminfo_data(b, st.meminfo)
        dense = b.icmp_signed("==", st.col_stride, const(I64, size))
        in_place = const(I1, 0)
        if ty.source == "float32":
            whole = b.icmp_signed("==", b.and_(st.row_stride, const(I64, 3)), const(I64, 0))
            in_place = b.and_(b.and_(dense, whole), one_page)
        with b.if_then(b.not_(in_place)), _loop(b, st.count) as (r, _):
            if ty.paged:
                row, exists = self.page(b, st, b.add(st.row0, r))
                columns = b.select(exists, st.cols, const(I64, 0))
            else:
                row, columns = b.gep(origin, [b.mul(r, st.row_stride)]), st.cols
            into = b.mul(r, const(I64, ty.k))
            fast = b.select(dense, _floor_to(b, columns, w), const(I64, 0))
            with _loop(b, fast, w) as (c, _):
                got = b.load(at(b, row, b.mul(c, const(I64, size)), _vec(storage, w)), align=1)
                _store(b, _from_memory(b, got, ty.source), buffer, b.add(into, c))
            with _loop(b, columns, 1, fast) as (c, _):
                got = b.load(at(b, row, b.mul(c, st.col_stride), storage), align=1)
                _store(b, _from_memory(b, got, ty.source), buffer, b.add(into, c))
            if ty.paged:
                with _loop(b, st.cols, 1, columns) as (c, _):
                    _store(b, const(F32, 0.0), buffer, b.add(into, c))
        st.window = b.select(in_place, origin, buffer)
        st.ld = b.select(in_place, b.ashr(st.row_stride, const(I64, 2)), const(I64, ty.k))
        return impl_ret_borrowed(context, b, sig.return_type, st._getvalue())

    def window_of(self, context: Any, b: ir.IRBuilder, ty: Any, stage: ir.Value) -> Any:
        """An acquired stage whose window holds elements."""
        st = cgutils.create_struct_proxy(ty)(context, b, stage)
        if ty.format:
            self.decode_window(context, b, ty, st)
        return st

    @staticmethod
    def decode_window(context: Any, b: ir.IRBuilder, ty: Any, st: Any) -> None:
        """Decode the acquired window into the stage's buffer."""
        kind, unit = FORMATS[ty.format], math.gcd(ty.k, FORMATS[ty.format].elements)
        buffer, first, column = context.nrt.meminfo_data(b, st.meminfo), st.window, st.ld
        with _loop(b, st.count) as (r, _):
            row = b.gep(first, [b.mul(r, st.row_stride)])
            with _loop(b, st.cols, unit) as (c, _):
                into = b.add(b.mul(r, const(I64, ty.k)), c)
                for offset, vector in _decode(b, kind, row, b.add(column, c), unit, ty.hw[0]):
                    _store(b, vector, buffer, b.add(into, const(I64, offset)))
        st.window, st.ld = buffer, const(I64, ty.k)

    def release(self, context: Any, b: ir.IRBuilder, sig: Any, stage: ir.Value) -> ir.Value:
        return impl_ret_borrowed(context, b, sig.return_type, stage)

    def finish(self, context: Any, b: ir.IRBuilder, sig: Any, stage: ir.Value) -> ir.Value:
        return context.get_dummy_value()

    def accumulator(self, context: Any, b: ir.IRBuilder, sig: Any, acc: tuple) -> tuple:
        """The tile a product adds to: the given one, or a new one of zeros. Returns it and its data."""
        ty = sig.return_type
        if acc:
            return impl_ret_borrowed(context, b, ty, acc[0]), self.data(context, b, ty, acc[0])
        value = self.new(context, b, ty)
        data = self.data(context, b, ty, value)
        cgutils.memset(b, data, const(I64, ty.m * ty.n * 4), 0)
        return impl_ret_new_ref(context, b, ty, value), data

    def dot_nt(self, context: Any, b: ir.IRBuilder, sig: Any, left: Any, right: Any, *acc: Any) -> ir.Value:
        ty, right_ty = sig.return_type, sig.args[1]
        in_registers = right_ty.format and not self.by_column(ty)
        if in_registers:
            st = cgutils.create_struct_proxy(right_ty)(context, b, right)
        else:
            st = self.window_of(context, b, right_ty, right)
        out, data = self.accumulator(context, b, sig, acc)
        with self.left(context, b, sig, left) as a:
            if in_registers:
                _multiply_rows_quantized(b, ty, right_ty, sig.args[0].k, st, a.data, data)
            elif self.by_column(ty):
                source = _Right(st.window, st.ld, const(I64, 1))
                _multiply_lanes(b, self.width(ty), ty.m, st.count, st.cols, source, a, data)
            else:
                _multiply_rows_nt(b, self.width(ty), ty, sig.args[0].k, st, a.data, data)
        return out

    def dot_nn(self, context: Any, b: ir.IRBuilder, sig: Any, left: Any, right: Any, *acc: Any) -> ir.Value:
        st = self.window_of(context, b, sig.args[1], right)
        out, data = self.accumulator(context, b, sig, acc)
        with self.left(context, b, sig, left) as a:
            self.multiply_nn(b, sig.return_type, sig.args[0], st, a, data)
        return out

    @contextlib.contextmanager
    def left(self, context: Any, b: ir.IRBuilder, sig: Any, value: ir.Value) -> Any:
        """The left side of a product as a `_Left`. A stage is copied for the time of the product.

        A product of two stages is one step of many over large matrices: the copy is made of panels as wide as the
        micro-kernel, and has room for the lines of the right side that the micro-kernel works on.
        """
        ty, out = sig.args[0], sig.return_type
        if not isinstance(ty, TILE.Stage):
            yield _Left(self.data(context, b, ty, value), ty.m, 1)
            return
        across, heights = BLOCKING[self.width(ty)]
        lanes = self.by_column(out)
        panel = min(ty.n, across * self.width(ty)) if lanes else ty.n
        # The lines of the right side are counted as more rows of an operand.
        room = TILE.Operand(ty.n + heights[0] * lanes, ty.k + LINE_PADDING * lanes, ty.dtype, ty.hw)
        copy = self.new(context, b, room)
        data = self.data(context, b, room, copy)
        source = self.window_of(context, b, ty, value)
        address, step = b.ptrtoint(source.window, I64), b.mul(source.ld, const(I64, 4))
        place = SimpleNamespace(
            row=lambda r: b.add(address, b.mul(r, step)),
            exists=lambda r, n: b.icmp_signed("<=", b.add(r, const(I64, n)), source.count),
            stride=const(I64, 4),
            columns=source.cols,
            side_by_side=lambda r, n: const(I1, 0),
        )
        self.transfer(b, SimpleNamespace(m=ty.n, n=ty.k, hw=ty.hw, panel=panel), data, "float32", place, load=True)
        lines = b.gep(data, [const(I64, 4 * ty.n * ty.k)]) if lanes else None
        yield _Left(data, panel, 1 if panel == ty.n else ty.k, lines, ty.k + LINE_PADDING)
        context.nrt.decref(b, room, copy)

    def multiply_nn(self, b: ir.IRBuilder, ty: Any, a_ty: Any, st: Any, left: _Left, data: ir.Value) -> None:
        if self.by_column(ty):
            source = _Right(st.window, const(I64, 1), st.ld)
            _multiply_lanes(b, self.width(ty), ty.m, st.cols, st.count, source, left, data)
        else:
            _multiply_rows_nn(b, self.width(ty), ty, a_ty.k, st, left.data, data)

    def dot_nn_where(self, context: Any, b: ir.IRBuilder, sig: Any, left: Any, right: Any, acc: Any) -> ir.Value:
        ty, a_ty = sig.return_type, sig.args[0]
        st = cgutils.create_struct_proxy(sig.args[1])(context, b, right)
        a = self.data(context, b, a_ty, left)
        out, data = self.accumulator(context, b, sig, (acc,))
        with b.if_else(self.window_is_finite(b, self.width(ty), st), likely=True) as (finite, not_finite):
            with finite:
                self.multiply_nn(b, ty, a_ty, st, _Left(a, ty.m, 1), data)
            with not_finite:
                step_a, step_out = (ty.m, ty.m) if self.by_column(ty) else (1, 1)
                row_a, row_out = (1, 1) if self.by_column(ty) else (a_ty.k, ty.n)
                with _loop(b, st.count) as (k, _), _loop(b, st.cols) as (n, _):
                    v = _load(b, st.window, b.add(b.mul(k, st.ld), n))
                    with _loop(b, ty.m) as (r, _):
                        p = _load(b, a, b.add(b.mul(k, const(I64, step_a)), b.mul(r, const(I64, row_a))))
                        with b.if_then(b.fcmp_unordered("!=", p, const(F32, 0.0))):
                            i = b.add(b.mul(n, const(I64, step_out)), b.mul(r, const(I64, row_out)))
                            _store(b, _fma(b, p, v, _load(b, data, i)), data, i)
        return out

    @staticmethod
    def window_is_finite(b: ir.IRBuilder, w: int, st: Any) -> ir.Value:
        """Whether the window in use has neither NaN nor infinity: the sum of 0 * x is 0 then, and NaN otherwise."""
        vector = cgutils.alloca_once_value(b, const(_vec(F32, w), 0.0))
        single = cgutils.alloca_once_value(b, const(F32, 0.0))
        whole = _floor_to(b, st.cols, w)
        with _loop(b, st.count) as (r, _):
            row = b.mul(r, st.ld)
            with _loop(b, whole, w) as (c, _):
                x = _load(b, st.window, b.add(row, c), w)
                b.store(_fma(b, x, const(x.type, 0.0), b.load(vector)), vector)
            with _loop(b, st.cols, 1, whole) as (c, _):
                x = _load(b, st.window, b.add(row, c))
                b.store(_fma(b, x, const(F32, 0.0), b.load(single)), single)
        total = b.fadd(_reduce(b, b.load(vector), b.fadd), b.load(single))
        return b.fcmp_ordered("==", total, const(F32, 0.0))

    def dot_tn(self, context: Any, b: ir.IRBuilder, sig: Any, left: Any, right: Any, *acc: Any) -> ir.Value:
        ty = sig.return_type
        x, y = (self.window_of(context, b, t, v) for t, v in zip(sig.args, (left, right), strict=False))
        out, data = self.accumulator(context, b, sig, acc)
        row, column = (1, ty.m) if self.by_column(ty) else (ty.n, 1)
        with (
            _loop(b, _smin(b, x.count, y.count)) as (k, _),
            _loop(b, x.cols) as (r, _),
            _loop(b, y.cols) as (c, _),
        ):
            i = b.add(b.mul(r, const(I64, row)), b.mul(c, const(I64, column)))
            product = (
                _load(b, x.window, b.add(b.mul(k, x.ld), r)),
                _load(b, y.window, b.add(b.mul(k, y.ld), c)),
            )
            _store(b, _fma(b, *product, _load(b, data, i)), data, i)
        return out


for _op, _symbol in (("lt", "<"), ("le", "<="), ("gt", ">"), ("ge", ">="), ("eq", "=="), ("ne", "!=")):
    setattr(CpuLowering, f"operator_{_op}", property(functools.partial(CpuLowering.comparison, symbol=_symbol)))


def _floor_divide(b: ir.IRBuilder, x: ir.Value, y: ir.Value) -> tuple[ir.Value, ir.Value]:
    """Python's // and % of integer vectors."""
    zero = const(x.type, 0)
    quotient, rest = b.sdiv(x, y), b.srem(x, y)
    adjust = b.and_(b.icmp_signed("!=", rest, zero), b.icmp_signed("<", b.xor(rest, y), zero))
    quotient = b.select(adjust, b.sub(quotient, const(x.type, 1)), quotient)
    return quotient, b.select(adjust, b.add(rest, y), rest)


# ------------------------------------------------------------------------------------------------ matrix micro-kernels


class _Left(NamedTuple):
    """Left side of a product: ``left[i][r]`` lies ``i * line + r * row_step`` floats from ``data``, for the first r of
    a vector. Lines are m floats, or as many as a micro-kernel takes (``row_step`` is then the length of a panel).

    ``lines``, where it is given, is room for those lines of the right side that a micro-kernel works on, ``ld`` floats
    apart: where the source has them, their distance may put all of them into the same few sets of a cache.
    """

    data: ir.Value
    line: int
    row_step: int
    lines: ir.Value | None = None
    ld: int = 0


class _Right(NamedTuple):
    """Right side of a product: ``right(j, i)`` lies ``j * j_step + i * i_step`` floats from ``data``."""

    data: ir.Value
    j_step: ir.Value
    i_step: ir.Value


#: Floats between the copied lines of a right side.
LINE_PADDING = 16


def _k_loop(b: ir.IRBuilder, count: ir.Value, initial: list[ir.Value], body: Any) -> list[ir.Value]:
    """A loop that carries vectors in registers: ``body(k, values) -> values``, for k in 0 .. count."""
    before = b.block
    loop, after = b.append_basic_block("k"), b.append_basic_block("k.end")
    b.cbranch(b.icmp_signed(">", count, const(I64, 0)), loop, after)
    b.position_at_end(loop)
    k = b.phi(I64)
    k.add_incoming(const(I64, 0), before)
    values = [b.phi(v.type) for v in initial]
    for phi, v in zip(values, initial, strict=True):
        phi.add_incoming(v, before)
    new = body(k, values)
    next_k = b.add(k, const(I64, 1))
    last = b.block
    k.add_incoming(next_k, last)
    for phi, v in zip(values, new, strict=True):
        phi.add_incoming(v, last)
    b.cbranch(b.icmp_signed("<", next_k, count), loop, after)
    b.position_at_end(after)
    return joined(b, initial, before, new, last)


#: Register blocking of the micro-kernel by vector width: vectors across the tile's rows, and the numbers of output
#: columns at a time, largest first. 12 x 2 accumulators, 2 vectors and a broadcast fill 27 of AVX-512's 32 registers.
BLOCKING = {16: (2, (12, 4, 1)), 8: (2, (6, 2, 1)), 4: (2, (6, 2, 1))}


def _multiply_lanes(
    b: ir.IRBuilder, w: int, m: int, n: ir.Value, k: ir.Value, right: _Right, left: _Left, out: ir.Value
) -> None:
    """out[j][r] += sum_i right(j, i) * left[i][r] for r < m (lanes), j < n, i < k; ``out`` has m floats a line."""
    across, heights = BLOCKING[w]
    across = min(across, m // w)

    def block(right: _Right, j0: ir.Value, first: ir.Value, r0: ir.Value, height: int) -> None:
        """Columns ``j0 .. j0 + height``, which are ``first ..`` of ``right``."""
        numbers = [const(I64, y) for y in range(height)]
        outs = [
            b.add(b.add(b.mul(b.add(j0, y), const(I64, m)), r0), const(I64, x * w))
            for y in numbers
            for x in range(across)
        ]
        starts = [b.mul(b.add(first, y), right.j_step) for y in numbers]

        def step(i: ir.Value, sums: list) -> list:
            base = b.add(b.mul(i, const(I64, left.line)), b.mul(r0, const(I64, left.row_step)))
            column = b.mul(i, right.i_step)
            vectors = [_load(b, left.data, b.add(base, const(I64, x * w)), w) for x in range(across)]
            new = []
            for y, start in enumerate(starts):  # one number at a time: the registers are full of sums
                number = _splat(b, _load(b, right.data, b.add(start, column)), w)
                new += [_fma(b, number, vectors[x], sums[y * across + x]) for x in range(across)]
            return new

        sums = _k_loop(b, k, [_load(b, out, i, w) for i in outs], step)
        for i, total in zip(outs, sums, strict=True):
            _store(b, total, out, i)

    def over_columns(body: Any) -> None:
        start: ir.Value = const(I64, 0)
        for height in heights:
            stop = b.add(start, b.mul(b.sdiv(b.sub(n, start), const(I64, height)), const(I64, height)))
            with _loop(b, stop, height, start) as (j0, _):
                body(j0, height)
            start = stop

    def copied(j0: ir.Value, height: int) -> None:
        lines = _copy_lines(b, w, k, right, j0, height, left)
        with _loop(b, m, across * w) as (r0, _):
            block(lines, j0, const(I64, 0), r0, height)

    if left.lines is not None:
        over_columns(copied)
        return
    with _loop(b, m, across * w) as (r0, _):
        over_columns(lambda j0, height: block(right, j0, j0, r0, height))


def _copy_lines(b: ir.IRBuilder, w: int, k: ir.Value, right: _Right, j0: ir.Value, height: int, left: _Left) -> _Right:
    """Copy ``height`` columns of a right side to where ``left`` has room for them."""
    assert left.lines is not None
    into = left.lines
    if isinstance(right.i_step, ir.Constant):  # contiguous along i: line by line
        whole = _floor_to(b, k, w)
        for y in range(height):
            start, target = b.mul(b.add(j0, const(I64, y)), right.j_step), const(I64, y * left.ld)
            with _loop(b, whole, w) as (i, _):
                _store(b, _load(b, right.data, b.add(start, i), w), into, b.add(target, i))
            with _loop(b, k, 1, whole) as (i, _):
                _store(b, _load(b, right.data, b.add(start, i)), into, b.add(target, i))
        return _Right(into, const(I64, left.ld), const(I64, 1))
    with _loop(b, k) as (i, _):
        source, target, done = b.add(b.mul(i, right.i_step), j0), b.mul(i, const(I64, height)), 0
        while done < height:
            count = 1 << ((height - done).bit_length() - 1)
            part = _load(b, right.data, b.add(source, const(I64, done)), count)
            _store(b, part, into, b.add(target, const(I64, done)))
            done += count
    return _Right(into, const(I64, 1), const(I64, height))


def _multiply_rows_nt(b: ir.IRBuilder, w: int, ty: Any, lda: int, st: Any, left: ir.Value, out: ir.Value) -> None:
    """out[r][j] += sum_i left[r][i] * window[j][i]: lanes run over i, ``block`` lines of the window at a time."""
    block = max(1, 8 // ty.m)
    whole = _floor_to(b, st.cols, w)

    def some(j0: ir.Value, lines: int) -> None:
        starts = [b.mul(b.add(j0, const(I64, y)), st.ld) for y in range(lines)]
        zero = const(_vec(F32, w), 0.0)

        def step(chunk: ir.Value, sums: list) -> list:
            i = b.mul(chunk, const(I64, w))
            lefts = [_load(b, left, b.add(i, const(I64, r * lda)), w) for r in range(ty.m)]
            rights = [_load(b, st.window, b.add(start, i), w) for start in starts]
            return [_fma(b, lefts[r], rights[y], sums[y * ty.m + r]) for y in range(lines) for r in range(ty.m)]

        sums = _k_loop(b, b.sdiv(whole, const(I64, w)), [zero] * (lines * ty.m), step)
        singles = [_reduce(b, x, b.fadd) for x in sums]

        def rest(i: ir.Value, totals: list) -> list:
            i = b.add(i, whole)
            lefts = [_load(b, left, b.add(i, const(I64, r * lda))) for r in range(ty.m)]
            rights = [_load(b, st.window, b.add(start, i)) for start in starts]
            return [_fma(b, lefts[r], rights[y], totals[y * ty.m + r]) for y in range(lines) for r in range(ty.m)]

        totals = _k_loop(b, b.sub(st.cols, whole), singles, rest)
        for y in range(lines):
            for r in range(ty.m):
                i = b.add(b.add(j0, const(I64, y)), const(I64, r * ty.n))
                _store(b, b.fadd(_load(b, out, i), totals[y * ty.m + r]), out, i)

    blocks = _floor_to(b, st.count, block)
    with _loop(b, blocks, block) as (j0, _):
        some(j0, block)
    if block > 1:
        with _loop(b, st.count, 1, blocks) as (j0, _):
            some(j0, 1)


def _multiply_rows_quantized(
    b: ir.IRBuilder, ty: Any, right_ty: Any, lda: int, st: Any, left: ir.Value, out: ir.Value
) -> None:
    """As `_multiply_rows_nt`, of lines that are decoded into registers; scales are applied to the sums of a run."""
    kind, unit = FORMATS[right_ty.format], math.gcd(right_ty.k, FORMATS[right_ty.format].elements)
    zero = const(_vec(F32, RUN), 0.0)

    def some(j0: ir.Value, lines: int) -> None:
        rows = [b.gep(st.window, [b.mul(b.add(j0, const(I64, y)), st.row_stride)]) for y in range(lines)]

        def step(number: ir.Value, sums: list) -> list:
            i, new = b.mul(number, const(I64, unit)), []
            for y, row in enumerate(rows):
                runs = _runs(b, kind, row, b.add(st.ld, i), unit, right_ty.hw[0])
                for r in range(ty.m):
                    total = sums[y * ty.m + r]
                    for first in range(0, len(runs), kind.group // RUN):
                        group = runs[first : first + kind.group // RUN]
                        xs = [_load(b, left, b.add(i, const(I64, r * lda + offset)), RUN) for offset, _ in group]
                        part = b.fmul(xs[0], *group[0][1].numbers)
                        for x, (_, run) in zip(xs[1:], group[1:], strict=True):
                            part = _fma(b, x, *run.numbers, part)
                        shared = group[0][1]
                        total = _fma(b, part, _splat(b, shared.scale, RUN), total)
                        if shared.minimum is not None:
                            less = _splat(b, b.fneg(shared.minimum), RUN)
                            total = _fma(b, functools.reduce(b.fadd, xs), less, total)
                    new.append(total)
            return new

        sums = _k_loop(b, b.sdiv(st.cols, const(I64, unit)), [zero] * (lines * ty.m), step)
        for y in range(lines):
            for r in range(ty.m):
                i = b.add(b.add(j0, const(I64, y)), const(I64, r * ty.n))
                _store(b, b.fadd(_load(b, out, i), _reduce(b, sums[y * ty.m + r], b.fadd)), out, i)

    block = max(1, 4 // ty.m)
    blocks = _floor_to(b, st.count, block)
    with _loop(b, blocks, block) as (j0, _):
        some(j0, block)
    if block > 1:
        with _loop(b, st.count, 1, blocks) as (j0, _):
            some(j0, 1)


def _multiply_rows_nn(b: ir.IRBuilder, w: int, ty: Any, lda: int, st: Any, left: ir.Value, out: ir.Value) -> None:
    """out[r][j] += sum_i left[r][i] * window[i][j]: lanes run over j, ``across`` vectors of every row at a time."""
    across = max(1, 8 // ty.m)

    def some(j0: ir.Value, vectors: int, lanes: int) -> None:
        load = (lambda base, i: _load(b, base, i, lanes)) if lanes > 1 else (lambda base, i: _load(b, base, i))
        spread = (lambda x: _splat(b, x, lanes)) if lanes > 1 else (lambda x: x)
        outs = [b.add(j0, const(I64, r * ty.n + x * lanes)) for r in range(ty.m) for x in range(vectors)]

        def step(i: ir.Value, sums: list) -> list:
            line = b.add(b.mul(i, st.ld), j0)
            rights = [load(st.window, b.add(line, const(I64, x * lanes))) for x in range(vectors)]
            lefts = [spread(_load(b, left, b.add(i, const(I64, r * lda)))) for r in range(ty.m)]
            return [_fma(b, lefts[r], rights[x], sums[r * vectors + x]) for r in range(ty.m) for x in range(vectors)]

        sums = _k_loop(b, st.count, [load(out, i) for i in outs], step)
        for i, total in zip(outs, sums, strict=True):
            _store(b, total, out, i)

    wide = _floor_to(b, st.cols, across * w)
    with _loop(b, wide, across * w) as (j0, _):
        some(j0, across, w)
    one = _floor_to(b, st.cols, w)
    if across > 1:
        with _loop(b, one, w, wide) as (j0, _):
            some(j0, 1, w)
    with _loop(b, st.cols, 1, one) as (j0, _):
        some(j0, 1, 1)


@functools.cache
def _install_operations() -> None:
    bind(NUMBA, TILE, CpuLowering(NUMBA, TILE))
    # numba puts what it compiles lazily into the first registry it finds: its own must be there before ours.
    cpu_target.target_context.refresh()
    cpu_target.target_context.install_registry(NUMBA.lowering_registry)


def install(kernel: Callable | None = None) -> None:
    """Make the tile language, device functions defined so far, and a kernel's functions known to numba's CPU target."""
    _install_operations()
    bind_functions(NUMBA, TILE, kernel)
    cpu_target.typing_context.install_registry(NUMBA.typing_registry)
