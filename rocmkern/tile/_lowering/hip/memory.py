"""Global and shared memory: addresses, loads and stores, conversion of elements."""

from __future__ import annotations

import functools
from collections.abc import Callable

from llvmlite import ir
from numba.core.errors import TypingError

from rocmkern.tile._lowering.hip.emit import LOCAL, Lane, local_barrier, math, opaque, wave_index
from rocmkern.tile._lowering.shared.atoms import Atom
from rocmkern.tile._lowering.shared.ir_types import F16, F32, I8, I16, I32, I64, const
from rocmkern.tile._lowering.shared.tensors import call, from_byte, to_byte
from rocmkern.tile.language.kinds import DTYPES, QUANTIZED

CHUNK_BYTES = 16
#: Lanes of a block at most.
BLOCK_LANES = 1024


def remaining(b: ir.IRBuilder, first: ir.Value, columns: ir.Value, most: int) -> tuple:
    """How many of the ``most`` columns from ``first`` exist (i32), twice.

    The copies look different to LLVM: one for addresses, one for the values that were loaded. Otherwise the outcome of
    every comparison would wait in a register from before the load until after it.
    """
    left = math(b, "smax", math(b, "smin", b.sub(columns, first), const(I64, most)), const(I64, 0))
    left = b.trunc(left, I32)
    return opaque(b, left, "v"), opaque(b, left, "v")


def is_below(b: ir.IRBuilder, column: int, left: ir.Value) -> ir.Value:
    # Numbers above 64 take a scalar register each on CDNA, and would keep it around a loop.
    above = column // 64 * 64
    return b.icmp_signed(">", b.sub(left, const(I32, above)), const(I32, column - above))


def existing(b: ir.IRBuilder, first: ir.Value, columns: ir.Value) -> ir.Value:
    """A column to read in place of those of a tile that do not exist: the tile's first one, or column 0.

    Not always column 0: that may be the result of another block, which just writes it.
    """
    return b.select(b.icmp_signed("<", first, columns), first, const(I64, 0))


def in_space(b: ir.IRBuilder, pointer: ir.Value, space: int) -> ir.Value:
    return b.addrspacecast(pointer, ir.PointerType(I8, space))


def local_room(b: ir.IRBuilder, name: str, size: int) -> ir.Value:
    """Pointer to bytes of shared memory: one variable for each call, which is made where an operation is expanded."""
    room = ir.GlobalVariable(b.module, ir.ArrayType(I8, size), b.module.get_unique_name(name), LOCAL)
    room.linkage, room.align = "internal", CHUNK_BYTES
    room.initializer = ir.Constant(room.value_type, ir.Undefined)
    return b.bitcast(room, ir.PointerType(I8, LOCAL))


def over_waves(b: ir.IRBuilder, atom: Atom, join: Callable, value: ir.Value, count: int, step: int = 1) -> ir.Value:
    """Join float32 values, the same in the lanes of a wave, over ``count`` waves side by side, or every ``step``."""
    if count == step:
        return value
    room, wave = local_room(b, "over_waves", 4 * (BLOCK_LANES // atom.wave)), wave_index(b, atom)
    with b.if_then(b.icmp_unsigned("==", Lane(b, atom).index, const(I32, 0))):
        store_to(b, value, room, b.shl(wave, const(I32, 2)), 4)
    local_barrier(b)
    first = b.shl(b.sub(wave, b.urem(wave, const(I32, count))), const(I32, 2))
    parts = [load_from(b, room, b.add(first, const(I32, 4 * i)), F32, 4) for i in range(0, count, step)]
    local_barrier(b)  # before the next value is written there
    return functools.reduce(join, parts)


def load_from(b: ir.IRBuilder, base: ir.Value, offset: ir.Value, ty: ir.Type, align: int) -> ir.Value:
    """Load a ``ty`` at a byte offset."""
    address = b.gep(base, [offset], source_etype=I8)
    return b.load(b.bitcast(address, ir.PointerType(ty, base.type.addrspace)), align=align)


def store_to(b: ir.IRBuilder, value: ir.Value, base: ir.Value, offset: ir.Value, align: int) -> None:
    address = b.gep(base, [offset], source_etype=I8)
    b.store(value, b.bitcast(address, ir.PointerType(value.type, base.type.addrspace)), align=align)


def bfloat16_bits(b: ir.IRBuilder, x: ir.Value) -> ir.Value:
    """Round float32 (scalar or vector) to bfloat16, to nearest even; NaN stays NaN."""
    ty = I32 if x.type == F32 else ir.VectorType(I32, x.type.count)
    short = I16 if x.type == F32 else ir.VectorType(I16, x.type.count)
    bits = b.bitcast(x, ty)
    odd = b.and_(b.lshr(bits, const(ty, 16)), const(ty, 1))
    rounded = b.add(b.add(bits, odd), const(ty, 0x7FFF))
    quiet = b.or_(bits, const(ty, 0x400000))
    chosen = b.select(b.fcmp_unordered("uno", x, x), quiet, rounded)
    return b.trunc(b.lshr(chosen, const(ty, 16)), short)


def bfloat16_weights(b: ir.IRBuilder, x: ir.Value) -> ir.Value:
    """Round a vector of float32 that are not negative to bfloat16, to nearest, up where two are near; NaN may be lost.

    For `Weights`: a third of the instructions of `bfloat16_bits`.
    """
    ty = ir.VectorType(I32, x.type.count)
    rounded = b.add(b.bitcast(x, ty), const(ty, 0x8000))
    bits = [b.extract_element(rounded, const(I32, i)) for i in range(x.type.count)]
    high_halves = const(I32, 0x07060302)
    words = ir.Constant(ir.VectorType(I32, x.type.count // 2), ir.Undefined)
    for i in range(x.type.count // 2):
        word = call(b, "llvm.amdgcn.perm", I32, [bits[2 * i + 1], bits[2 * i], high_halves])
        words = b.insert_element(words, word, const(I32, i))
    return b.bitcast(words, ir.VectorType(I16, x.type.count))


def widen(b: ir.IRBuilder, bits: ir.Value, dtype: str) -> ir.Value:
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


def narrowed(b: ir.IRBuilder, x: ir.Value, dtype: str) -> ir.Value:
    """A float32 (scalar or vector) as it lies in memory."""
    if dtype == "float16":
        return b.fptrunc(x, ir.VectorType(F16, x.type.count) if isinstance(x.type, ir.VectorType) else F16)
    if dtype == "bfloat16":
        return bfloat16_bits(b, x)
    if dtype == "float32":
        return x
    if dtype in QUANTIZED:
        return to_byte(b, x, dtype)
    raise TypingError(f"float32 values can be stored as float32, float16 and bfloat16, not as {dtype}")


def memory_int(dtype: str) -> ir.IntType:
    return ir.IntType(8 * DTYPES[dtype])
