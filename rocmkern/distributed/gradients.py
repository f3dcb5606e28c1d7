"""Gradients of attention over ranks: of q on the rank that has the queries, of k and v on the rank that has the keys.

Each rank calls backward, as each has called the forward: what a rank gets are the gradients of the sum of all ranks'
losses. A sink is the same on all ranks, but each has a tensor of its own: its gradient is what this rank's queries add.

    ring    keys come to the queries once more, piece by piece. A rank adds what its queries give to dk and dv of a
            piece, in float32, and sends that back to its owner, who adds it to the sums in the order of the steps
    heads   dout goes to the ranks that have the heads, which have kept the q, k, v and results of their rounds; the
            gradients come back as the results did

So nothing depends on who is early, and the bits are the same every time. All sums are float32, rounded once.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

import rocmkern
from rocmkern.distributed import heads
from rocmkern.distributed.buffers import Turns
from rocmkern.distributed.positions import Piece
from rocmkern.distributed.problem import Problem
from rocmkern.distributed.ranks import Ranks
from rocmkern.distributed.ring import Message, Part, Round, longest_of, messages, parts, rounds_of
from rocmkern.runtime.errors import ArgumentError


class Given(NamedTuple):
    """What the forward call gave, and the gradients of that: with a batch axis, as the problem's arrays.

    Attributes
    ----------
    out, lse : torch.Tensor
    dout : torch.Tensor
    dlse : torch.Tensor or None
    """

    out: Any
    lse: Any
    dout: Any
    dlse: Any

    def of(self, some: Round) -> Given:
        """That of some heads of some batch elements."""
        out, dout = some.of_queries(self.out), some.of_queries(self.dout)
        return Given(out, some.of_scores(self.lse), dout, None if self.dlse is None else some.of_scores(self.dlse))


class Attended(NamedTuple):
    """A call of attention as a gradient needs it; with its rounds where heads are shared out."""

    problem: Problem
    out: Any
    lse: Any
    rounds: list[heads.Round]


class DifferentiableAttention(torch.autograd.Function):
    """`rocmkern.distributed.attention` of tensors that ask for gradients."""

    @staticmethod
    def forward(
        ctx: Any, ranks: Ranks, timeout: float | None, call: Callable[..., Attended], q: Any, k: Any, v: Any, sinks: Any
    ) -> Any:
        """The result, without a batch axis where sequences are packed, and its log-sum-exps."""
        problem, out, lse, rounds = call(q, k, v, sinks)
        ctx.save_for_backward(q, k, v, sinks, out, lse, *(x for some in rounds for x in some[2:]))
        ctx.set_materialize_grads(False)
        ctx.problem = dataclasses.replace(problem, q=None, k=None, v=None, sinks=None)
        ctx.ranks, ctx.timeout, ctx.heads = ranks, timeout, [(some.queries, some.keys) for some in rounds]
        return out, lse

    @staticmethod
    def backward(ctx: Any, dout: Any, dlse: Any) -> Any:
        """The gradients of q, k, v and the sinks."""
        if torch.is_grad_enabled():
            raise ArgumentError("create_graph", "True", "False: attention over ranks has no gradients of gradients")
        q, k, v, sinks, out, lse, *others = ctx.saved_tensors
        dout = torch.zeros_like(out) if dout is None else dout
        packed = bool(ctx.problem.seen.cu_seqlens)
        given = Given(*(x if x is None or not packed else x[None] for x in (out, lse, dout, dlse)))
        own = [x.detach() if not packed else x.detach()[None] for x in (q, k, v)]
        wide = None if sinks is None else sinks.detach().float()
        problem = dataclasses.replace(ctx.problem, q=own[0], k=own[1], v=own[2], sinks=wide)
        with ctx.ranks.call("the gradient of attention", ctx.timeout):
            counts = ctx.ranks.agree({"operation": "the gradient of attention"}, [given.dlse is not None])
            if others:
                if given.dlse is None and any(map(any, counts)):  # all ranks send theirs, or none does
                    given = given._replace(dlse=torch.zeros_like(given.lse))
                rounds = [heads.Round(*some, *others[5 * i : 5 * i + 5]) for i, some in enumerate(ctx.heads)]
                found = heads_gradients(ctx.ranks, problem, rounds, given)
            else:
                found = ring_gradients(ctx.ranks, problem, given)
        gradients = [(x[0] if packed else x).to(q.dtype) for x in found]
        of_sinks = sink_gradients(problem, given).to(sinks.dtype) if ctx.needs_input_grad[-1] else None
        return (None, None, None, *gradients, of_sinks)


def attended(*arguments: Any) -> Any:
    """What `DifferentiableAttention` gives. PyTorch's compiler, where it is loaded, ends its graph there."""
    return (_eager() if "torch._dynamo" in sys.modules else DifferentiableAttention.apply)(*arguments)


