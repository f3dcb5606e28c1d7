"""Attention with the heads shared out: each rank gets all tokens of some heads, and gives their results back.

Two exchanges of all with all around one plain call (Jacobs et al., 2023: DeepSpeed-Ulysses). The result is that of one
process, bit for bit where a call does not depend on the number of heads. There must be as many query heads as ranks, or
a multiple; key-value heads are shared out likewise, or each goes to several ranks.

Memory of a rank beside its arguments: its heads of q, k, v and out, as many bytes as the arguments and the result, and
once more what is on its way.
"""

from __future__ import annotations

from typing import Any

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


def heads_attention(ranks: Ranks, problem: Problem, return_lse: bool) -> tuple[Any, Any]:
    """The result of this rank, in the dtype of q, and its log-sum-exps ``[B, Hq, S]``, or None."""
    # deferred: optional dependency
    import torch

    check_heads(problem.heads_of(problem.q), problem.heads_of(problem.k), ranks.size)
    given = ((problem.q, problem.queries), (problem.k, problem.keys), (problem.v, problem.keys))
    q, k, v = (_collected(ranks, problem, x, tokens) for x, tokens in given)
    options: dict[str, Any] = {name: getattr(problem, name) for name in ("causal", "window", "scale", "softcap")}
    options["return_lse"] = True
    if problem.sinks is not None:
        options["sinks"] = problem.sinks[heads_of_rank(len(problem.sinks), ranks.rank, ranks.size)].contiguous()
    if problem.seen.cu_seqlens:
        borders = torch.tensor(problem.seen.cu_seqlens, dtype=torch.int32)
        whole = rocmkern.flash_attention(q[0], k[0], v[0], cu_seqlens_q=borders, cu_seqlens_k=borders, **options)
        out, lse = (x[None] for x in whole)
    else:
        out, lse = rocmkern.flash_attention(q, k, v, layout=problem.layout, **options)
    result = _returned(ranks, problem, out, problem.head_axis, problem.row_axis)
    return result, _returned(ranks, problem, lse, 1, 2) if return_lse else None


def _collected(ranks: Ranks, problem: Problem, x: Any, tokens: Tokens) -> Any:
    """All tokens of this rank's heads of an array, in their order."""
    heads, head_axis, row_axis = problem.heads_of(x), problem.head_axis, problem.row_axis
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


def _returned(ranks: Ranks, problem: Problem, x: Any, head_axis: int, row_axis: int) -> Any:
    """This rank's tokens of all heads of a result, of which it has all tokens of its heads."""
    # deferred: optional dependency
    import torch

    tokens = problem.queries
    blocks = [
        torch.cat([_narrow(x, row_axis, slice(*run)) for run in tokens.runs(rank)], row_axis).contiguous()
        for rank in range(ranks.size)
    ]
    received = [torch.empty_like(blocks[ranks.rank]) for _ in range(ranks.size)]
    ranks.all_to_all(blocks, received).wait()
    return torch.cat(received, head_axis)


def _narrow(x: Any, axis: int, part: slice) -> Any:
    return x.narrow(axis, part.start, part.stop - part.start)
