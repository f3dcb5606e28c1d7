"""The exact list of live buffers: how large, which shape, and which line made them."""

from __future__ import annotations

import itertools
import os
import sys
from dataclasses import dataclass

# Unresolved, as the frames' file names are.
_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep


@dataclass(frozen=True)
class LedgerEntry:
    """One live buffer.

    Attributes
    ----------
    nbytes : int
        Bytes that were asked for (guard bands and rounding excluded).
    shape : tuple of int
        Shape of the tensor it was made for.
    dtype : str
        Name of its dtype.
    where : str
        ``file:line`` of the caller outside this library.
    manager : int
        Number of the manager that made it.
    kept : bool
        Whether it is the manager's own, until it is closed, so that it is no leak.
    """

    nbytes: int
    shape: tuple[int, ...]
    dtype: str
    where: str
    manager: int
    kept: bool = False

    def __str__(self) -> str:
        return f"{self.nbytes} bytes, {self.dtype}{list(self.shape)}, made at {self.where}"


class Ledger:
    """Live buffers of one device. The device's memory lock guards it; readers take a copy."""

    def __init__(self) -> None:
        self._entries: dict[int, LedgerEntry] = {}
        self._numbers = itertools.count(1)

    def add(self, entry: LedgerEntry) -> int:
        """Enter a buffer and return its number."""
        number = next(self._numbers)
        self._entries[number] = entry
        return number

    def remove(self, number: int) -> None:
        """Strike a buffer out; each is struck out once."""
        del self._entries[number]

    def entry(self, number: int) -> LedgerEntry:
        """Return the entry of a live buffer."""
        return self._entries[number]

    def entries(self, manager: int | None = None) -> list[LedgerEntry]:
        """Return the live buffers, of one manager or of all, oldest first."""
        return [entry for entry in list(self._entries.values()) if manager in (None, entry.manager)]

    def nbytes(self, manager: int | None = None) -> int:
        """Return the live bytes, of one manager or of all."""
        return sum(entry.nbytes for entry in self.entries(manager))


def caller_location() -> str:
    """Return ``file:line`` of the innermost frame outside this library."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"
