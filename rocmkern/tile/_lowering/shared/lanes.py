"""How a lane of a GPU reads quantized blocks: scalars from 32-bit words. The targets say how words are loaded."""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir

from rocmkern.runtime.errors import TileError
from rocmkern.tile._lowering.shared.ir_types import F16, F32, I16, I32, const
from rocmkern.tile._lowering.shared.tensors import call
from rocmkern.tile.codes import SMALL_FLOATS
from rocmkern.tile.formats import IN_PAIRS


class FoldingBuilder:
    """An IR builder whose integer operations on constants give constants, as far as low bits are known.

    LLVM would find out as well, but a reader wants to know which bytes it has read already, and where digits lie.
    """

    def __init__(self, b: ir.IRBuilder):
        self._b = b
        # Sums of a multiple of 2 ** bits and a smaller number, by identity: the sum, the multiple, the number, bits.
        self._sums: dict[int, tuple[ir.Value, ir.Value, int, int]] = {}
        self._shifted: dict[tuple[int, int], ir.Value] = {}

    def sum(self, multiple: ir.Value, low: int, bits: int) -> ir.Value:
        """``multiple + low``: a multiple of ``2 ** bits`` and a smaller number."""
        if isinstance(multiple, ir.Constant):
            return const(multiple.type, multiple.constant + low)
        value = self._b.add(multiple, const(multiple.type, low)) if low else multiple
        if bits > 0:
            self._sums[id(value)] = value, multiple, low, bits
        return value

    def __getattr__(self, name: str) -> Any:
        return getattr(self._b, name)

    def _fold(self, name: str, x: ir.Value, y: ir.Value, combine: Callable[[int, int], int]) -> ir.Value:
        if isinstance(x, ir.Constant) and isinstance(y, ir.Constant) and isinstance(x.type, ir.IntType):
            return const(x.type, combine(x.constant, y.constant) & ((1 << x.type.width) - 1))
        return getattr(self._b, name)(x, y)

    def _parts(self, x: ir.Value, y: ir.Value) -> tuple[ir.Value, int, int] | None:
        """What is known of ``x`` beside a constant ``y``: see `sum`."""
        known = self._sums.get(id(x)) if isinstance(y, ir.Constant) else None
        return known and known[1:]

    def add(self, x: ir.Value, y: ir.Value) -> ir.Value:
        known = self._parts(x, y)
        if known and 0 <= known[1] + y.constant < 1 << known[2]:
            return self.sum(known[0], known[1] + y.constant, known[2])
        return self._fold("add", x, y, operator.add)

    def and_(self, x: ir.Value, y: ir.Value) -> ir.Value:
        known = self._parts(x, y)
        if known and 0 <= y.constant < 1 << known[2]:
            return const(y.type, known[1] & y.constant)
        return self._fold("and_", x, y, operator.and_)

    def or_(self, x: ir.Value, y: ir.Value) -> ir.Value:
        return self._fold("or_", x, y, operator.or_)

    def shl(self, x: ir.Value, y: ir.Value) -> ir.Value:
        return self._fold("shl", x, y, operator.lshift)

    def lshr(self, x: ir.Value, y: ir.Value) -> ir.Value:
        known = self._parts(x, y)
        if not known:
            return self._fold("lshr", x, y, operator.rshift)
        multiple, low, bits = known
        key = id(multiple), y.constant
        if key not in self._shifted:
            self._shifted[key] = self._b.lshr(multiple, y)
        return self.sum(self._shifted[key], low >> y.constant, max(bits - y.constant, 0))

    def mul(self, x: ir.Value, y: ir.Value) -> ir.Value:
        return self._fold("mul", x, y, operator.mul)


