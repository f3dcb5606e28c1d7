"""Attention with the keys going round: each rank has its queries, and sees the keys of one other after the other.

In step t rank r takes the keys of rank r - t, piece by piece, from their owner (Liu, Zaharia, Abbeel, 2023: Ring
Attention, where neighbours pass them on: as many bytes, and every step waits for the one before). A piece that no query
of a rank sees is not sent to it. While one piece is used the next is on its way.

Every piece gives a partial result of every piece of queries, in float32, which `rocmkern.merge_attention` adds to what
is there; the result is rounded once, at the end. A sink is a part that was seen before all keys: value 0, and the sink
as its log-sum-exp.

Memory of a rank beside its arguments: the result in float32, a partial result of one piece of queries, two pieces of
keys and values that come and, where tokens of k and v are not neighbours in memory, one that goes. It is taken once.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import rocmkern
from rocmkern.distributed.buffers import Turns
from rocmkern.distributed.positions import Piece
from rocmkern.distributed.problem import Problem
from rocmkern.distributed.ranks import Ranks, Transfer


def ring_attention(ranks: Ranks, problem: Problem) -> tuple[Any, Any]:
    """The result of this rank, in float32, and its log-sum-exps ``[B, Hq, S]``."""
    state = _State(ranks.rank, problem)
    ranks.connect(problem.q.device)
    coming = messages(ranks, problem)
    following = next(coming, None)
    own = problem.keys.pieces(ranks.rank)
    for piece in own:
        state.see(piece, problem.rows(problem.k, piece.all), problem.rows(problem.v, piece.all))
    while following is not None:
        message = following
        message.transfer.wait()
        following = next(coming, None)
        if message.piece is not None:
            state.see(message.piece, *message.arrays)
    return state.out, state.lse


class Message(NamedTuple):
    """A piece of keys and values on its way here, and one of this rank's to another; either may be missing.

    Attributes
    ----------
    to, source : int
        The other ranks.
    goes, piece : Piece or None
        What is sent, and what comes.
    arrays : list of torch.Tensor
        Where keys and values come to; theirs until the message after the next one begins.
    transfer : Transfer
        What there is to wait for.
    """

    to: int
    source: int
    goes: Piece | None
    piece: Piece | None
    arrays: list[Any]
    transfer: Transfer


def messages(ranks: Ranks, problem: Problem, *, every: bool = False) -> Iterator[Message]:
    """Begin one message after the other, in the same order on all ranks; the one before has arrived by then.

    With ``every`` there are as many on all ranks, also where nothing is sent: for an answer to each.
    """
    size, rank, of_keys = ranks.size, ranks.rank, (problem.k, problem.v)
    pieces = [problem.keys.pieces(r) for r in range(size)]
    longest = longest_of(pieces)
    copies, received = (Turns(of_keys, problem.row_axis, longest, sets) for sets in (1, 2))
    for step in range(1, size):
        to, source = (rank + step) % size, (rank - step) % size
        for number in range(max(map(len, pieces))):
            goes = _if_needed(problem, pieces[rank], number, to)
            comes = _if_needed(problem, pieces[source], number, rank)
            if not every and goes is None and comes is None:
                continue
            sent = [] if goes is None else contiguous([problem.rows(x, goes.all) for x in of_keys], copies)
            arrays = [] if comes is None else received.next(comes.rows)
            transfer = ranks.exchange([(to, x) for x in sent], [(source, x) for x in arrays])
            yield Message(to, source, goes, comes, arrays, transfer)


def contiguous(arrays: Sequence[Any], copies: Turns) -> list[Any]:
    """Pieces of arrays as they can be sent: as they are, or copied."""
    if all(x.is_contiguous() for x in arrays):
        return list(arrays)
    found = copies.next(arrays[0].shape[copies.axis])
    for x, copy in zip(arrays, found, strict=True):
        copy.copy_(x)
    return found


def longest_of(pieces: Sequence[Sequence[Piece]]) -> int:
    """Rows of the longest of all ranks' pieces."""
    return max((piece.rows for some in pieces for piece in some), default=0)


