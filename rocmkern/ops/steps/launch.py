"""Launches of the steps of attention: ``[batch, head, row, column]`` views."""

from __future__ import annotations

import numpy as np

from rocmkern.calls import invariance as _invariance
from rocmkern.calls.launch import ceil_div, launch, target_for
from rocmkern.calls.types import Stream
from rocmkern.calls.view import View
from rocmkern.ops.steps import tuning
from rocmkern.ops.steps.kernels import (
    apply_mask,
    causal_mask,
    qk_scores,
    repeat_kv,
    scale,
    softmax,
    weighted_values,
)
from rocmkern.ops.streaming import by_rows, rows_config


def launch_qk_scores(q: View, k: View, out: View, scale: float, stream: Stream) -> None:
    """``kernels.qk_scores``."""
    batch, heads, rows, head_dim = q.shape
    target = target_for(q)
    cfg = tuning.scores(target.arch, rows, head_dim, q.dtype.itemsize, _invariance.active())
    grid = (ceil_div(rows, cfg.block_m), heads, batch)
    launch(target, qk_scores.qk_scores, cfg, grid, {"q": q, "k": k, "out": out, "scale": scale}, stream)


def launch_weighted_values(p: View, v: View, out: View, stream: Stream) -> None:
    """``kernels.weighted_values``."""
    batch, heads, rows, _ = p.shape
    target = target_for(p)
    cfg = tuning.values(target.arch, rows, v.shape[3], p.dtype.itemsize, _invariance.active())
    grid = (ceil_div(rows, cfg.block_m), heads, batch)
    launch(target, weighted_values.weighted_values, cfg, grid, {"p": p, "v": v, "out": out}, stream)


def launch_causal_mask(out: View, left: int, right: int, offset: int, stream: Stream) -> None:
    """``kernels.causal_mask``."""
    target = target_for(out)
    cfg = rows_config(causal_mask.Config, target.arch)
    grid = (ceil_div(out.shape[0], cfg.block_m), 1, 1)
    launch(
        target, causal_mask.causal_mask, cfg, grid, {"out": out, "left": left, "right": right, "offset": offset}, stream
    )


def launch_apply_mask(x: View, mask: View, out: View, stream: Stream) -> None:
    """``kernels.apply_mask``."""
    boolean = mask.dtype == np.bool_
    by_rows(
        apply_mask.apply_mask, apply_mask.Config, out, {"x": x, "mask": mask, "out": out}, stream, boolean=bool(boolean)
    )


def launch_softmax(x: View, out: View, stream: Stream) -> None:
    """``kernels.softmax``."""
    by_rows(softmax.softmax, softmax.Config, out, {"x": x, "out": out}, stream, along_lanes=True, whole=True)


def launch_scale(x: View, out: View, factor: float, stream: Stream) -> None:
    """``kernels.scale``."""
    by_rows(scale.scale, scale.Config, out, {"x": x, "out": out, "factor": factor}, stream, along_lanes=True)


def launch_repeat_kv(x: View, out: View, n_rep: int, stream: Stream) -> None:
    """``kernels.repeat_kv``."""
    by_rows(repeat_kv.repeat_kv, repeat_kv.Config, out, {"x": x, "out": out, "n_rep": n_rep}, stream)
