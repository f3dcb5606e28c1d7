"""Where the tokens of each rank lie in the whole sequence, and which keys a piece of queries sees.

A rank holds one or two *runs* of neighbouring tokens, one behind the other in its arrays::

    contiguous   rank r has the r-th run of any lengths
    zigzag       the sequence is cut into 2 W chunks, of which rank r has chunks r and 2 W - 1 - r

Under a causal mask the last run of a contiguous split sees the most keys. With zigzag all ranks have as much to do
(Brandon et al., 2023: Striped Attention; the order of chunks is that of zhuzilin's ring attention).

Runs are cut further into *pieces*: what is sent at a time, and the queries of one call. Every pair of a piece of
queries and a piece of keys is a plain call of `rocmkern.flash_attention`: `seen` leaves out what no one sees, and
behind that a window of two counts says the rest.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

from rocmkern.runtime.errors import ArgumentError

SPLITS = ("contiguous", "zigzag")
#: Pieces that a rank's tokens are cut into at most, and tokens that are not cut further. Each partial result is joined
#: to what is there, which took 7 % of the CPU time of a ring at 1024 tokens, and 15 % at 512.
PIECES, LEAST_PIECE = 4, 1024
#: No sequence is as long.
UNLIMITED = 1 << 40


def check_split(split: Any) -> str:
    """One of `SPLITS`."""
    if not isinstance(split, str) or split not in SPLITS:
        raise ArgumentError("split", repr(split), '"contiguous" or "zigzag"')
    return split


def runs(total: int, rank: int, size: int, split: str = "contiguous") -> list[tuple[int, int]]:
    """Positions ``start, stop`` of the runs of a rank where `total` tokens are shared as evenly as they can be.

    Parameters
    ----------
    total : int
        Tokens of the whole sequence.
    rank, size : int
    split : {"contiguous", "zigzag"}

    Returns
    -------
    list of (int, int)
        In the order in which the rank holds them; empty ones too.

    Examples
    --------
    >>> from rocmkern.distributed.positions import runs
    >>> [runs(10, rank, 2, "zigzag") for rank in range(2)]
    [[(0, 2), (7, 10)], [(2, 5), (5, 7)]]
    """
    check_split(split)
    chunks = cuts(total, size if split == "contiguous" else 2 * size)
    return [chunks[rank]] if split == "contiguous" else [chunks[rank], chunks[2 * size - 1 - rank]]


def cuts(length: int, parts: int) -> list[tuple[int, int]]:
    """``start, stop`` of parts of a length that are as long as each other, but for one."""
    return list(pairwise(length * i // parts for i in range(parts + 1)))


@dataclass(frozen=True)
class Tokens:
    """Whose tokens are where.

    Attributes
    ----------
    split : {"contiguous", "zigzag"}
    lengths : tuple of int
        Tokens of each rank.
    """

    split: str
    lengths: tuple[int, ...]

    @property
    def total(self) -> int:
        """Tokens of the whole sequence."""
        return sum(self.lengths)

    def check(self, argument: str) -> None:
        """Refuse lengths that the split cannot have."""
        if self.split == "contiguous":
            return
        size = len(self.lengths)
        wanted = tuple(sum(b - a for a, b in runs(self.total, r, size, self.split)) for r in range(size))
        if wanted != self.lengths:
            given = f"{_listed(self.lengths)} tokens on the ranks"
            allowed = f"{_listed(wanted)}, as shard_sequence(split={self.split!r}) gives of {self.total}"
            raise ArgumentError(argument, given, allowed)

    def runs(self, rank: int) -> list[tuple[int, int]]:
        """Positions of the runs of a rank, in the order in which it holds them."""
        if self.split == "contiguous":
            start = sum(self.lengths[:rank])
            return [(start, start + self.lengths[rank])]
        return runs(self.total, rank, len(self.lengths), self.split)

    def whole_runs(self, rank: int) -> list[Piece]:
        """The runs of a rank, and where they lie in its arrays."""
        of_runs = self.runs(rank)
        ats = itertools.accumulate((stop - start for start, stop in of_runs), initial=0)
        return [Piece(start, stop, at) for (start, stop), at in zip(of_runs, ats, strict=False)]

    def pieces(self, rank: int) -> list[Piece]:
        """The runs of a rank, cut."""
        found, of_runs = [], self.whole_runs(rank)
        for start, stop, at in of_runs:
            length = stop - start
            count = max(1, min(PIECES // len(of_runs), -(-length // LEAST_PIECE)))
            found += [Piece(start + a, start + b, at + a) for a, b in cuts(length, count) if b > a]
        return found


def _listed(numbers: tuple[int, ...]) -> str:
    return ", ".join(map(str, numbers))


class Piece(NamedTuple):
    """Neighbouring tokens of a rank: their positions ``start`` to ``stop``, and where they begin in its arrays."""

    start: int
    stop: int
    at: int

    def local(self, start: int, stop: int) -> slice:
        """Where the positions `start` to `stop` of the piece lie in the arrays of its rank."""
        return slice(self.at + start - self.start, self.at + stop - self.start)

    @property
    def rows(self) -> int:
        """How many tokens."""
        return self.stop - self.start

    @property
    def all(self) -> slice:
        """Where all of it lies."""
        return self.local(self.start, self.stop)


class Seen(NamedTuple):
    """Part of a piece of queries and of a piece of keys, by positions, where each row and each key has some use.

    ``window`` is what `rocmkern.flash_attention` takes for it; None where all queries see all keys.
    """

    queries: tuple[int, int]
    keys: tuple[int, int]
    window: tuple[int | None, int | None] | None


def seen(queries: tuple[int, int], keys: tuple[int, int], left: int, right: int, offset: int = 0) -> Seen | None:
    """What queries at some positions see of keys at some positions.

    Query i sees keys ``i + offset - left`` to ``i + offset + right``.

    Parameters
    ----------
    queries, keys : (int, int)
        First position, and the one behind the last.
    left, right : int
        `UNLIMITED` at most.
    offset : int
        The key on the diagonal of query 0.

    Returns
    -------
    Seen or None
        None where no query sees a key.
    """
    low, high = offset - left, offset + right
    # The first query that sees the first key or a later one; behind the last that sees the last key or an earlier one.
    first, last = max(queries[0], keys[0] - high), min(queries[1], keys[1] - low)
    begin, end = max(keys[0], first + low), min(keys[1], last + high)
    if first >= last or begin >= end:
        return None
    # flash_attention lets the diagonal end in the corner of the last query and the last key.
    diagonal = (end - 1) - (last - 1)
    window = (diagonal - low, high - diagonal)
    sees_first = last - 1 + low <= begin  # the last query does, and so all do
    sees_last = first + high >= end - 1
    if sees_first and sees_last:
        return Seen((first, last), (begin, end), None)
    return Seen((first, last), (begin, end), (None if sees_first else window[0], None if sees_last else window[1]))


class Visibility(NamedTuple):
    """What all queries see: `left` and `right` of a diagonal that is `offset` keys on, each within its own sequence.

    ``cu_seqlens`` are the borders of packed sequences, empty where there is one.
    """

    left: int
    right: int
    offset: int
    cu_seqlens: tuple[int, ...] = ()

    def dense(self, queries: Piece, keys: Piece) -> list[Seen]:
        """The calls for a piece of queries and a piece of keys; pieces that are the same tokens excepted, if packed."""
        if not self.cu_seqlens:
            found = seen(queries[:2], keys[:2], self.left, self.right, self.offset)
            return [] if found is None else [found]
        # Pieces apart share one sequence at most: the one that holds all that lies between them.
        first, second = sorted((queries[:2], keys[:2]))
        return [
            found
            for start, stop in self._sequences(first[1] - 1, second[0] + 1)
            if (found := seen(_within(queries[:2], start, stop), _within(keys[:2], start, stop), self.left, self.right))
        ]

    def _sequences(self, first: int, stop: int) -> list[tuple[int, int]]:
        """The sequence that holds the tokens `first` to `stop`, if one does."""
        return [(a, b) for a, b in pairwise(self.cu_seqlens) if a <= first and stop <= b]

    def cut(self, piece: Piece) -> list[int]:
        """``cu_seqlens`` of the sequences of a piece, cut where it is."""
        inside = [border for border in self.cu_seqlens if piece.start < border < piece.stop]
        return [border - piece.start for border in (piece.start, *inside, piece.stop)]

    def needs(self, queries: list[Piece], keys: Piece) -> bool:
        """Whether one of the pieces of a rank sees something of a piece of another."""
        return any(self.dense(piece, keys) for piece in queries)


def _within(run: tuple[int, int], start: int, stop: int) -> tuple[int, int]:
    begin = max(run[0], start)
    return begin, max(begin, min(run[1], stop))
