"""Launches of the operations that move rows and change nothing."""

from __future__ import annotations

from rocmkern.architectures import tuned
from rocmkern.calls.launch import ceil_div, error_word, launch, target_for
from rocmkern.calls.types import Stream
from rocmkern.calls.view import View
from rocmkern.ops.rows.kernels import copy_integers, copy_rows, embedding
from rocmkern.ops.streaming import SIZES, by_rows, rows_config, turned


def launch_embedding(table: View, indices: View, out: View, stream: Stream) -> None:
    """``kernels.embedding``: table ``[V, N]``, indices ``[R]``, out ``[R, N]``."""
    target = target_for(out)
    error = error_word(target, "embedding", "indices", "table")
    cfg = rows_config(embedding.Config, target.arch, out.shape[1], out.dtype.itemsize)
    grid = (ceil_div(out.shape[0], cfg.block_m), 1, 1)
    args = {"table": table, "indices": indices, "out": out, "error": error}
    launch(target, embedding.embedding, cfg, grid, args, stream)


def launch_copy_rows(x: View, out: View, stream: Stream) -> None:
    """``kernels.copy_rows``."""
    if x.strides[2] == x.itemsize != x.strides[3]:
        target = target_for(out)
        cfg = turned(copy_rows.Config, target.arch)
        grid = (ceil_div(out.shape[2], cfg.block_m), out.shape[1], out.shape[0])
        launch(target, copy_rows.copy_rows, cfg, grid, {"x": x, "out": out}, stream)
        return
    dense = x.strides[3] == out.strides[3] == x.itemsize
    by_rows(copy_rows.copy_rows, copy_rows.Config, out, {"x": x, "out": out}, stream, along_lanes=dense)


def launch_copy_integers(x: View, out: View, stream: Stream) -> None:
    """``kernels.copy_integers``."""
    target = target_for(out)
    block = tuned(SIZES, target.arch).block
    cfg = copy_integers.Config(arch=target.arch, waves=block.waves, block_m=block.rows)
    grid = (ceil_div(out.shape[2] * out.shape[3], cfg.block_m), out.shape[1], out.shape[0])
    launch(target, copy_integers.copy_integers, cfg, grid, {"x": x, "out": out}, stream)