def _if_needed(problem: Problem, pieces: list[Piece], number: int, by: int) -> Piece | None:
    """A piece, where there is one and a rank needs it."""
    piece = pieces[number] if number < len(pieces) else None
    return piece if piece is not None and problem.is_needed(by, piece) else None


class Part(NamedTuple):
    """Queries and keys that are one call of `rocmkern.flash_attention`.

    Attributes
    ----------
    queries : Piece
    rows : slice
        The rows of this rank that see some of the keys.
    columns : slice or None
        Which of the piece of keys; None stands for all, of packed sequences.
    options : dict
        Of the call; packed sequences have their ``cu_seqlens`` among them, and arrays without a batch axis.
    """

    queries: Piece
    rows: slice
    columns: slice | None
    options: dict[str, Any]


def parts(problem: Problem, pieces: Sequence[Piece], keys: Piece) -> Iterator[Part]:
    """What pieces of queries see of a piece of keys."""
    options = {"scale": problem.scale, "softcap": problem.softcap}
    for queries in pieces:
        if problem.seen.cu_seqlens and queries[:2] == keys[:2]:
            yield Part(queries, queries.all, None, options | _packed(problem, queries))
            continue
        for some in problem.seen.dense(queries, keys):
            rows, columns = queries.local(*some.queries), keys.local(*some.keys)
            columns = slice(columns.start - keys.at, columns.stop - keys.at)
            yield Part(queries, rows, columns, options | {"window": some.window, "layout": problem.layout})


def _packed(problem: Problem, piece: Piece) -> dict[str, Any]:
    """The options of the sequences of a piece of tokens, each by itself."""
    # deferred: optional dependency
    import torch

    seen = problem.seen
    borders = torch.tensor(seen.cut(piece), dtype=torch.int32)
    window = tuple(None if side > piece.stop else side for side in (seen.left, seen.right))
    return {"window": window, "cu_seqlens_q": borders, "cu_seqlens_k": borders}


class _State:
    """What the queries of a rank have seen so far."""

    def __init__(self, rank: int, problem: Problem):
        # deferred: optional dependency
        import torch

        self._problem, q, v = problem, problem.q, problem.v
        self.out = q.new_zeros((*q.shape[:-1], v.shape[-1]), dtype=torch.float32)
        heads, rows = problem.heads_of(q), q.shape[problem.row_axis]
        self.lse = q.new_full((q.shape[0], heads, rows), -math.inf, dtype=torch.float32)
        if problem.sinks is not None:
            self.lse.copy_(problem.sinks[:, None].expand_as(self.lse))
        self._pieces = problem.queries.pieces(rank)
        self._fresh = set(self._pieces) if problem.sinks is None else set()
        longest = longest_of([self._pieces])
        self._parts = Turns([self.out], problem.row_axis, longest)
        self._lses = Turns([self.lse], 2, longest, sets=2)

    def see(self, keys: Piece, k: Any, v: Any) -> None:
        """Let all queries see a piece of keys."""
        for part in parts(self._problem, self._pieces, keys):
            some = (k, v) if part.columns is None else tuple(self._problem.rows(x, part.columns) for x in (k, v))
            self._join(part.queries, part.rows, some, part.options)

    def _join(self, piece: Piece, rows: slice, keys: tuple[Any, ...], options: dict[str, Any]) -> None:
        """Add what some queries of a piece see of some keys."""
        problem = self._problem
        q, out = problem.rows(problem.q, rows), problem.rows(self.out, rows)
        lse = self.lse[..., rows]
        options = options | {"return_lse": True}
        first = piece in self._fresh and rows == piece.all
        self._fresh.discard(piece)
        count = rows.stop - rows.start
        part = (out, lse) if first else (*self._parts.next(count), *self._lses.next(count))
        if "cu_seqlens_q" in options:
            k, v = (x[0] for x in keys)
            rocmkern.flash_attention(q[0], k, v, **options, out=(part[0][0], part[1][0]))
        else:
            rocmkern.flash_attention(q, *keys, **options, out=part)
        if not first:
            (joined,) = self._lses.next(count)
            rocmkern.merge_attention(out, lse, *part, layout=problem.layout, out=(out, joined))
            lse.copy_(joined)
