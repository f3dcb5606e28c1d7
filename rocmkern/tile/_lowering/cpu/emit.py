"""What is emitted everywhere: vectors, loops, float32 in memory, powers of two and the hyperbolic tangent."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import cgutils

from rocmkern.tile._lowering.shared.activations import Activations
from rocmkern.tile._lowering.shared.ir_types import F32, I32, I64, const
from rocmkern.tile._lowering.shared.tensors import at, call, fma

LOG2_E = 1.4426950408889634


def vec(ty: ir.Type, n: int) -> ir.VectorType:
    return ir.VectorType(ty, n)


def splat(b: ir.IRBuilder, x: ir.Value, n: int) -> ir.Value:
    v = b.insert_element(ir.Constant(vec(x.type, n), ir.Undefined), x, const(I32, 0))
    return b.shuffle_vector(v, v, const(vec(I32, n), 0))


def shuffle(b: ir.IRBuilder, x: ir.Value, y: ir.Value, order: list[int]) -> ir.Value:
    return b.shuffle_vector(x, y, ir.Constant(vec(I32, len(order)), order))


def slice_of(b: ir.IRBuilder, x: ir.Value, start: int, n: int) -> ir.Value:
    return x if (start, n) == (0, x.type.count) else shuffle(b, x, x, list(range(start, start + n)))


def concat(b: ir.IRBuilder, parts: list[ir.Value]) -> ir.Value:
    while len(parts) > 1:
        n = parts[0].type.count
        parts = [shuffle(b, parts[i], parts[i + 1], list(range(2 * n))) for i in range(0, len(parts), 2)]
    return parts[0]


def element(b: ir.IRBuilder, x: ir.Value, i: int) -> ir.Value:
    return b.extract_element(x, const(I32, i))


def reduced(b: ir.IRBuilder, x: ir.Value, combine: Any) -> ir.Value:
    """Combine all elements of a vector, halves first."""
    while x.type.count > 1:
        half = x.type.count // 2
        x = combine(slice_of(b, x, 0, half), slice_of(b, x, half, half))
    return element(b, x, 0)


def any_of(b: ir.IRBuilder, x: ir.Value) -> ir.Value:
    """Whether any element of a vector of i1 is set."""
    bits = b.bitcast(x, ir.IntType(x.type.count))
    return b.icmp_unsigned("!=", bits, const(bits.type, 0))


def all_of(b: ir.IRBuilder, x: ir.Value) -> ir.Value:
    """Whether all elements of a vector of i1 are set."""
    bits = b.bitcast(x, ir.IntType(x.type.count))
    return b.icmp_unsigned("==", bits, const(bits.type, -1))


def iota(n: int) -> ir.Constant:
    return ir.Constant(vec(I32, n), list(range(n)))


def fmax(b: ir.IRBuilder, x: ir.Value, y: ir.Value) -> ir.Value:
    """max(x, y), and y where x is NaN: one instruction on x86."""
    return b.select(b.fcmp_ordered(">", x, y), x, y)


@contextlib.contextmanager
def loop(b: ir.IRBuilder, stop: Any, step: int = 1, start: Any = 0, unrolled: bool = False) -> Iterator[ir.Value]:
    """A loop over ``range(start, stop, step)``: LLVM leaves it as it is, unless it may unroll it.

    Most bodies are some vectors wide, or hardly ever run: copies of them would only be more to compile.
    """
    numbers = [x if isinstance(x, ir.Value) else const(I64, x) for x in (start, stop, step)]
    with cgutils.for_range_slice(b, *numbers, I64) as (i, _):
        yield i
        last = b.block
    if not unrolled:
        last.terminator.set_metadata("llvm.loop", _as_it_is(b.module))


def _as_it_is(module: ir.Module) -> ir.MDValue:
    """What LLVM is told of a loop. The first operand must be the node itself."""
    hints = [
        module.add_metadata(["llvm.loop.unroll.disable"]),
        module.add_metadata(["llvm.loop.vectorize.width", const(I32, 1)]),
    ]
    node = module.add_metadata(hints)
    node.operands = (node, *hints)
    return node


def smin(b: ir.IRBuilder, x: ir.Value, y: ir.Value) -> ir.Value:
    return b.select(b.icmp_signed("<", x, y), x, y)


def smax(b: ir.IRBuilder, x: ir.Value, y: ir.Value) -> ir.Value:
    return b.select(b.icmp_signed(">", x, y), x, y)


def floor_to(b: ir.IRBuilder, x: ir.Value, n: int) -> ir.Value:
    """x rounded down to a multiple of n, a power of two."""
    return b.and_(x, const(I64, -n))


def floor_divide(b: ir.IRBuilder, x: ir.Value, y: ir.Value) -> tuple[ir.Value, ir.Value]:
    """Python's // and % of integer vectors."""
    zero = const(x.type, 0)
    quotient, rest = b.sdiv(x, y), b.srem(x, y)
    adjust = b.and_(b.icmp_signed("!=", rest, zero), b.icmp_signed("<", b.xor(rest, y), zero))
    quotient = b.select(adjust, b.sub(quotient, const(x.type, 1)), quotient)
    return quotient, b.select(adjust, b.add(rest, y), rest)


