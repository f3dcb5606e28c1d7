"""Attention with the heads shared out: each rank gets all tokens of some heads, and gives their results back.

Exchanges of all with all around plain calls (Jacobs et al., 2023: DeepSpeed-Ulysses). The result is that of one
process, bit for bit where a call does not depend on the number of heads. There must be as many query heads as ranks, or
a multiple; key-value heads are shared out likewise, or each goes to several ranks.

A rank has its heads in rounds, some at a time, so that it never holds all tokens of all of them. What is collected lies
with its tokens in front, ``[S, B, H, D]``: those of a rank are neighbours then, are received where they belong, and
results are sent as they are.

Memory of a rank beside its arguments and the result: q, k, v and the result of the heads of a round, and once more what
is sent of them. For gradients the rounds are kept: as many bytes as the arguments and the result.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import rocmkern
from rocmkern.distributed.positions import LEAST_PIECE, Tokens, cuts
from rocmkern.distributed.problem import Problem
from rocmkern.distributed.ranks import Ranks
from rocmkern.runtime.errors import ArgumentError

#: Rounds at most; of short sequences there are fewer, as there are pieces in a ring.
ROUNDS = 4


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


class Round(NamedTuple):
    """All tokens of some heads, ``[B, S, H, D]``, and what a call made of them.

    Attributes
    ----------
    queries, keys : list of slice
        By rank, which heads it has in this round.
    q, k, v, out : torch.Tensor
        Of this rank's heads.
    lse : torch.Tensor
        ``[B, H, S]``
    """

    queries: list[slice]
    keys: list[slice]
    q: Any
    k: Any
    v: Any
    out: Any
    lse: Any


def rounds(problem: Problem, size: int) -> list[tuple[list[slice], list[list[slice]]]]:
    """Heads of keys by rank, and for each of them heads of queries by rank, one after the other."""
    heads, kv_heads = problem.heads_of(problem.q), problem.heads_of(problem.k)
    count = max(1, min(ROUNDS, -(-problem.queries.total // (size * LEAST_PIECE))))
    own, own_keys = heads // size, max(1, kv_heads // size)
    group = own // own_keys
    found = []
    for first, stop in cuts(own_keys, min(count, own_keys)):
        starts = [heads_of_rank(kv_heads, rank, size).start for rank in range(size)]
        # The queries of one head of keys can be cut too.
        parts = min(group, -(-count // own_keys)) if stop - first == 1 else 1
        of_queries = [
            [slice(own * rank + first * group + a, own * rank + first * group + b) for rank in range(size)]
            for a, b in cuts((stop - first) * group, parts)
        ]
        found.append(([slice(start + first, start + stop) for start in starts], of_queries))
    return found


def heads_attention(ranks: Ranks, problem: Problem, return_lse: bool, keep: bool) -> tuple[Any, Any, list[Round]]:
    """The result of this rank, in the dtype of q, its log-sum-exps ``[B, Hq, S]`` or None, and the rounds if kept."""
    # deferred: optional dependency
    import torch

    check_heads(problem.heads_of(problem.q), problem.heads_of(problem.k), ranks.size)
    q, k, v = (x.movedim(problem.row_axis, 0) for x in (problem.q, problem.k, problem.v))
    out = problem.q.new_empty((*problem.q.shape[:-1], v.shape[-1]))
    lse = q.new_empty((q.shape[1], q.shape[2], q.shape[0]), dtype=torch.float32) if return_lse else None
    into = [out.movedim(problem.row_axis, 0), *([] if lse is None else [lse.movedim(2, 0)])]
    kept: list[Round] = []
    for keys, of_queries in rounds(problem, ranks.size):
        shared = collected(ranks, problem.keys, keys, [k, v])
        for queries in of_queries:
            arrays = collected(ranks, problem.queries, queries, [q]) + shared
            kept.append(_round(ranks, problem, queries, keys, arrays, into))
            if not keep:
                kept.clear()
            del arrays
        del shared  # before the next ones are collected
    return out, lse, kept


def _round(
    ranks: Ranks, problem: Problem, queries: list[slice], keys: list[slice], arrays: list[Any], into: list[Any]
) -> Round:
    """Attention of some heads, given back to the ranks that have the queries."""
    # deferred: optional dependency
    import torch

    tokens, batch, heads, _ = arrays[0].shape
    out = arrays[0].new_empty((tokens, batch, heads, arrays[2].shape[-1]))
    lse = arrays[0].new_empty((batch, heads, tokens), dtype=torch.float32)
    q, k, v, seen = (x.transpose(0, 1) for x in (*arrays, out))
    sinks = None if problem.sinks is None else problem.sinks[queries[ranks.rank]].contiguous()
    given, made = without_batch(problem, [q, k, v]), without_batch(problem, [seen, lse])
    rocmkern.flash_attention(*given, **options_of(problem), sinks=sinks, return_lse=True, out=(made[0], made[1]))
    give_back(ranks, problem.queries, queries, [out, lse.movedim(2, 0).contiguous()][: len(into)], into)
    return Round(queries, keys, q, k, v, seen, lse)


def options_of(problem: Problem) -> dict[str, Any]:
    """The options of a call with all tokens of some heads."""
    # deferred: optional dependency
    import torch

    options: dict[str, Any] = {name: getattr(problem, name) for name in ("causal", "window", "scale", "softcap")}
    if not problem.seen.cu_seqlens:
        return options | {"layout": "bshd"}
    borders = torch.tensor(problem.seen.cu_seqlens, dtype=torch.int32)
    return options | {"cu_seqlens_q": borders, "cu_seqlens_k": borders}


def without_batch(problem: Problem, arrays: Iterable[Any]) -> list[Any]:
    """Arrays as a call takes them: packed sequences have no axis of a batch."""
    return [x[0] if problem.seen.cu_seqlens and x is not None else x for x in arrays]


def collected(ranks: Ranks, tokens: Tokens, heads: Sequence[slice], arrays: Sequence[Any]) -> list[Any]:
    """All tokens of some heads of arrays whose first axis is that of tokens, and whose third that of heads.

    Parameters
    ----------
    ranks : Ranks
    tokens : Tokens
        Whose they are.
    heads : sequence of slice
        By rank, what it gets.
    arrays : sequence of torch.Tensor
        This rank's tokens of all heads.
    """
    sends, receives, found = [], [], []
    for x in arrays:
        blocks = [x[:, :, some] for some in heads]
        shape = blocks[ranks.rank].shape
        whole = x.new_empty((tokens.total, *shape[1:]))
        found.append(whole)
        for rank, block in enumerate(blocks):
            if rank == ranks.rank:
                for piece in tokens.whole_runs(rank):
                    whole[piece.start : piece.stop].copy_(block[piece.all])
            else:
                sent = block.contiguous()
                sends += [(rank, sent[piece.all]) for piece in tokens.whole_runs(ranks.rank)]
                receives += [(rank, whole[start:stop]) for start, stop in tokens.runs(rank)]
    ranks.exchange(sends, receives).wait()
    return found


def give_back(
    ranks: Ranks, tokens: Tokens, heads: Sequence[slice], arrays: Sequence[Any], into: Sequence[Any], add: bool = False
) -> None:
    """The contrary of `collected`: this rank's tokens of all heads, from contiguous arrays of all tokens of some.

    Parameters
    ----------
    ranks, tokens, heads
        As there.
    arrays, into : sequence of torch.Tensor
        All tokens of this rank's heads, and where its tokens of the heads of all ranks go.
    add : bool
        To what is there, in the order of ranks: heads may be those of several ranks.
    """
    sends, receives, received = [], [], []
    for x, whole in zip(arrays, into, strict=True):
        own = x.new_empty((len(whole), *x.shape[1:]))
        for piece in tokens.whole_runs(ranks.rank):
            own[piece.all].copy_(x[piece.start : piece.stop])
        parts = [own if rank == ranks.rank else own.new_empty(own.shape) for rank in range(ranks.size)]
        received.append(parts)
        for rank in range(ranks.size):
            if rank != ranks.rank:
                sends += [(rank, x[start:stop]) for start, stop in tokens.runs(rank)]
                receives += [(rank, parts[rank][piece.all]) for piece in tokens.whole_runs(ranks.rank)]
    ranks.exchange(sends, receives).wait()
    for parts, whole in zip(received, into, strict=True):
        for some, part in zip(heads, parts, strict=True):
            target = whole[:, :, some]
            target.add_(part) if add else target.copy_(part)
