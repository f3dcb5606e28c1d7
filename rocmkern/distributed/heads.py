"""Attention with the heads shared out: each rank gets all tokens of some heads, and gives their results back.

Two exchanges of all with all around one plain call (Jacobs et al., 2023: DeepSpeed-Ulysses). The result is that of one
process, bit for bit where a call does not depend on the number of heads. There must be as many query heads as ranks, or
a multiple; key-value heads are shared out likewise, or each goes to several ranks.

Memory of a rank beside its arguments: its heads of q, k, v and out, as many bytes as the arguments and the result, and
once more what is on its way.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import rocmkern
from rocmkern.distributed.positions import Tokens
from rocmkern.distributed.problem import Problem
from rocmkern.distributed.ranks import Ranks
from rocmkern.runtime.errors import ArgumentError


def check_heads(heads: int, kv_heads: int, size: int) -> None:
    """Refuse numbers of heads that cannot be shared out."""
    if heads % size:
        raise ArgumentError("q", f"{heads} heads", f'a multiple of the {size} ranks with mode="heads", or mode="ring"')
    if kv_heads % size and size % kv_heads:
        allowed = f'a multiple or a divisor of the {size} ranks with mode="heads", or mode="ring"'
        raise ArgumentError("k", f"{kv_heads} heads", allowed)


def heads_of_rank(heads: int, rank: int, size: int) -> slice:
    """The heads of a rank; the one that it shares with others where there are fewer than ranks."""
    if heads % size == 0:
        return slice(heads // size * rank, heads // size * (rank + 1))
    return slice(heads * rank // size, heads * rank // size + 1)


class Whole(NamedTuple):
    """What a rank has of its heads: all tokens of q, k and v, the results, and the options that gave them."""

    arrays: list[Any]
    out: Any
    lse: Any
    options: dict[str, Any]


def heads_attention(ranks: Ranks, problem: Problem, return_lse: bool) -> tuple[Any, Any, Whole]:
    """The result of this rank, in the dtype of q, its log-sum-exps ``[B, Hq, S]`` or None, and the rank's heads."""
    # deferred: optional dependency
    import torch

    check_heads(problem.heads_of(problem.q), problem.heads_of(problem.k), ranks.size)
    given = ((problem.q, problem.queries), (problem.k, problem.keys), (problem.v, problem.keys))
    arrays = [collected(ranks, problem, x, tokens) for x, tokens in given]
    options: dict[str, Any] = {name: getattr(problem, name) for name in ("causal", "window", "scale", "softcap")}
    sinks = None
    if problem.sinks is not None:
        sinks = problem.sinks[heads_of_rank(len(problem.sinks), ranks.rank, ranks.size)].contiguous()
    if problem.seen.cu_seqlens:
        borders = torch.tensor(problem.seen.cu_seqlens, dtype=torch.int32)
        options |= {"cu_seqlens_q": borders, "cu_seqlens_k": borders}
        found = rocmkern.flash_attention(*(x[0] for x in arrays), **options, sinks=sinks, return_lse=True)
        out, lse = (x[None] for x in found)
    else:
        options["layout"] = problem.layout
        out, lse = rocmkern.flash_attention(*arrays, **options, sinks=sinks, return_lse=True)
    result = returned(ranks, problem.queries, out, problem.head_axis, problem.row_axis)
    own_lse = returned(ranks, problem.queries, lse, 1, 2) if return_lse else None
    return result, own_lse, Whole(arrays, out, lse, options)


def collected(ranks: Ranks, problem: Problem, x: Any, tokens: Tokens, axes: tuple[int, int] | None = None) -> Any:
    """All tokens of this rank's heads of an array, in their order; `axes` are those of heads and of tokens."""
    head_axis, row_axis = (problem.head_axis, problem.row_axis) if axes is None else axes
    heads = x.shape[head_axis]
    blocks = [_narrow(x, head_axis, heads_of_rank(heads, r, ranks.size)).contiguous() for r in range(ranks.size)]
    shape = list(blocks[ranks.rank].shape)
    received = []
    for length in tokens.lengths:
        shape[row_axis] = length
        received.append(x.new_empty(shape))
    ranks.all_to_all(blocks, received).wait()
    shape[row_axis] = tokens.total
    whole = x.new_empty(shape)
    for rank, block in enumerate(received):
        at = 0
        for start, stop in tokens.runs(rank):
            part = slice(at, at + stop - start)
            _narrow(whole, row_axis, slice(start, stop)).copy_(_narrow(block, row_axis, part))
            at = part.stop
    return whole


def returned(ranks: Ranks, tokens: Tokens, x: Any, head_axis: int, row_axis: int) -> Any:
    """This rank's tokens of all heads of a result, of which it has all tokens of its heads."""
    # deferred: optional dependency
    import torch

    blocks = [
        torch.cat([_narrow(x, row_axis, slice(*run)) for run in tokens.runs(rank)], row_axis).contiguous()
        for rank in range(ranks.size)
    ]
    received = [torch.empty_like(blocks[ranks.rank]) for _ in range(ranks.size)]
    ranks.all_to_all(blocks, received).wait()
    return torch.cat(received, head_axis)


def _narrow(x: Any, axis: int, part: slice) -> Any:
    return x.narrow(axis, part.start, part.stop - part.start)