@functools.cache
def _eager() -> Callable[..., Any]:
    return torch.compiler.disable(DifferentiableAttention.apply)


def ring_gradients(ranks: Ranks, problem: Problem, given: Given) -> tuple[Any, Any, Any]:
    """dq, dk and dv of this rank, in the dtype of q."""
    dq, dk, dv = (torch.empty_like(x, memory_format=torch.contiguous_format) for x in _qkv(problem))
    every = rounds_of(problem, ranks.size)
    coming = messages(ranks, every, answered=True)
    following = next(coming, None)
    sums = _Sums(ranks, every[0].problem)
    for some in every:
        own = some.problem
        sums.begin(own, given.of(some))
        for piece in own.keys.pieces(ranks.rank):
            sums.add(piece.all, sums.of_keys(piece, own.rows(own.k, piece.all), own.rows(own.v, piece.all)))
        returned = None
        while following is not None and following.round is some:
            message = following
            message.transfer.wait()
            following = next(coming, None)
            of_keys = [] if message.piece is None else sums.of_keys(message.piece, *message.arrays)
            if returned is not None:
                returned.arrive()
            returned = _Returned(sums, message, of_keys)
        if returned is not None:
            returned.arrive()
        for x, total in ((some.of_queries(dq), sums.dq), (some.of_keys(dk), sums.dk), (some.of_keys(dv), sums.dv)):
            x.copy_(total)
    return dq, dk, dv


class _Returned:
    """Gradients of keys and values on their way to the owners."""

    def __init__(self, sums: _Sums, message: Message, found: list[Any]):
        self._sums, self._goes = sums, message.goes
        self._arrays = [] if message.goes is None else sums.received.next(message.goes.rows)
        sends, receives = [(message.source, x) for x in found], [(message.to, x) for x in self._arrays]
        self._transfer = sums.ranks.exchange(sends, receives)

    def arrive(self) -> None:
        """Wait for them, and add what came."""
        self._transfer.wait()
        if self._goes is not None:
            self._sums.add(self._goes.all, self._arrays)


