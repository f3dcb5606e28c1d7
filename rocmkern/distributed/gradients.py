"""Gradients of attention over ranks: of q on the rank that has the queries, of k and v on the rank that has the keys.

Each rank calls backward, as each has called the forward: what a rank gets are the gradients of the sum of all ranks'
losses. A sink is the same on all ranks, but each has a tensor of its own: its gradient is what this rank's queries add.

    ring    keys come to the queries once more, piece by piece. A rank adds what its queries give to dk and dv of a
            piece, in float32, and sends that back to its owner, who adds it to the sums in the order of the steps
    heads   dout goes to the ranks that have the heads, which have kept their q, k, v and results; the gradients come
            back as the results did

So nothing depends on who is early, and the bits are the same every time. All sums are float32, rounded once.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch.autograd.function import once_differentiable

import rocmkern
from rocmkern.distributed import heads
from rocmkern.distributed.positions import Piece
from rocmkern.distributed.problem import Problem
from rocmkern.distributed.ranks import Ranks
from rocmkern.distributed.ring import Message, Part, empty, messages, parts


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


class Attended(NamedTuple):
    """A call of attention as a gradient needs it: `whole` where heads are shared out."""

    problem: Problem
    out: Any
    lse: Any
    whole: heads.Whole | None


class DifferentiableAttention(torch.autograd.Function):
    """`rocmkern.distributed.attention` of tensors that ask for gradients."""

    @staticmethod
    def forward(
        ctx: Any, ranks: Ranks, timeout: float | None, call: Callable[..., Attended], q: Any, k: Any, v: Any, sinks: Any
    ) -> Any:
        """The result, without a batch axis where sequences are packed, and its log-sum-exps."""
        problem, out, lse, whole = call(q, k, v, sinks)
        whole_tensors = () if whole is None else (*whole.arrays, whole.out, whole.lse)
        ctx.save_for_backward(q, k, v, sinks, out, lse, *whole_tensors)
        ctx.set_materialize_grads(False)
        ctx.problem = dataclasses.replace(problem, q=None, k=None, v=None, sinks=None)
        ctx.ranks, ctx.timeout, ctx.options = ranks, timeout, None if whole is None else whole.options
        return out, lse

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dout: Any, dlse: Any) -> Any:
        """The gradients of q, k, v and the sinks."""
        q, k, v, sinks, out, lse, *whole = ctx.saved_tensors
        dout = torch.zeros_like(out) if dout is None else dout
        packed = bool(ctx.problem.seen.cu_seqlens)
        given = Given(*(x if x is None or not packed else x[None] for x in (out, lse, dout, dlse)))
        own = [x.detach() if not packed else x.detach()[None] for x in (q, k, v)]
        wide = None if sinks is None else sinks.detach().float()
        problem = dataclasses.replace(ctx.problem, q=own[0], k=own[1], v=own[2], sinks=wide)
        with ctx.ranks.call("the gradient of attention", ctx.timeout):
            ctx.ranks.agree({"operation": "the gradient of attention"}, ())
            if whole:
                of_heads = heads.Whole(whole[:3], whole[3], whole[4], ctx.options)
                found = heads_gradients(ctx.ranks, problem, of_heads, given)
            else:
                found = ring_gradients(ctx.ranks, problem, given)
        gradients = [(x[0] if packed else x).to(q.dtype) for x in found]
        of_sinks = sink_gradients(problem, given).to(sinks.dtype) if ctx.needs_input_grad[-1] else None
        return (None, None, None, *gradients, of_sinks)


def ring_gradients(ranks: Ranks, problem: Problem, given: Given) -> tuple[Any, Any, Any]:
    """dq, dk and dv of this rank, in float32."""
    sums = _Sums(ranks.rank, problem, given)
    for piece in problem.keys.pieces(ranks.rank):
        sums.add(piece.all, sums.of_keys(piece, problem.rows(problem.k, piece.all), problem.rows(problem.v, piece.all)))
    coming = messages(ranks, problem, every=True)
    following, returned = next(coming, None), None
    while following is not None:
        message = following
        message.arrive()
        following = next(coming, None)
        found = [] if message.piece is None else sums.of_keys(message.piece, *message.arrays)
        if returned is not None:
            returned.arrive(sums)
        returned = _Returned(ranks, problem, message, found)
    if returned is not None:
        returned.arrive(sums)
    return sums.dq, sums.dk, sums.dv


class _Returned:
    """Gradients of keys and values on their way to the owners."""

    def __init__(self, ranks: Ranks, problem: Problem, message: Message, found: list[Any]):
        self._goes, self._found = message.goes, found
        of_keys = (problem.k, problem.v)
        goes = message.goes
        self._arrays = [] if goes is None else [empty(problem, x, goes, torch.float32) for x in of_keys]
        self._transfer = ranks.exchange([(message.source, x) for x in found], [(message.to, x) for x in self._arrays])

    def arrive(self, sums: _Sums) -> None:
        """Wait for them, and add what came."""
        self._transfer.wait()
        self._found.clear()
        if self._goes is not None:
            sums.add(self._goes.all, self._arrays)


class _Sums:
    """The gradients of a rank, so far."""

    def __init__(self, rank: int, problem: Problem, given: Given):
        self._problem, self._given = problem, given
        self._pieces = problem.queries.pieces(rank)
        self.dq, self.dk, self.dv = (torch.zeros(x.shape, dtype=torch.float32, device=x.device) for x in _qkv(problem))

    def add(self, rows: slice, found: list[Any]) -> None:
        """Add the gradients of some keys and values of this rank."""
        for total, more in zip((self.dk, self.dv), found, strict=True):
            self._problem.rows(total, rows).add_(more)

    def of_keys(self, keys: Piece, k: Any, v: Any) -> list[Any]:
        """What this rank's queries give to the gradients of a piece of keys; those of the queries are added here."""
        found = [torch.zeros(x.shape, dtype=torch.float32, device=x.device) for x in (k, v)]
        for part in parts(self._problem, self._pieces, keys):
            whole = slice(0, k.shape[self._problem.row_axis]) if part.columns is None else part.columns
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
        into = [torch.empty(x.shape, dtype=torch.float32, device=x.device) for x in (q, k, v)]
        arrays, options = [dout, q, k, v, out, lse], {**part.options, "dlse": dlse, "out": tuple(into)}
        if part.columns is None:  # packed: without the axis of the batch
            arrays = [x[0] for x in arrays]
            options |= {"dlse": None if dlse is None else dlse[0], "out": tuple(x[0] for x in into)}
        rocmkern.flash_attention_backward(*arrays, **options)
        return into


