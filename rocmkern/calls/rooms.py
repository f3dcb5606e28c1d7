"""Where the inner results of a call lie in one piece of memory: those that no launch needs together may share it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

_ALIGNMENT = 256  # as that of an allocation


class Room(NamedTuple):
    """An inner result.

    Attributes
    ----------
    number : int
        Of the array.
    nbytes : int
    begin, end : int
        The launches that may use it, from `begin` to before `end`.
    """

    number: int
    nbytes: int
    begin: int
    end: int


def places(rooms: Sequence[Room]) -> tuple[list[tuple[int, int]], int]:
    """The number and the offset of each, and the bytes of all; each lies as low as those before it allow."""
    placed: list[tuple[int, int, Room]] = []
    for room in rooms:
        taken = sorted((first, last) for first, last, other in placed if _together(room, other))
        offset = 0
        for first, last in taken:
            if offset + room.nbytes <= first:
                break
            offset = max(offset, last)
        placed.append((offset, offset + -(-room.nbytes // _ALIGNMENT) * _ALIGNMENT, room))
    return [(room.number, first) for first, _, room in placed], max([last for _, last, _ in placed], default=0)


def _together(a: Room, b: Room) -> bool:
    return a.begin < b.end and b.begin < a.end
