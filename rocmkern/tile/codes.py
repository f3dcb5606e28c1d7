"""Numbers of 4 to 8 bits as float32: the small floats of OCP MX v1.0 and OFP8, and E8M0 scales.

Decoding is exact, float32 subnormals included. Each number has its meaning in NumPy and one piece of LLVM IR for all
targets; the IR works on integers that hold a code in their low bits, scalars or vectors.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import numpy as np

from rocmkern.runtime.errors import TileError


@dataclass(frozen=True)
class SmallFloat:
    """A float of a sign bit, ``exponent`` bits and ``mantissa`` bits, with subnormals.

    Attributes
    ----------
    bias : int
        Exponent bias.
    special : str
        ``"none"``: every code is a finite number. ``"ieee"``: the largest exponent holds infinity and NaN.
        ``"nan"``: no infinity, and only exponent and mantissa of all ones are NaN (the E4M3 of OCP, not FNUZ).
    """

    exponent: int
    mantissa: int
    bias: int
    special: str = "none"

    @property
    def bits(self) -> int:
        return 1 + self.exponent + self.mantissa

    @property
    def largest(self) -> float:
        """The largest finite number."""
        values = self.table()
        return float(values[np.isfinite(values)].max())

    @property
    def largest_exponent(self) -> int:
        """floor(log2) of the largest finite number: the ``emax`` of OCP MX."""
        return int(np.floor(np.log2(self.largest)))

    def table(self) -> np.ndarray:
        """float32 value of every code."""
        return _table(self)


@functools.cache
def _table(kind: SmallFloat) -> np.ndarray:
    codes = np.arange(1 << kind.bits)
    sign = 1 - 2 * (codes >> (kind.bits - 1))
    exponent = (codes >> kind.mantissa) & ((1 << kind.exponent) - 1)
    mantissa = codes & ((1 << kind.mantissa) - 1)
    significand = mantissa + np.where(exponent > 0, 1 << kind.mantissa, 0)
    values = np.ldexp(sign * significand.astype(np.float32), np.maximum(exponent, 1) - kind.bias - kind.mantissa)
    values = np.where((sign < 0) & (significand == 0), np.float32(-0.0), values).astype(np.float32)
    top = exponent == (1 << kind.exponent) - 1
    if kind.special == "ieee":
        values = np.where(top, np.where(mantissa == 0, sign * np.float32(np.inf), np.float32(np.nan)), values)
    if kind.special == "nan":
        values = np.where(top & (mantissa == (1 << kind.mantissa) - 1), np.float32(np.nan), values)
    values = values.astype(np.float32)
    values.flags.writeable = False
    return values


#: By name; `e4m3` and `e5m2` are ``float8_e4m3fn`` and ``float8_e5m2`` of other libraries.
SMALL_FLOATS = {
    "e2m1": SmallFloat(2, 1, 1),
    "e2m3": SmallFloat(2, 3, 1),
    "e3m2": SmallFloat(3, 2, 3),
    "e4m3": SmallFloat(4, 3, 7, "nan"),
    "e5m2": SmallFloat(5, 2, 15, "ieee"),
}


#: Name of a small float that is a dtype of 8 bits.
OF_8_BITS = {"float8_e4m3fn": "e4m3", "float8_e5m2": "e5m2"}


def small_float(name: str) -> SmallFloat:
    """Look a small float up by name."""
    try:
        return SMALL_FLOATS[name]
    except KeyError:
        raise TileError(f"small float {name!r} is not known; known: {', '.join(SMALL_FLOATS)}") from None


def decode(name: str, codes: np.ndarray) -> np.ndarray:
    """float32 values of codes (uint8)."""
    return small_float(name).table()[codes]


def decode_e8m0(codes: np.ndarray) -> np.ndarray:
    """float32 scales ``2 ** (code - 127)`` (the first one is subnormal); 255 is NaN."""
    exponent = np.minimum(codes, 254).astype(np.int32) - 127
    return np.where(codes == 255, np.float32(np.nan), np.ldexp(np.float32(1), exponent))


# ------------------------------------------------------------------------------------------------------------- LLVM IR


def like(shape: Any, element: Any) -> Any:
    """LLVM's type of an element, or of a vector of as many as a type has."""
    # deferred: start-up
    from llvmlite import ir

    return ir.VectorType(element, shape.count) if isinstance(shape, ir.VectorType) else element


