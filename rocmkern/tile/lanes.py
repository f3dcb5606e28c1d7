"""How a lane of a GPU reads quantised blocks: scalars from 32-bit words. The targets say how words are loaded."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from llvmlite import ir

from rocmkern.tile.tensors import F16, F32, I16, I32, const


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
        ``words(offset, nbytes)``: little-endian i32 words of bytes of the block from an offset (i32), as many as hold
        ``nbytes``; what the last one holds beyond them has no meaning. Asked once for the same constant offset.
    """

    def __init__(self, b: ir.IRBuilder, words: Callable[[ir.Value, int], list[ir.Value]]):
        self.b, self._words = b, words
        self._known: dict[tuple[int, int], list[ir.Value]] = {}

    def words(self, offset: ir.Value, nbytes: int) -> list[ir.Value]:
        if not isinstance(offset, ir.Constant):
            return self._words(offset, nbytes)
        key = offset.constant, nbytes
        if key not in self._known:
            self._known[key] = self._words(offset, nbytes)
        return self._known[key]

    def byte(self, offset: ir.Value) -> ir.Value:
        return self.b.and_(self.words(offset, 1)[0], const(I32, 255))

    def short(self, offset: ir.Value) -> ir.Value:
        return self.b.and_(self.words(offset, 2)[0], const(I32, 0xFFFF))

    def half(self, offset: ir.Value) -> ir.Value:
        bits = self.b.trunc(self.words(offset, 2)[0], I16)
        return self.b.fpext(self.b.bitcast(bits, F16), F32)

    def fields(self, offset: ir.Value, count: int, width: int) -> list[ir.Value]:
        b, words = self.b, self.words(offset, count * width // 8)
        fields = []
        for i in range(count):
            word, shift = divmod(i * width, 32)
            bits = b.lshr(words[word], const(I32, shift)) if shift else words[word]
            if shift + width > 32:
                bits = b.or_(bits, b.shl(words[word + 1], const(I32, 32 - shift)))
            fields.append(b.and_(bits, const(I32, (1 << width) - 1)))
        return fields

    def lookup(self, numbers: tuple, lanes: list) -> None:
        """There is no such instruction."""
