"""Attention of packed queries over pages, where cumulative lengths say how many keys each sequence has."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from rocmkern.calls.arguments import INT32, accept
from rocmkern.calls.plan import planned
from rocmkern.ops.attention.api import attend
from rocmkern.ops.attention.problem import Attention, Scores, Sequences, Visibility, beside, cumulative
from rocmkern.ops.paged.problem import caches, pages
from rocmkern.runtime.errors import ArgumentError


@planned
def attend_to_pages(
    q: Any,
    k: Any,
    v: Any,
    block_table: Any,
    cu_seqlens_q: Any,
    cu_seqlens_k: Any,
    max_seqlen_q: Any,
    max_seqlen_k: Any,
    *,
    causal: bool,
    window: Any,
    scale: float | None,
    softcap: float | None,
    alibi_slopes: Any,
    return_lse: bool,
) -> Any:
    """`flash_attn_varlen_func` with a block table; the other arguments are those of `rocmkern.paged_attention`."""
    visibility = Visibility.of(causal, window)
    tensors = caches(q, k, v, packed=True, names=("k", "v"))
    accept("cu_seqlens_q", cu_seqlens_q, INT32)  # None, too, is refused
    sequences = Sequences.of_queries(tensors, cu_seqlens_q, max_seqlen_q)
    lengths, _ = cumulative("k", cu_seqlens_k, None, tensors.q, None)
    if lengths.shape != (sequences.count + 1,):
        given, allowed = f"length {lengths.shape[0]}", f"length {sequences.count + 1}, that of cu_seqlens_q"
        raise ArgumentError("cu_seqlens_k", given, allowed)
    table = beside(tensors.q, accept("block_table", block_table, INT32))
    sequences = replace(sequences, cu_seqlens_k=lengths)
    sequences, found = pages(tensors, sequences, table, ("max_seqlen_k", max_seqlen_k))
    scores = Scores.of(tensors, sequences, scale=scale, softcap=softcap, alibi_slopes=alibi_slopes, sinks=None)
    return attend(Attention(tensors, visibility, scores, sequences, found), return_lse, None, None)
