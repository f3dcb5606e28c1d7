"""The tile language on NVIDIA GPUs (sm_80 and later), for numba-cuda.

Layout. The rows of a tile are spread over the block's warps, 16 consecutive rows (an *m-tile*) or a multiple of it to
each. Within a warp a tile lies as the accumulator of ``mma.sync.m16n8k16`` does: lane ``l`` has rows ``l / 4`` and
``l / 4 + 8`` of each m-tile, and of every 8 columns the two at ``2 * (l % 4)``. So `Rows` are two values per m-tile,
the same in the four lanes of a *quad*, and a row's reduction is two exchanges inside a quad.

The configuration of a kernel without products may ask for lines instead: see `_Lines`.

=========  =======================================================================================================
tile       ``[m-tile][8 columns][row, row + 8][2 columns]`` float32 per lane
rows       ``[m-tile][row, row + 8]`` per lane
operand    16-bit: the A fragments of mma.sync, 4 registers of two elements for each m-tile and 16 columns (an
           accumulator rounded in place is one). float32: stored as a tile
stage      source tensor and the shared-memory addresses of two windows, one in use, one being filled by cp.async
=========  =======================================================================================================

Every value is an array of scalars in SSA form, which ends in registers. Products of float16 and bfloat16 use mma.sync
with float32 accumulation, products of float32 are float32 FMAs.
"""

from __future__ import annotations

import functools
import itertools
import weakref
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from types import SimpleNamespace
from typing import Any

from llvmlite import ir
from numba.cuda import cgutils, types
from numba.cuda.compiler import compile_cuda
from numba.cuda.core.errors import TypingError
from numba.cuda.core.imputils import Registry as LoweringRegistry
from numba.cuda.datamodel import models
from numba.cuda.descriptor import cuda_target
from numba.cuda.dispatcher import CUDADispatcher
from numba.cuda.extending import register_model
from numba.cuda.typing import signature
from numba.cuda.typing.templates import AbstractTemplate, AttributeTemplate, make_overload_template
from numba.cuda.typing.templates import Registry as TypingRegistry
from numba.cuda.typing.typeof import typeof_impl

from rocmkern.tile import api, entry, squares
from rocmkern.tile.activations import Activations
from rocmkern.tile.angles import cos_sin, rotated
from rocmkern.tile.architectures import architecture
from rocmkern.tile.binding import bind, bind_device_functions
from rocmkern.tile.formats import FORMATS, RUN
from rocmkern.tile.lanes import FoldingBuilder, LaneReader
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

#: Compute capability that is being compiled for, as numba-cuda takes it.
COMPUTE_CAPABILITY: ContextVar[tuple] = ContextVar("COMPUTE_CAPABILITY")

#: Shared-memory arrays are called this plus the bytes a launch needs up to their end; all start at the same address.
LOCAL_MEMORY_SYMBOL = "rocmkern_local_"

#: What is given out of local memory starts at a multiple of this: the pattern of wgmma's swizzle.
LOCAL_ALIGNMENT = 1024

LANES = 32
VOID = ir.VoidType()


# ---------------------------------------------------------------------------------------------------- device functions


class _DeviceFunction(CUDADispatcher):
    """A function that is always inlined into its caller, compiled for `COMPUTE_CAPABILITY`: no device is needed."""

    def compile_device(self, args: tuple, return_type: Any = None) -> Any:
        if args not in self.overloads:
            compiled = compile_cuda(
                self.py_func,
                return_type,
                args,
                forceinline=True,
                nvvm_options={"opt": 3, "fastmath": False},
                cc=COMPUTE_CAPABILITY.get(),
            )
            self.overloads[args] = compiled
            compiled.target_context.insert_user_function(compiled.entry_point, compiled.fndesc, [compiled.library])
        return self.overloads[args]


def device_function(fn: Callable) -> Any:
    """A plain Python function on tiles as something that compiled code can call."""
    return _DeviceFunction(fn, targetoptions={"device": True, "opt": True, "fastmath": False})


def _inlined_overload_template(*args: Any) -> type:
    base = make_overload_template(*args)
    return type(base)(base.__name__, (base,), {"_get_jit_decorator": lambda self: lambda **_: device_function})


NUMBA = SimpleNamespace(
    types=types,
    signature=signature,
    AbstractTemplate=AbstractTemplate,
    AttributeTemplate=AttributeTemplate,
    make_overload_template=_inlined_overload_template,
    typing_registry=TypingRegistry(),
    lowering_registry=LoweringRegistry(),
    register_model=register_model,
    models=models,
    cgutils=cgutils,
    TypingError=TypingError,
)
TILE = make_types(types, TypingError, "cuda")


def has_matrix_instructions(arch: str) -> bool:
    """Whether an architecture has the matrix instructions of this lowering."""
    return architecture(arch).matrix in ("mma.sync", "wgmma")


def bound_config(cfg: api.Config) -> entry.BoundConfig:
    """The configuration as a constant of a generated module."""
    if not has_matrix_instructions(cfg.arch):
        raise TypingError(f"the CUDA lowering needs sm_80 or later, got {cfg.arch}")
    return entry.BoundConfig(TILE.Config(cfg))


@typeof_impl.register(entry.BoundConfig)
def _typeof_bound_config(value: entry.BoundConfig, c: Any) -> Any:
    return value.numba_type


# ------------------------------------------------------------------------------------------------ which shapes can be


def _check_layout(ty: Any) -> None:
    """Refuse what does not fit the layout."""
    if isinstance(ty, types.BaseTuple):
        for each in ty:
            _check_layout(each)
    elif isinstance(ty, TILE.Rows | TILE.Tile) and _is_line(ty):
        if ty.m % ty.hw[1] or getattr(ty, "n", 0) % _Lines.columns:
            raise TypingError(
                f"{ty.hw[0]} with line=True and {ty.hw[1]} waves: rows in multiples of the waves, columns in multiples "
                f"of {_Lines.columns}; got {ty}"
            )
        return
    elif isinstance(ty, TILE.Operand | TILE.Stage) and _is_line(ty):
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


def _checked(rule: Callable) -> Callable:
    @functools.wraps(rule)
    def typed(*args: Any) -> Any:
        result = rule(*args)
        if isinstance(result, PartialRows):  # a rule that returns the type of an argument
            result = TILE.Rows(result.m, result.kind, result.hw)
        _check_layout(result)
        return result

    return typed


# --------------------------------------------------------------------------------------------------------- data models


def _is_line(ty: Any) -> bool:
    """Whether rows lie along lanes."""
    return ty.hw[2] == "line"


def _slots(ty: Any) -> int:
    """Rows that a lane has a part of."""
    return ty.m // ty.hw[1] if _is_line(ty) else 2 * _m_tiles(ty)


def _m_tiles(ty: Any) -> int:
    """m-tiles (16 rows) of one warp."""
    return ty.m // (16 * ty.hw[1])


def _columns(ty: Any) -> int:
    return ty.n if isinstance(ty, TILE.Tile) else ty.k


def _is_packed(ty: Any) -> bool:
    """Whether a value holds 16-bit elements in pairs, for mma.sync."""
    return isinstance(ty, TILE.Operand | TILE.Stage) and ty.dtype != "float32"


