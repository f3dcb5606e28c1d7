"""Attention with the keys going round: each rank has its queries, and sees the keys of one other after the other.

In step t rank r takes the keys of rank r - t, piece by piece, from their owner (Liu, Zaharia, Abbeel, 2023: Ring
Attention, where neighbours pass them on: as many bytes, and every step waits for the one before). A piece that no query
of a rank sees is not sent to it. While one piece is used the next is on its way.

Every piece gives a partial result of every piece of queries, in float32, which `rocmkern.merge_attention` adds to what
is there; the result is rounded once, at the end. A sink is a part that was seen before all keys: value 0, and the sink
as its log-sum-exp.

The heads go round in *rounds*, some after the other, so that what is held in float32 is that of few of them.

Memory of a rank beside its arguments and the result: in float32 the result of a round (unless the result is float32
itself) and a partial one of one piece of queries, two pieces of keys and values that come and, where tokens of k and v
are not neighbours in memory, one that goes.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import rocmkern
from rocmkern.distributed.buffers import Turns
from rocmkern.distributed.positions import LEAST_PIECE, Piece, cuts
from rocmkern.distributed.problem import Problem
from rocmkern.distributed.ranks import Ranks, Transfer

#: Rounds that are wanted, see `divisor`; of short sequences fewer, as there are pieces.
ROUNDS = 8


class Round(NamedTuple):
    """Some heads of some batch elements.

    Attributes
    ----------
    problem : Problem
        Of these alone.
    batch, queries, keys : slice
        Which batch elements, heads of queries and heads of keys of the whole problem.
    """

    problem: Problem
    batch: slice
    queries: slice
    keys: slice

    def of_queries(self, x: Any) -> Any:
        """View of an array as q is one."""
        return self.problem.heads(x[self.batch], self.queries)

    def of_keys(self, x: Any) -> Any:
        """View of an array as k is one."""
        return self.problem.heads(x[self.batch], self.keys)

    def of_scores(self, x: Any) -> Any:
        """View of an array ``[B, Hq, S]``."""
        return x[self.batch, self.queries]


def rounds_of(problem: Problem, size: int) -> list[Round]:
    """All heads and batch elements, as many at a time: so many that memory of one round is that of every other."""
    count = max(1, min(ROUNDS, -(-problem.queries.total // (size * LEAST_PIECE))))
    batch, heads = len(problem.k), problem.heads_of(problem.k)
    of_heads = divisor(heads, count)
    of_batch = divisor(batch, -(-count // of_heads))
    group = problem.heads_of(problem.q) // heads
    found = []
    for b, h in itertools.product(cuts(batch, of_batch), cuts(heads, of_heads)):
        some = slice(*b), slice(h[0] * group, h[1] * group), slice(*h)
        found.append(Round(problem.of(*some), *some))
    return found


def divisor(number: int, wanted: int) -> int:
    """The least divisor of a number from `wanted` to twice that, or the greatest below."""
    found = [n for n in range(1, 2 * wanted) if number % n == 0]
    return next((n for n in found if n >= wanted), found[-1])


def ring_attention(ranks: Ranks, problem: Problem) -> tuple[Any, Any]:
    """The result of this rank, in the dtype of q, and its log-sum-exps ``[B, Hq, S]``."""
    # deferred: optional dependency
    import torch

    q, heads, rows = problem.q, problem.heads_of(problem.q), problem.q.shape[problem.row_axis]
    out = q.new_empty((*q.shape[:-1], problem.v.shape[-1]))
    lse = q.new_empty((len(q), heads, rows), dtype=torch.float32)
    ranks.connect(q.device)
    every = rounds_of(problem, ranks.size)
    coming = messages(ranks, every)
    following = next(coming, None)
    state = _State(ranks.rank, every[0], out, lse)
    for some in every:
        state.begin(some)
        for piece in some.problem.keys.pieces(ranks.rank):
            state.see(piece, some.problem.rows(some.problem.k, piece.all), some.problem.rows(some.problem.v, piece.all))
        while following is not None and following.round is some:
            message = following
            message.transfer.wait()
            following = next(coming, None)
            if message.piece is not None:
                state.see(message.piece, *message.arrays)
        state.end()
    return out, lse


class Message(NamedTuple):
    """A piece of keys and values on its way here, and one of this rank's to another; either may be missing.

    Attributes
    ----------
    round : Round
        Whose keys and values they are.
    to, source : int
        The other ranks.
    goes, piece : Piece or None
        What is sent, and what comes.
    arrays : list of torch.Tensor
        Where keys and values come to; theirs until the message after the next one begins.
    transfer : Transfer
        What there is to wait for.
    """

    round: Round
    to: int
    source: int
    goes: Piece | None
    piece: Piece | None
    arrays: list[Any]
    transfer: Transfer


def messages(ranks: Ranks, every: Sequence[Round], *, answered: bool = False) -> Iterator[Message]:
    """Begin one message after the other, in the same order on all ranks; the one before has arrived by then.

    If they are `answered` there are as many on all ranks, also where nothing is sent.
    """
    size, rank, problem = ranks.size, ranks.rank, every[0].problem
    pieces = [problem.keys.pieces(r) for r in range(size)]
    longest = longest_of(pieces)
    copies, received = (Turns((problem.k, problem.v), problem.row_axis, longest, sets) for sets in (1, 2))
    numbers = range(max(map(len, pieces)))
    for some, step, number in itertools.product(every, range(1, size), numbers):
        to, source = (rank + step) % size, (rank - step) % size
        goes = _if_needed(problem, pieces[rank], number, to)
        comes = _if_needed(problem, pieces[source], number, rank)
        if not answered and goes is None and comes is None:
            continue
        of_keys = (some.problem.k, some.problem.v)
        sent = [] if goes is None else contiguous([problem.rows(x, goes.all) for x in of_keys], copies)
        arrays = [] if comes is None else received.next(comes.rows)
        transfer = ranks.exchange([(to, x) for x in sent], [(source, x) for x in arrays])
        yield Message(some, to, source, goes, comes, arrays, transfer)


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
    """What the queries of a rank have seen so far in a round, and memory for that, which is taken once.

    Parameters
    ----------
    rank : int
    first : Round
    out, lse : torch.Tensor
        The results of all rounds.
    """

    def __init__(self, rank: int, first: Round, out: Any, lse: Any):
        # deferred: optional dependency
        import torch

        self._results, of_round = (out, lse), first.of_queries(out)
        self._sum = None if out.dtype == torch.float32 else of_round.new_empty(of_round.shape, dtype=torch.float32)
        self._pieces = first.problem.queries.pieces(rank)
        axis, longest = first.problem.row_axis, longest_of([self._pieces])
        self._parts = Turns([of_round], axis, longest, dtype=torch.float32)
        self._lses = Turns([first.of_scores(lse)], 2, longest, sets=2)

    def begin(self, some: Round) -> None:
        """Nothing of a round has been seen, but for the sinks."""
        self._problem = problem = some.problem
        self._result, self._lse = some.of_queries(self._results[0]), some.of_scores(self._results[1])
        self._out = (self._result if self._sum is None else self._sum).zero_()
        self._lse.fill_(-math.inf)
        if problem.sinks is not None:
            self._lse.copy_(problem.sinks[:, None].expand_as(self._lse))
        self._fresh = set(self._pieces) if problem.sinks is None else set()

    def end(self) -> None:
        """Round what was seen to the dtype of the result."""
        if self._out is not self._result:
            self._result.copy_(self._out)

    def see(self, keys: Piece, k: Any, v: Any) -> None:
        """Let all queries see a piece of keys."""
        for part in parts(self._problem, self._pieces, keys):
            some = (k, v) if part.columns is None else tuple(self._problem.rows(x, part.columns) for x in (k, v))
            self._join(part.queries, part.rows, some, part.options)

    def _join(self, piece: Piece, rows: slice, keys: tuple[Any, ...], options: dict[str, Any]) -> None:
        """Add what some queries of a piece see of some keys."""
        problem = self._problem
        q, out = problem.rows(problem.q, rows), problem.rows(self._out, rows)
        lse = self._lse[..., rows]
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
