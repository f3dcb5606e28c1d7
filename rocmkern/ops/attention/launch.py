"""Launches of attention: ``[batch, head, row, column]`` views."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from rocmkern.calls import invariance as _invariance
from rocmkern.calls import results as _results
from rocmkern.calls.arguments import FLOAT32, Argument
from rocmkern.calls.axes import four_axes
from rocmkern.calls.launch import (
    ceil_div,
    counters,
    error_word,
    inner_result,
    launch,
    stream_of,
    target_for,
)
from rocmkern.calls.types import Stream
from rocmkern.calls.view import View, view_of
from rocmkern.ops.attention import tuning
from rocmkern.ops.attention.kernels import combine_splits, flash_attention, merge_attention
from rocmkern.ops.attention.problem import Attention
from rocmkern.ops.steps.launch import launch_scale
from rocmkern.ops.streaming import by_rows
from rocmkern.targets import Target

#: Queries up to this many are packed with the heads of their group into one tile.
_PACK_UP_TO = 16
_SMALL_SCALE = 2.0**-100


@dataclass(frozen=True)
class _Partition:
    """How the work of a launch is shared out.

    Attributes
    ----------
    cfg : flash_attention.Config
    pack : int
        Query heads of a group that lie side by side in a tile.
    row_blocks, groups : int
        Blocks of the rows of a group of heads and a sequence; groups of heads of all sequences.
    splits : int
        Parts of the keys.
    """

    cfg: flash_attention.Config
    pack: int
    row_blocks: int
    groups: int
    splits: int

    @classmethod
    def of(cls, target: Target, problem: Attention, q: View, kv_heads: int, value_dim: int) -> _Partition:
        """The one that suits a problem."""
        heads, head_dim = q.shape[1], q.shape[3]
        scores, sequences, seen = problem.scores, problem.sequences, problem.visibility
        # The kernel's fast path needs a positive factor that turns products into exponents, of a size that float32
        # can invert and multiply by log2(e).
        score_mods = scores.modified or not _SMALL_SCALE < scores.scale < 1 / _SMALL_SCALE
        longest, invariant = sequences.max_q, _invariance.active()
        pack = heads // kv_heads if longest < _PACK_UP_TO else 1
        groups = heads // pack * sequences.count
        cfg = tuning.attention(
            target.arch,
            longest * pack,
            head_dim,
            value_dim,
            q.dtype.itemsize,
            score_mods,
            paged=problem.pages is not None,
            sinks=scores.sinks is not None,
            invariant=invariant,
        )
        row_blocks = ceil_div(longest * pack, cfg.block_m)
        splits = 1 if invariant else problem.num_splits
        if splits is None:
            whole = sequences.cu_seqlens_q is not None or tuning.fill_device(target, row_blocks * groups)
            in_window = min(sequences.max_k, seen.left + seen.right + longest)  # keys that some row may see
            cost, steps = tuning.splitting(cfg, q.dtype.itemsize), ceil_div(in_window, cfg.block_n)
            splits = 1 if whole else tuning.splits(target, cost, row_blocks * groups, steps)
        # A part is a whole number of blocks of keys: more parts than blocks would be empty.
        splits = max(1, min(splits, ceil_div(sequences.max_k, cfg.block_n)))
        cfg = tuning.with_splits(target, cfg, row_blocks * groups, splits)
        return cls(cfg, pack, row_blocks, groups, splits)


def launch_attention(problem: Attention, out: View, lse: View | None, stream: Stream) -> None:
    """``kernels.flash_attention``, and ``kernels.combine_splits`` where keys are split over blocks that do not join."""
    q, k, v = problem.tensors.views()
    target = target_for(q)
    batch, heads, q_len, _ = q.shape
    value_dim, longest = v.shape[3], problem.sequences.max_q
    work = _Partition.of(target, problem, q, k.shape[1], value_dim)
    cfg, splits, groups = work.cfg, work.splits, heads // work.pack
    grid = (work.row_blocks * splits, groups, problem.sequences.count)
    kernel = flash_attention.flash_attention
    arguments = {
        "q": q,
        "k": k,
        "v": v,
        "out": out[None],
        "lse": None if lse is None else lse[None],
        "pack": work.pack,
        "splits": splits,
        "queries": longest,
        **kernel_arguments(kernel, problem, target, stream),
    }
    if splits == 1:
        launch(target, kernel, cfg, grid, arguments, stream)
        return
    stream = stream_of(q, stream)
    joining = cfg.join if cfg.joins else tuning.combine_alone(target.arch, value_dim)
    part_rows = splits * (work.groups * work.pack * longest if cfg.joins else batch * heads * q_len)
    with inner_result((part_rows * joining.pitch,), FLOAT32, q, target, stream) as parts:
        if cfg.joins:
            arguments |= {"arrivals": counters((problem.sequences.count, groups), target, stream), "parts": parts}
            launch(target, kernel, cfg, grid, arguments, stream)
            return
        by_row = parts.reshape(splits, batch, heads, q_len, joining.pitch)
        arguments |= {"out": by_row[..., : joining.columns], "lse": by_row[..., joining.columns]}
        launch(target, kernel, cfg, grid, arguments, stream)
        grid = (ceil_div(q_len, joining.block_m), heads, batch)
        joined = {"parts": parts, "out": out, "lse": lse, "splits": splits}
        launch(target, combine_splits.combine_splits, joining, grid, joined, stream)


def kernel_arguments(kernel: Any, problem: Attention, target: Target, stream: Stream) -> dict[str, Any]:
    """What the kernel takes of the records of a problem, by the names of its parameters."""
    seen, scores, sequences, pages = problem.visibility, problem.scores, problem.sequences, problem.pages
    records = (seen, scores, sequences, *([pages] if pages else []))
    parameters = {name for name, _ in kernel.parameters}
    found = {name: value for record in records for name, value in vars(record).items() if name in parameters}
    found = {name: value.aligned() if isinstance(value, Argument) else value for name, value in found.items()}
    if "bottom_right" in parameters:
        found["bottom_right"] = int(seen.bottom_right)
    if "sinks" in parameters and scores.sinks is not None:
        found["sinks"] = _float32(scores.sinks, stream)
    if "alibi_slopes" in parameters and scores.alibi_slopes is not None:
        shape = (sequences.count, problem.tensors.heads)
        found["alibi_slopes"] = _float32(scores.alibi_slopes, stream).broadcast_to(shape)
    if pages:
        found["error"] = error_word(target, "paged_attention", "block_table", "key_cache")
    return found


def _float32(x: Argument, stream: Stream) -> View:
    """One number a head, widened where it is half precision."""
    view = x.aligned()
    if view.dtype == FLOAT32:
        return view
    if not view.on_device:
        return x.converted(_widened).view
    if not view.size:
        return view
    # Times one: the only operation that is needed to convert. The view keeps the memory until the launch is under way.
    wide = view_of(_results.temporary(view.shape, FLOAT32, view, stream))
    for some, some_wide in four_axes(view, wide):
        launch_scale(some, some_wide, 1.0, stream)
    return wide


def _widened(numbers: np.ndarray) -> np.ndarray:
    return numbers.astype(np.float32)


def launch_merge(o1: View, lse1: View, o2: View, lse2: View, out: View, lse: View | None, stream: Stream) -> None:
    """``kernels.merge_attention``."""
    arguments = {"o1": o1, "lse1": lse1, "o2": o2, "lse2": lse2, "out": out, "lse": lse}
    by_rows(merge_attention.merge_attention, merge_attention.Config, out, arguments, stream)
