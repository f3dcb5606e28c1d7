"""Angles and rotations as LLVM IR, for all machine targets; what they mean is `tile.rotations` and `tile.rotate`.

Values are scalars, or vectors of the same length.
"""

from __future__ import annotations

import functools
import math

import numpy as np
from llvmlite import ir

from rocmkern.tile._lowering.shared.ir_types import F32, I32, I64, const
from rocmkern.tile._lowering.shared.tensors import fma

QUARTER = math.pi / 4


@functools.cache
def _polynomial(name: str) -> tuple[float, ...]:
    """Coefficients, highest power first, in z = x**2 for x in 0 .. pi / 4, by Chebyshev interpolation.

    ``sin``: (sin(x) / x - 1) / z, absolute error of sin below 3e-9.
    ``cos``: (cos(x) - 1 + z / 2) / z**2, absolute error of cos below 1e-9.
    """

    def of_sin(z: np.ndarray) -> np.ndarray:
        return (np.sin(np.sqrt(z)) / np.sqrt(z) - 1) / z

    def of_cos(z: np.ndarray) -> np.ndarray:
        return (np.cos(np.sqrt(z)) - 1 + z / 2) / z**2

    fit = np.polynomial.Chebyshev.interpolate({"sin": of_sin, "cos": of_cos}[name], 2, domain=[1e-3, QUARTER**2])
    return tuple(fit.convert(kind=np.polynomial.Polynomial).coef[::-1])


def _like(value: ir.Value, element: ir.Type) -> ir.Type:
    """``element``, or a vector of as many as ``value`` has."""
    return ir.VectorType(element, value.type.count) if isinstance(value.type, ir.VectorType) else element


def _horner(b: ir.IRBuilder, z: ir.Value, coefficients: tuple[float, ...]) -> ir.Value:
    total = const(z.type, coefficients[0])
    for c in coefficients[1:]:
        total = fma(b, total, z, const(z.type, c))
    return total


def cos_sin(b: ir.IRBuilder, position: ir.Value, frequency: ir.Value) -> tuple[ir.Value, ir.Value]:
    """Cosine and sine (f32) of ``position`` (i32) times ``frequency`` (i64, in 2 ** -64 of a turn)."""
    wide, whole, floats = _like(position, I64), _like(position, I32), _like(position, F32)
    phase = b.mul(b.sext(position, wide), frequency)
    # 2 ** -32 of a turn is 1.5e-9: enough. The nearest quarter turn, and what is left: an eighth of a turn at most.
    phase = b.trunc(b.lshr(phase, const(wide, 32)), whole)
    quarter = b.lshr(b.add(phase, const(whole, 1 << 29)), const(whole, 30))
    rest = b.sub(phase, b.shl(quarter, const(whole, 30)))
    x = b.fmul(b.sitofp(rest, floats), const(floats, 2 * math.pi / 2.0**32))
    z = b.fmul(x, x)
    sin = fma(b, b.fmul(x, z), _horner(b, z, _polynomial("sin")), x)
    inner = fma(b, z, _horner(b, z, _polynomial("cos")), const(floats, -0.5))
    cos = fma(b, z, inner, const(floats, 1.0))
    odd = b.icmp_unsigned("!=", b.and_(quarter, const(whole, 1)), const(whole, 0))
    # Cosine is negative in quarters 1 and 2, sine in quarters 2 and 3: bit 1 moves to where the sign is.
    signs = [b.shl(b.and_(q, const(whole, 2)), const(whole, 30)) for q in (b.add(quarter, const(whole, 1)), quarter)]
    values = (b.select(odd, sin, cos), b.select(odd, cos, sin))
    cos, sin = (
        b.bitcast(b.xor(b.bitcast(value, whole), sign), floats) for value, sign in zip(values, signs, strict=True)
    )
    return cos, sin


def rotated(b: ir.IRBuilder, x: ir.Value, y: ir.Value, cos: ir.Value, sin: ir.Value) -> tuple[ir.Value, ir.Value]:
    """``x * cos - y * sin``, ``y * cos + x * sin``; where ``sin`` is 0 the products with it are left out."""
    still = is_still(b, sin)
    results = []
    minus_sin = b.fsub(const(sin.type, -0.0), sin)  # the compiler of CUDA does not know fneg
    for value, other, factor in ((x, y, minus_sin), (y, x, sin)):
        product = b.fmul(value, cos)
        results.append(b.select(still, product, fma(b, other, factor, product)))
    return results[0], results[1]


def is_still(b: ir.IRBuilder, sin: ir.Value) -> ir.Value:
    """Whether a rotation changes nothing."""
    return b.fcmp_ordered("==", sin, const(sin.type, 0.0))


def turned(b: ir.IRBuilder, x: ir.Value, y: ir.Value, cos: ir.Value, sin: ir.Value) -> tuple[ir.Value, ir.Value]:
    """`rotated` where ``sin`` is not 0."""
    minus_sin = b.fsub(const(sin.type, -0.0), sin)
    return fma(b, y, minus_sin, b.fmul(x, cos)), fma(b, x, sin, b.fmul(y, cos))
