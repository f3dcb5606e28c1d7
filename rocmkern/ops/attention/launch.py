"""Launches of attention: ``[batch, head, row, column]`` views."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from rocmkern.calls.arguments import FLOAT32
from rocmkern.calls.launch import (
    absent,
    ceil_div,
    counters,
    error_word,
    inner_result,
    launch,
    stream_of,
    target_for,
)
from rocmkern.ops.attention import tuning
from rocmkern.ops.attention.kernels import combine_splits, flash_attention, merge_attention
from rocmkern.ops.streaming import by_lines

#: Queries up to this many are packed with the heads of their group into one tile.
_PACK_UP_TO = 16
_SMALL_SCALE = 2.0**-100
_NO_PAGES = [absent(0, 2, np.int32), absent(0, 1, np.int32), *[absent(0, 1)] * 3]


@dataclass(frozen=True)
class Pages:
    """What a paged attention has beside its caches.

    Attributes
    ----------
    block_table, context_lens : array
        int32 ``[sequences, entries]`` and ``[sequences]``.
    key_scale, value_scale : array or None
        float32 ``[Hkv]``.
    longest : int
        Bound of `context_lens`.
    """

    block_table: Any
    context_lens: Any
    key_scale: Any
    value_scale: Any
    longest: int

    def arguments(self, target: Any) -> list:
        """Those of the kernel."""
        scales = [absent(0, 1) if x is None else x for x in (self.key_scale, self.value_scale)]
        error = error_word(target, "paged_attention", "block_table", "key_cache")
        return [self.block_table, self.context_lens, *scales, error]


def launch_attention(
    q: Any,
    k: Any,
    v: Any,
    out: Any,
    lse: Any,
    *,
    cu_seqlens_q: Any,
    cu_seqlens_k: Any,
    max_seqlen_q: int,
    sinks: Any,
    alibi_slopes: Any,
    bias: Any,
    mask: Any,
    scale: float,
    softcap: float,
    left: int,
    right: int,
    bottom_right: bool,
    num_splits: int | None,
    stream: Any,
    pages: Pages | None = None,
) -> None:
    """``kernels.flash_attention``, and ``kernels.combine_splits`` where keys are split over blocks that do not join.

    With `pages`, k and v are ``[pages, Hkv, page rows, D]``.
    """
    target = target_for(q)
    batch, heads, q_len, head_dim = q.shape
    kv_heads, value_dim = k.shape[1], v.shape[3]
    k_len = k.shape[2] if pages is None else pages.longest
    packed = cu_seqlens_q is not None
    sequences = len(cu_seqlens_q) - 1 if packed else batch
    longest = max_seqlen_q

    # The kernel's fast path needs a positive factor that turns products into exponents, of a size that float32
    # can invert and multiply by log2(e).
    score_mods = (
        not _SMALL_SCALE < scale < 1 / _SMALL_SCALE
        or softcap > 0
        or any(x is not None for x in (alibi_slopes, bias, mask))
    )
    pack = heads // kv_heads if longest < _PACK_UP_TO else 1
    groups = heads // pack * sequences
    cfg = tuning.attention(
        target.arch,
        longest * pack,
        head_dim,
        value_dim,
        q.dtype.itemsize,
        score_mods,
        paged=pages is not None,
        sinks=sinks is not None,
    )
    row_blocks = ceil_div(longest * pack, cfg.block_m)
    blocks = row_blocks * groups
    if num_splits is None:
        seen = min(k_len, left + right + longest)  # keys within the window of some row
        whole = packed or tuning.fill_device(target, blocks)
        num_splits = 1 if whole else tuning.splits(target, blocks, ceil_div(seen, cfg.block_n))
    # A part is a whole number of blocks of keys: more parts than blocks would be empty.
    num_splits = max(1, min(num_splits, ceil_div(k_len, cfg.block_n)))
    cfg = tuning.with_splits(target, cfg, blocks, num_splits)

    none = absent(0, 1, np.int32)
    no_join = [absent(0, 2, np.int32), absent(0, 1)]
    args = [
        cu_seqlens_q if packed else none,
        none if cu_seqlens_k is None else cu_seqlens_k,
        absent(0, 1) if sinks is None else sinks,
        absent(sequences, 2) if alibi_slopes is None else alibi_slopes,
        absent(batch, 4) if bias is None else bias,
        absent(batch, 4, np.bool_) if mask is None else mask,
        *(_NO_PAGES if pages is None else pages.arguments(target)),
    ]  # fmt: skip
    numbers = [scale, softcap, left, right, int(bottom_right), pack, num_splits, longest]
    grid = (row_blocks * num_splits, heads // pack, sequences)
    kernel = flash_attention.flash_attention
    lse = absent(batch, 3) if lse is None else lse
    if num_splits == 1:
        launch(target, kernel, cfg, grid, [q, k, v, out[None], lse[None], *args, *no_join, *numbers], stream)
        return
    stream = stream_of(q, stream)
    joining = cfg.join if cfg.joins else tuning.combine_alone(target.arch, value_dim)
    part_rows = num_splits * (groups * pack * longest if cfg.joins else batch * heads * q_len)
    with inner_result((part_rows * joining.pitch,), FLOAT32, q, target, stream) as parts:
        if cfg.joins:
            join = [counters((sequences, heads // pack), target, stream), parts]
            launch(target, kernel, cfg, grid, [q, k, v, out[None], lse[None], *args, *join, *numbers], stream)
            return
        by_row = parts.reshape(num_splits, batch, heads, q_len, joining.pitch)
        part, part_lse = by_row[..., : joining.columns], by_row[..., joining.columns]
        launch(target, kernel, cfg, grid, [q, k, v, part, part_lse, *args, *no_join, *numbers], stream)
        grid = (ceil_div(q_len, joining.block_m), heads, batch)
        launch(target, combine_splits.combine_splits, joining, grid, [parts, out, lse, num_splits], stream)


def launch_merge(o1: Any, lse1: Any, o2: Any, lse2: Any, out: Any, lse: Any, stream: Any) -> None:
    """``kernels.merge_attention``."""
    by_lines(merge_attention.merge_attention, merge_attention.Config, out, [o1, lse1, o2, lse2, out, lse], stream)