def _storage(ty: Any) -> ir.ArrayType:
    """What one lane holds of rows, a tile or an operand."""
    if isinstance(ty, TILE.Rows):
        return ir.ArrayType({"f32": F32, "i32": I32, "i1": I1}[ty.kind], _slots(ty))
    per_lane = ty.m // ty.hw[1] * _columns(ty) // LANES
    return ir.ArrayType(I32, per_lane // 2) if _is_packed(ty) else ir.ArrayType(F32, per_lane)


class _ArrayModel(models.PrimitiveModel):
    def __init__(self, manager: Any, ty: Any):
        super().__init__(manager, ty, _storage(ty))


for _type in (TILE.Rows, TILE.Tile, TILE.Operand):
    register_model(_type)(_ArrayModel)
register_model(TILE.Config)(models.OpaqueModel)


class PartialRows(TILE.Rows):
    """Rows of f32 that are the sum of what the four lanes of a quad hold: a running sum that is added up at its end."""

    def __init__(self, m: int, hw: tuple):
        super().__init__(m, "f32", hw)
        self.name = f"cuda.PartialRows({m},{hw})"

    def unify(self, typingctx: Any, other: Any) -> Any:
        """A variable that also holds complete rows holds partial ones."""
        return self if isinstance(other, TILE.Rows) and other.kind == "f32" and other.m == self.m else None


register_model(PartialRows)(_ArrayModel)


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


def _softmax_step(rule: Callable) -> Callable:
    """The typing rule of `softmax_step`: its sums stay partial."""

    @functools.wraps(rule)
    def typed(*args: Any) -> Any:
        p, m, sums, acc = rule(*args)
        if _is_line(p):
            raise TypingError("softmax_step: a kernel with products needs a configuration with line=False")
        return types.Tuple((p, m, PartialRows(sums.m, sums.hw), acc))

    return typed


def _loaded_operand(rule: Callable) -> Callable:
    """The typing rule of `load_operand`, with the choice of where the operand is kept."""

    @functools.wraps(rule)
    def typed(*args: Any) -> Any:
        ty = rule(*args)
        _check_layout(ty)
        stored = _is_packed(ty) and _storage(ty).count > OPERAND_REGISTERS
        return StoredOperand(ty.m, ty.k, ty.dtype, ty.hw) if stored else ty

    return typed


@register_model(TILE.Stage)
class _StageModel(models.StructModel):
    """The source (address, extents, strides in bytes), and shared-memory addresses of the two windows.

    ``window`` is the one in use, ``both`` the sum of both; the one being fetched starts at ``row0`` and ``col0``.
    A paged one also has the table, its entries and stride, and rows, stride and number of the pages.
    """

    MEMBERS = ("source", "rows", "columns", "row_stride", "column_stride", "row0", "col0", "window", "both")

    def __init__(self, manager: Any, ty: Any):
        wide, narrow = self.MEMBERS[:-2], self.MEMBERS[-2:]
        members = [(name, types.int64) for name in wide] + [(name, types.int32) for name in narrow]
        if ty.paged:
            members += [(name, types.int64) for name in PAGED_MEMBERS]
        # The bytes of this thread's part of the next window of a quantised source, on their way.
        members += [(name, types.int32) for name in _raw_words(ty)]
        super().__init__(manager, ty, members)


register_tensor_model(NUMBA, TILE)


# ---------------------------------------------------------------------------------------------------------- IR helpers


def _unpack(b: ir.IRBuilder, value: ir.Value) -> list[ir.Value]:
    return [b.extract_value(value, i) for i in range(value.type.count)]


def _pack(b: ir.IRBuilder, values: list[ir.Value]) -> ir.Value:
    array = ir.Constant(ir.ArrayType(values[0].type, len(values)), ir.Undefined)
    for i, v in enumerate(values):
        array = b.insert_value(array, v, i)
    return array


def _stack(b: ir.IRBuilder, ty: ir.Type) -> ir.Value:
    """Room in the thread's stack; numba's own helper would fill it with zeros, in every thread."""
    with b.goto_entry_block():
        return b.alloca(ty)


def _asm(
    b: ir.IRBuilder, code: str, result: ir.Type, constraints: str, args: list[ir.Value], effect: bool = False
) -> ir.Value:
    """Inline PTX. Without ``effect`` it depends on its arguments only."""
    fnty = ir.FunctionType(result, [a.type for a in args])
    return b.call(
        ir.InlineAsm(fnty, code, constraints, side_effect=effect),
        args,
        attrs=() if effect else ("readnone", "nounwind"),
    )


def _asm_many(
    b: ir.IRBuilder, code: str, results: list[ir.Type], constraints: str, args: list[ir.Value], effect: bool = False
) -> list[ir.Value]:
    """Inline PTX with several results."""
    value = _asm(b, code, ir.LiteralStructType(results), constraints, args, effect)
    return [b.extract_value(value, i) for i in range(len(results))]


def _split(values: list, lengths: list[int]) -> list[list]:
    """Consecutive parts of a list."""
    ends = list(itertools.accumulate(lengths))
    return [values[end - n : end] for n, end in zip(lengths, ends, strict=True)]


def _if_else(b: ir.IRBuilder, condition: ir.Value, then: Callable, otherwise: Callable) -> list[ir.Value]:
    """The values of ``then()`` or of ``otherwise()``: lists of equal length."""
    with b.if_else(condition) as (yes, no):
        with yes:
            left = then()
            left_block = b.block
        with no:
            right = otherwise()
            right_block = b.block
    results = []
    for x, y in zip(left, right, strict=True):
        phi = b.phi(x.type)
        phi.add_incoming(x, left_block)
        phi.add_incoming(y, right_block)
        results.append(phi)
    return results


def _call_outlined(b: ir.IRBuilder, name: str, args: list[ir.Value], emit: Callable[..., None]) -> None:
    """Run ``emit(builder, *args)`` in a function of its own.

    What is rare goes there, so that it costs the common path no registers. A name stands for one body in a module.
    """
    fn = b.module.globals.get(name)
    if fn is None:
        fn = ir.Function(b.module, ir.FunctionType(VOID, [a.type for a in args]), name)
        fn.linkage = "internal"
        fn.attributes.add("noinline")
        body = ir.IRBuilder(fn.append_basic_block("entry"))
        emit(body, *fn.args)
        body.ret_void()
    b.call(fn, args)


def _outlined(
    b: ir.IRBuilder, name: str, args: list[ir.Value], arrays: list[list[ir.Value]], result: ir.ArrayType, emit: Callable
) -> list[ir.Value]:
    """The list that ``emit(builder, *args, *arrays)`` returns, of a given type; see `_call_outlined`.

    Arrays travel through memory.
    """
    types = [ir.ArrayType(values[0].type, len(values)) for values in arrays]
    places = [_stack(b, t) for t in (*types, result)]
    for values, place in zip(arrays, places, strict=False):
        b.store(_pack(b, values), place)

    def body(inner: ir.IRBuilder, *outer: ir.Value) -> None:
        scalars, pointers, into = outer[: len(args)], outer[len(args) : -1], outer[-1]
        results = emit(inner, *scalars, *(_unpack(inner, inner.load(pointer)) for pointer in pointers))
        inner.store(_pack(inner, results), into)

    _call_outlined(b, name, [*args, *places], body)
    return _unpack(b, b.load(places[-1]))


def _register(b: ir.IRBuilder, name: str) -> ir.Value:
    """A special register (32 bits)."""
    return call(b, f"llvm.nvvm.read.ptx.sreg.{name}", I32, [])


def _thread(b: ir.IRBuilder) -> ir.Value:
    return _register(b, "tid.x")


def _lane(b: ir.IRBuilder) -> ir.Value:
    return b.and_(_thread(b), const(I32, LANES - 1))


def _first_row(b: ir.IRBuilder, ty: Any) -> ir.Value:
    """First tile row of this thread's warp."""
    return b.mul(b.lshr(_thread(b), const(I32, 5)), const(I32, ty.m // ty.hw[1]))


def _rows_of_stage(ty: Any) -> Any:
    """A stage on the left of a product, as something that has rows."""
    return SimpleNamespace(m=ty.n, hw=ty.hw)


def _row_of_lane(b: ir.IRBuilder) -> ir.Value:
    """Row of this lane in an m-tile; its other one is 8 below."""
    return b.lshr(_lane(b), const(I32, 2))


def _column_of_lane(b: ir.IRBuilder, ty: Any = None) -> ir.Value:
    """First of this lane's columns: of its two in every 8, unless the rows of ``ty`` lie along lanes."""
    if ty is not None and _is_line(ty):
        return b.mul(_lane(b), const(I32, _Lines.wide))
    return b.shl(b.and_(_lane(b), const(I32, 3)), const(I32, 1))


def _elements(ty: Any) -> Iterator[tuple[int, int]]:
    """(slot of its row, column less the lane's) of each element of a tile, in the order of storage."""
    if _is_line(ty):
        yield from _Lines.elements(ty)
        return
    for i in range(_m_tiles(ty)):
        for j in range(_columns(ty) // 8):
            for half in (0, 1):
                for e in (0, 1):
                    yield 2 * i + half, 8 * j + e


class _Lines:
    """The layout of rows along lanes: consecutive rows belong to a warp, each to all of its lanes.

    Lane ``l`` has 8 columns from ``8 * l`` on of every 256: one 16-byte piece of a half type, two of float32.

    =====  ====================================================
    tile   ``[row of the warp][256 columns][8]`` float32 per lane
    rows   ``[row of the warp]``, the same in all lanes
    =====  ====================================================
    """

    wide = api.LINE_COLUMNS
    columns = LANES * wide

    @classmethod
    def elements(cls, ty: Any) -> Iterator[tuple[int, int]]:
        """As `_elements`."""
        for slot in range(_slots(ty)):
            for first in range(0, _columns(ty), cls.columns):
                for e in range(cls.wide):
                    yield slot, first + e

    @classmethod
    def pieces(cls, b: ir.IRBuilder, place: SimpleNamespace, dtype: str, shape: Any) -> Iterator[tuple]:
        """(address, whether it exists) of each 16-byte piece of a lane, in the order of storage."""
        size, count = DTYPES[dtype], 16 // DTYPES[dtype]
        column = b.zext(_column_of_lane(b, shape), I64)
        rest, offset = b.sub(place.rest, column), b.mul(column, const(I64, size))
        rows = [b.add(row, offset) for row in place.rows]
        starts = [first + e for first in range(0, _columns(shape), cls.columns) for e in range(0, cls.wide, count)]
        inside = {c: b.icmp_signed(">", rest, const(I64, c)) for c in starts}
        for slot, row in enumerate(rows):
            for c in starts:
                yield b.add(row, const(I64, c * size)), b.and_(place.exists[slot], inside[c])


def _barrier(b: ir.IRBuilder) -> None:
    call(b, "llvm.nvvm.barrier0", VOID, [])


def _wait_for_fetches(b: ir.IRBuilder, ty: Any) -> None:
    """Until the copies of all threads have arrived in local memory, where the products with a stage can read them."""
    _asm(b, "cp.async.wait_group 0;", VOID, "~{memory}", [], effect=True)
    if _is_swizzled(ty):
        # wgmma reads local memory past the order that ordinary accesses have among themselves.
        _asm(b, "fence.proxy.async.shared::cta;", VOID, "~{memory}", [], effect=True)
    _barrier(b)


def _any_in_block(b: ir.IRBuilder, condition: ir.Value) -> ir.Value:
    """Whether the condition holds in any thread; a barrier."""
    return b.icmp_signed("!=", call(b, "llvm.nvvm.barrier0.or", I32, [b.zext(condition, I32)]), const(I32, 0))


def _any_in_warp(b: ir.IRBuilder, condition: ir.Value) -> ir.Value:
    code = "{.reg .pred p, q; setp.ne.u32 p, $1, 0; vote.sync.any.pred q, p, 0xffffffff; selp.u32 $0, 1, 0, q;}"
    return b.icmp_signed("!=", _asm(b, code, I32, "=r,r", [b.zext(condition, I32)], effect=True), const(I32, 0))


# ---------------------------------------------------------------------------------------------------------- arithmetic


def _fma(b: ir.IRBuilder, x: ir.Value, y: ir.Value, z: ir.Value) -> ir.Value:
    return call(b, "llvm.fma.f32", F32, [x, y, z])


def _fmax(b: ir.IRBuilder, x: ir.Value, y: ir.Value) -> ir.Value:
    """The larger; a NaN is ignored."""
    return _asm(b, "max.f32 $0, $1, $2;", F32, "=f,f,f", [x, y])


def _exp2(b: ir.IRBuilder, x: ir.Value) -> ir.Value:
    """Relative error 2 ** -22; 0 below 2 ** -126."""
    return _asm(b, "ex2.approx.ftz.f32 $0, $1;", F32, "=f,f", [x])


def _sqrt(b: ir.IRBuilder, x: ir.Value) -> ir.Value:
    return _asm(b, "sqrt.rn.f32 $0, $1;", F32, "=f,f", [x])


def _fabs(b: ir.IRBuilder, x: ir.Value) -> ir.Value:
    return _asm(b, "abs.f32 $0, $1;", F32, "=f,f", [x])


def _divide(b: ir.IRBuilder, x: ir.Value, y: ir.Value) -> ir.Value:
    """x / y to two units in the last place, y being neither very small nor very large."""
    return _asm(b, "div.full.f32 $0, $1, $2;", F32, "=f,f,f", [x, y])


ACTIVATIONS = Activations(exp2=_exp2, divide=_divide)


def _floor_divide(b: ir.IRBuilder, x: ir.Value, y: ir.Value) -> tuple[ir.Value, ir.Value]:
    """Python's // and % of integers."""
    zero = const(x.type, 0)
    quotient, rest = b.sdiv(x, y), b.srem(x, y)
    adjust = b.and_(b.icmp_signed("!=", rest, zero), b.icmp_signed("<", b.xor(rest, y), zero))
    return b.select(adjust, b.sub(quotient, const(x.type, 1)), quotient), b.select(adjust, b.add(rest, y), rest)


def _tree(b: ir.IRBuilder, values: list[ir.Value], combine: Callable) -> ir.Value:
    """Combine values pairwise."""
    while len(values) > 1:
        values = [combine(*values[i : i + 2]) if i + 1 < len(values) else values[i] for i in range(0, len(values), 2)]
    return values[0]


def _shuffle(b: ir.IRBuilder, x: ir.Value, lane: ir.Value) -> ir.Value:
    """``x`` of another lane."""
    return _asm(b, "shfl.sync.idx.b32 $0, $1, $2, 31, 0xffffffff;", F32, "=f,f,r", [x, lane], effect=True)


def _reduce_quad(b: ir.IRBuilder, x: ir.Value, combine: Callable, lanes: int = 4) -> ir.Value:
    """Combine over the four lanes (or more) that share rows."""
    for distance in (1, 2, 4, 8, 16)[: lanes.bit_length() - 1]:
        code = f"shfl.sync.bfly.b32 $0, $1, {distance}, 31, 0xffffffff;"
        x = combine(x, _asm(b, code, F32, "=f,f", [x], effect=True))
    return x


def _transpose_quad(b: ir.IRBuilder, words: list[ir.Value]) -> list[ir.Value]:
    """Exchange four words of each of the four lanes of a quad: lane t gets word t of lane 0, 1, 2, 3."""
    words, lane = list(words), _thread(b)
    for distance in (2, 1):
        upper = b.icmp_signed("!=", b.and_(lane, const(I32, distance)), const(I32, 0))
        code = f"shfl.sync.bfly.b32 $0, $1, {distance}, 31, 0xffffffff;"
        for i in (0, 1) if distance == 2 else (0, 2):
            low, high = words[i], words[i + distance]
            other = _asm(b, code, I32, "=r,r", [b.select(upper, low, high)], effect=True)
            words[i], words[i + distance] = b.select(upper, other, low), b.select(upper, high, other)
    return words


def _complete_rows(b: ir.IRBuilder, ty: Any, value: ir.Value) -> list[ir.Value]:
    """The values of rows; partial ones are added up."""
    values = _unpack(b, value)
    return [_reduce_quad(b, x, b.fadd) for x in values] if isinstance(ty, PartialRows) else values


def _partial_rows(b: ir.IRBuilder, ty: Any, value: ir.Value) -> list[ir.Value]:
    """The values of rows as partial ones: the first lane of a quad has them."""
    if isinstance(ty, PartialRows):
        return _unpack(b, value)
    first = b.icmp_signed("==", _column_of_lane(b), const(I32, 0))
    return [b.select(first, x, const(F32, 0.0)) for x in _unpack(b, value)]


@NUMBA.lowering_registry.lower_cast(TILE.Rows, PartialRows)
def _cast_to_partial_rows(context: Any, b: ir.IRBuilder, source: Any, target: Any, value: ir.Value) -> ir.Value:
    return _pack(b, _partial_rows(b, source, value))


# ------------------------------------------------------------------------------------------------------- global memory

_BITS = {
    "float32": "b32", "float16": "b16", "bfloat16": "b16", "bool": "u8", "int32": "b32", "int64": "b64", "uint8": "u8",
    "int8": "u8", "float8_e4m3fn": "u8", "float8_e5m2": "u8",
}  # fmt: skip
#: PTX register constraint and LLVM type that take a loaded element.
_REGISTERS = {"b16": ("h", I16), "u8": ("r", I32), "b32": ("r", I32), "b64": ("l", I64)}


def _load_bits(b: ir.IRBuilder, address: ir.Value, dtype: str, exists: ir.Value) -> ir.Value:
    """An element as an integer of its bits; 0, without touching memory, where it does not exist."""
    bits = _BITS[dtype]
    letter, ty = _REGISTERS[bits]
    code = f"{{.reg .pred p; setp.ne.b32 p, $2, 0; mov.b{ty.width} $0, 0; @p ld.global.{bits} $0, [$1];}}"
    return _asm(b, code, ty, f"=&{letter},l,r", [address, b.zext(exists, I32)], effect=True)


def _bits_to_float32(b: ir.IRBuilder, x: ir.Value, dtype: str) -> ir.Value:
    if dtype == "float32":
        return b.bitcast(x, F32)
    if dtype == "float16":
        return b.fpext(b.bitcast(x, F16), F32)
    if dtype == "bfloat16":
        return b.bitcast(b.shl(b.zext(x, I32), const(I32, 16)), F32)
    if dtype == "bool":
        return b.uitofp(b.icmp_signed("!=", x, const(I32, 0)), F32)
    if dtype in QUANTIZED:
        return from_byte(b, b.trunc(x, I8), dtype)
    return b.uitofp(x, F32) if dtype == "uint8" else b.sitofp(x, F32)


def _store_bits(b: ir.IRBuilder, address: ir.Value, bits: ir.Value, exists: ir.Value) -> None:
    """Store an integer of 16 or 32 bits where it exists."""
    letter, width = ("h", 16) if bits.type == I16 else ("r", 32)
    code = f"{{.reg .pred p; setp.ne.b32 p, $2, 0; @p st.global.b{width} [$0], $1;}}"
    _asm(b, code, VOID, f"l,{letter},r,~{{memory}}", [address, bits, b.zext(exists, I32)], effect=True)


def _store_float32(b: ir.IRBuilder, address: ir.Value, x: ir.Value, dtype: str, exists: ir.Value) -> None:
    """Round to the element type, to nearest even, and store where the element exists."""
    if dtype == "float32":
        _store_bits(b, address, b.bitcast(x, I32), exists)
    else:
        _store_bits(b, address, _asm(b, f"cvt.rn.{_PTX_TYPE[dtype]}.f32 $0, $1;", I16, "=h,f", [x]), exists)


#: PTX type, registers and constraint of a piece of so many bytes.
_PIECES = {2: ("u16", 1, "r"), 4: ("b32", 1, "r"), 8: ("v2.b32", 2, "r"), 16: ("v4.b32", 4, "r")}


def _load_piece(b: ir.IRBuilder, address: ir.Value, nbytes: int, exists: ir.Value) -> list[ir.Value]:
    """Consecutive bytes as i32 words (2 bytes: one word); 0, without touching memory, where they do not exist."""
    kind, count, _ = _PIECES[nbytes]
    names = [f"${i}" for i in range(count)]
    clear = " ".join(f"mov.b32 {name}, 0;" for name in names)
    target = names[0] if count == 1 else f"{{{', '.join(names)}}}"
    code = f"{{.reg .pred p; setp.ne.b32 p, ${count + 1}, 0; {clear} @p ld.global.{kind} {target}, [${count}];}}"
    args = [address, b.zext(exists, I32)]
    if count == 1:
        return [_asm(b, code, I32, "=&r,l,r", args, effect=True)]
    return _asm_many(b, code, [I32] * count, ",".join(["=&r"] * count) + ",l,r", args, effect=True)


def _store_piece(b: ir.IRBuilder, address: ir.Value, words: list[ir.Value], exists: ir.Value) -> None:
    """Store 1, 2 or 4 words, aligned to their size, where they exist."""
    count = len(words)
    names = ", ".join(f"${i + 2}" for i in range(count))
    kind = "b32" if count == 1 else f"v{count}.b32"
    code = f"{{.reg .pred p; setp.ne.b32 p, $1, 0; @p st.global.{kind} [$0], {{{names}}};}}"
    if count == 1:
        code = code.replace("{$2}", "$2")
    constraints = "l,r" + ",r" * count + ",~{memory}"
    _asm(b, code, VOID, constraints, [address, b.zext(exists, I32), *words], effect=True)


def _join_pairs(b: ir.IRBuilder, elements: list[ir.Value], dtype: str) -> list[ir.Value]:
    """Bits of elements as words of pairs; see `CudaLowering.gather`."""
    size = DTYPES[dtype]
    if size == 8:
        parts = [(b.trunc(x, I32), b.trunc(b.lshr(x, const(I64, 32)), I32)) for x in elements]
        return [word for part in parts for word in part]
    if size == 4:
        return elements
    wide = [x if x.type == I32 else b.zext(x, I32) for x in elements]
    return [b.or_(x, b.shl(y, const(I32, 8 * size))) for x, y in zip(wide[::2], wide[1::2], strict=True)]


def _split_pairs(b: ir.IRBuilder, words: list[ir.Value], dtype: str) -> list[ir.Value]:
    """Bits of the elements of words of pairs."""
    size = DTYPES[dtype]
    if size == 8:
        pairs = zip(words[::2], words[1::2], strict=True)
        return [b.or_(b.zext(x, I64), b.shl(b.zext(y, I64), const(I64, 32))) for x, y in pairs]
    if size == 4:
        return words
    if size == 2:
        return [b.trunc(b.lshr(x, const(I32, shift)), I16) for x in words for shift in (0, 16)]
    return [b.and_(b.lshr(x, const(I32, shift)), const(I32, 255)) for x in words for shift in (0, 8)]


def _pairs_to_float32(b: ir.IRBuilder, words: list[ir.Value], dtype: str) -> list[ir.Value]:
    return [_bits_to_float32(b, x, dtype) for x in _split_pairs(b, words, dtype)]


def _float32_to_pairs(b: ir.IRBuilder, values: list[ir.Value], dtype: str) -> list[ir.Value]:
    """Words of pairs, rounded to nearest even."""
    if dtype == "float32":
        return [b.bitcast(x, I32) for x in values]
    return _to_fragments(b, values, dtype)


# --------------------------------------------------------------------------------------------------- quantised sources


def _unit(ty: Any) -> int:
    """Consecutive elements of a stage of a quantised source that one thread decodes at a time."""
    return 2 * RUN if ty.k % (2 * RUN) == 0 else RUN


def _units_per_thread(ty: Any) -> int:
    return -(-ty.n * ty.k // (_unit(ty) * LANES * ty.hw[1]))


def _decode_unit(
    b: ir.IRBuilder, name: str, row: ir.Value, column: ir.Value, count: int, load: Callable[..., ir.Value]
) -> list[ir.Value]:
    """Elements ``column`` (i64) to ``column + count`` of a row of blocks at an address, as float32.

    ``count`` divides ``column``, and they belong to one block. ``load(address, needed)`` is asked for aligned 32-bit
    words; those that are not needed may hold anything, and so no byte is read beyond a word with one that is needed.
    """
    kind, fold = FORMATS[name], FoldingBuilder(b)
    block = b.mul(b.udiv(column, const(I64, kind.elements)), const(I64, kind.nbytes))
    start = b.add(row, block)

    def words(offset: ir.Value, nbytes: int) -> list[ir.Value]:
        address = b.add(start, b.zext(offset, I64))
        low = b.and_(b.trunc(address, I32), const(I32, 3))
        base, end = b.and_(address, const(I64, ~3)), b.add(low, const(I32, nbytes))
        raw = [
            load(b.add(base, const(I64, 4 * i)), b.icmp_unsigned(">", end, const(I32, 4 * i)))
            for i in range((nbytes + 6) // 4)
        ]
        shift = b.shl(low, const(I32, 3))
        code = "shf.r.wrap.b32 $0, $1, $2, $3;"
        return [
            _asm(b, code, I32, "=r,r,r,r", [raw[i], raw[min(i + 1, len(raw) - 1)], shift])
            for i in range((nbytes + 3) // 4)
        ]

    reader, step = LaneReader(fold, words), min(count, RUN)
    first = const(I32, 0) if count == kind.elements else b.and_(b.trunc(column, I32), const(I32, kind.elements - 1))
    runs = [kind.emit(fold, reader, fold.add(first, const(I32, i)), step) for i in range(0, count, step)]
    return list(itertools.chain(*runs))


def _raw_words(ty: Any) -> list[str]:
    """Members of a stage that hold the bytes on their way: an array would not be kept in registers."""
    if not ty.format:
        return []
    return [f"raw{i}" for i in range(_units_per_thread(ty) * _words_of_unit(ty.format, _unit(ty)))]


@functools.cache
def _words_of_unit(name: str, unit: int) -> int:
    """Words that `_decode_unit` asks for."""
    asked = []
    fn = ir.Function(ir.Module(), ir.FunctionType(VOID, [I64, I64]), "count")

    def load(address: ir.Value, needed: ir.Value) -> ir.Value:
        asked.append(address)
        return const(I32, 0)

    _decode_unit(ir.IRBuilder(fn.append_basic_block()), name, *fn.args, unit, load)
    return len(asked)


# ------------------------------------------------------------------------------------------------------- shared memory


#: Bytes of a row in a slab of a swizzled window, of 8 chunks; 8 rows are what the swizzle repeats after.
SLAB_ROW = 128


def _is_swizzled(ty: Any) -> bool:
    """Whether a window lies as wgmma reads it, which takes whole groups of four warps."""
    return (
        architecture(ty.hw[0]).matrix == "wgmma"
        and _is_packed(ty)
        and ty.hw[1] % 4 == 0
        and ty.k * DTYPES[ty.dtype] % SLAB_ROW == 0
    )


def _pitch(ty: Any) -> int:
    """Bytes from row to row of a window, or of a slab of it.

    A swizzled window is cut into slabs of 8 chunks of 16 bytes, one after the other; in row r of a slab, chunk c lies
    at place ``c ^ (r % 8)``. In others a row is an odd number of chunks. Either way 8 consecutive rows lie in different
    banks, whichever chunk is read.
    """
    if _is_swizzled(ty):
        return SLAB_ROW
    chunks = ty.k * DTYPES[ty.dtype] // 16
    return 16 * (chunks | 1)


class _Chunks:
    """Addresses of 16-byte chunks of a window: of row ``row`` and chunk ``chunk``, and of others relative to it."""

    def __init__(self, b: ir.IRBuilder, ty: Any, window: ir.Value, row: ir.Value, chunk: ir.Value):
        self.b, self.ty = b, ty
        if _is_swizzled(ty):
            seven = const(I32, 7)
            slab = b.mul(b.lshr(chunk, const(I32, 3)), const(I32, ty.n * SLAB_ROW))
            place = b.shl(b.and_(b.xor(chunk, row), seven), const(I32, 4))
            self.first = b.add(b.add(window, slab), b.add(b.mul(row, const(I32, SLAB_ROW)), place))
        else:
            self.first = b.add(window, b.add(b.mul(row, const(I32, _pitch(ty))), b.shl(chunk, const(I32, 4))))
        self.bases = {0: self.first}

    def at(self, rows: int, chunks: int = 0) -> tuple[ir.Value, int]:
        """Address and constant offset of the chunk so many rows and chunks on.

        The bits that are set in ``chunks`` must not be set in ``chunk``, and those of ``rows`` below 8 not in ``row``.
        """
        if not _is_swizzled(self.ty):
            return self.first, rows * _pitch(self.ty) + 16 * chunks
        turn = 16 * ((chunks ^ rows) % 8)
        if turn not in self.bases:
            self.bases[turn] = self.b.xor(self.first, const(I32, turn))
        return self.bases[turn], rows * SLAB_ROW + chunks // 8 * self.ty.n * SLAB_ROW


def _rows_per_pass(ty: Any) -> int:
    """Rows of a window that the block's threads copy at once, each 16 bytes; 0 if that is no whole number."""
    threads, chunks = LANES * ty.hw[1], ty.k * DTYPES[ty.dtype] // 16
    rows, rest = divmod(threads, chunks)
    return 0 if rest or ty.n % max(rows, 1) or (rows % 8 and 8 % rows) else rows


def _window_bytes(ty: Any) -> int:
    slabs = ty.k * DTYPES[ty.dtype] // SLAB_ROW if _is_swizzled(ty) else 1
    return ty.n * _pitch(ty) * slabs


def _load_shared(b: ir.IRBuilder, address: ir.Value, offset: int, count: int = 1, ty: ir.Type = F32) -> list[ir.Value]:
    """``count`` (1, 2, 4) consecutive words."""
    letter = "f" if ty == F32 else "r"
    if count == 1:
        return [_asm(b, f"ld.shared.b32 $0, [$1+{offset}];", ty, f"={letter},r", [address], effect=True)]
    results = ", ".join(f"${i}" for i in range(count))
    code = f"ld.shared.v{count}.b32 {{{results}}}, [${count}+{offset}];"
    return _asm_many(b, code, [ty] * count, ",".join([f"={letter}"] * count) + ",r", [address], effect=True)


def _ldmatrix(b: ir.IRBuilder, address: ir.Value, offset: int, transposed: bool) -> list[ir.Value]:
    """Four 8 x 8 matrices of 16-bit elements; lane l gives the address of row ``l % 8`` of matrix ``l / 8``."""
    trans = ".trans" if transposed else ""
    code = f"ldmatrix.sync.aligned.m8n8.x4{trans}.shared.b16 {{$0, $1, $2, $3}}, [$4+{offset}];"
    return _asm_many(b, code, [I32] * 4, "=r,=r,=r,=r,r", [address], effect=True)


class _FunctionState:
    """What the stages of one function share while it is lowered.

    Attributes
    ----------
    bytes : int
        Local memory that has been given out.
    settled : Block or None
        Block in which the last thing that happened to stages is an acquire.
    """

    def __init__(self) -> None:
        self.bytes = 0
        self.settled: ir.Block | None = None


_states: weakref.WeakKeyDictionary[ir.Function, _FunctionState] = weakref.WeakKeyDictionary()


# ------------------------------------------------------------------------------------------------- matrix instructions

_PTX_TYPE = {"float16": "f16", "bfloat16": "bf16"}


def _pair(b: ir.IRBuilder, low: ir.Value, high: ir.Value, dtype: str) -> ir.Value:
    """Two float32, rounded to 16 bits, in one register."""
    return _asm(b, f"cvt.rn.{_PTX_TYPE[dtype]}x2.f32 $0, $1, $2;", I32, "=r,f,f", [high, low])


def _to_fragments(b: ir.IRBuilder, values: list[ir.Value], dtype: str) -> list[ir.Value]:
    """A tile's values as A fragments: each 16 columns are two groups of 8, each with two rows of a pair."""
    return [_pair(b, values[i], values[i + 1], dtype) for i in range(0, len(values), 2)]


def _mma(b: ir.IRBuilder, left: list, right: list, acc: list, dtype: str) -> list[ir.Value]:
    t = _PTX_TYPE[dtype]
    code = (
        f"mma.sync.aligned.m16n8k16.row.col.f32.{t}.{t}.f32 "
        "{$0, $1, $2, $3}, {$4, $5, $6, $7}, {$8, $9}, {$10, $11, $12, $13};"
    )
    return _asm_many(b, code, [F32] * 4, "=f,=f,=f,=f,r,r,r,r,r,r,f,f,f,f", [*left, *right, *acc])


def _wgmma(
    b: ir.IRBuilder,
    ty: Any,
    window: ir.Value,
    left: list[list[ir.Value]] | tuple[Any, ir.Value],
    steps: range,
    acc: list[ir.Value] | None,
    by_rows: bool,
) -> list[ir.Value]:
    """acc + left @ window.T (``by_rows``) or left @ window, for the 64 rows of four warps.

    ``left`` has one A fragment for each step of 16 along the reduced axis, or it is the type and the window of a stage
    whose rows 64 g .. 64 g + 64 are those of the g-th four warps. A lane holds of the result what it holds of
    mma.sync's. The window is told by a descriptor (PTX ISA, "matrix descriptor"): address, distance of its slabs,
    distance of 8 rows, and the swizzle of 128 bytes.
    """
    columns, slab = (ty.n if by_rows else ty.k), ty.n * SLAB_ROW
    count, t = columns // 2, _PTX_TYPE[ty.dtype]
    layout = 1 << 62 | (8 * SLAB_ROW >> 4) << 32 | (slab >> 4) << 16
    descriptor = b.or_(b.zext(b.lshr(window, const(I32, 4)), I64), const(I64, layout))
    stage = left[0] if isinstance(left, tuple) else None
    if stage is None:
        registers, letter = [x for fragment in left for x in fragment], "r"
    else:
        # The same in all lanes, which the compiler cannot know.
        group = b.lshr(_thread(b), const(I32, 7))
        group = _asm(b, "shfl.sync.idx.b32 $0, $1, 0, 31, 0xffffffff;", I32, "=r,r", [group], effect=True)
        rows = b.add(left[1], b.mul(group, const(I32, 64 * SLAB_ROW)))
        layout_of_left = 1 << 62 | (8 * SLAB_ROW >> 4) << 32
        registers = [b.or_(b.zext(b.lshr(rows, const(I32, 4)), I64), const(I64, layout_of_left))]
        letter = "l"
    first = count if acc is None else 2 * count  # of the operands after the accumulators
    results = ", ".join(f"${i}" for i in range(count))
    lines = ["{.reg .pred p; .reg .b64 c, d; setp.ne.b32 p, 0, 0;", "wgmma.fence.sync.aligned;"]
    for i, step in enumerate(steps):
        chunks = 2 * step
        offset = chunks // 8 * slab + chunks % 8 * 16 if by_rows else 16 * step * SLAB_ROW
        fragment = f"{{{', '.join(f'${first + 4 * i + e}' for e in range(4))}}}"
        if stage is not None:
            offset_of_left = chunks // 8 * stage.n * SLAB_ROW + chunks % 8 * 16
            lines.append(f"add.s64 c, ${first}, {offset_of_left >> 4};")
            fragment = "c"
        if i == 1:
            lines.append("setp.eq.b32 p, 0, 0;")
        lines.append(f"add.s64 d, ${first + len(registers)}, {offset >> 4};")
        lines.append(
            f"wgmma.mma_async.sync.aligned.m64n{columns}k16.f32.{t}.{t} {{{results}}}, {fragment}, d, "
            f"p, 1, 1, {'' if stage is None else '0, '}{0 if by_rows else 1};"
        )
    if acc is not None:
        lines[0] = lines[0].replace("setp.ne", "setp.eq")
    lines += ["wgmma.commit_group.sync.aligned;", "wgmma.wait_group.sync.aligned 0;}"]
    tied = [] if acc is None else [str(i) for i in range(count)]
    constraints = ["=f"] * count + tied + [letter] * len(registers) + ["l", "~{memory}"]
    args = [*(acc or []), *registers, descriptor]
    return _asm_many(b, "\n".join(lines), [F32] * count, ",".join(constraints), args, effect=True)


class _Halves:
    """Bit tricks on a register of two 16-bit floats. Masks and results are for both halves at once."""

    def __init__(self, b: ir.IRBuilder, dtype: str):
        self.b = b
        mantissa_bits = {"float16": 10, "bfloat16": 7}[dtype]
        self.mantissa = (1 << mantissa_bits) - 1
        self.exponent = 0x7FFF & ~self.mantissa
        self.one = {"float16": 0x3C00, "bfloat16": 0x3F80}[dtype]

    @staticmethod
    def both(bits: int) -> ir.Constant:
        return const(I32, bits << 16 | bits)

    def _carry(self, x: ir.Value, field: int, addend: int, bit: int) -> ir.Value:
        """1 in each half whose ``field`` plus ``addend`` carries into ``bit``; the sum stays within the half."""
        b = self.b
        total = b.add(b.and_(x, self.both(field)), self.both(addend))
        return b.and_(b.lshr(total, const(I32, bit)), self.both(1))

    def spread(self, flags: ir.Value, bits: int) -> ir.Value:
        """``bits`` in each half that has a flag."""
        return self.b.mul(flags, const(I32, bits))

    def not_finite(self, x: ir.Value) -> ir.Value:
        """1 where the exponent is all ones."""
        return self._carry(x, self.exponent, self.mantissa + 1, 15)

    def not_zero(self, x: ir.Value) -> ir.Value:
        return self._carry(x, 0x7FFF, 0x7FFF, 15)

    def has_mantissa(self, x: ir.Value) -> ir.Value:
        return self._carry(x, self.mantissa, self.mantissa, self.mantissa.bit_length())

    def sign(self, x: ir.Value) -> ir.Value:
        return self.b.and_(x, self.both(0x8000))

    def finite_or_zero(self, x: ir.Value) -> ir.Value:
        return self.b.and_(x, self.b.not_(self.spread(self.not_finite(x), 0xFFFF)))

    def direction(self, x: ir.Value) -> ir.Value:
        """1, -1 or 0: the sign of each number."""
        return self.b.or_(self.spread(self.not_zero(x), self.one), self.sign(x))

    def size_direction(self, x: ir.Value) -> ir.Value:
        """1 where the number is not 0."""
        return self.spread(self.not_zero(x), self.one)

    def infinity_direction(self, x: ir.Value) -> ir.Value:
        """1 or -1 where the number is infinite, else 0."""
        b = self.b
        bad = self.not_finite(x)
        infinite = b.and_(bad, b.not_(self.has_mantissa(x)))
        return b.or_(self.spread(infinite, self.one), b.and_(self.sign(x), self.spread(infinite, 0x8000)))

    def not_finite_one(self, x: ir.Value) -> ir.Value:
        return self.spread(self.not_finite(x), self.one)


# ------------------------------------------------------------------------------------------------------------ lowering


class CudaLowering(TensorLowering):
    """One method per operation: see `binding.bind`."""

    # --------------------------------------------------------------------------------------------------- the block
    def config(self, context: Any, b: ir.IRBuilder, sig: Any, bound: Any, *index: ir.Value) -> ir.Value:
        return context.get_dummy_value()

    def block_id(self, context: Any, b: ir.IRBuilder, sig: Any, cfg: Any, axis: Any) -> ir.Value:
        return b.zext(_register(b, "ctaid." + "xyz"[sig.args[1].literal_value]), I64)

    # -------------------------------------------------------------------------------------------------------- rows
    def per_slot(self, context: Any, b: ir.IRBuilder, ty: Any, value: ir.Value, like: Any) -> list[ir.Value]:
        """The values of rows, or a scalar once for each row of ``like``."""
        if isinstance(ty, TILE.Rows):
            return _complete_rows(b, ty, value)
        return [self.scalar(context, b, ty, value, like.kind)] * _slots(like)

    def row_index(self, context: Any, b: ir.IRBuilder, sig: Any, *_: Any) -> ir.Value:
        first = _first_row(b, sig.return_type)
        if _is_line(sig.return_type):
            return _pack(b, [b.add(first, const(I32, i)) for i in range(_slots(sig.return_type))])
        first = b.add(first, _row_of_lane(b))
        return _pack(b, [b.add(first, const(I32, 8 * i)) for i in range(2 * _m_tiles(sig.return_type))])

    def full_rows(self, context: Any, b: ir.IRBuilder, sig: Any, cfg: Any, m: Any, value: ir.Value) -> ir.Value:
        return _pack(b, self.per_slot(context, b, sig.args[2], value, sig.return_type))

    def where(self, context: Any, b: ir.IRBuilder, sig: Any, condition: ir.Value, x: ir.Value, y: ir.Value) -> ir.Value:
        values = (self.per_slot(context, b, t, v, sig.return_type) for t, v in zip(sig.args[1:], (x, y), strict=True))
        return _pack(b, [b.select(*c) for c in zip(_unpack(b, condition), *values, strict=True)])

    def minimum(self, context: Any, b: ir.IRBuilder, sig: Any, x: ir.Value, y: ir.Value) -> ir.Value:
        def emit(p: ir.Value, q: ir.Value) -> ir.Value:
            if p.type == F32:
                first = b.or_(b.fcmp_ordered("<", p, q), b.fcmp_unordered("uno", p, p))
            else:
                first = b.icmp_signed("<", p, q)
            return b.select(first, p, q)

        return self.combine_rows(context, b, sig, x, y, emit)

    def maximum(self, context: Any, b: ir.IRBuilder, sig: Any, x: ir.Value, y: ir.Value) -> ir.Value:
        def emit(p: ir.Value, q: ir.Value) -> ir.Value:
            return _fmax(b, p, q) if p.type == F32 else b.select(b.icmp_signed(">", p, q), p, q)

        return self.combine_rows(context, b, sig, x, y, emit)

    def combine_rows(self, context: Any, b: ir.IRBuilder, sig: Any, x: Any, y: Any, emit: Callable) -> ir.Value:
        """``emit`` on each pair of values of two rows, or of rows and a scalar."""
        like = next(t for t in sig.args if isinstance(t, TILE.Rows))
        values = (self.per_slot(context, b, t, v, like) for t, v in zip(sig.args, (x, y), strict=True))
        return _pack(b, [emit(*pair) for pair in zip(*values, strict=True)])

    def reciprocal_or_zero(self, context: Any, b: ir.IRBuilder, sig: Any, x: ir.Value) -> ir.Value:
        def emit(v: ir.Value) -> ir.Value:
            return b.select(b.fcmp_ordered("==", v, const(F32, 0.0)), const(F32, 0.0), b.fdiv(const(F32, 1.0), v))

        return _pack(b, [emit(v) for v in _complete_rows(b, sig.args[0], x)])

    def log2(self, context: Any, b: ir.IRBuilder, sig: Any, x: ir.Value) -> ir.Value:
        return _pack(b, [call(b, "__nv_log2f", F32, [v]) for v in _complete_rows(b, sig.args[0], x)])

    def sqrt(self, context: Any, b: ir.IRBuilder, sig: Any, x: ir.Value) -> ir.Value:
        return _pack(b, [_sqrt(b, v) for v in _complete_rows(b, sig.args[0], x)])

    def row_addresses(self, context: Any, b: ir.IRBuilder, ty: Any, x: Any, index_ty: Any, index: Any, m: Any) -> tuple:
        """Address of each row that this lane has, of a tensor whose last axes are not indexed; shape and strides."""
        data, shape, strides = self.unpack_tensor(context, b, ty, x)
        addresses = [b.ptrtoint(data, I64)] * _slots(m)
        for (t, v), stride in zip(self.index_entries(context, b, index_ty, index), strides, strict=False):
            if isinstance(t, TILE.Rows):
                offsets = [b.mul(b.sext(i, I64), stride) for i in _unpack(b, v)]
            else:
                offsets = [b.mul(self.scalar(context, b, t, v, "i64"), stride)] * len(addresses)
            addresses = [b.add(a, o) for a, o in zip(addresses, offsets, strict=True)]
        return addresses, shape, strides

    def load_rows(self, context: Any, b: ir.IRBuilder, sig: Any, x: ir.Value, index: ir.Value, valid: Any) -> ir.Value:
        ty = sig.args[0]
        addresses, _, _ = self.row_addresses(context, b, ty, x, sig.args[1], index, sig.return_type)
        pairs = zip(addresses, _unpack(b, valid), strict=True)
        return _pack(b, [_bits_to_float32(b, _load_bits(b, a, ty.dtype, v), ty.dtype) for a, v in pairs])

    def load_integers(
        self, context: Any, b: ir.IRBuilder, sig: Any, x: ir.Value, index: ir.Value, valid: Any
    ) -> ir.Value:
        ty = sig.args[0]
        addresses, _, _ = self.row_addresses(context, b, ty, x, sig.args[1], index, sig.return_type)
        pairs = zip(addresses, _unpack(b, valid), strict=True)
        return _pack(b, [as_int32(b, _load_bits(b, a, ty.dtype, v)) for a, v in pairs])

    def store_rows(
        self, context: Any, b: ir.IRBuilder, sig: Any, x: ir.Value, index: ir.Value, values: ir.Value, valid: Any
    ) -> ir.Value:
        ty = sig.args[0]
        addresses, _, _ = self.row_addresses(context, b, ty, x, sig.args[1], index, sig.args[2])
        one_of_quad = b.icmp_signed("==", _column_of_lane(b, sig.args[2]), const(I32, 0))
        rows = _complete_rows(b, sig.args[2], values)
        for a, value, v in zip(addresses, rows, _unpack(b, valid), strict=True):
            if ty.dtype == "int32":
                _store_bits(b, a, value, b.and_(v, one_of_quad))
            else:
                _store_float32(b, a, value, ty.dtype, b.and_(v, one_of_quad))
        return context.get_dummy_value()

    def over_block(self, b: ir.IRBuilder, ty: Any, x: ir.Value, combine: Callable) -> ir.Value:
        """Combine float32 rows over the block; a float64."""
        value = functools.reduce(combine, _complete_rows(b, ty, x))
        for distance in () if _is_line(ty) else (4, 8, 16):
            code = f"shfl.sync.bfly.b32 $0, $1, {distance}, 31, 0xffffffff;"
            value = combine(value, _asm(b, code, F32, "=f,f", [value], effect=True))
        warps = ty.hw[1]
        if warps > 1:
            room = b.module.globals.get("over_block")
            if room is None:
                room = ir.GlobalVariable(b.module, ir.ArrayType(F32, 32), "over_block", addrspace=3)
                room.linkage, room.initializer = "internal", ir.Constant(room.value_type, ir.Undefined)
            address = b.trunc(b.ptrtoint(room, I64), I32)
            with b.if_then(b.icmp_signed("==", _lane(b), const(I32, 0))):
                own = b.add(address, b.shl(b.lshr(_thread(b), const(I32, 5)), const(I32, 2)))
                _asm(b, "st.shared.b32 [$0], $1;", VOID, "r,f,~{memory}", [own, value], effect=True)
            _barrier(b)
            value = functools.reduce(combine, [_load_shared(b, address, 4 * i)[0] for i in range(warps)])
            _barrier(b)  # before the next value is written there
        return b.fpext(value, F64)

    def total(self, context: Any, b: ir.IRBuilder, sig: Any, x: ir.Value) -> ir.Value:
        return self.over_block(b, sig.args[0], x, b.fadd)

    def largest(self, context: Any, b: ir.IRBuilder, sig: Any, x: ir.Value) -> ir.Value:
        return self.over_block(b, sig.args[0], x, functools.partial(_fmax, b))

    # ------------------------------------------------------------------------------------------------------- tiles
    def map_tile(self, b: ir.IRBuilder, value: ir.Value, emit: Callable) -> ir.Value:
        return _pack(b, [emit(v) for v in _unpack(b, value)])

    def zeros(self, context: Any, b: ir.IRBuilder, sig: Any, *_: Any) -> ir.Value:
        return _pack(b, [const(F32, 0.0)] * _storage(sig.return_type).count)

    def place(
        self, context: Any, b: ir.IRBuilder, tensor: tuple, index: tuple, first: tuple, valid: Any, shape: Any
    ) -> SimpleNamespace:
        """Where a tile lies in a tensor; ``tensor``, ``index`` and ``first`` (column) are (type, value).

        ``rows`` has the address of the first column of each of this lane's rows, ``exists`` whether there is such a
        row, ``rest`` the number of columns from there on, ``stride`` the bytes from one to the next.
        """
        addresses, extents, strides = self.row_addresses(context, b, *tensor, *index, shape)
        col0, size = self.scalar(context, b, *first, "i64"), const(I64, DTYPES[tensor[0].dtype])
        data = b.ptrtoint(self.unpack_tensor(context, b, *tensor)[0], I64)
        return SimpleNamespace(
            rows=[b.add(a, b.mul(col0, strides[-1])) for a in addresses],
            exists=_unpack(b, valid),
            rest=b.sub(extents[-1], col0),
            stride=strides[-1],
            dense=b.icmp_signed("==", strides[-1], size),
            # A number of bytes divides all addresses and the columns if it divides this.
            alignment=functools.reduce(b.or_, [data, *strides[:-1], b.mul(col0, size), b.mul(extents[-1], size)]),
        )

    def in_pieces(self, b: ir.IRBuilder, place: SimpleNamespace, dtype: str, shape: Any) -> tuple[int, ir.Value]:
        """Bytes that a lane moves at once, and whether this tensor allows it."""
        size = DTYPES[dtype]
        if _is_line(shape):
            nbytes = 16
        else:
            nbytes = 16 if size == 2 and _columns(shape) % 32 == 0 else 2 * size
        aligned = b.icmp_signed("==", b.and_(place.alignment, const(I64, nbytes - 1)), const(I64, 0))
        if _is_line(shape) and size not in (2, 4):
            aligned = const(I1, 0)
        return nbytes, b.and_(place.dense, aligned)

    @staticmethod
    def pieces(b: ir.IRBuilder, place: SimpleNamespace, dtype: str, shape: Any, nbytes: int) -> Iterator[tuple]:
        """(m-tile, half, first 8 columns' number, address, whether it exists) of each piece of a lane."""
        size = DTYPES[dtype]
        wide = nbytes // size  # columns of a piece; the four lanes of a quad lie side by side
        column = b.zext(b.mul(b.and_(_thread(b), const(I32, 3)), const(I32, wide)), I64)
        rest = b.sub(place.rest, column)
        offset = b.mul(column, const(I64, size))
        rows = [b.add(row, offset) for row in place.rows]
        inside = {c: b.icmp_signed(">", rest, const(I64, c)) for c in range(0, _columns(shape), 4 * wide)}
        for i in range(_m_tiles(shape)):
            for c, there in inside.items():
                for half in (0, 1):
                    address = b.add(rows[2 * i + half], const(I64, c * size))
                    yield i, half, c // 8, address, b.and_(place.exists[2 * i + half], there)

    @staticmethod
    def single_elements(b: ir.IRBuilder, rows: list, exists: list, rest: Any, stride: Any, shape: Any) -> Iterator:
        """(address, whether it exists) of each element of a lane, in the order of storage."""
        column = b.zext(_column_of_lane(b, shape), I64)
        rows = [b.add(row, b.mul(column, stride)) for row in rows]
        rest = b.sub(rest, column)
        columns = sorted({c for _, c in _elements(shape)})
        inside = {c: b.icmp_signed(">", rest, const(I64, c)) for c in columns}
        offsets = {c: b.mul(stride, const(I64, c)) for c in columns}
        return ((b.add(rows[s], offsets[c]), b.and_(exists[s], inside[c])) for s, c in _elements(shape))

    def gather(self, context: Any, b: ir.IRBuilder, sig: Any, x: Any, index: Any, col0: Any, valid: Any) -> list:
        """What `load_tile` and `load_operand` load: the pairs of columns of a lane, in a tile's order.

        A pair is one i32 for elements of 1 and 2 bytes, else two consecutive ones.
        """
        (x_ty, index_ty, col0_ty), ty = sig.args[1:4], sig.return_type
        dtype, place = x_ty.dtype, self.place(context, b, (x_ty, x), (index_ty, index), (col0_ty, col0), valid, ty)
        nbytes, regular = self.in_pieces(b, place, dtype, ty)
        total = self.words_of_tile(ty, dtype)

        def one_by_one(b: ir.IRBuilder, rest: ir.Value, stride: ir.Value, rows: list, exists: list) -> list:
            flags = [b.trunc(x, I1) for x in exists]
            places = self.single_elements(b, rows, flags, rest, stride, ty)
            return _join_pairs(b, [_load_bits(b, a, dtype, there) for a, there in places], dtype)

        def in_pieces() -> list[ir.Value]:
            if _is_line(ty):
                places = _Lines.pieces(b, place, dtype, ty) if DTYPES[dtype] in (2, 4) else ()
                words = [word for address, there in places for word in _load_piece(b, address, 16, there)]
                return words or [const(I32, 0)] * total
            words: list[Any] = [None] * total
            per_pair = total // (_m_tiles(ty) * _columns(ty) // 4)
            for i, half, j, address, there in self.pieces(b, place, dtype, ty, nbytes):
                piece = _load_piece(b, address, nbytes, there)
                if nbytes == 16:
                    piece = _transpose_quad(b, piece)
                for k in range(0, len(piece), per_pair):
                    at = ((i * (_columns(ty) // 8) + j + k // per_pair) * 2 + half) * per_pair
                    words[at : at + per_pair] = piece[k : k + per_pair]
            return words

        name = f"load_one_by_one_{self.shape_name(ty)}_{dtype}"
        exists = [b.zext(x, I32) for x in place.exists]
        return _if_else(
            b,
            regular,
            in_pieces,
            lambda: _outlined(
                b, name, [place.rest, place.stride], [place.rows, exists], ir.ArrayType(I32, total), one_by_one
            ),
        )

    @staticmethod
    def shape_name(ty: Any) -> str:
        """Rows, columns and layout, as a part of a function's name."""
        return "_".join(map(str, (ty.m, _columns(ty), *ty.hw[1:])))

    @staticmethod
    def words_of_tile(ty: Any, dtype: str) -> int:
        """32-bit words of a lane's pairs; see `gather`."""
        return ty.m // ty.hw[1] * _columns(ty) // LANES // 2 * max(1, DTYPES[dtype] // 2)

    def load_tile(
        self, context: Any, b: ir.IRBuilder, sig: Any, cfg: Any, x: Any, index: Any, col0: Any, n: Any, valid: Any
    ) -> ir.Value:
        if isinstance(sig.args[1], TILE.Quantized):
            return self.load_quantised(context, b, sig, x, index, col0, valid)
        words = self.gather(context, b, sig, x, index, col0, valid)
        return _pack(b, _pairs_to_float32(b, words, sig.args[1].dtype))

    def load_quantised(
        self, context: Any, b: ir.IRBuilder, sig: Any, x: Any, index: Any, col0: Any, valid: Any
    ) -> ir.Value:
        """A tile of a quantised source, element by element."""
        (x_ty, index_ty, col0_ty), ty = sig.args[1:4], sig.return_type
        rows, (_, extent), _ = self.row_addresses(context, b, x_ty, x, index_ty, index, ty)
        first = b.add(self.scalar(context, b, col0_ty, col0, "i64"), b.zext(_column_of_lane(b), I64))
        valid, values = _unpack(b, valid), []
        for slot, c in _elements(ty):
            column = b.add(first, const(I64, c))
            exists = b.and_(valid[slot], b.icmp_signed("<", column, extent))

            def load(address: ir.Value, needed: ir.Value, exists: ir.Value = exists) -> ir.Value:
                return _load_bits(b, address, "float32", b.and_(exists, needed))

            (value,) = _decode_unit(b, x_ty.format, rows[slot], column, 1, load)
            values.append(b.select(exists, value, const(F32, 0.0)))
        return _pack(b, values)

    def store_tile(
        self, context: Any, b: ir.IRBuilder, sig: Any, x: Any, index: Any, col0: Any, tile: Any, valid: Any
    ) -> ir.Value:
        x_ty, index_ty, col0_ty, ty = sig.args[:4]
        dtype, place = x_ty.dtype, self.place(context, b, (x_ty, x), (index_ty, index), (col0_ty, col0), valid, ty)
        nbytes, regular = self.in_pieces(b, place, dtype, ty)
        words = _float32_to_pairs(b, _unpack(b, tile), dtype)
        per_pair = DTYPES[dtype] // 2

        def one_by_one(b: ir.IRBuilder, rest: ir.Value, stride: ir.Value, *values: ir.Value) -> None:
            rows, exists, words = (_unpack(b, b.load(pointer)) for pointer in values)
            places = self.single_elements(b, rows, [b.trunc(x, I1) for x in exists], rest, stride, ty)
            for (address, there), bits in zip(places, _split_pairs(b, words, dtype), strict=True):
                _store_bits(b, address, bits, there)

        with b.if_else(regular) as (yes, no):
            with yes:
                if _is_line(ty):
                    for i, (address, there) in enumerate(_Lines.pieces(b, place, dtype, ty)):
                        _store_piece(b, address, words[4 * i : 4 * i + 4], there)
                for i, half, j, address, there in () if _is_line(ty) else self.pieces(b, place, dtype, ty, nbytes):
                    pairs = [(i * (_columns(ty) // 8) + j + k) * 2 + half for k in range(4 if nbytes == 16 else 1)]
                    piece = [words[at * per_pair + k] for at in pairs for k in range(per_pair)]
                    _store_piece(b, address, _transpose_quad(b, piece) if nbytes == 16 else piece, there)
            with no:
                arrays = []
                for values in (place.rows, [b.zext(x, I32) for x in place.exists], words):
                    arrays.append(_stack(b, ir.ArrayType(values[0].type, len(values))))
                    b.store(_pack(b, values), arrays[-1])
                name = f"store_one_by_one_{self.shape_name(ty)}_{dtype}"
                _call_outlined(b, name, [place.rest, place.stride, *arrays], one_by_one)
        return context.get_dummy_value()

    def by_slot(self, ty: Any, values: list[ir.Value]) -> list[list[ir.Value]]:
        """This lane's values of each of its rows."""
        rows: list[list[ir.Value]] = [[] for _ in range(_slots(ty))]
        for (slot, _), v in zip(_elements(ty), values, strict=True):
            rows[slot].append(v)
        return rows

    def rowmax(self, context: Any, b: ir.IRBuilder, sig: Any, tile: ir.Value) -> ir.Value:
        return self.reduce_rows(b, sig.args[0], tile, functools.partial(_fmax, b))

    def rowsum(self, context: Any, b: ir.IRBuilder, sig: Any, tile: ir.Value) -> ir.Value:
        return self.reduce_rows(b, sig.args[0], tile, b.fadd)

    def reduce_rows(self, b: ir.IRBuilder, ty: Any, tile: ir.Value, combine: Callable) -> ir.Value:
        rows, lanes = self.by_slot(ty, _unpack(b, tile)), LANES if _is_line(ty) else 4
        return _pack(b, [_reduce_quad(b, _tree(b, row, combine), combine, lanes) for row in rows])

    def rowdot(self, context: Any, b: ir.IRBuilder, sig: Any, x: ir.Value, y: ir.Value) -> ir.Value:
        products = [b.fmul(u, v) for u, v in zip(_unpack(b, x), _unpack(b, y), strict=True)]
        return self.reduce_rows(b, sig.args[0], _pack(b, products), b.fadd)

    def exp2(self, context: Any, b: ir.IRBuilder, sig: Any, x: ir.Value) -> ir.Value:
        values = _complete_rows(b, sig.args[0], x)
        return _pack(b, [_exp2(b, v) for v in values])

    def copy(self, context: Any, b: ir.IRBuilder, sig: Any, x: ir.Value) -> ir.Value:
        return x  # an SSA value

    def tanh(self, context: Any, b: ir.IRBuilder, sig: Any, x: ir.Value) -> ir.Value:
        return self.map_tile(b, x, lambda v: call(b, "__nv_tanhf", F32, [v]))

    def rounded(self, context: Any, b: ir.IRBuilder, sig: Any, x: ir.Value, like: Any) -> ir.Value:
        dtype = sig.args[1].dtype
        return _pack(b, _pairs_to_float32(b, _float32_to_pairs(b, _unpack(b, x), dtype), dtype))

    def pad_columns(
        self, context: Any, b: ir.IRBuilder, sig: Any, tile: ir.Value, col0: Any, stop: Any, value: Any
    ) -> ir.Value:
        first = self.columns_from(context, b, sig.args[1], col0, sig.args[0])
        left = b.sub(self.scalar(context, b, sig.args[2], stop, "i32"), first)
        filling = self.scalar(context, b, sig.args[3], value, "f32")
        pairs = zip(_elements(sig.args[0]), _unpack(b, tile), strict=True)
        return _pack(b, [b.select(b.icmp_signed("<", const(I32, c), left), v, filling) for (_, c), v in pairs])

    def activation(self, context: Any, b: ir.IRBuilder, sig: Any, x: ir.Value, name: str) -> ir.Value:
        emit = getattr(ACTIVATIONS, name)
        return self.map_tile(b, x, lambda v: emit(b, v))

    silu = functools.partialmethod(activation, name="silu")
    gelu = functools.partialmethod(activation, name="gelu")
    gelu_tanh = functools.partialmethod(activation, name="gelu_tanh")
    relu = functools.partialmethod(activation, name="relu")

    def absolute(self, context: Any, b: ir.IRBuilder, sig: Any, x: ir.Value) -> ir.Value:
        return self.map_tile(b, x, lambda v: _fabs(b, v))

    def at_least(self, context: Any, b: ir.IRBuilder, sig: Any, tile: ir.Value, bound: ir.Value) -> ir.Value:
        ty, bound_ty = sig.args
        least = self.per_slot(context, b, bound_ty, bound, TILE.Rows(ty.m, "f32", ty.hw))
        values = []
        for (s, _), v in zip(_elements(ty), _unpack(b, tile), strict=True):
            values.append(b.select(b.fcmp_ordered(">=", v, least[s]), const(F32, 1.0), const(F32, 0.0)))
        return _pack(b, values)

    def columns_from(self, context: Any, b: ir.IRBuilder, ty: Any, col0: ir.Value, tile: Any = None) -> ir.Value:
        """``col0`` (of numba type ``ty``) plus this lane's first column of a tile, i32."""
        return b.add(self.scalar(context, b, ty, col0, "i32"), _column_of_lane(b, tile))

    def rotations(
        self, context: Any, b: ir.IRBuilder, sig: Any, cfg: Any, position: Any, frequencies: Any, col0: Any, n: Any
    ) -> ir.Value:
        ty = sig.return_type[0]
        data, (extent,), (stride,) = self.unpack_tensor(context, b, sig.args[2], frequencies)
        first = b.add(self.scalar(context, b, sig.args[3], col0, "i64"), b.zext(_column_of_lane(b), I64))
        start, rest = b.add(b.ptrtoint(data, I64), b.mul(first, stride)), b.sub(extent, first)
        turns = {}
        for c in sorted({c for _, c in _elements(ty)}):
            exists = b.icmp_signed(">", rest, const(I64, c))
            turns[c] = _load_bits(b, b.add(start, b.mul(stride, const(I64, c))), "int64", exists)
        rows = _unpack(b, position)
        pairs = [cos_sin(b, rows[slot], turns[c]) for slot, c in _elements(ty)]
        return context.make_tuple(b, sig.return_type, [_pack(b, list(part)) for part in zip(*pairs, strict=True)])

    def rotate(self, context: Any, b: ir.IRBuilder, sig: Any, x: Any, y: Any, cos: Any, sin: Any) -> ir.Value:
        points = [rotated(b, *values) for values in zip(*(_unpack(b, t) for t in (x, y, cos, sin)), strict=True)]
        return context.make_tuple(b, sig.return_type, [_pack(b, list(part)) for part in zip(*points, strict=True)])

    def distance(
        self, context: Any, b: ir.IRBuilder, sig: Any, cfg: Any, position: ir.Value, col0: ir.Value, n: Any
    ) -> ir.Value:
        first = self.columns_from(context, b, sig.args[2], col0, sig.return_type)
        before = [b.sub(p, first) for p in _unpack(b, position)]
        return _pack(b, [b.sitofp(b.sub(before[s], const(I32, c)), F32) for s, c in _elements(sig.return_type)])

    def mask_outside(
        self, context: Any, b: ir.IRBuilder, sig: Any, tile: Any, col0: ir.Value, low: ir.Value, high: ir.Value
    ) -> ir.Value:
        first = self.columns_from(context, b, sig.args[1], col0, sig.args[0])
        lowest, highest = ([b.sub(x, first) for x in _unpack(b, bound)] for bound in (low, high))
        values = []
        for (s, c), v in zip(_elements(sig.args[0]), _unpack(b, tile), strict=True):
            column = const(I32, c)
            inside = b.and_(b.icmp_signed("<=", lowest[s], column), b.icmp_signed("<=", column, highest[s]))
            values.append(b.select(inside, v, const(F32, float("-inf"))))
        return _pack(b, values)

    def mask_where(self, context: Any, b: ir.IRBuilder, sig: Any, tile: ir.Value, visible: ir.Value) -> ir.Value:
        def emit(v: ir.Value, seen: ir.Value) -> ir.Value:
            return b.select(b.fcmp_ordered("==", seen, const(F32, 0.0)), const(F32, float("-inf")), v)

        return _pack(b, [emit(*pair) for pair in zip(_unpack(b, tile), _unpack(b, visible), strict=True)])

    def square_step(self, context: Any, b: ir.IRBuilder, sig: Any, tile: Any, m: Any, total: Any) -> ir.Value:
        ty, values, old = sig.args[0], _unpack(b, tile), _complete_rows(b, sig.args[1], m)
        sizes = _pack(b, [_fabs(b, v) for v in values])
        largest = _unpack(b, self.reduce_rows(b, ty, sizes, functools.partial(_fmax, b)))
        new = [_fmax(b, x, y) for x, y in zip(old, largest, strict=True)]
        scales = [squares.unit(b, x, _sqrt) for x in new]
        parts = [squares.square(b, v, scales[slot]) for (slot, _), v in zip(_elements(ty), values, strict=True)]
        more = _unpack(b, self.reduce_rows(b, ty, _pack(b, parts), b.fadd))
        before = zip(_complete_rows(b, sig.args[2], total), old, new, scales, strict=True)
        sums = [b.fadd(squares.rescale(b, *each), x) for each, x in zip(before, more, strict=True)]
        return context.make_tuple(b, sig.return_type, [_pack(b, new), _pack(b, sums)])

    # ----------------------------------------------------------------------------------------------------- softmax
    #: A row's maximum may lag behind by this much, in base-2 exponent, before the accumulator is rescaled.
    LAZY_EXPONENT = 8.0

    def softmax_step(
        self, context: Any, b: ir.IRBuilder, sig: Any, s: Any, scale: Any, m: ir.Value, l: ir.Value, acc: ir.Value
    ) -> ir.Value:
        s_ty, acc_ty = sig.args[0], sig.args[4]
        factor = self.scalar(context, b, sig.args[1], scale, "f32")
        negative_factor = b.fmul(factor, const(F32, -1.0))
        scores, old, accumulator = (_unpack(b, x) for x in (s, m, acc))
        old_sums = _partial_rows(b, sig.args[3], l)
        slots = len(old)
        larger = functools.partial(_fmax, b)

        # A weight is 2 ** (s * scale + offset) in one FMA, with offset = -m * scale. Its rounding is the same in all
        # weights, sums and rescalings of a row, so it cancels in the result. Where that or the product could overflow
        # (constant inputs of 133120, a bias of the lowest float32) m is subtracted before the product.
        offsets = [b.fmul(x, negative_factor) for x in old]

        # Each lane looks at its own part of the rows: only when a maximum has grown much does a warp find the new ones.
        highest = [_tree(b, row, larger) for row in self.by_slot(s_ty, scores)]
        excess = [_fma(b, high, factor, x) for high, x in zip(highest, offsets, strict=True)]
        grown = [b.fcmp_ordered(">", x, const(F32, self.LAZY_EXPONENT)) for x in excess]
        grown += [self.is_huge(b, x) for x in offsets]

        def rescale() -> list[ir.Value]:
            new = [larger(before, _reduce_quad(b, high, larger)) for high, before in zip(highest, old, strict=True)]
            bases = [self.finite_base(b, x) for x in new]
            products = [b.fmul(x, negative_factor) for x in bases]
            huge = [self.is_huge(b, x) for x in products]
            shrink = []
            for i in range(slots):
                exact = b.fmul(b.fsub(old[i], bases[i]), factor)
                exponent = b.select(b.or_(huge[i], self.is_huge(b, offsets[i])), exact, b.fsub(products[i], offsets[i]))
                shrink.append(_exp2(b, exponent))
            zero = const(F32, 0.0)
            subtracted = [b.select(big, base, zero) for big, base in zip(huge, bases, strict=True)]
            left = [b.select(big, zero, x) for big, x in zip(huge, products, strict=True)]
            sums = [b.fmul(x, y) for x, y in zip(old_sums, shrink, strict=True)]
            scaled = [b.fmul(x, shrink[r]) for (r, _), x in zip(_elements(acc_ty), accumulator, strict=True)]
            moved = [b.fsub(x, subtracted[r]) for (r, _), x in zip(_elements(s_ty), scores, strict=True)]
            return [*new, *left, *sums, *scaled, *moved]

        parts = [old, offsets, old_sums, accumulator, scores]
        state = _if_else(b, _any_in_warp(b, _tree(b, grown, b.or_)), rescale, lambda: [*itertools.chain(*parts)])
        maxima, offsets, sums, accumulator, scores = _split(state, [len(part) for part in parts])

        weights = [_exp2(b, _fma(b, x, factor, offsets[r])) for (r, _), x in zip(_elements(s_ty), scores, strict=True)]
        totals = [_tree(b, row, b.fadd) for row in self.by_slot(s_ty, weights)]
        sums = [b.fadd(x, y) for x, y in zip(sums, totals, strict=True)]
        return context.make_tuple(b, sig.return_type, [_pack(b, x) for x in (weights, maxima, sums, accumulator)])

    @staticmethod
    def is_huge(b: ir.IRBuilder, offset: ir.Value) -> ir.Value:
        """Whether an exponent is too large to be the addend of an FMA; also true of a row that has seen only -inf.

        Its rounding error, up to 2 ** -25 of it, is an exponent as well: beyond this bound it could overflow.
        """
        return b.fcmp_ordered(">", _fabs(b, offset), const(F32, 2.0**24))

    @staticmethod
    def finite_base(b: ir.IRBuilder, maximum: ir.Value) -> ir.Value:
        """The maximum, and 0 for a row that has seen only -inf."""
        return b.select(b.fcmp_ordered("==", maximum, const(F32, float("-inf"))), const(F32, 0.0), maximum)

    # --------------------------------------------------------------------------------------------------- operators
    def arithmetic(
        self, context: Any, b: ir.IRBuilder, sig: Any, x: Any, y: Any, for_float: Callable | None, for_int: Callable
    ) -> ir.Value:
        """A binary operator whose left side may be a tile; ``for_float`` and ``for_int`` combine two scalars."""
        x_ty, y_ty = sig.args
        if not isinstance(x_ty, TILE.Tile):
            return self.combine_rows(
                context, b, sig, x, y, lambda p, q: for_float(p, q) if p.type == F32 else for_int(p, q)
            )
        values = _unpack(b, x)
        if isinstance(y_ty, TILE.Tile):
            others = _unpack(b, y)
        elif isinstance(y_ty, TILE.Rows):
            rows = _complete_rows(b, y_ty, y)
            others = [rows[s] for s, _ in _elements(x_ty)]
        else:
            others = [self.scalar(context, b, y_ty, y, "f32")] * len(values)
        return _pack(b, [for_float(p, q) for p, q in zip(values, others, strict=True)])

    def operator_add(self, context: Any, b: ir.IRBuilder, sig: Any, x: ir.Value, y: ir.Value) -> ir.Value:
        return self.arithmetic(context, b, sig, x, y, b.fadd, b.add)

    def operator_sub(self, context: Any, b: ir.IRBuilder, sig: Any, x: ir.Value, y: ir.Value) -> ir.Value:
        return self.arithmetic(context, b, sig, x, y, b.fsub, b.sub)

    def operator_mul(self, context: Any, b: ir.IRBuilder, sig: Any, x: ir.Value, y: ir.Value) -> ir.Value:
        return self.arithmetic(context, b, sig, x, y, b.fmul, b.mul)

    def operator_floordiv(self, context: Any, b: ir.IRBuilder, sig: Any, x: ir.Value, y: ir.Value) -> ir.Value:
        return self.combine_rows(context, b, sig, x, y, lambda p, q: _floor_divide(b, p, q)[0])

    def operator_mod(self, context: Any, b: ir.IRBuilder, sig: Any, x: ir.Value, y: ir.Value) -> ir.Value:
        return self.combine_rows(context, b, sig, x, y, lambda p, q: _floor_divide(b, p, q)[1])

    def compare(self, context: Any, b: ir.IRBuilder, sig: Any, x: ir.Value, y: ir.Value, symbol: str) -> ir.Value:
        def emit(p: ir.Value, q: ir.Value) -> ir.Value:
            if p.type != F32:
                return b.icmp_signed(symbol, p, q)
            # Only != is true of NaN.
            return b.fcmp_unordered(symbol, p, q) if symbol == "!=" else b.fcmp_ordered(symbol, p, q)

        return self.combine_rows(context, b, sig, x, y, emit)

    operator_lt = functools.partialmethod(compare, symbol="<")
    operator_le = functools.partialmethod(compare, symbol="<=")
    operator_gt = functools.partialmethod(compare, symbol=">")
    operator_ge = functools.partialmethod(compare, symbol=">=")
    operator_eq = functools.partialmethod(compare, symbol="==")
    operator_ne = functools.partialmethod(compare, symbol="!=")

    def operator_and(self, context: Any, b: ir.IRBuilder, sig: Any, x: ir.Value, y: ir.Value) -> ir.Value:
        return self.combine_rows(context, b, sig, x, y, b.and_)

    # ---------------------------------------------------------------------------------------------------- operands
    def operand(self, context: Any, b: ir.IRBuilder, sig: Any, tile: ir.Value, like: Any) -> ir.Value:
        if not _is_packed(sig.return_type):
            return tile
        return _pack(b, _to_fragments(b, _unpack(b, tile), sig.return_type.dtype))

    def load_operand(
        self, context: Any, b: ir.IRBuilder, sig: Any, cfg: Any, x: Any, index: Any, col0: Any, k: Any, valid: Any
    ) -> ir.Value:
        ty = sig.return_type
        values = self.gather(context, b, sig, x, index, col0, valid)
        if not _is_packed(ty):
            values = _pairs_to_float32(b, values, ty.dtype)
        if not isinstance(ty, StoredOperand):
            return _pack(b, values)
        memory = self.local_memory(context, b, "load_operand", ty, ty.nbytes)
        address = b.add(memory, b.shl(_thread(b), const(I32, 4)))
        for i in range(0, len(values), 4):
            code = f"st.shared.v4.b32 [$0+{i // 4 * ty.fragment_bytes}], {{$1, $2, $3, $4}};"
            _asm(b, code, VOID, "r,r,r,r,r,~{memory}", [address, *values[i : i + 4]], effect=True)
        return address

    # ------------------------------------------------------------------------------------------------ local memory
    @staticmethod
    def local_memory(context: Any, b: ir.IRBuilder, operation: str, ty: Any, nbytes: int) -> ir.Value:
        """Address of local memory that no other value of the kernel has (i32)."""
        name = context.fndesc.modname, context.fndesc.qualname
        if name in [(fn.__module__, fn.__qualname__) for fn in api.DEVICE_FUNCTIONS]:
            # It is compiled on its own, and would give out the same local memory as its caller.
            raise TypingError(
                f"{operation}: {name[1]} is a device function; make the {operation} in the kernel and pass it"
            )
        state = _states.setdefault(b.function, _FunctionState())
        first = -(-state.bytes // LOCAL_ALIGNMENT) * LOCAL_ALIGNMENT
        state.bytes = first + nbytes
        limit = architecture(ty.hw[0]).local_bytes
        if state.bytes > limit:
            raise TypingError(
                f"{operation}: the stages of this kernel take {state.bytes} bytes of local memory (two windows each, "
                f"and large operands); {ty.hw[0]} has {limit}: use smaller blocks"
            )
        symbol = f"{LOCAL_MEMORY_SYMBOL}{state.bytes}"
        memory = b.module.globals.get(symbol)
        if memory is None:
            memory = ir.GlobalVariable(b.module, ir.ArrayType(ir.IntType(8), 0), symbol, addrspace=3)
            memory.linkage, memory.align = "external", LOCAL_ALIGNMENT
        return b.add(b.trunc(b.ptrtoint(memory, I64), I32), const(I32, first))

    # ------------------------------------------------------------------------------------------------------ stages
    def stage(
        self, context: Any, b: ir.IRBuilder, sig: Any, cfg: Any, source: ir.Value, n: Any, k: Any, *_: Any
    ) -> ir.Value:
        ty = sig.return_type
        memory = self.local_memory(context, b, "stage", ty, 2 * _window_bytes(ty))
        data, shape, strides = self.unpack_tensor(context, b, sig.args[1], source)
        st = cgutils.create_struct_proxy(ty)(context, b)
        st.source = b.ptrtoint(data, I64)
        st.rows, st.columns = shape
        st.row_stride, st.column_stride = strides
        for name in _raw_words(ty):
            setattr(st, name, const(I32, 0))
        st.window = b.add(memory, const(I32, _window_bytes(ty)))
        st.both, st.row0, st.col0 = b.add(memory, st.window), const(I64, 0), const(I64, 0)
        for name in PAGED_MEMBERS if ty.paged else ():
            setattr(st, name, const(I64, 0))
        return st._getvalue()

    def paged(
        self, context: Any, b: ir.IRBuilder, sig: Any, stage: Any, cache: Any, head: Any, table: Any, stop: Any
    ) -> ir.Value:
        ty = sig.args[0]
        if not ty.paged:
            return stage
        st = cgutils.create_struct_proxy(ty)(context, b, stage)
        data, shape, strides = self.unpack_tensor(context, b, sig.args[1], cache)
        st.source = b.add(b.ptrtoint(data, I64), b.mul(self.scalar(context, b, sig.args[2], head, "i64"), strides[1]))
        st.pages, st.page_rows, st.columns = shape[0], shape[2], shape[3]
        st.page_stride, st.row_stride, st.column_stride = strides[0], strides[2], strides[3]
        entries, (st.entries,), (st.entry_stride,) = self.unpack_tensor(context, b, sig.args[3], table)
        st.table, st.rows = b.ptrtoint(entries, I64), self.scalar(context, b, sig.args[4], stop, "i64")
        return st._getvalue()

    @staticmethod
    def paged_row(b: ir.IRBuilder, window: SimpleNamespace, row: ir.Value, exists: ir.Value) -> tuple:
        """Address of a row (i64) of a paged source, and whether it exists: its page must, too. No jumps."""
        row = b.trunc(b.add(window.row0, row), I32)
        number, line = (b.zext(f(row, b.trunc(window.page_rows, I32)), I64) for f in (b.udiv, b.urem))
        exists = b.and_(exists, b.icmp_signed("<", number, window.entries))
        entry = b.add(window.table, b.mul(number, window.entry_stride))
        page = b.sext(_load_bits(b, entry, "int32", exists), I64)
        exists = b.and_(exists, b.icmp_unsigned("<", page, window.pages))
        offset = b.add(b.mul(page, window.page_stride), b.mul(line, window.row_stride))
        return b.add(window.source, b.select(exists, offset, const(I64, 0))), exists

    def fetch(self, context: Any, b: ir.IRBuilder, sig: Any, stage: ir.Value, *start: ir.Value) -> ir.Value:
        ty = sig.args[0]
        st = cgutils.create_struct_proxy(ty)(context, b, stage)
        starts = [self.scalar(context, b, t, v, "i64") for t, v in zip(sig.args[1:], start, strict=True)]
        st.row0, st.col0 = (*starts, const(I64, 0))[:2]
        self.unsettle(b)
        if ty.format:
            self.fetch_quantised(b, ty, st)
            return st._getvalue()
        if _rows_per_pass(ty) and ty.source == ty.dtype:
            self.fetch_regular(b, ty, self.fetched_window(b, ty, st))
        _asm(b, "cp.async.commit_group;", VOID, "~{memory}", [], effect=True)
        return st._getvalue()

    @staticmethod
    def units(b: ir.IRBuilder, ty: Any, st: Any) -> Iterator[tuple]:
        """This thread's parts of the window of a quantised source that is being fetched.

        Yields the address of the row, the first column, whether that exists, the row and the chunk of 16 bytes in the
        window, and whether the window has such a part.
        """
        unit, threads = _unit(ty), LANES * ty.hw[1]
        across, total = ty.k // unit, ty.n * ty.k // unit
        for i in range(_units_per_thread(ty)):
            number = b.add(_thread(b), const(I32, i * threads))
            inside = b.icmp_unsigned("<", number, const(I32, total)) if (i + 1) * threads > total else const(I1, 1)
            row, column = (
                b.udiv(number, const(I32, across)),
                b.mul(b.urem(number, const(I32, across)), const(I32, unit)),
            )
            place = row, b.udiv(column, const(I32, 16 // DTYPES[ty.dtype]))
            row, column = b.add(st.row0, b.zext(row, I64)), b.add(st.col0, b.zext(column, I64))
            exists = b.and_(b.icmp_signed("<", row, st.rows), b.icmp_signed("<", column, st.columns))
            yield b.add(st.source, b.mul(row, st.row_stride)), column, b.and_(exists, inside), place, inside

    def fetch_quantised(self, b: ir.IRBuilder, ty: Any, st: Any) -> None:
        """Load the bytes of this thread's part of a window into registers; they are decoded when they have arrived."""
        raw = []
        for row, column, exists, _, _ in self.units(b, ty, st):

            def load(address: ir.Value, needed: ir.Value, exists: ir.Value = exists) -> ir.Value:
                raw.append(_load_bits(b, address, "float32", b.and_(exists, needed)))
                return raw[-1]

            _decode_unit(b, ty.format, row, column, _unit(ty), load)
        for name, word in zip(_raw_words(ty), raw, strict=True):
            setattr(st, name, word)

    def acquire_quantised(self, b: ir.IRBuilder, ty: Any, st: Any) -> None:
        """Decode what was loaded and write it to the window; what does not exist was read as zeros."""
        raw, into = iter([getattr(st, name) for name in _raw_words(ty)]), b.sub(st.both, st.window)
        for row, column, _, place, inside in self.units(b, ty, st):
            numbers = _decode_unit(b, ty.format, row, column, _unit(ty), lambda address, needed: next(raw))
            words = _float32_to_pairs(b, numbers, ty.dtype)
            (window_row, chunk), flag = place, b.zext(inside, I32)
            for i in range(0, len(words), 4):
                address = _Chunks(b, ty, into, window_row, b.add(chunk, const(I32, i // 4))).first
                code = "{.reg .pred p; setp.ne.b32 p, $1, 0; @p st.shared.v4.b32 [$0], {$2, $3, $4, $5};}"
                _asm(b, code, VOID, "r,r,r,r,r,r,~{memory}", [address, flag, *words[i : i + 4]], effect=True)

    @staticmethod
    def fetched_window(b: ir.IRBuilder, ty: Any, st: Any) -> SimpleNamespace:
        """The window that is being fetched: where it lies, where it goes, and what can be said of its layout."""
        size = const(I64, DTYPES[ty.source])
        source, columns = b.add(st.source, b.mul(st.col0, st.column_stride)), b.sub(st.columns, st.col0)
        row_bytes = b.mul(columns, size)
        strides = b.or_(st.row_stride, st.page_stride) if ty.paged else st.row_stride
        unaligned = b.and_(b.or_(source, strides), const(I64, 15))
        in_chunks = b.and_(b.icmp_signed("==", unaligned, const(I64, 0)), b.icmp_signed("==", st.column_stride, size))
        whole = b.icmp_signed("==", b.and_(row_bytes, const(I64, 15)), const(I64, 0))
        paging = {name: getattr(st, name) for name in (*PAGED_MEMBERS, "row0")} if ty.paged else {}
        regular = _rows_per_pass(ty) and ty.source == ty.dtype
        return SimpleNamespace(
            source=source if ty.paged else b.add(source, b.mul(st.row0, st.row_stride)),
            rows=b.sub(st.rows, st.row0),
            columns=columns,
            row_stride=st.row_stride,
            column_stride=st.column_stride,
            into=b.sub(st.both, st.window),
            row_bytes=row_bytes,
            in_chunks=in_chunks,
            whole=b.and_(in_chunks, whole),
            regular=b.and_(in_chunks, whole) if regular else const(I1, 0),
            **paging,
        )

    @staticmethod
    def fetch_regular(b: ir.IRBuilder, ty: Any, window: SimpleNamespace) -> None:
        """Start to copy a window 16 bytes at a time; what lies past the end of the source becomes 0.

        There is no jump in it: a jump in a main loop would keep the compiler from mixing the copies with the products
        around them. A window of another layout becomes 0, and `acquire` copies it.
        """
        rows = _rows_per_pass(ty)
        chunks = ty.k * DTYPES[ty.dtype] // 16
        row, chunk = b.udiv(_thread(b), const(I32, chunks)), b.urem(_thread(b), const(I32, chunks))
        column = b.zext(b.shl(chunk, const(I32, 4)), I64)
        places = _Chunks(b, ty, window.into, row, chunk)
        address = b.add(window.source, b.add(b.mul(b.zext(row, I64), window.row_stride), column))
        step = b.mul(window.row_stride, const(I64, rows))
        some = b.and_(window.regular, b.icmp_signed("<", column, window.row_bytes))
        many = b.icmp_signed(">", window.rows, const(I64, ty.n))
        left = b.sub(b.trunc(b.select(many, const(I64, ty.n), window.rows), I32), row)
        left = b.select(some, left, const(I32, 0))
        for first in range(0, ty.n, rows):
            into, offset = places.at(first)
            copy = f"cp.async.cg.shared.global.L2::128B [$0+{offset}], [$1], 16, p;"
            if ty.paged:
                this, inside = b.zext(b.add(row, const(I32, first)), I64), b.icmp_signed(">", left, const(I32, first))
                address, exists = CudaLowering.paged_row(b, window, this, inside)
                address, skip = b.add(address, column), b.zext(b.not_(exists), I32)
                code = f"{{.reg .pred p; setp.ne.b32 p, $2, 0; {copy}}}"
            else:
                skip, code = left, f"{{.reg .pred p; setp.le.s32 p, $2, {first}; {copy}}}"
            _asm(b, code, VOID, "r,l,r,~{memory}", [into, address, skip], effect=True)
            address = b.add(address, step)

    def fetch_irregular(self, b: ir.IRBuilder, ty: Any, window: SimpleNamespace) -> None:
        """Copy a window that `fetch_regular` could not."""
        _wait_for_fetches(b, ty)  # for the zeros
        converted = ty.source != ty.dtype
        with b.if_else(window.whole if converted else window.in_chunks) as (yes, no):
            with yes:
                self.fetch_outlined(b, ty, window, self.fetch_bytes if converted else self.fetch_chunks)
            with no:
                self.fetch_outlined(b, ty, window, self.fetch_elements)

    @staticmethod
    def fetch_outlined(b: ir.IRBuilder, ty: Any, window: SimpleNamespace, fetch: Callable) -> None:
        """``fetch(b, ty, window)`` in a function of its own, see `_call_outlined`."""
        fields = ["source", "rows", "columns", "row_stride", "column_stride", "into", "row_bytes"]
        if ty.paged:
            fields += [*PAGED_MEMBERS, "row0"]

        def body(b: ir.IRBuilder, *values: ir.Value) -> None:
            fetch(b, ty, SimpleNamespace(**dict(zip(fields, values, strict=True))))

        name = f"{fetch.__name__}_{ty.n}_{ty.k}_{ty.source}_{ty.dtype}_{ty.hw[1]}_{int(ty.paged)}"
        _call_outlined(b, name, [getattr(window, field) for field in fields], body)

    @staticmethod
    def fetch_chunks(b: ir.IRBuilder, ty: Any, window: SimpleNamespace) -> None:
        """Copy a window 16 bytes at a time, asynchronously; what lies past the end of the source becomes 0."""
        size, threads = DTYPES[ty.dtype], LANES * ty.hw[1]
        chunks = ty.k * size // 16
        loop = cgutils.for_range_slice(b, _thread(b), const(I32, ty.n * chunks), const(I32, threads), I32)
        with loop as (at, _):
            row, chunk = b.udiv(at, const(I32, chunks)), b.urem(at, const(I32, chunks))
            into = _Chunks(b, ty, window.into, row, chunk).first
            wide_row, column = b.zext(row, I64), b.shl(b.zext(chunk, I64), const(I64, 4))
            address, exists = CudaLowering.row_of(b, ty, window, wide_row)
            left = b.select(exists, b.sub(window.row_bytes, column), const(I64, 0))
            left = b.select(b.icmp_signed("<", left, const(I64, 16)), left, const(I64, 16))
            left = b.select(b.icmp_signed(">", left, const(I64, 0)), left, const(I64, 0))
            code = "cp.async.cg.shared.global [$0], [$1], 16, $2;"
            args = [into, b.add(address, column), b.trunc(left, I32)]
            _asm(b, code, VOID, "r,l,r,~{memory}", args, effect=True)

    @staticmethod
    def row_of(b: ir.IRBuilder, ty: Any, window: SimpleNamespace, row: ir.Value) -> tuple:
        """Address of a row of a window (i64), and whether it exists."""
        exists = b.icmp_signed("<", row, window.rows)
        if ty.paged:
            return CudaLowering.paged_row(b, window, row, exists)
        return b.add(window.source, b.mul(row, window.row_stride)), exists

    @staticmethod
    def fetch_bytes(b: ir.IRBuilder, ty: Any, window: SimpleNamespace) -> None:
        """Copy and convert a window of elements of 8 bits, 16 at a time."""
        threads, chunks, size = LANES * ty.hw[1], ty.k // 16, DTYPES[ty.dtype]
        loop = cgutils.for_range_slice(b, _thread(b), const(I32, ty.n * chunks), const(I32, threads), I32)
        with loop as (at, _):
            row, chunk = b.udiv(at, const(I32, chunks)), b.urem(at, const(I32, chunks))
            column = b.shl(b.zext(chunk, I64), const(I64, 4))
            address, exists = CudaLowering.row_of(b, ty, window, b.zext(row, I64))
            exists = b.and_(exists, b.icmp_signed("<", column, window.row_bytes))
            words = _load_piece(b, b.add(address, column), 16, exists)
            values = [b.lshr(word, const(I32, shift)) for word in words for shift in (0, 8, 16, 24)]
            floats = [from_byte(b, b.trunc(value, I8), ty.source) for value in values]
            packed = _float32_to_pairs(b, floats, ty.dtype)
            for i in range(size):
                place = _Chunks(b, ty, window.into, row, b.add(b.mul(chunk, const(I32, size)), const(I32, i))).first
                code, four = "st.shared.v4.b32 [$0], {$1, $2, $3, $4};", packed[4 * i : 4 * i + 4]
                _asm(b, code, VOID, "r,r,r,r,r,~{memory}", [place, *four], effect=True)

    @staticmethod
    def fetch_elements(b: ir.IRBuilder, ty: Any, window: SimpleNamespace) -> None:
        """Copy a window element by element, for sources that are not aligned to 16 bytes or not dense."""
        size, threads = DTYPES[ty.dtype], LANES * ty.hw[1]
        bits = 8 * size
        loop = cgutils.for_range_slice(b, _thread(b), const(I32, ty.n * ty.k), const(I32, threads), I32)
        with loop as (at, _):
            row, column = b.udiv(at, const(I32, ty.k)), b.urem(at, const(I32, ty.k))
            wide_row, wide_column = b.zext(row, I64), b.zext(column, I64)
            address, exists = CudaLowering.row_of(b, ty, window, wide_row)
            inside = b.and_(exists, b.icmp_signed("<", wide_column, window.columns))
            value = _load_bits(b, b.add(address, b.mul(wide_column, window.column_stride)), ty.source, inside)
            if ty.source != ty.dtype:
                value = _bits_to_float32(b, value, ty.source)
                if size == 2:
                    value = _asm(b, f"cvt.rn.{_PTX_TYPE[ty.dtype]}.f32 $0, $1;", I16, "=h,f", [value])
                else:
                    value = b.bitcast(value, I32)
            byte = b.mul(column, const(I32, size))
            place = _Chunks(b, ty, window.into, row, b.lshr(byte, const(I32, 4))).first
            into = b.or_(place, b.and_(byte, const(I32, 15)))
            letter = _REGISTERS[f"b{bits}"][0]
            _asm(
                b,
                f"st.shared.b{bits} [$0], $1;",
                VOID,
                f"r,{letter},~{{memory}}",
                [into, value],
                effect=True,
            )

    def acquire(self, context: Any, b: ir.IRBuilder, sig: Any, stage: ir.Value) -> ir.Value:
        ty = sig.args[0]
        st = cgutils.create_struct_proxy(ty)(context, b, stage)
        state = _states.get(b.function)
        if ty.format:
            self.acquire_quantised(b, ty, st)
            _wait_for_fetches(b, ty)
            if state is not None:
                state.settled = b.block
            st.window = b.sub(st.both, st.window)
            return st._getvalue()
        window = self.fetched_window(b, ty, st)
        # One wait and one barrier serve all acquires that follow each other: every fetch before them has arrived, and
        # all threads are done with the windows that the next fetches overwrite.
        settled = state is not None and state.settled is b.block
        with b.if_then(b.not_(window.regular), likely=False):
            self.fetch_irregular(b, ty, window)
            if settled:
                _wait_for_fetches(b, ty)
        if not settled:
            _wait_for_fetches(b, ty)
        if state is not None:
            state.settled = b.block
        st.window = b.sub(st.both, st.window)
        return st._getvalue()

    def release(self, context: Any, b: ir.IRBuilder, sig: Any, stage: ir.Value) -> ir.Value:
        self.unsettle(b)
        return stage

    @staticmethod
    def unsettle(b: ir.IRBuilder) -> None:
        """The next acquire needs a barrier of its own: something was fetched, read or released."""
        state = _states.get(b.function)
        if state is not None:
            state.settled = None

    # ---------------------------------------------------------------------------------------------------- products
    def window(self, context: Any, b: ir.IRBuilder, ty: Any, stage: ir.Value) -> ir.Value:
        self.unsettle(b)
        return cgutils.create_struct_proxy(ty)(context, b, stage).window

    def accumulator(self, b: ir.IRBuilder, sig: Any, acc: tuple) -> list[ir.Value]:
        if acc:
            return _unpack(b, acc[0])
        return [const(F32, 0.0)] * _storage(sig.return_type).count

    def dot_nt(self, context: Any, b: ir.IRBuilder, sig: Any, left: Any, right: Any, *acc: Any) -> ir.Value:
        a_ty, b_ty = sig.args[:2]
        into = self.accumulator(b, sig, acc)
        window = self.window(context, b, b_ty, right)
        if _is_packed(a_ty):
            return _pack(b, self.product(b, sig.return_type, a_ty, left, b_ty, window, into, by_rows=True))
        address = b.add(window, b.mul(_column_of_lane(b), const(I32, _pitch(b_ty))))
        for k in range(0, a_ty.k, 4):
            words = [
                _load_shared(b, address, (8 * j + e) * _pitch(b_ty) + 4 * k, 4)
                for j in range(b_ty.n // 8)
                for e in (0, 1)
            ]
            for i, numbers in enumerate(self.four_columns(b, a_ty, left, k)):
                into = self.fma_step(b, sig.return_type, numbers, [w[i] for w in words], into)
        return _pack(b, into)

    def dot_nn(self, context: Any, b: ir.IRBuilder, sig: Any, left: Any, right: Any, *acc: Any) -> ir.Value:
        a_ty, b_ty = sig.args[:2]
        into = self.accumulator(b, sig, acc)
        window = self.window(context, b, b_ty, right)
        if _is_packed(a_ty):
            return _pack(b, self.product(b, sig.return_type, a_ty, left, b_ty, window, into, by_rows=False))
        for k in range(0, a_ty.k, 4):
            for i, numbers in enumerate(self.four_columns(b, a_ty, left, k)):
                into = self.fma_step(b, sig.return_type, numbers, self.row_words(b, b_ty, window, k + i), into)
        return _pack(b, into)

    def dot_tn(self, context: Any, b: ir.IRBuilder, sig: Any, left: Any, right: Any, *acc: Any) -> ir.Value:
        ty, (a_ty, b_ty) = sig.return_type, sig.args[:2]
        into = self.accumulator(b, sig, acc)
        source, window = self.window(context, b, a_ty, left), self.window(context, b, b_ty, right)
        depth = SimpleNamespace(m=ty.m, k=a_ty.n, dtype=a_ty.dtype, hw=ty.hw)
        if _is_packed(a_ty):
            lane = _lane(b)
            row = b.or_(b.and_(lane, const(I32, 7)), b.lshr(b.and_(lane, const(I32, 16)), const(I32, 1)))
            column = b.or_(_first_row(b, ty), b.and_(lane, const(I32, 8)))
            chunks = _Chunks(b, a_ty, source, row, b.lshr(column, const(I32, 3)))

            def fragment(i: int, k: int) -> list[ir.Value]:
                return _ldmatrix(b, *chunks.at(16 * k, 2 * i), transposed=True)

            fragments = self.fragments_of_columns(b, b_ty, window)
            return _pack(b, self.multiply(b, ty, depth, fragment, fragments, into))
        address = b.add(source, b.shl(b.add(_first_row(b, ty), _row_of_lane(b)), const(I32, 2)))
        for k in range(a_ty.n):
            numbers = [_load_shared(b, address, k * _pitch(a_ty) + 32 * slot)[0] for slot in range(2 * _m_tiles(ty))]
            into = self.fma_step(b, ty, numbers, self.row_words(b, b_ty, window, k), into)
        return _pack(b, into)

    # ----------------------------------------------------------------------------- products of 16-bit elements
    def left(self, b: ir.IRBuilder, ty: Any, value: ir.Value) -> Callable[[int, int], list[ir.Value]]:
        """The A fragment of m-tile i and columns 16 k .. 16 k + 16 of an operand, or of a stage."""
        if isinstance(ty, TILE.Stage):
            return self.fragments_of_stage(b, ty, value)
        if isinstance(ty, StoredOperand):
            return lambda i, k: self.stored_fragment(b, ty, value, i, k)
        return self.fragment_of(ty, _unpack(b, value))

    def fragments_of_stage(self, b: ir.IRBuilder, ty: Any, stage: ir.Value) -> Callable[[int, int], list[ir.Value]]:
        """`left` of a stage: the rows of this warp."""
        lane = _lane(b)
        row = b.add(_first_row(b, _rows_of_stage(ty)), b.and_(lane, const(I32, 15)))
        chunks = _Chunks(b, ty, self.left_window(b, stage), row, b.lshr(lane, const(I32, 4)))
        return lambda i, k: _ldmatrix(b, *chunks.at(16 * i, 2 * k), transposed=False)

    def left_window(self, b: ir.IRBuilder, stage: ir.Value) -> ir.Value:
        """Address of the window in use of a stage on the left."""
        self.unsettle(b)
        return b.extract_value(stage, _StageModel.MEMBERS.index("window"))

    @staticmethod
    def fragment_of(ty: Any, registers: list[ir.Value]) -> Callable[[int, int], list[ir.Value]]:
        """`left` of an operand whose registers are at hand."""
        steps = ty.k // 16
        return lambda i, k: registers[4 * (i * steps + k) : 4 * (i * steps + k) + 4]

    @staticmethod
    def stored_fragment(b: ir.IRBuilder, ty: Any, address: ir.Value, i: int, k: int) -> list[ir.Value]:
        """`left` of an operand in local memory."""
        return _load_shared(b, address, (i * (ty.k // 16) + k) * ty.fragment_bytes, 4, I32)

    def registers(self, b: ir.IRBuilder, ty: Any, value: ir.Value) -> list[ir.Value]:
        """All fragments of an operand."""
        fragment = self.left(b, ty, value)
        return [x for i in range(_m_tiles(ty)) for k in range(ty.k // 16) for x in fragment(i, k)]

    @staticmethod
    def fragments_of_rows(b: ir.IRBuilder, ty: Any, window: ir.Value) -> Callable[[int, int], list[ir.Value]]:
        """B fragments of ``window.T``: (k, j) gives those of rows 16 k and columns 16 j, a row of the window."""
        lane = _lane(b)
        row = b.or_(b.and_(lane, const(I32, 7)), b.lshr(b.and_(lane, const(I32, 16)), const(I32, 1)))
        chunks = _Chunks(b, ty, window, row, b.and_(b.lshr(lane, const(I32, 3)), const(I32, 1)))
        return lambda k, j: _ldmatrix(b, *chunks.at(16 * j, 2 * k), transposed=False)

    @staticmethod
    def fragments_of_columns(b: ir.IRBuilder, ty: Any, window: ir.Value) -> Callable[[int, int], list[ir.Value]]:
        """B fragments of the window itself: (k, j) gives those of rows 16 k and columns 16 j."""
        lane = _lane(b)
        chunks = _Chunks(b, ty, window, b.and_(lane, const(I32, 15)), b.lshr(lane, const(I32, 4)))
        return lambda k, j: _ldmatrix(b, *chunks.at(16 * k, 2 * j), transposed=True)

    def product(
        self, b: ir.IRBuilder, ty: Any, a_ty: Any, left: ir.Value, b_ty: Any, window: ir.Value, acc: list, by_rows: bool
    ) -> list[ir.Value]:
        """acc + left @ window.T (``by_rows``) or left @ window."""
        if isinstance(a_ty, TILE.Stage) and _is_swizzled(a_ty) and _is_swizzled(b_ty) and _m_tiles(ty) == 1:
            into = None if all(isinstance(x, ir.Constant) for x in acc) else acc
            both = a_ty, self.left_window(b, left)
            return _wgmma(b, b_ty, window, both, range(a_ty.k // 16), into, by_rows)
        fragment = self.left(b, a_ty, left)
        if _is_swizzled(b_ty):
            return self.multiply_by_groups(b, ty, a_ty, fragment, b_ty, window, acc, by_rows)
        fragments = self.fragments_of_rows if by_rows else self.fragments_of_columns
        return self.multiply(b, ty, a_ty, fragment, fragments(b, b_ty, window), acc)

    @staticmethod
    def multiply_by_groups(
        b: ir.IRBuilder, ty: Any, a_ty: Any, left: Callable, b_ty: Any, window: ir.Value, acc: list, by_rows: bool
    ) -> list[ir.Value]:
        """`product` by wgmma: four warps multiply their 64 rows together, and read the window themselves."""
        # An operand in local memory is read in parts, so that it does not need registers all at once.
        steps, per_row = a_ty.k // 16, len(acc) // _m_tiles(ty)
        at_once = 4 if isinstance(a_ty, StoredOperand) else steps
        fresh = all(isinstance(x, ir.Constant) for x in acc)
        result = []
        for i in range(_m_tiles(ty)):
            rows = acc[i * per_row : (i + 1) * per_row]
            for first in range(0, steps, at_once):
                part = range(first, min(first + at_once, steps))
                into = None if fresh and first == 0 else rows
                rows = _wgmma(b, b_ty, window, [left(i, k) for k in part], part, into, by_rows)
            result += rows
        return result

    @staticmethod
    def multiply(
        b: ir.IRBuilder, ty: Any, a_ty: Any, left: Callable, right: Callable, acc: list[ir.Value]
    ) -> list[ir.Value]:
        """acc + left @ right by mma.sync; ``left(i, k)`` and ``right(k, j)`` give fragments, 16 columns at a time."""
        acc, groups = list(acc), ty.n // 8
        for k in range(a_ty.k // 16):
            rows = [left(i, k) for i in range(_m_tiles(ty))]
            for j in range(ty.n // 16):
                columns = right(k, j)
                for i, fragment in enumerate(rows):
                    for half in (0, 1):
                        at = 4 * (i * groups + 2 * j + half)
                        acc[at : at + 4] = _mma(
                            b, fragment, columns[2 * half : 2 * half + 2], acc[at : at + 4], a_ty.dtype
                        )
        return acc

    def dot_nn_where(self, context: Any, b: ir.IRBuilder, sig: Any, left: Any, right: Any, acc: Any) -> ir.Value:
        ty, (a_ty, b_ty) = sig.return_type, sig.args[:2]
        window, into = self.window(context, b, b_ty, right), _unpack(b, acc)
        if not _is_packed(a_ty):
            zero = const(F32, 0.0)
            for k in range(a_ty.k):
                numbers, words = self.broadcast(b, a_ty, left, k), self.row_words(b, b_ty, window, k)
                unseen = [b.fcmp_ordered("==", p, zero) for p in numbers]
                into = self.fma_step(
                    b, ty, numbers, words, into, lambda slot, v, unseen=unseen: b.select(unseen[slot], zero, v)
                )
            return _pack(b, into)

        def visible(b: ir.IRBuilder, window: ir.Value, left: list, acc: list) -> list[ir.Value]:
            fragments = self.fragments_of_columns(b, b_ty, window)
            return self.multiply_visible(b, ty, a_ty, self.fragment_of(a_ty, left), fragments, acc)

        def whole() -> list[ir.Value]:
            return self.product(b, ty, a_ty, left, b_ty, window, into, by_rows=False)

        name = f"multiply_visible_{a_ty.m}_{a_ty.k}_{b_ty.k}_{a_ty.dtype}"
        registers = self.registers(b, a_ty, left)
        return _pack(
            b,
            _if_else(
                b,
                _any_in_block(b, self.window_has_not_finite(b, b_ty, window)),
                lambda: _outlined(b, name, [window], [registers, into], _storage(ty), visible),
                whole,
            ),
        )

    @staticmethod
    def window_has_not_finite(b: ir.IRBuilder, ty: Any, window: ir.Value) -> ir.Value:
        """Whether this thread's share of a window holds NaN or infinity."""
        threads, halves = LANES * ty.hw[1], _Halves(b, ty.dtype)
        chunks = ty.k * DTYPES[ty.dtype] // 16
        total = ty.n * chunks
        flags = []
        for first in range(0, total, threads):
            at = b.add(_thread(b), const(I32, first))
            if first + threads > total:
                at = b.select(b.icmp_signed("<", at, const(I32, total)), at, const(I32, total - 1))
            row, chunk = b.udiv(at, const(I32, chunks)), b.urem(at, const(I32, chunks))
            address = _Chunks(b, ty, window, row, chunk).first
            flags += [halves.not_finite(x) for x in _load_shared(b, address, 0, 4, I32)]
        return b.icmp_signed("!=", _tree(b, flags, b.or_), const(I32, 0))

    def multiply_visible(
        self, b: ir.IRBuilder, ty: Any, a_ty: Any, left: Callable, right: Callable, acc: list[ir.Value]
    ) -> list[ir.Value]:
        """As `multiply`, where 0 times anything is 0.

        The finite numbers are multiplied as they are. Two more products, of signs and of ones, count the visible
        infinities of each direction and the visible numbers that are not finite: where the counts agree the result is
        that infinity, where they do not it is NaN.
        """
        halves, zero = _Halves(b, a_ty.dtype), const(F32, 0.0)
        acc, groups, tiles = list(acc), ty.n // 8, _m_tiles(ty)
        for j in range(ty.n // 16):
            sums = {(i, half): [zero] * 4 for i in range(tiles) for half in (0, 1)}
            counts = dict(sums)
            for k in range(a_ty.k // 16):
                columns = right(k, j)
                finite = [halves.finite_or_zero(x) for x in columns]
                directions = [halves.infinity_direction(x) for x in columns]
                ones = [halves.not_finite_one(x) for x in columns]
                for i in range(tiles):
                    fragment = left(i, k)
                    signs = [halves.direction(x) for x in fragment]
                    sizes = [halves.size_direction(x) for x in fragment]
                    for half in (0, 1):
                        part, at = slice(2 * half, 2 * half + 2), 4 * (i * groups + 2 * j + half)
                        acc[at : at + 4] = _mma(b, fragment, finite[part], acc[at : at + 4], a_ty.dtype)
                        sums[i, half] = _mma(b, signs, directions[part], sums[i, half], a_ty.dtype)
                        counts[i, half] = _mma(b, sizes, ones[part], counts[i, half], a_ty.dtype)
            for (i, half), total in sums.items():
                for e in range(4):
                    at = 4 * (i * groups + 2 * j + half) + e
                    count = counts[i, half][e]
                    infinity = b.select(
                        b.fcmp_ordered(">", total[e], zero), const(F32, float("inf")), const(F32, float("-inf"))
                    )
                    agree = b.fcmp_ordered("==", _fabs(b, total[e]), count)
                    extra = b.select(agree, infinity, const(F32, float("nan")))
                    seen = b.fcmp_ordered(">", count, zero)
                    acc[at] = b.select(seen, b.fadd(acc[at], extra), acc[at])
        return acc

    # ----------------------------------------------------------------------------------- products of float32
    @staticmethod
    def broadcast(b: ir.IRBuilder, ty: Any, value: ir.Value, k: int) -> list[ir.Value]:
        """Column k of an operand, for each row of this lane: it lies in one lane of the quad."""
        owner = b.or_(b.and_(_lane(b), const(I32, 28)), const(I32, k % 8 // 2))
        at = [(i * (ty.k // 8) + k // 8) * 4 + 2 * half + k % 2 for i in range(_m_tiles(ty)) for half in (0, 1)]
        return [_shuffle(b, b.extract_value(value, i), owner) for i in at]

    def four_columns(self, b: ir.IRBuilder, ty: Any, value: ir.Value, k: int) -> list[list[ir.Value]]:
        """Columns k .. k + 4 of an operand or of a stage, each for all rows of this lane."""
        if not isinstance(ty, TILE.Stage):
            return [self.broadcast(b, ty, value, k + i) for i in range(4)]
        rows = _rows_of_stage(ty)
        row = b.add(_first_row(b, rows), _row_of_lane(b))
        address = b.add(self.left_window(b, value), b.mul(row, const(I32, _pitch(ty))))
        loaded = [_load_shared(b, address, 8 * slot * _pitch(ty) + 4 * k, 4) for slot in range(2 * _m_tiles(rows))]
        return [[words[i] for words in loaded] for i in range(4)]

    @staticmethod
    def row_words(b: ir.IRBuilder, ty: Any, window: ir.Value, row: int) -> list[ir.Value]:
        """This lane's columns of a window's row."""
        address = b.add(window, b.shl(_column_of_lane(b), const(I32, 2)))
        return [w for j in range(ty.k // 8) for w in _load_shared(b, address, row * _pitch(ty) + 32 * j, 2)]

    @staticmethod
    def fma_step(
        b: ir.IRBuilder, ty: Any, numbers: list, words: list, acc: list, see: Callable = lambda slot, v: v
    ) -> list[ir.Value]:
        """acc + the outer product of a column of the left side and a row of the right side."""
        return [
            _fma(b, numbers[slot], see(slot, words[c // 8 * 2 + c % 2]), x)
            for (slot, c), x in zip(_elements(ty), acc, strict=True)
        ]


@functools.cache
def _install_operations() -> None:
    TILE.rules = {op: _checked(rule) for op, rule in TILE.rules.items()}
    TILE.rules[api.softmax_step] = _softmax_step(TILE.rules[api.softmax_step])
    TILE.rules[api.load_operand] = _loaded_operand(TILE.rules[api.load_operand])
    bind(NUMBA, TILE, CudaLowering(NUMBA, TILE))
    # numba puts what it compiles lazily into the first registry it finds: its own must be there before ours.
    cuda_target.target_context.refresh()
    cuda_target.target_context.install_registry(NUMBA.lowering_registry)


def install() -> None:
    """Make the tile language, and the device functions defined so far, known to numba-cuda."""
    _install_operations()
    bind_device_functions(NUMBA)
    cuda_target.typing_context.install_registry(NUMBA.typing_registry)
