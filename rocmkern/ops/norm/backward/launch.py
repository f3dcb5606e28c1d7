"""Launches of the gradients of the norms: ``[..., ..., row, column]`` views.

Rows that are too far apart for one launch are several pieces, each of which has a launch and parts of its own. The
parts of all of them are added up in one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from rocmkern.calls.launch import ceil_div, inner_result, launch, target_for
from rocmkern.calls.types import Stream
from rocmkern.calls.view import View
from rocmkern.ops import streaming
from rocmkern.ops.norm.backward import tuning
from rocmkern.ops.norm.backward.kernels import column_sums, layer_norm_backward, rms_norm_backward
from rocmkern.ops.norm.launch import numbers
from rocmkern.targets import Target
from rocmkern.tile.language.kernel import Config, Kernel


def launch_rms_norm_backward(
    pieces: Sequence[Sequence[View]],
    weight: View,
    dweight: View,
    eps: float,
    weight_offset: float,
    accumulate: bool,
    stream: Stream,
) -> None:
    """``kernels.rms_norm_backward`` of pieces dout, x, dx and, if it is there, dresidual; then ``column_sums``."""
    names, x = ("dout", "x", "dx", "dresidual"), pieces[0][1]
    features = {
        "with_residual": len(pieces[0]) == len(names),
        "with_offset": weight_offset != 0,
        "resident": tuning.resident_rms(target_for(x).arch, x.shape[-1], x.itemsize),
    }
    given = {"weight": weight[None], "weight_offset": weight_offset}
    some = [dict(zip(names, piece, strict=False)) for piece in pieces]
    module = rms_norm_backward
    _launch(module.rms_norm_backward, module.Config, some, given, {"parts": dweight}, eps, accumulate, stream, features)


def launch_layer_norm_backward(
    pieces: Sequence[Sequence[View]],
    weight: View | None,
    dweight: View | None,
    dbias: View | None,
    eps: float,
    accumulate: bool,
    stream: Stream,
) -> None:
    """``kernels.layer_norm_backward`` of pieces dout, x and dx; then ``column_sums`` for each parameter."""
    features = {"with_weight": weight is not None, "with_bias": dbias is not None}
    given = {"weight": None if weight is None else weight[None]}
    some = [dict(zip(("dout", "x", "dx"), piece, strict=True)) for piece in pieces]
    sums = {name: x for name, x in (("dweights", dweight), ("dbiases", dbias)) if x is not None}
    module = layer_norm_backward
    _launch(module.layer_norm_backward, module.Config, some, given, sums, eps, accumulate, stream, features)


def _launch(
    kernel: Kernel,
    config: type[Config],
    pieces: Sequence[dict[str, View]],
    given: dict[str, Any],
    sums: dict[str, View],
    eps: float,
    accumulate: bool,
    stream: Stream,
    features: dict[str, Any],
) -> None:
    """A kernel for each piece, whose parts have the names of ``sums``, and what these parts add up to."""
    pieces = [each for piece in pieces for each in _matrices(piece)]
    x = pieces[0]["x"]
    target = target_for(x)
    widths = tuning.widths(target.arch)
    cfg = streaming.rows_config(config, target.arch, x.shape[1], whole=True, widths=widths, **features)
    blocks = min(ceil_div(x.shape[0], cfg.block_m), ceil_div(tuning.most_blocks(target.arch), len(pieces)))
    rows = blocks * cfg.block_m
    args = given | numbers(x, eps, moderate=False) | {"step": blocks}
    with inner_result((len(sums), len(pieces) * rows, x.shape[1]), np.dtype(np.float32), x, target, stream) as parts:
        for n, piece in enumerate(pieces):
            mine = {name: parts[i, n * rows : (n + 1) * rows] for i, name in enumerate(sums)}
            launch(target, kernel, cfg, (blocks, 1, 1), args | piece | mine, stream)
        for i, out in enumerate(sums.values()):
            _add_up(target, parts[i], out, accumulate, stream)


def _matrices(piece: dict[str, View]) -> Iterator[dict[str, View]]:
    """Pieces ``[R, N]`` of one ``[A, B, R, N]``, as few as there can be: the longest axis is R."""
    lengths = piece["x"].shape[:3]
    longest = lengths.index(max(lengths))
    views = {name: x.swapaxes(longest, 2) for name, x in piece.items()}
    for index in np.ndindex(views["x"].shape[:2]):
        yield {name: x[index] for name, x in views.items()}


def _add_up(target: Target, parts: View, out: View, accumulate: bool, stream: Stream) -> None:
    """``kernels.column_sums``."""
    cfg = tuning.sums(column_sums.Config, target.arch, accumulates=accumulate)
    grid = (ceil_div(out.shape[0], cfg.block_m), 1, 1)
    launch(target, column_sums.column_sums, cfg, grid, {"parts": parts.T, "out": out}, stream)
