"""What the targets' `square_step` and `multiply_rows` share, as LLVM IR for float32 scalars and vectors.

Which of two ways is taken is decided for a whole tile, or what a wave has of it, but every row of it gets what it would
get alone: on the longer way, a row for which the shorter one would do takes its numbers from there.

When values are scaled, and how. A scale is a power of two, so that it changes no digit.
"""

from __future__ import annotations

from llvmlite import ir

from rocmkern.tile._lowering.shared.ir_types import I32, const

#: Between these a sum of squares of float32 as they are has lost nothing to overflow or underflow...
LEAST_SUM, LARGEST_SUM = 2.0**-80, 2.0**100
#: ... nor has a smaller one lost anything that counts, if the scale is at most this.
LARGEST_SCALE = 2.0**20


def is_plain(b: ir.IRBuilder, squares: ir.Value, scale: ir.Value) -> ir.Value:
    """Whether a sum of squares as they are is good enough."""
    least, largest, most = (const(scale.type, x) for x in (LEAST_SUM, LARGEST_SUM, LARGEST_SCALE))
    enough = b.or_(b.fcmp_ordered(">=", squares, least), b.fcmp_ordered("<=", scale, most))
    return b.and_(enough, b.fcmp_ordered("<=", squares, largest))


def add_plain(b: ir.IRBuilder, squares: ir.Value, scale: ir.Value, total: ir.Value) -> tuple[ir.Value, ir.Value]:
    """The new scale and sum, with a sum of squares as they are taken in."""
    new = smaller(b, scale, const(scale.type, 1.0))
    return new, b.fadd(rescale(b, total, scale, new), b.fmul(b.fmul(squares, new), new))


def scale_of(b: ir.IRBuilder, largest: ir.Value, scale: ir.Value) -> ir.Value:
    """The new scale where values are as large as ``largest``: it brings them to 1 or 2, if it is not above the old."""
    whole = ir.VectorType(I32, largest.type.count) if isinstance(largest.type, ir.VectorType) else I32
    exponent = b.lshr(b.bitcast(largest, whole), const(whole, 23))
    reverse = b.sub(const(whole, 254), exponent)
    reverse = b.select(b.icmp_signed("<", reverse, const(whole, 1)), const(whole, 1), reverse)
    power = b.bitcast(b.shl(reverse, const(whole, 23)), largest.type)
    finite = b.icmp_signed("!=", exponent, const(whole, 255))
    return smaller(b, scale, b.select(finite, power, const(power.type, 1.0)))


def square(b: ir.IRBuilder, x: ir.Value, scale: ir.Value) -> ir.Value:
    """The square of a scaled value."""
    x = b.fmul(x, scale)
    return b.fmul(x, x)


def rescale(b: ir.IRBuilder, total: ir.Value, old: ir.Value, new: ir.Value) -> ir.Value:
    """A sum of squares of values with the scale ``old``, for the scale ``new``, which is not above it."""
    quotient = b.fdiv(new, old)
    return b.select(b.fcmp_ordered("==", old, new), total, b.fmul(b.fmul(total, quotient), quotient))


def smaller(b: ir.IRBuilder, x: ir.Value, y: ir.Value) -> ir.Value:
    return b.select(b.fcmp_ordered("<", x, y), x, y)


def joined(b: ir.IRBuilder, scale: ir.Value, factor: ir.Value) -> tuple[ir.Value, ir.Value]:
    """``scale * factor``, and whether values may be multiplied by that at once: it is neither small nor large."""
    product = b.fmul(scale, factor)
    low, high = (const(product.type, x) for x in (LEAST_SUM, LARGEST_SUM))
    return product, b.and_(b.fcmp_ordered(">=", product, low), b.fcmp_ordered("<=", product, high))


def in_order(
    b: ir.IRBuilder, product: ir.Value, ordinary: ir.Value, scale: ir.Value, factor: ir.Value
) -> tuple[ir.Value, ir.Value]:
    """Two factors to multiply values by, one after the other; where the `joined` one will do, that one and 1."""
    return b.select(ordinary, product, scale), b.select(ordinary, const(factor.type, 1.0), factor)
