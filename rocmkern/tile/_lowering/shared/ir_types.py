"""LLVM's types by their names, and constants of them."""

from __future__ import annotations

from typing import Any

from llvmlite import ir

I1, I8, I16, I32, I64 = (ir.IntType(n) for n in (1, 8, 16, 32, 64))
F16, F32, F64 = ir.HalfType(), ir.FloatType(), ir.DoubleType()


def const(ty: ir.Type, value: Any) -> ir.Constant:
    """A constant; for vector types the same value in every element."""
    if isinstance(ty, ir.VectorType):
        return ir.Constant(ty, [value] * ty.count)
    return ir.Constant(ty, value)
