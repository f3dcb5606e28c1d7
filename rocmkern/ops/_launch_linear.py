"""Launches of matrix products: ``[outer, inner, row, column]`` views."""

from __future__ import annotations

from typing import Any

import numpy as np

from rocmkern.kernels import activations, gated_mlp, matmul, sum_splits
from rocmkern.ops import _configs
from rocmkern.ops._arrays import FLOAT32
from rocmkern.ops._launch import absent, ceil_div, inner_result, launch, stream_of, target_for

_ACTIVATIONS = {
    None: 0,
    "silu": activations.SILU,
    "gelu": activations.GELU,
    "gelu_tanh": activations.GELU_TANH,
    "relu": activations.RELU,
}
#: Steps along K that a block of a split product should have at least.
_STEPS_PER_SPLIT = 4
_MANY_WAVES = 8


def launch_matmul(a: Any, b: Any, bias: Any, out: Any, activation: str | None, stream: Any) -> None:
    """``kernels.matmul``, and ``kernels.sum_splits`` where K is split over blocks: ``[.., M, K] @ [.., K, N]``."""
    target = target_for(a)
    # What is contiguous along K goes without a transposition, and so does what is contiguous along neither axis.
    step_k, step_n = b.strides[2:]
    transposed = step_k == b.itemsize or step_n != b.itemsize
    across = a.strides[2] == a.itemsize and a.strides[3] != a.itemsize
    shape = a.shape[0] * a.shape[1], a.shape[2], out.shape[3]
    cfg = _configs.product(target.arch, shape, b.itemsize, transposed, across, target.parallelism)
    launch_product(target, cfg, a, b.swapaxes(2, 3) if transposed else b, bias, out, activation, stream)


def launch_product(
    target: Any, cfg: matmul.Config, a: Any, b: Any, bias: Any, out: Any, activation: str | None, stream: Any
) -> None:
    """``kernels.matmul`` in a configuration, with K split over blocks where there are few of them."""
    outer, inner, rows, depth = a.shape
    columns = out.shape[3]
    blocks = ceil_div(rows, cfg.block_m) * ceil_div(columns, cfg.block_n)
    splits = 1
    if depth:
        few = max(blocks * inner * outer, 1)
        # A block of many waves has a multiprocessor to itself, where two small ones would be.
        wanted = ceil_div(2 * target.parallelism, few) if cfg.waves < _MANY_WAVES else target.parallelism // (2 * few)
        splits = max(1, min(wanted, depth // (_STEPS_PER_SPLIT * cfg.block_k)))

    if cfg.left_transposed:
        a = a.swapaxes(2, 3)
    no_bias = absent(0, 2, out.dtype)
    bias = no_bias if bias is None else bias
    grid = (blocks, inner, outer * splits)
    number = _ACTIVATIONS[activation]
    if splits == 1:
        launch(target, matmul.matmul, cfg, grid, [a, b, bias, out[None], number, 1], stream)
        return
    stream = stream_of(a, stream)
    with inner_result((splits, *out.shape), FLOAT32, a, target, stream) as parts:
        launch(target, matmul.matmul, cfg, grid, [a, b, no_bias, parts, 0, splits], stream)
        cfg = _configs.line(sum_splits.Config, target.arch)
        grid = (ceil_div(rows, cfg.block_m) * ceil_div(columns, cfg.block_n), inner, outer)
        launch(target, sum_splits.sum_splits, cfg, grid, [parts, bias, out, number], stream)


def launch_mlp(
    x: Any,
    w_gate: Any,
    w_up: Any,
    w_down: Any,
    b_gate: Any,
    b_up: Any,
    b_down: Any,
    out: Any,
    activation: str | None,
    stream: Any,
) -> None:
    """``kernels.gated_mlp`` (or ``kernels.matmul`` without a gate), then ``kernels.matmul``."""
    target = target_for(x)
    outer, inner, rows, _ = x.shape
    hidden_size = w_up.shape[0]
    stream = stream_of(x, stream)

    def weights(w: Any) -> Any:
        """A weight as the right side of every product."""
        return np.broadcast_to(w.swapaxes(0, 1), (outer, inner, *w.shape[::-1]), subok=True)

    with inner_result((outer, inner, rows, hidden_size), x.dtype, x, target, stream) as hidden:
        if w_gate is None:
            launch_matmul(x, weights(w_up), b_up, hidden, activation, stream)
        else:
            cfg = _configs.gated_product(target.arch, rows, x.itemsize)
            grid = (ceil_div(rows, cfg.block_m) * ceil_div(hidden_size, cfg.block_n), inner, outer)
            biases = [absent(0, 2, x.dtype) if bias is None else bias for bias in (b_gate, b_up)]
            args = [x, w_gate, w_up, *biases, hidden, _ACTIVATIONS[activation]]
            launch(target, gated_mlp.gated_mlp, cfg, grid, args, stream)
        launch_matmul(hidden, weights(w_down), b_down, out, None, stream)
