"""Faults of the norms and of the residual sum."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from rocmkern import tile as T
from rocmkern.matrix.faults.engine import Edit, Fault

NORMS = ("rms_norm", "layer_norm")


def _without_last_tile_column(square_step: Callable[..., Any]) -> Callable[..., Any]:
    """Leave the last column of each tile out of a sum of squares."""

    def faulty(tile: Any, scale: Any, total: Any) -> Any:
        values = tile.data.copy()
        values[:, -1] = 0
        return square_step(T.Tile(values), scale, total)

    return faulty


def _plain_squares(square_step: Callable[..., Any]) -> Callable[..., Any]:
    """Square as it is, whatever comes of it."""

    def faulty(tile: Any, scale: Any, total: Any) -> Any:
        with np.errstate(all="ignore"):
            return np.fmin(scale, np.float32(1)), total + (tile.data * tile.data).sum(axis=1, dtype=np.float32)

    return faulty


def _forgets_units(square_step: Callable[..., Any]) -> Callable[..., Any]:
    """Do not rescale what was summed before when a larger value comes."""

    def faulty(tile: Any, scale: Any, total: Any) -> Any:
        new, more = square_step(tile, scale, np.zeros_like(total))
        return new, total + more

    return faulty


FAULTS = (
    Fault(
        "norm_last_column",
        "a sum of squares leaves out the last column of each tile",
        NORMS,
        replace={"square_step": _without_last_tile_column},
    ),
    Fault("norm_plain_squares", "squares overflow or vanish", ("rms_norm",), replace={"square_step": _plain_squares}),
    Fault("norm_units", "earlier squares are not rescaled", ("rms_norm",), replace={"square_step": _forgets_units}),
    Fault(
        "rms_epsilon_outside",
        "epsilon is added to the root instead of under it",
        ("rms_norm",),
        edits=(Edit("rms_norm", "T.sqrt(total * inverse_n + eps * eps)", "(T.sqrt(total * inverse_n) + eps * eps)"),),
    ),
    Fault(
        "rms_without_epsilon",
        "epsilon is left out",
        ("rms_norm",),
        edits=(Edit("rms_norm", "total * inverse_n + eps * eps", "total * inverse_n"),),
    ),
    Fault(
        "rms_sum_not_mean",
        "the sum of squares is not divided by their number",
        ("rms_norm",),
        edits=(Edit("rms_norm", "total * inverse_n + eps * eps", "total + eps * eps"),),
    ),
    Fault(
        "rms_without_offset",
        "the offset of the weights is left out",
        ("rms_norm",),
        edits=(Edit("rms_norm", "w = w + weight_offset", "w = w + 0.0"),),
    ),
    Fault(
        "rms_without_residual",
        "the residual is left out",
        ("rms_norm",),
        edits=(
            Edit(
                "rms_norm",
                "t = T.rounded(t + T.load_tile(cfg, residual[a, b], (row,), n0, cfg.block_n, valid), residual)",
                "t = T.rounded(t, residual)",
            ),
        ),
    ),
    Fault(
        "layer_epsilon_outside",
        "epsilon is added to the root instead of under it",
        ("layer_norm",),
        edits=(Edit("layer_norm", "T.sqrt(variance + eps * eps)", "(T.sqrt(variance) + eps * eps)"),),
    ),
    Fault(
        "layer_unpadded",
        "the columns past the end count as the negative mean",
        ("layer_norm",),
        edits=(Edit("layer_norm", "t = T.pad_columns(t, col0, n_columns, 0.0)", "pass"),),
    ),
    Fault(
        "layer_without_mean",
        "the mean is not subtracted",
        ("layer_norm",),
        edits=(Edit("layer_norm", "mean = T.rowsum(t) * inverse_n", "mean = T.rowsum(t) * 0.0"),),
    ),
    Fault(
        "layer_first_for_mean",
        "the first number of a row stands for its mean, where numbers are those above it",
        ("layer_norm",),
        edits=(
            Edit(
                "layer_norm", "less(cfg, t, T.rowsum(t) * inverse_n, 0, ...)", "less(cfg, t, T.rowsum(t) * 0.0, 0, ...)"
            ),
        ),
    ),
    Fault(
        "layer_without_bias",
        "the bias is left out",
        ("layer_norm",),
        edits=(Edit("layer_norm", "cfg.with_bias", "cfg.with_bias and cfg.block_n < 0"),),
    ),
    Fault(
        "residual_doubled",
        "x is added twice",
        ("add_residual",),
        edits=(Edit("add_residual", "t + u", "T.copy(t) + t + u"),),
    ),
)
