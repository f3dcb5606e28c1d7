"""Rooms: inner results that some launch needs together lie apart; others may share memory."""

from __future__ import annotations

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from rocmkern.calls.rooms import Room, places

_lives = st.tuples(st.integers(0, 2000), st.integers(0, 9), st.integers(0, 9))


def laid_out(*lives):
    """Rooms of (bytes, begin, end) in the order in which they begin, their offsets, and the bytes of all."""
    rooms = [Room(7 + i, *life) for i, life in enumerate(sorted(lives, key=lambda life: life[1]))]
    found, nbytes = places(rooms)
    assert [number for number, _ in found] == [room.number for room in rooms]
    return rooms, [offset for _, offset in found], nbytes


@settings(deadline=None)
@given(st.lists(_lives, max_size=12))
def test_what_is_needed_together_lies_apart(lives):
    rooms, offsets, nbytes = laid_out(*lives)
    spans = [range(offset, offset + room.nbytes) for room, offset in zip(rooms, offsets, strict=True)]
    assert all(span.start % 256 == 0 and span.stop <= nbytes for span in spans)
    for a, b in itertools.combinations(range(len(rooms)), 2):
        launches = set(range(rooms[a].begin, rooms[a].end)) & set(range(rooms[b].begin, rooms[b].end))
        assert not launches or spans[a].stop <= spans[b].start or spans[b].stop <= spans[a].start or not spans[a]
    assert nbytes <= sum(-(-room.nbytes // 256) * 256 for room in rooms)


def test_one_after_the_other_they_share_memory():
    assert laid_out(*[(300, launch, launch + 1) for launch in range(9)])[1:] == ([0] * 9, 512)


def test_a_gap_is_filled_where_it_is_large_enough():
    lives = (512, 0, 9), (256, 0, 2), (256, 0, 9), (300, 2, 9), (256, 2, 9)
    assert laid_out(*lives)[1:] == ([0, 512, 768, 1024, 512], 1536)


def test_there_may_be_none():
    assert places([]) == ([], 0)
