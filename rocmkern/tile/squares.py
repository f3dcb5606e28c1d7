"""What the targets' `square_step` share: the scale of a row's squares, as LLVM IR for float32 scalars and vectors."""

from __future__ import annotations

from collections.abc import Callable

from llvmlite import ir

from rocmkern.tile.tensors import const

LARGEST_FLOAT32 = 3.4028234663852886e38


def unit(b: ir.IRBuilder, m: ir.Value, sqrt: Callable) -> ir.Value:
    """``1 / sqrt(m)``: twice a factor, it brings values of size m to 1; 1 where m is 0 or infinite."""
    one = const(m.type, 1.0)
    above, finite = b.fcmp_ordered(">", m, const(m.type, 0.0)), b.fcmp_ordered("<=", m, const(m.type, LARGEST_FLOAT32))
    return b.fdiv(one, sqrt(b, b.select(b.and_(above, finite), m, one)))


def square(b: ir.IRBuilder, x: ir.Value, scale: ir.Value) -> ir.Value:
    """The square of a value in the unit of a scale."""
    x = b.fmul(b.fmul(x, scale), scale)
    return b.fmul(x, x)


def rescale(b: ir.IRBuilder, total: ir.Value, old: ir.Value, new: ir.Value, scale: ir.Value) -> ir.Value:
    """A sum of squares in units of ``old^2``, in units of ``new^2``; exactly the same where both are."""
    return b.select(b.fcmp_ordered("==", old, new), total, b.fmul(total, square(b, old, scale)))
