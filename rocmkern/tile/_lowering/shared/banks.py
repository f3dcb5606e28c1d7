"""Where the bytes of a window lie in the LDS of an AMD GPU, so that lanes that go together meet no bank twice.

A window is lines of so many bytes. Lanes that share a cycle access units of 16 bytes (or parts of them)

    of 8 or 16 consecutive lines, at one place or two neighbouring ones     the right side of a product
    of lines 2, 4 or 8 apart, at one place                                  columns that are written from rows
    one after the other                                                     rows that are written

Let ``round`` be a line or the units of all banks, whichever is longer, and r the number of the round in which a byte
lies, one after the other without gaps. With u units to all banks, ``turn = r ^ r / u``: its low bits take all values
in the rounds of the first two lists, and are the same within a line, which leaves the third as it is. With 64 banks it
is ``r ^ 2 r ^ r / u``: there lanes that share a cycle read one place of the rounds 0 and 3, and its neighbour of 1 and
2, of four rounds of short lines. Then

    padded      a unit of nothing stands before each round and before each u of them, so that unit c begins at bank
                ``4 (c + r + r / u)``
    swizzled    unit c of its u lies at ``c ^ turn``, modulo u: for products of float32 on CDNA
    neither     lines are an odd number of units apart: lines of another length than a power of two, and windows of
                float32 for FMAs, of which lanes that go together read one or two lines

With padding every address of a lane is one register and a constant; a swizzle takes up to u registers, or as many
instructions. But only a swizzle suits reads of 16 bytes on CDNA, where lanes that share a cycle read two neighbouring
units.

Sources: for the lanes that share a cycle Composable Kernel's documentation, "Understanding AMD GPU LDS and Bank
Conflicts" (gfx90a, gfx942), and HipKittens' measurements (gfx950); for RDNA there are none.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rocmkern.architectures import architecture

#: Bytes of a unit: the widest access.
UNIT = 16
BANK_BYTES = 4
UNITS_OF_64_BANKS = 64 * BANK_BYTES // UNIT


@dataclass(frozen=True)
class Places:
    """Where the bytes of a window lie.

    Offsets are ints, or numbers of a kernel with the same operators.

    Attributes
    ----------
    lines : int
    pitch : int
        Bytes from line to line before they are placed: `place` takes ``line * pitch + byte``.
    units : int
        Units of all banks.
    round : int
        Bytes of a round, a power of two; 0 if lines are neither padded nor swizzled.
    swizzled : bool
    """

    lines: int
    pitch: int
    units: int
    round: int
    swizzled: bool

    def place(self, offset: Any) -> Any:
        """Byte at which the byte at ``offset`` lies."""
        if not self.round:
            return offset
        number = offset >> (self.round.bit_length() - 1)
        higher = number >> (self.units.bit_length() - 1)
        if self.swizzled:
            turn = number ^ higher
            if self.units == UNITS_OF_64_BANKS:
                turn = turn ^ number * 2
            return offset ^ ((turn & (self.units - 1)) * UNIT)
        return offset + (number + higher) * UNIT

    def ahead(self, offset: Any) -> tuple[Any, Any]:
        """How ``place(x + offset)`` follows from ``place(x)``: by exclusive or with the first, then adding the second.

        Provided that x and the offset have no bit in common, or that lines are neither padded nor swizzled.
        """
        place = self.place(offset)
        turn = place & (self.units - 1) * UNIT if self.swizzled else 0
        return turn, place ^ turn

    @property
    def bytes(self) -> int:
        """Shared memory of the window."""
        size = self.lines * self.pitch
        return size if self.swizzled else self.place(size - 1) + 1


def places(arch: str, lines: int, line: int, read: int) -> Places:
    """The places of a window of lines of ``line`` bytes.

    ``read``: bytes of an access of a matrix instruction's operand; 0 where products are FMAs.
    """
    hardware = architecture(arch)
    units = hardware.banks * BANK_BYTES // UNIT
    if not read or line & (line - 1):
        return Places(lines, UNIT * (line // UNIT | 1), units, 0, False)
    return Places(lines, line, units, max(line, units * UNIT), hardware.wide_reads_pair and read == UNIT)