def emit_decode(b: Any, name: str, code: Any) -> Any:
    """float32 of a code: an i32, or a vector of them, with nothing above the code's bits.

    The code becomes a float16 of the same digits, whose exponents are ``15 - bias`` too small. That way no float32
    is subnormal before it has to be: multiplying such numbers is slow on many processors, and some flush them.
    """
    # deferred: start-up
    from rocmkern.tile._lowering.shared.ir_types import F16, F32, I16, const

    kind, wide = SMALL_FLOATS[name], code.type
    magnitude = b.and_(code, const(wide, (1 << (kind.bits - 1)) - 1))
    sign = b.and_(code, const(wide, 1 << (kind.bits - 1)))
    digits = b.shl(magnitude, const(wide, 10 - kind.mantissa))
    bits = b.or_(digits, b.shl(sign, const(wide, 16 - kind.bits)))
    if kind.special == "nan":
        # One more than the largest magnitude carries into the bit that makes the exponent that of a NaN. A comparison
        # for each number would take scalar registers on AMD.
        carry = b.add(digits, const(wide, 1 << (10 - kind.mantissa)))
        bits = b.or_(bits, b.and_(carry, const(wide, 1 << (10 + kind.exponent))))
    half = b.bitcast(b.trunc(bits, like(wide, I16)), like(wide, F16))
    value = b.fpext(half, like(wide, F32))
    if kind.bias != 15:
        value = b.fmul(value, const(value.type, 2.0 ** (15 - kind.bias)))
    return value


def emit_encode(b: Any, name: str, value: Any) -> Any:
    """Code (i32) of the nearest number to a float32, or to each of a vector of them.

    To nearest even. What is larger than the largest finite number becomes that one, infinity too; NaN becomes NaN, or
    where there is none a number without meaning.
    """
    # deferred: start-up
    from rocmkern.tile._lowering.shared.ir_types import I32, const

    kind = SMALL_FLOATS[name]
    wide, floats = like(value.type, I32), value.type

    def bits_of(number: float) -> Any:
        return const(wide, int(np.float32(number).view(np.int32)))

    bits = b.bitcast(value, wide)
    sign = b.and_(b.lshr(bits, const(wide, 32 - kind.bits)), const(wide, 1 << (kind.bits - 1)))
    magnitude = b.and_(bits, const(wide, 0x7FFFFFFF))
    size = b.select(b.icmp_unsigned("<", magnitude, bits_of(kind.largest)), magnitude, bits_of(kind.largest))
    dropped = 23 - kind.mantissa
    odd = b.and_(b.lshr(size, const(wide, dropped)), const(wide, 1))
    rounded = b.lshr(b.add(size, b.add(odd, const(wide, (1 << (dropped - 1)) - 1))), const(wide, dropped))
    code = b.sub(rounded, const(wide, (127 - kind.bias) << kind.mantissa))
    # Where codes are evenly spaced, the sum with a number whose last bit is worth one of them is rounded to codes.
    even = 2.0 ** (1 - kind.bias - kind.mantissa + 23)
    small = b.sub(b.bitcast(b.fadd(b.bitcast(size, floats), const(floats, even)), wide), bits_of(even))
    code = b.select(b.icmp_unsigned("<", size, bits_of(2.0 ** (1 - kind.bias))), small, code)
    if kind.special != "none":
        is_nan = b.icmp_unsigned(">", magnitude, bits_of(np.inf))
        code = b.select(is_nan, const(wide, (1 << (kind.bits - 1)) - 1), code)
    return b.or_(code, sign)


def emit_e8m0(b: Any, code: Any) -> Any:
    """float32 of an E8M0 scale: an i32, or a vector of them."""
    # deferred: start-up
    from rocmkern.tile._lowering.shared.ir_types import F32, const

    wide = code.type
    # The same bit makes a subnormal number of 0, and NaN of 255, which would be infinity.
    ends = b.and_(b.add(code, const(wide, 1)), const(wide, 255))
    special = b.zext(b.icmp_unsigned("<", ends, const(wide, 2)), wide)
    bits = b.or_(b.shl(code, const(wide, 23)), b.shl(special, const(wide, 22)))
    return b.bitcast(bits, like(wide, F32))
