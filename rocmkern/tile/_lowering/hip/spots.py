"""Addresses in a window: `banks.Places` in a kernel."""

from __future__ import annotations

from llvmlite import ir

from rocmkern.tile._lowering.hip.emit import opaque
from rocmkern.tile._lowering.shared.banks import Places
from rocmkern.tile._lowering.shared.ir_types import I32, const


class Number:
    """An i32 of a kernel with the operators that `Places.place` uses."""

    def __init__(self, b: ir.IRBuilder, value: ir.Value):
        self.b, self.value = b, value

    def _other(self, x: Number | int) -> ir.Value:
        return const(I32, x) if isinstance(x, int) else x.value

    def __add__(self, x: Number | int) -> Number:
        return Number(self.b, self.b.add(self.value, self._other(x)))

    def __mul__(self, x: Number | int) -> Number:
        return Number(self.b, self.b.mul(self.value, self._other(x)))

    def __and__(self, x: Number | int) -> Number:
        return Number(self.b, self.b.and_(self.value, self._other(x)))

    def __xor__(self, x: Number | int) -> Number:
        return Number(self.b, self.b.xor(self.value, self._other(x)))

    def __rshift__(self, x: Number | int) -> Number:
        return Number(self.b, self.b.lshr(self.value, self._other(x)))


class Spot:
    """A byte of a window, and others relative to it.

    Parameters
    ----------
    b : IRBuilder
    places : Places
    first : Value
        Where the byte lies; see `of`.
    """

    def __init__(self, b: ir.IRBuilder, places: Places, first: ir.Value):
        self.b, self.places, self.turned = b, places, {0: first}

    @classmethod
    def of(cls, b: ir.IRBuilder, places: Places, line: ir.Value, byte: ir.Value) -> Spot:
        """Byte ``byte`` of a line."""
        offset = b.add(b.mul(line, const(I32, places.pitch)), byte)
        return cls(b, places, places.place(Number(b, offset)).value)

    def at(self, lines: int = 0, byte: int = 0) -> ir.Value:
        """Where the byte so many lines and bytes on lies; see `Places.ahead` for which those may be."""
        turn, more = self.places.ahead(lines * self.places.pitch + byte)
        if turn not in self.turned:
            self.turned[turn] = self.b.xor(self.turned[0], const(I32, turn))
        return self.b.add(self.turned[turn], const(I32, more)) if more else self.turned[turn]

    def here(self) -> Spot:
        """The same spot; those that a swizzle makes of it are computed here, and do not wait in registers of a loop."""
        return Spot(self.b, self.places, opaque(self.b, self.turned[0], "v")) if self.places.swizzled else self

    def further(self, bytes_: ir.Value) -> Spot:
        """The spot so many bytes on, a number of the kernel; see `Places.ahead` for which those may be."""
        turn, more = self.places.ahead(Number(self.b, bytes_))
        return Spot(self.b, self.places, ((Number(self.b, self.turned[0]) ^ turn) + more).value)
