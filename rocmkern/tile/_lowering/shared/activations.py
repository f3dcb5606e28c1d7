"""Activation functions as LLVM IR that all machine targets share, for float32 scalars and vectors.

Each is a few units in the last place from the exact value wherever that is a normal number, for large negative
arguments too, where ``1 + tanh`` or ``1 + erf`` would cancel: there the result is the argument times a power that is
computed from an exponent with twice the digits of float32. A target brings its ``2 ** x`` and its division.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from llvmlite import ir

from rocmkern.tile._lowering.shared.ir_types import I32, const
from rocmkern.tile._lowering.shared.tensors import fma

LOG2_E = math.log2(math.e)
#: Beyond this argument all results are 0 or the argument.
FAR = 200.0
#: gelu_tanh(x) = x * sigmoid(z), with z * log2(e) = LINEAR * x + CUBIC * x^3.
LINEAR = 2 * math.sqrt(2 / math.pi) * LOG2_E
CUBIC = 0.044715 * LINEAR
#: The normal distribution's upper tail is exp(-a^2 / 2) * t * P(t) with t = 1 / (1 + TAIL_SLOPE * a); P, highest power
#: first, is a minimax fit in relative error (1.5e-8) for 0 <= a <= 14.5, where the tail falls below float32.
TAIL_SLOPE = 0.4
TAIL = (
    0.03220828623,
    -0.1767699271,
    0.3821666837,
    -0.3737845123,
    0.1192199439,
    -0.0266594477,
    0.09125974774,
    0.1331581175,
    0.1596250832,
    0.1595760286,
)


@dataclass(frozen=True)
class Activations:
    """The activation functions of one target.

    Attributes
    ----------
    exp2 : callable
        ``exp2(builder, x)`` for x <= 0; it may be 0 below 2 ** -126.
    divide : callable
        ``divide(builder, x, y)`` for 1 <= y <= 2 ** 7, to two units in the last place.
    """

    exp2: Callable[[ir.IRBuilder, ir.Value], ir.Value]
    divide: Callable[[ir.IRBuilder, ir.Value, ir.Value], ir.Value]

    def silu(self, b: ir.IRBuilder, x: ir.Value) -> ir.Value:
        """``x / (1 + exp(-x))``."""
        return self._times_sigmoid(b, x, _product(b, _size(b, x), LOG2_E))

    def gelu_tanh(self, b: ir.IRBuilder, x: ir.Value) -> ir.Value:
        """``x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x^3)))``, which is x times a sigmoid."""
        size = _size(b, x)
        square, rest = _square(b, size)
        cubic, cubic_rest = _product(b, square, CUBIC)
        cubic_rest = fma(b, rest, const(x.type, CUBIC), cubic_rest)
        linear, linear_rest = (const(x.type, part) for part in _halves(LINEAR))
        # The sum of two numbers and its rounding error (Knuth).
        total = b.fadd(linear, cubic)
        taken = b.fsub(total, linear)
        error = b.fadd(b.fsub(linear, b.fsub(total, taken)), b.fsub(cubic, taken))
        error = b.fadd(error, b.fadd(cubic_rest, linear_rest))
        high = b.fmul(size, total)
        low = fma(b, size, error, fma(b, size, total, _minus(b, high)))
        return self._times_sigmoid(b, x, (high, low))

    def gelu(self, b: ir.IRBuilder, x: ir.Value) -> ir.Value:
        """``x`` times the normal distribution function, ``x / 2 * (1 + erf(x / sqrt(2)))``."""
        size, one = _size(b, x), const(x.type, 1.0)
        square, rest = _square(b, size)
        high, low = _product(b, square, LOG2_E / 2)
        root = self._root_of_power(b, high, fma(b, rest, const(x.type, LOG2_E / 2), low))
        t = self.divide(b, one, fma(b, size, const(x.type, TAIL_SLOPE), one))
        series = const(x.type, TAIL[0])
        for coefficient in TAIL[1:]:
            series = fma(b, series, t, const(x.type, coefficient))
        scaled = b.fmul(b.fmul(series, t), root)
        below = b.fmul(b.fmul(_bounded(b, x), scaled), root)
        above = b.fmul(x, b.fsub(one, b.fmul(scaled, root)))
        return b.select(_negative(b, x), below, above)

    def _times_sigmoid(self, b: ir.IRBuilder, x: ir.Value, exponent: tuple[ir.Value, ir.Value]) -> ir.Value:
        """x * sigmoid(z), where z has the sign of x and |z| * log2(e) is the sum of the two exponents."""
        root = self._root_of_power(b, *exponent)
        # exp(-|z|) in two steps, because their product with x may be a normal number where it is none itself.
        small = b.fmul(b.fmul(_bounded(b, x), root), root)
        return self.divide(b, b.select(_negative(b, x), small, x), b.fadd(b.fmul(root, root), const(x.type, 1.0)))

    def _root_of_power(self, b: ir.IRBuilder, high: ir.Value, low: ir.Value) -> ir.Value:
        """``2 ** (-(high + low) / 2)``."""
        power = self.exp2(b, b.fmul(high, const(high.type, -0.5)))
        return b.fmul(power, fma(b, low, const(low.type, -0.5 / LOG2_E), const(low.type, 1.0)))


def _halves(x: float) -> tuple[float, float]:
    """A number as the sum of two float32."""
    high = float(np.float32(x))
    return high, float(np.float32(x - high))


def _minus(b: ir.IRBuilder, x: ir.Value) -> ir.Value:
    return b.fmul(x, const(x.type, -1.0))


def _product(b: ir.IRBuilder, x: ir.Value, factor: float) -> tuple[ir.Value, ir.Value]:
    """x * factor as the sum of two float32."""
    high, low = (const(x.type, part) for part in _halves(factor))
    product = b.fmul(x, high)
    return product, fma(b, x, low, fma(b, x, high, _minus(b, product)))


def _square(b: ir.IRBuilder, x: ir.Value) -> tuple[ir.Value, ir.Value]:
    """x * x as the sum of two float32."""
    square = b.fmul(x, x)
    return square, fma(b, x, x, _minus(b, square))


def _size(b: ir.IRBuilder, x: ir.Value) -> ir.Value:
    """|x|, at most `FAR`; NaN stays NaN."""
    integers = ir.VectorType(I32, x.type.count) if isinstance(x.type, ir.VectorType) else I32
    size = b.bitcast(b.and_(b.bitcast(x, integers), const(integers, 0x7FFFFFFF)), x.type)
    far = const(x.type, FAR)
    return b.select(b.fcmp_ordered(">", size, far), far, size)


def _bounded(b: ir.IRBuilder, x: ir.Value) -> ir.Value:
    """x, at least -`FAR`: infinity times 0 would be NaN."""
    far = const(x.type, -FAR)
    return b.select(b.fcmp_ordered("<", x, far), far, x)


def _negative(b: ir.IRBuilder, x: ir.Value) -> ir.Value:
    return b.fcmp_ordered("<", x, const(x.type, 0.0))