class _Sums:
    """The gradients of a rank in a round, so far, and memory for those of a piece, taken once, as the rounds are equal.

    What is found of a piece of keys has two, as one is still on its way.
    """

    def __init__(self, ranks: Ranks, problem: Problem):
        self.ranks, self._pieces = ranks, problem.queries.pieces(ranks.rank)
        self.dq, self.dk, self.dv = (x.new_empty(x.shape, dtype=torch.float32) for x in _qkv(problem))
        axis, of_keys = problem.row_axis, (self.dk, self.dv)
        longest = longest_of([problem.keys.pieces(rank) for rank in range(ranks.size)])
        self._found, self.received, self._of_keys = (Turns(of_keys, axis, longest, sets) for sets in (2, 1, 1))
        self._of_queries = Turns([self.dq], axis, longest_of([self._pieces]))

    def begin(self, problem: Problem, given: Given) -> None:
        """Nothing of a round has been added."""
        self._problem, self._given = problem, given
        for total in (self.dq, self.dk, self.dv):
            total.zero_()

    def add(self, rows: slice, found: list[Any]) -> None:
        """Add the gradients of some keys and values of this rank."""
        for total, more in zip((self.dk, self.dv), found, strict=True):
            self._problem.rows(total, rows).add_(more)

    def of_keys(self, keys: Piece, k: Any, v: Any) -> list[Any]:
        """What this rank's queries give to the gradients of a piece of keys; those of the queries are added here."""
        found = [x.zero_() for x in self._found.next(keys.rows)]
        for part in parts(self._problem, self._pieces, keys):
            whole = slice(0, keys.rows) if part.columns is None else part.columns
            some = [self._problem.rows(x, whole) for x in (k, v)]
            dq, *others = self._of_part(part, *some)
            self._problem.rows(self.dq, part.rows).add_(dq)
            for total, more in zip(found, others, strict=True):
                self._problem.rows(total, whole).add_(more)
        return found

    def _of_part(self, part: Part, k: Any, v: Any) -> list[Any]:
        """Gradients of the queries, keys and values of a part."""
        problem, given = self._problem, self._given
        q, out, dout = (problem.rows(x, part.rows) for x in (problem.q, given.out, given.dout))
        lse, dlse = given.lse[..., part.rows], None if given.dlse is None else given.dlse[..., part.rows]
        columns = k.shape[problem.row_axis]
        into = [*self._of_queries.next(part.rows.stop - part.rows.start), *self._of_keys.next(columns)]
        arrays, options = [dout, q, k, v, out, lse], {**part.options, "dlse": dlse, "out": tuple(into)}
        if part.columns is None:  # packed: without the axis of the batch
            arrays = [x[0] for x in arrays]
            options |= {"dlse": None if dlse is None else dlse[0], "out": tuple(x[0] for x in into)}
        rocmkern.flash_attention_backward(*arrays, **options)
        return into


def heads_gradients(ranks: Ranks, problem: Problem, rounds: list[heads.Round], given: Given) -> tuple[Any, Any, Any]:
    """dq, dk and dv of this rank, in float32."""
    dq, dk, dv = (torch.zeros(x.shape, dtype=torch.float32, device=x.device) for x in _qkv(problem))
    into = [x.movedim(problem.row_axis, 0) for x in (dq, dk, dv)]
    for keys, same in itertools.groupby(rounds, lambda some: some.keys):
        of_keys: list[Any] = []
        for some in same:
            of_queries, *more = _of_round(ranks, problem, some, given)
            heads.give_back(ranks, problem.queries, some.queries, [of_queries], into[:1])
            of_keys = [x.add_(y) for x, y in zip(of_keys, more, strict=True)] if of_keys else more
        # A head of keys may be that of several ranks.
        heads.give_back(ranks, problem.keys, keys, of_keys, into[1:], add=True)
    return dq, dk, dv


def _of_round(ranks: Ranks, problem: Problem, some: heads.Round, given: Given) -> list[Any]:
    """Gradients of all tokens of the heads of a round, ``[S, B, H, D]``."""
    whole = functools.partial(heads.collected, ranks, problem.queries, some.queries)
    dout, dlse = whole([given.dout.movedim(problem.row_axis, 0)])[0].transpose(0, 1), None
    if given.dlse is not None:
        dlse = whole([given.dlse.movedim(2, 0)])[0].movedim(0, 2)
    made = [torch.empty_like(x.transpose(0, 1), dtype=torch.float32) for x in (some.q, some.k, some.v)]
    into = [x.transpose(0, 1) for x in made]
    given_to, into = (heads.without_batch(problem, x) for x in ((dout, *some[2:], dlse), into))
    *arrays, dlse = given_to
    rocmkern.flash_attention_backward(*arrays, **heads.options_of(problem), dlse=dlse, out=tuple(into))
    return made


def sink_gradients(problem: Problem, given: Given) -> Any:
    """What this rank's queries give: ``-sum_i exp(sink - lse_i) (dout_i . out_i - dlse_i)``, ``[Hq]``."""
    dots = (given.dout.float() * given.out.float()).sum(-1)
    dots = dots if problem.head_axis == 1 else dots.transpose(1, 2)
    dots = dots if given.dlse is None else dots - given.dlse
    weights = torch.exp(problem.sinks[:, None] - given.lse)
    return -torch.where(weights > 0, weights * dots, 0.0).sum((0, 2))


def _qkv(problem: Problem) -> tuple[Any, Any, Any]:
    return problem.q, problem.k, problem.v