class LaneReader:
    """A `formats.BlockReader` of one block for one lane.

    Parameters
    ----------
    b : IRBuilder
    words : callable
        ``words(offset, nbytes, step)``: little-endian i32 words of bytes of the block from an offset (i32), as many as
        hold ``nbytes``; what the last one holds beyond them has no meaning. Asked once for the same constant offset.
        Other offsets are multiples of ``step``.
    """

    def __init__(self, b: ir.IRBuilder, words: Callable[[ir.Value, int, int], list[ir.Value]]):
        self.b, self._words = b, words
        self._known: dict[tuple[int, int], list[ir.Value]] = {}

    def words(self, offset: ir.Value, nbytes: int, step: int = 1) -> list[ir.Value]:
        if not isinstance(offset, ir.Constant):
            return self._words(offset, nbytes, step)
        key = offset.constant, nbytes
        if key not in self._known:
            self._known[key] = self._words(offset, nbytes, step)
        return self._known[key]

    def byte(self, offset: ir.Value) -> ir.Value:
        return self.b.and_(self.words(offset, 1)[0], const(I32, 255))

    def short(self, offset: ir.Value) -> ir.Value:
        return self.b.and_(self.words(offset, 2)[0], const(I32, 0xFFFF))

    def word(self, offset: ir.Value) -> ir.Value:
        return self.words(offset, 4)[0]

    def half(self, offset: ir.Value) -> ir.Value:
        bits = self.b.trunc(self.words(offset, 2)[0], I16)
        return self.b.fpext(self.b.bitcast(bits, F16), F32)

    def power(self, offset: ir.Value) -> ir.Value:
        """As `codes.emit_e8m0`, in fewer instructions of a GPU."""
        b, least = self.b, const(I32, 1 << 22)
        bits = b.shl(self.byte(offset), const(I32, 23))
        # Code 0 is a subnormal number; 255 would be infinity, which is NaN when it is multiplied by 0.
        number = b.bitcast(b.select(b.icmp_unsigned(">", bits, least), bits, least), F32)
        return b.fadd(b.fmul(number, const(F32, 0.0)), number)

    def fields(self, offset: ir.Value, count: int, width: int, step: int = 1) -> list[ir.Value]:
        b, words = self.b, self.words(offset, count * width // 8, step)
        fields = []
        for i in range(count):
            word, shift = divmod(i * width, 32)
            bits = b.lshr(words[word], const(I32, shift)) if shift else words[word]
            if shift + width > 32:
                bits = b.or_(bits, b.shl(words[word + 1], const(I32, 32 - shift)))
            fields.append(b.and_(bits, const(I32, (1 << width) - 1)))
        return fields

    def nibbles(
        self, offset: ir.Value, count: int, shift: ir.Value, numbers: tuple, step: int = 1
    ) -> tuple[list, float]:
        """Bits become digits of a float where they are, without being moved to the lowest place first."""
        words = self.words(offset, count, step)
        if isinstance(shift, ir.Constant):
            place = shift.constant
        else:
            words, place = [self.b.lshr(word, shift) for word in words], 0
        steps = {y - x for x, y in itertools.pairwise(numbers)}
        if steps == {1.0}:
            return self._integers(words, count, place, numbers[0]), 1.0
        if numbers != tuple(SMALL_FLOATS["e2m1"].table().tolist()):
            raise TileError("nibbles: numbers that neither count up nor are those of E2M1")
        return self._small_floats(words, count, place), 2.0**14

    def whole_bytes(self, kind: str, offset: ir.Value, count: int) -> tuple[list, float] | None:
        if kind != "int8":
            return None
        words = [self.b.xor(word, const(I32, 0x80808080)) for word in self.words(offset, count)]
        return self._integers(words, count, 0, -128.0, 8), 1.0

    def joined_bits(
        self, low: ir.Value, low_shift: ir.Value, high: ir.Value, high_shift: ir.Value, width: int, less: int,
        count: int,
    ) -> list | None:  # fmt: skip
        """`fields` does it."""
        return None

    def five_bits(
        self, low: ir.Value, shift: ir.Value, plane: ir.Value, first: ir.Value, less: int, count: int
    ) -> list:
        return self._integers(self.codes_of_five_bits(low, shift, plane, first, count), count, 0, -float(less), 5)

    def codes_of_five_bits(
        self, low: ir.Value, shift: ir.Value, plane: ir.Value, first: ir.Value, count: int
    ) -> list[ir.Value]:
        """The numbers of `five_bits`, one in each byte of the words."""
        b, bits, codes = self.b, self.bit_plane(plane, first), []
        for i, word in enumerate(self.words(low, count)):
            # Four bits at bit 4 and, 7 bits apart, three times more: of copy k bit k is the lowest of a high half.
            four = b.and_(b.lshr(bits, const(I32, 4 * i - 4)) if i else b.shl(bits, const(I32, 4)), const(I32, 0xF0))
            upper = b.and_(b.mul(four, const(I32, 0x204081)), const(I32, 0x10101010))
            codes.append(self.masked_onto(b.lshr(word, shift), 0x0F0F0F0F, upper))
        return codes

    def bit_plane(self, offset: ir.Value, first: ir.Value) -> ir.Value:
        """Bits of four bytes at an offset, from one of them on."""
        return self.b.lshr(self.words(offset, 4)[0], first)

    def _integers(self, words: list[ir.Value], count: int, place: int, start: float, width: int = 4) -> list[ir.Value]:
        """``start`` plus bits of each byte: set in the mantissa of 2 ** 23, they count 2 ** bit too much."""
        b, numbers = self.b, []
        for i in range(count):
            word, bit = words[i // 4], 8 * (i % 4) + place
            if bit + width > 23:  # the mantissa has 23 bits
                word, bit = b.lshr(word, const(I32, 16)), bit - 16
            bits = b.bitcast(self.masked_onto(word, ((1 << width) - 1) << bit, 0x4B000000), F32)
            less = const(F32, start - 2.0 ** (23 - bit))
            if bit:
                numbers.append(call(b, "llvm.fma.f32", F32, [bits, const(F32, 2.0**-bit), less]))
            else:
                numbers.append(b.fadd(bits, less))
        return numbers

    def masked_onto(self, word: ir.Value, mask: int, base: ir.Value | int) -> ir.Value:
        """``word & mask | base``."""
        base = const(I32, base) if isinstance(base, int) else base
        return self.b.or_(self.b.and_(word, const(I32, mask)), base)

    def chosen_bits(self, mask: int, x: ir.Value, y: ir.Value) -> ir.Value:
        """The bits of x where the mask is 1, those of y where it is 0."""
        return self.b.or_(self.b.and_(x, const(I32, mask)), self.b.and_(y, const(I32, ~mask & 0xFFFFFFFF)))

    def _small_floats(self, words: list[ir.Value], count: int, place: int) -> list[ir.Value]:
        """Numbers of E2M1 codes, divided by 2 ** 14: the same digits in two float16 at once."""
        b, numbers = self.b, []
        pairs = [pair for word in words for pair in self.pairs_of_small_floats(word, place)]
        for i in range(count):
            half = b.trunc(b.lshr(pairs[2 * (i // 4) + i % 2], const(I32, 16 * (i % 4 // 2))), I16)
            numbers.append(b.fpext(b.bitcast(half, F16), F32))
        return numbers

    def pairs_of_small_floats(self, word: ir.Value, bit: int) -> list[ir.Value]:
        """Two pairs of float16: the E2M1 codes at a bit, 0 or 4, of the bytes of a word, divided by 2 ** 14.

        The codes of all four bytes become the upper bytes of float16 at once. Bytes 0 and 2, then bytes 1 and 3.
        """
        b = self.b
        digits = b.lshr(word, const(I32, 3)) if bit else b.shl(word, const(I32, 1))
        # Bits 3 and 7 of all bytes; of what moves up, the digits hide bit 3, which came from another byte.
        signs = self.masked_onto(word, 0x88888888, 0)
        upper = self.chosen_bits(0x0E0E0E0E, digits, signs if bit else b.shl(signs, const(I32, 4)))
        return [self.even_bytes_up(upper), b.and_(upper, const(I32, 0xFF00FF00))]

    def even_bytes_up(self, word: ir.Value) -> ir.Value:
        """Bytes 0 and 2 of a word, each moved up by one; the others are 0."""
        return self.b.and_(self.b.shl(word, const(I32, 8)), const(I32, 0xFF00FF00))

    def lookup(self, numbers: tuple, lanes: list) -> None:
        """There is no such instruction."""


class PairReader(LaneReader):
    """Numbers as float16, two in a word: of every four elements the first and the third, the second and the fourth."""

    FORMATS = IN_PAIRS
    #: Powers of two that whole bytes lack.
    FACTORS = {"int8": 1.0, "e4m3": 2.0**8, "e5m2": 1.0}  # noqa: RUF012

    def __init__(self, b: ir.IRBuilder, words: Callable[[ir.Value, int, int], list[ir.Value]]):
        super().__init__(b, words)
        #: Of what was read: whether it has a NaN that did not become one.
        self.nan: list[ir.Value] = []

    @staticmethod
    def factor_of_nibbles(numbers: tuple) -> float:
        return 1.0 if numbers[1] - numbers[0] == 1 else 2.0**14

    def nibbles(
        self, offset: ir.Value, count: int, shift: ir.Value, numbers: tuple, step: int = 1
    ) -> tuple[list, float]:
        b, words, place = self.b, self.words(offset, count, step), 0
        if isinstance(shift, ir.Constant):
            place = shift.constant
        else:
            words = [b.lshr(word, shift) for word in words]
        factor, pairs = self.factor_of_nibbles(numbers), []
        if factor != 1:
            return [pair for word in words for pair in self.pairs_of_small_floats(word, place)], factor
        for word in words:
            for shifted in (word, b.lshr(word, const(I32, 8))):
                # Four bits in the mantissa of 1024.
                pair = self.masked_onto(shifted, 0x000F000F << place, 0x64006400)
                pairs.append(self.fma_pairs(pair, 2.0**-place, numbers[0] - 1024 * 2.0**-place))
        return pairs, factor

    def whole_bytes(self, kind: str, offset: ir.Value, count: int) -> tuple[list, float]:
        b, words, factor = self.b, self.words(offset, count), self.FACTORS[kind]
        if kind == "int8":
            # All bits of a byte, less 128, in the mantissa of 1024.
            shifted = [x for word in words for x in (word, b.lshr(word, const(I32, 8)))]
            pairs = [self.masked_and_flipped(x, 0x00FF00FF, 0x64806480) for x in shifted]
            return [self.add_pairs(x, -1024.0 - 128.0) for x in pairs], factor
        upper = [x for word in words for x in (self.even_bytes_up(word), b.and_(word, const(I32, 0xFF00FF00)))]
        if kind == "e5m2":
            return upper, factor
        # Seven bits are one place lower in a float16, with a smaller bias; all of them set are NaN.
        lower = [b.and_(b.lshr(x, const(I32, 1)), const(I32, 0x3F803F80)) for x in upper]
        pairs = [b.or_(x, b.and_(y, const(I32, 0x80008000))) for x, y in zip(lower, upper, strict=True)]
        carries = [b.add(b.and_(word, const(I32, 0x7F7F7F7F)), const(I32, 0x01010101)) for word in words]
        carry = b.and_(functools.reduce(b.or_, carries), const(I32, 0x80808080))
        self.nan.append(b.icmp_unsigned("!=", carry, const(I32, 0)))
        return pairs, factor

    def joined_bits(
        self, low: ir.Value, low_shift: ir.Value, high: ir.Value, high_shift: ir.Value, width: int, less: int,
        count: int,
    ) -> list[ir.Value]:  # fmt: skip
        b, codes, mask = self.b, [], 0x10101010 * ((1 << width) - 1)
        for x, y in zip(self.words(low, count, count), self.words(high, count, count), strict=True):
            upper = b.and_(b.shl(b.lshr(y, high_shift), const(I32, 4)), const(I32, mask))
            codes.append(self.masked_onto(b.lshr(x, low_shift), 0x0F0F0F0F, upper))
        return self._pairs_of_codes(codes, less)

    def five_bits(
        self, low: ir.Value, shift: ir.Value, plane: ir.Value, first: ir.Value, less: int, count: int
    ) -> list[ir.Value]:
        return self._pairs_of_codes(self.codes_of_five_bits(low, shift, plane, first, count), less)

    def _pairs_of_codes(self, codes: list[ir.Value], less: int) -> list[ir.Value]:
        """Numbers of a byte each, less a constant: bits in the mantissa of 1024."""
        shifted = [x for code in codes for x in (code, self.b.lshr(code, const(I32, 8)))]
        pairs = [self.masked_onto(x, 0x00FF00FF, 0x64006400) for x in shifted]
        return [self.add_pairs(x, -1024.0 - less) for x in pairs]

    def masked_and_flipped(self, word: ir.Value, mask: int, bits: int) -> ir.Value:
        """``word & mask ^ bits``."""
        return self.b.xor(self.b.and_(word, const(I32, mask)), const(I32, bits))

    def fma_pairs(self, x: ir.Value, y: float, z: float) -> ir.Value:
        """``x * y + z`` of both float16 of a word."""
        return self._of_halves("llvm.fma.v2f16", x, y, z)

    def add_pairs(self, x: ir.Value, y: float) -> ir.Value:
        """``x + y`` of both float16 of a word."""
        return self._of_halves("llvm.fma.v2f16", x, 1.0, y)

    def _of_halves(self, name: str, x: ir.Value, *numbers: float) -> ir.Value:
        b, pair = self.b, ir.VectorType(F16, 2)
        constants = [b.bitcast(constant_pair(y), pair) for y in numbers]
        return b.bitcast(call(b, name, pair, [b.bitcast(x, pair), *constants]), I32)


def constant_pair(x: float) -> ir.Constant:
    """The same float16 twice, in a word."""
    bits = int(np.float16(x).view(np.uint16))
    return const(I32, bits << 16 | bits)
