"""Element types in memory and float32."""

from __future__ import annotations

from llvmlite import ir
from numba.core.errors import TypingError

from rocmkern.tile._lowering.cpu.emit import vec
from rocmkern.tile._lowering.shared.ir_types import F16, F32, I8, I16, I32, I64, const
from rocmkern.tile._lowering.shared.tensors import from_byte, to_byte
from rocmkern.tile.language.kinds import QUANTIZED

STORAGE = {
    "float32": F32, "float16": F16, "bfloat16": I16, "bool": I8, "int32": I32, "int64": I64, "uint8": I8,
    "int8": I8, "float8_e4m3fn": I8, "float8_e5m2": I8,
}  # fmt: skip


def from_memory(b: ir.IRBuilder, x: ir.Value, dtype: str) -> ir.Value:
    """A loaded element or vector as float32."""
    wide = (lambda ty: vec(ty, x.type.count)) if isinstance(x.type, ir.VectorType) else (lambda ty: ty)
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


def to_memory(b: ir.IRBuilder, x: ir.Value, dtype: str) -> ir.Value:
    """float32 rounded to the element type, to nearest even."""
    wide = (lambda ty: vec(ty, x.type.count)) if isinstance(x.type, ir.VectorType) else (lambda ty: ty)
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
