"""The exact list of live buffers: how large, which shape, and which line made them."""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

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
    """Live buffers of one device: a weak reference to each, with its entry (`rocmkern.runtime.memory.Ticket`).

    What is dead is not live, whether or not it was struck out yet, so the ledger is exact at any time. The device's
    memory lock guards changes; readers take a copy.
    """

    def __init__(self) -> None:
        self.tickets: dict[int, Any] = {}
        self.numbers: Iterator[int] = itertools.count(1)

    def remove(self, number: int) -> None:
        """Strike a buffer out, if that was not done before."""
        self.tickets.pop(number, None)

    def entry(self, number: int) -> LedgerEntry:
        """Return the entry of a live buffer."""
        entry: LedgerEntry = self.tickets[number].entry
        return entry

    def live(self, manager: int | None = None) -> list[Any]:
        """Return the tickets of the live buffers, of one manager or of all, oldest first."""
        tickets = [ticket for ticket in list(self.tickets.values()) if ticket() is not None]
        return [ticket for ticket in tickets if manager in (None, ticket.entry.manager)]

    def entries(self, manager: int | None = None) -> list[LedgerEntry]:
        """Return the live buffers, of one manager or of all, oldest first."""
        return [ticket.entry for ticket in self.live(manager)]

    def nbytes(self, manager: int | None = None) -> int:
        """Return the live bytes, of one manager or of all."""
        return sum(entry.nbytes for entry in self.entries(manager))


def caller_location() -> str:
    """Return ``file:line`` of the innermost frame outside this library."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"
