"""Launches of the gradients of operations that move rows."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from rocmkern.architectures import tuned
from rocmkern.calls.axes import joined_rows, rows_of
from rocmkern.calls.launch import ceil_div, error_word, inner_result, launch, target_for
from rocmkern.calls.types import Stream
from rocmkern.calls.view import View
from rocmkern.ops.rows.backward.kernels import embedding_backward, order_indices
from rocmkern.ops.rows.launch import launch_copy_rows
from rocmkern.ops.streaming import SIZES, rows_config

INT32 = np.dtype(np.int32)


def launch_embedding_backward(dout: View, order: View, ids: View, out: View, accumulate: bool, stream: Stream) -> None:
    """``kernels.embedding_backward``: dout ``[..., N]``, out ``[V, N]``, order and ids of all the rows of dout."""
    target = target_for(out)
    cfg = rows_config(embedding_backward.Config, target.arch, out.shape[1], out.dtype.itemsize, accumulates=accumulate)
    grid = (ceil_div(out.shape[0], cfg.block_m), 1, 1)
    with _as_rows(dout, stream) as rows:
        args = {"dout": rows, "order": order, "ids": ids, "out": out, "steps": order.shape[0].bit_length()}
        launch(target, embedding_backward.embedding_backward, cfg, grid, args, stream)


@contextmanager
def ordered_indices(indices: View, beside: View, rows: int, stream: Stream) -> Iterator[tuple[View, View]]:
    """``kernels.order_indices`` of indices ``[A, B, C, D]`` of so many rows: order and ids."""
    target = target_for(beside)
    block = tuned(SIZES, target.arch).block
    cfg = order_indices.Config(arch=target.arch, waves=block.waves, block_m=block.rows)
    with inner_result((2, indices.size), INT32, beside, target, stream) as found:
        error = error_word(target, "embedding_backward", "indices", "table", "its row counts nowhere")
        args = {"indices": indices, "order": found[0], "ids": found[1], "error": error, "rows": rows}
        launch(target, order_indices.order_indices, cfg, (ceil_div(indices.size, cfg.block_m), 1, 1), args, stream)
        yield found[0], found[1]


@contextmanager
def _as_rows(x: View, stream: Stream) -> Iterator[View]:
    """``[T, N]``: a view where strides allow it, else a copy."""
    if x.ndim == 1:
        x = x[None]
    (joined,) = joined_rows(x)
    if joined.ndim == 2:
        yield joined
        return
    shape = (x.size // x.shape[-1], x.shape[-1])
    with inner_result(shape, x.dtype, x, target_for(x), stream) as copy:
        for some, some_copy in rows_of(x, copy.reshape(x.shape)):
            launch_copy_rows(some, some_copy, stream)
        yield copy