def float_at(b: ir.IRBuilder, base: ir.Value, index: ir.Value, ty: ir.Type = F32) -> ir.Value:
    """Pointer to a ``ty`` (float32 or a vector of it) at a float32 index from an i8 pointer."""
    return at(b, base, b.mul(index, const(I64, 4)), ty)


def load_floats(b: ir.IRBuilder, base: ir.Value, index: ir.Value, n: int = 0) -> ir.Value:
    return b.load(float_at(b, base, index, vec(F32, n) if n else F32), align=4)


def store_floats(b: ir.IRBuilder, value: ir.Value, base: ir.Value, index: ir.Value) -> None:
    b.store(value, float_at(b, base, index, value.type), align=4)


def transpose(b: ir.IRBuilder, rows: list[ir.Value]) -> list[ir.Value]:
    """Transpose n vectors of n elements: log2(n) perfect shuffles."""
    n = len(rows)
    low = [x for i in range(n // 2) for x in (i, n + i)]
    high = [x for i in range(n // 2, n) for x in (i, n + i)]
    stages = n.bit_length() - 1
    for _ in range(stages):
        pairs = [(rows[i], rows[i + n // 2]) for i in range(n // 2)]
        rows = [shuffle(b, x, y, order) for x, y in pairs for order in (low, high)]
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
        total = fma(b, total, x, const(x.type, c))
    return total


def exp2(b: ir.IRBuilder, x: ir.Value) -> ir.Value:
    """2 ** x of a vector, x <= 128: exactly 0 below 2 ** -126, NaN stays NaN."""
    n = x.type.count
    x = b.select(b.fcmp_ordered("<", x, const(x.type, -127.0)), const(x.type, -127.0), x)
    whole = call(b, f"llvm.rint.v{n}f32", x.type, [x])
    power = _horner(b, b.fsub(x, whole), _polynomial("exp2"))
    # 2 ** whole by its exponent bits; -127 gives the bits of 0.
    exponent = b.add(b.fptosi(whole, vec(I32, n)), const(vec(I32, n), 127))
    return b.fmul(power, b.bitcast(b.shl(exponent, const(vec(I32, n), 23)), x.type))


def exp2_of_any(b: ir.IRBuilder, x: ir.Value) -> ir.Value:
    """2 ** x of a vector, whatever x is."""
    # `exp2` rounds the exponent: from 127.5 on that would be 128, which has no finite power.
    large = b.fcmp_ordered(">", x, const(x.type, 127.0))
    infinite = b.fcmp_ordered(">=", x, const(x.type, 128.0))
    power = exp2(b, b.select(large, b.fsub(x, const(x.type, 1.0)), x))
    power = b.select(large, b.fadd(power, power), power)
    return b.select(infinite, const(x.type, float("inf")), power)


def tanh(b: ir.IRBuilder, x: ir.Value) -> ir.Value:
    """tanh of a vector: a polynomial near 0, 1 - 2 / (exp(2 |x|) + 1) elsewhere."""
    n, one = x.type.count, const(x.type, 1.0)
    size = call(b, f"llvm.fabs.v{n}f32", x.type, [x])
    square = b.fmul(x, x)
    near = fma(b, b.fmul(x, square), _horner(b, square, _polynomial("tanh")), x)
    capped = b.select(b.fcmp_ordered(">", size, const(x.type, 10.0)), const(x.type, 10.0), size)
    grown = b.fadd(exp2(b, b.fmul(capped, const(x.type, 2 * LOG2_E))), one)
    far = call(b, f"llvm.copysign.v{n}f32", x.type, [b.fsub(one, b.fdiv(const(x.type, 2.0), grown)), x])
    return b.select(b.fcmp_ordered("<", size, const(x.type, 0.625)), near, far)


ACTIVATIONS = Activations(exp2=exp2, divide=ir.IRBuilder.fdiv)
