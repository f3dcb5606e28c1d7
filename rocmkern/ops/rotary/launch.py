"""Launches of rotary embeddings: ``[batch, head, row, column]`` views."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from rocmkern.calls.launch import ceil_div, constant, error_word, launch, target_for
from rocmkern.calls.types import Stream
from rocmkern.calls.view import View
from rocmkern.ops.rotary import tuning
from rocmkern.ops.rotary.kernels import rope, rope_append_kv, rope_by_table
from rocmkern.ops.rotary.pairs import Pairs
from rocmkern.ops.steps.launch import launch_repeat_kv
from rocmkern.targets import Target


@dataclass(frozen=True)
class Tables:
    """Cosines and sines by position.

    Attributes
    ----------
    pairs : Pairs
    cos, sin : View, optional
        ``[positions, pairs]``; None where nothing is rotated.
    places : tuple of str
        Words of the error of a row that has no place or no position: see `error_word`.
    """

    pairs: Pairs
    cos: View | None
    sin: View | None
    places: tuple[str, str, str] | tuple[str, str, str, str]


def launch_rope(x: View, out: View, positions: list[View], turn: Any, stream: Stream) -> None:
    """``kernels.rope``, once for each part of 2-D positions, and a copy of what is not rotated.

    x, out [B, H, S, D], positions [B, S].
    """
    target = target_for(x)
    cfg = tuning.rotation(target.arch, x.shape[1], turn.pairs.dim // 2, turn.pairs.interleaved)
    if cfg.rows_are_heads:
        x, out = (a.swapaxes(1, 2) for a in (x, out))
    elif x.shape[2] == 1:
        # One row a sequence: the sequences are the rows.
        x, out = (a.transpose(2, 1, 0, 3) for a in (x, out))
        positions = [p.T for p in positions]
    batch, groups, rows, _ = x.shape
    row_blocks = ceil_div(rows, cfg.block_m)
    share = 1 if cfg.rows_are_heads else _heads_of_block(target, groups, row_blocks * batch)
    grid = (row_blocks, ceil_div(groups, share), batch)
    frequencies = constant(target, turn.frequencies)
    for part, rows_of_part in enumerate(positions):
        args = {"x": turn.pairs.of(x, part), "out": turn.pairs.of(out, part), "positions": rows_of_part}
        args |= {"frequencies": frequencies, "factor": turn.factor, "direction": turn.direction, "share": share}
        launch(target, rope.rope, cfg, grid, args, stream)
    rest, out_rest = turn.pairs.rest(x), turn.pairs.rest(out)
    if rest.size and not _same(rest, out_rest):
        launch_repeat_kv(rest, out_rest, 1, stream)


def launch_rope_append_kv(
    k: View,
    v: View,
    key_cache: View,
    value_cache: View,
    positions: View,
    slots: View,
    key_scale: View | None,
    value_scale: View | None,
    turn: Any,
    stream: Stream,
) -> None:
    """``kernels.rope_append_kv``: k, v [T, H, D], caches [n, L, H, D], positions, slots [T], scales [H] or None."""
    k, v = (x.transpose(1, 0, 2) for x in (k, v))
    heads, rows, _ = k.shape
    target = target_for(k)
    scaled = key_scale is not None or value_scale is not None
    cfg = tuning.rotary(rope_append_kv.Config, target.arch, scaled=scaled)
    if scaled:
        key_scale, value_scale = (
            constant(target, np.ones(heads, np.float32)) if scale is None else scale
            for scale in (key_scale, value_scale)
        )
    row_blocks = ceil_div(rows, cfg.block_m)
    share = _heads_of_block(target, heads, row_blocks)
    grid = (row_blocks, ceil_div(heads, share), 1)
    args = {
        "k": turn.pairs.of(k),
        "v": v,
        "keys": turn.pairs.of(key_cache),
        "values": value_cache,
        "positions": positions,
        "slots": slots,
        "frequencies": constant(target, turn.frequencies),
        "key_scale": key_scale,
        "value_scale": value_scale,
        "error": error_word(target, "rope_append_kv", "slots", "key_cache", "its token was not written"),
        "factor": turn.factor,
        "heads": share,
    }
    launch(target, rope_append_kv.rope_append_kv, cfg, grid, args, stream)
    rest = turn.pairs.rest(k)
    if rest.size:  # the part of keys that is not rotated is written as values are
        args |= {
            "k": args["k"][..., :0],
            "v": rest,
            "keys": args["keys"][..., :0],
            "values": turn.pairs.rest(key_cache),
        }
        args["value_scale"] = key_scale
        launch(target, rope_append_kv.rope_append_kv, cfg, grid, args, stream)


def launch_rope_by_table(
    x: View, out: View, tables: Tables, seqlens: View, advance: int, pages: View | None, behind: bool, stream: Stream
) -> None:
    """``kernels.rope_by_table``: x [N, S, H, D] into out [pages, L, H, D], at the positions ``seqlens + advance * s``.

    ``behind`` says that rows go behind those that their sequences have; ``pages`` [N, entries] where these are.
    """
    target = target_for(x)
    cfg = tuning.rotary(rope_by_table.Config, target.arch, paged=pages is not None)
    args = {
        "x": tables.pairs.of(x),
        "rest": tables.pairs.rest(x),
        "out": tables.pairs.of(out),
        "out_rest": tables.pairs.rest(out),
        "cos": tables.cos,
        "sin": tables.sin,
        "seqlens": seqlens,
        "block_table": pages,
        "error": error_word(target, *tables.places),
        "advance": advance,
        "behind": int(behind),
    }
    grid = (ceil_div(x.shape[1] * x.shape[2], cfg.block_m), x.shape[0], 1)
    launch(target, rope_by_table.rope_by_table, cfg, grid, args, stream)


def _heads_of_block(target: Target, heads: int, row_blocks: int) -> int:
    """As many heads a block as leave enough blocks for the device."""
    groups = min(heads, max(1, ceil_div(2 * target.parallelism, row_blocks)))
    return ceil_div(heads, groups)


def _same(a: View, b: View) -> bool:
    """Whether two views are the same elements; they overlap in nothing otherwise."""
    return a.address == b.address