def heads_gradients(ranks: Ranks, problem: Problem, whole: heads.Whole, given: Given) -> tuple[Any, Any, Any]:
    """dq, dk and dv of this rank, in float32."""
    dout = heads.collected(ranks, problem, given.dout, problem.queries)
    dlse = None
    if given.dlse is not None:
        dlse = heads.collected(ranks, problem, given.dlse, problem.queries, axes=(1, 2))
    arrays, options = [dout, *whole.arrays, whole.out, whole.lse], {**whole.options, "dlse": dlse}
    into = [torch.empty(x.shape, dtype=torch.float32, device=x.device) for x in whole.arrays]
    options["out"] = tuple(into)
    if problem.seen.cu_seqlens:
        arrays = [x[0] for x in arrays]
        options |= {"dlse": None if dlse is None else dlse[0], "out": tuple(x[0] for x in into)}
    rocmkern.flash_attention_backward(*arrays, **options)
    axes = problem.head_axis, problem.row_axis
    dq, dk, dv = (
        heads.returned(ranks, tokens, x, *axes)
        for x, tokens in zip(into, (problem.queries, problem.keys, problem.keys), strict=True)
    )
    kv_heads = problem.heads_of(problem.k)
    dk, dv = (_joined(x, problem.head_axis, kv_heads) for x in (dk, dv))
    return dq, dk, dv


def _joined(x: Any, axis: int, count: int) -> Any:
    """The sums of what several ranks give to one head, which lie side by side."""
    return x if x.shape[axis] == count else x.unflatten(axis, (count, -1)).sum(axis + 1)


def sink_gradients(problem: Problem, given: Given) -> Any:
    """What this rank's queries give: ``-sum_i exp(sink - lse_i) (dout_i . out_i - dlse_i)``, ``[Hq]``."""
    dots = (given.dout.float() * given.out.float()).sum(-1)
    dots = dots if problem.head_axis == 1 else dots.transpose(1, 2)
    dots = dots if given.dlse is None else dots - given.dlse
    weights = torch.exp(problem.sinks[:, None] - given.lse)
    return -torch.where(weights > 0, weights * dots, 0.0).sum((0, 2))


def _qkv(problem: Problem) -> tuple[Any, Any, Any]:
    return problem.q, problem.k, problem.v
