"""How a lane of a GPU reads quantised blocks: scalars from 32-bit words. The targets say how words are loaded."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable
from typing import Any

from llvmlite import ir

from rocmkern.runtime.errors import TileError
from rocmkern.tile.codes import SMALL_FLOATS
from rocmkern.tile.tensors import F16, F32, I16, I32, call, const


class FoldingBuilder:
    """An IR builder whose integer operations on constants give constants.

    LLVM would find out as well, but a reader wants to know which bytes it has read already.
    """

    def __init__(self, b: ir.IRBuilder):
        self._b = b

    def __getattr__(self, name: str) -> Any:
        return getattr(self._b, name)

    def _fold(self, name: str, x: ir.Value, y: ir.Value, combine: Callable[[int, int], int]) -> ir.Value:
        if isinstance(x, ir.Constant) and isinstance(y, ir.Constant) and isinstance(x.type, ir.IntType):
            return const(x.type, combine(x.constant, y.constant) & ((1 << x.type.width) - 1))
        return getattr(self._b, name)(x, y)

    def add(self, x: ir.Value, y: ir.Value) -> ir.Value:
        return self._fold("add", x, y, operator.add)

    def and_(self, x: ir.Value, y: ir.Value) -> ir.Value:
        return self._fold("and_", x, y, operator.and_)

    def or_(self, x: ir.Value, y: ir.Value) -> ir.Value:
        return self._fold("or_", x, y, operator.or_)

    def shl(self, x: ir.Value, y: ir.Value) -> ir.Value:
        return self._fold("shl", x, y, operator.lshift)

    def lshr(self, x: ir.Value, y: ir.Value) -> ir.Value:
        return self._fold("lshr", x, y, operator.rshift)

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

    def _integers(self, words: list[ir.Value], count: int, place: int, start: float) -> list[ir.Value]:
        """``start`` plus four bits: they are set in the mantissa of 2 ** 23, where they count 2 ** bit too much."""
        b, numbers = self.b, []
        for i in range(count):
            word, bit = words[i // 4], 8 * (i % 4) + place
            if bit > 19:  # the mantissa has 23 bits
                word, bit = b.lshr(word, const(I32, 16)), bit - 16
            bits = b.bitcast(self.masked_onto(word, 15 << bit, 0x4B000000), F32)
            less = const(F32, start - 2.0 ** (23 - bit))
            if bit:
                numbers.append(call(b, "llvm.fma.f32", F32, [bits, const(F32, 2.0**-bit), less]))
            else:
                numbers.append(b.fadd(bits, less))
        return numbers

    def masked_onto(self, word: ir.Value, mask: int, base: int) -> ir.Value:
        """``word & mask | base``."""
        return self.b.or_(self.b.and_(word, const(I32, mask)), const(I32, base))

    def _small_floats(self, words: list[ir.Value], count: int, place: int) -> list[ir.Value]:
        """Numbers of E2M1 codes, divided by 2 ** 14: the same digits in two float16 at once."""
        b, numbers = self.b, []
        pairs = [self.pair_of_small_floats(word, 8 * odd + place) for word in words for odd in (0, 1)]
        for i in range(count):
            half = b.trunc(b.lshr(pairs[2 * (i // 4) + i % 2], const(I32, 16 * (i % 4 // 2))), I16)
            numbers.append(b.fpext(b.bitcast(half, F16), F32))
        return numbers

    def pair_of_small_floats(self, word: ir.Value, bit: int) -> ir.Value:
        """Two float16: the E2M1 codes at a bit of both halves of a word, divided by 2 ** 14."""
        b = self.b

        def moved(left: int, mask: int) -> ir.Value:
            moved = b.shl(word, const(I32, left)) if left > 0 else b.lshr(word, const(I32, -left))
            return b.and_(moved, const(I32, mask))

        return b.or_(moved(9 - bit, 0x0E000E00), moved(12 - bit, 0x80008000))

    def lookup(self, numbers: tuple, lanes: list) -> None:
        """There is no such instruction."""
