"""Launches of matrix products: ``[outer, inner, row, column]`` views."""

from __future__ import annotations

from rocmkern.calls import invariance as _invariance
from rocmkern.calls.arguments import FLOAT32
from rocmkern.calls.launch import ceil_div, inner_result, launch, stream_of, target_for
from rocmkern.calls.types import Stream
from rocmkern.calls.view import View
from rocmkern.ops import streaming
from rocmkern.ops.activations.kernels import activations
from rocmkern.ops.linear import tuning
from rocmkern.ops.linear.kernels import matmul, row_product, sum_splits
from rocmkern.targets import Target

#: Numbers of the activations in a launch, by their names.
ACTIVATIONS: dict[str | None, int] = {
    None: 0,
    "silu": activations.SILU,
    "gelu": activations.GELU,
    "gelu_tanh": activations.GELU_TANH,
    "relu": activations.RELU,
}
#: Steps along K that a block of a split product should have at least.
_STEPS_PER_SPLIT = 4
_MANY_WAVES = 8


def launch_matmul(
    a: View, b: View, bias: View | None, out: View, activation: str | None, stream: Stream, rows: int
) -> None:
    """``kernels.matmul``, and ``kernels.sum_splits`` where K is split over blocks: ``[.., M, K] @ [.., K, N]``.

    ``rows`` decide how it is computed: M, or as many as would be one product if it were written elsewhere.
    """
    target = target_for(a)
    # What is contiguous along K goes without a transposition, and so does what is contiguous along neither axis.
    step_k, step_n = b.strides[2:]
    transposed = step_k == b.itemsize or step_n != b.itemsize
    right = b.swapaxes(2, 3) if transposed else b
    if _invariance.active():
        alike = tuning.product(target, (1, rows, b.shape[3]), b.itemsize, transposed, invariant=True)
        launch_product(target, alike, a, right, bias, out, activation, stream, rows)
        return
    sizes = tuning.one_row(target.arch, rows, b.shape[3], b.shape[2]) if step_k == b.itemsize else None
    if sizes:
        launch_row(target, tuning.row_product_of(target.arch, sizes), a, right, bias, out, activation, stream)
        return
    cfg = tuning.few_rows_product(target.arch, rows, b.shape[3], b.itemsize) if transposed else None
    if cfg:
        launch_few_rows(target, cfg, a, right, bias, out, activation, stream, rows)
        return
    across = a.strides[2] == a.itemsize and a.strides[3] != a.itemsize
    shape = _products_of(a, rows), rows, b.shape[3]
    cfg = tuning.product(target, shape, b.itemsize, transposed, across)
    launch_product(target, cfg, a, right, bias, out, activation, stream, rows)


def _products_of(a: View, rows: int) -> int:
    """How many products of so many rows ``a`` [outer, inner, M, K] is."""
    return a.shape[0] * a.shape[1] * a.shape[2] // max(rows, 1)


def launch_row(
    target: Target,
    cfg: row_product.Config,
    x: View,
    w: View,
    bias: View | None,
    out: View,
    activation: str | None,
    stream: Stream,
) -> None:
    """``kernels.row_product``: ``[.., 1, K] @ [.., N, K]^T``."""
    outer, inner, columns, _ = w.shape
    args = {"x": x, "w": w, "bias": bias, "out": out, "activation": ACTIVATIONS[activation]}
    launch(target, row_product.row_product, cfg, (ceil_div(columns, cfg.block_n), inner, outer), args, stream)


def launch_product(
    target: Target,
    cfg: matmul.Config,
    a: View,
    b: View,
    bias: View | None,
    out: View,
    activation: str | None,
    stream: Stream,
    rows: int,
) -> None:
    """``kernels.matmul`` in a configuration, with K split over blocks where there are few of them.

    In a batch-invariant call it never is: by how many depends on the rows.
    """
    outer, inner, own_rows, depth = a.shape
    across = ceil_div(out.shape[3], cfg.block_n)
    splits = 1
    if depth and not _invariance.active():
        few = max(ceil_div(rows, cfg.block_m) * across * _products_of(a, rows), 1)
        # A block of many waves has a multiprocessor to itself, where two small ones would be.
        wanted = ceil_div(2 * target.parallelism, few) if cfg.waves < _MANY_WAVES else target.parallelism // (2 * few)
        splits = max(1, min(wanted, depth // (_STEPS_PER_SPLIT * cfg.block_k)))

    if cfg.left_transposed:
        a = a.swapaxes(2, 3)
    grid = (ceil_div(own_rows, cfg.block_m) * across, inner, outer * splits)
    number, sides = ACTIVATIONS[activation], {"a": a, "b": b, "splits": splits}
    if splits == 1:
        whole = None if bias is None else bias.broadcast_to(out.shape[2:])
        args = {**sides, "bias": whole, "out": out[None], "activation": number}
        launch(target, matmul.matmul, cfg, grid, args, stream)
        return
    stream = stream_of(a, stream)
    with inner_result((splits, *out.shape), FLOAT32, a, target, stream) as parts:
        launch(target, matmul.matmul, cfg, grid, {**sides, "out": parts, "activation": 0}, stream)
        launch_sum_splits(target, parts, bias, out, number, stream)


def launch_few_rows(
    target: Target,
    cfg: matmul.Config,
    a: View,
    b: View,
    bias: View | None,
    out: View,
    activation: str | None,
    stream: Stream,
    rows: int,
) -> None:
    """``kernels.matmul`` of the transposed problem: ``b`` [.., N, K] is its left side, whose rows are many.

    So what a block brings in of ``a`` serves many rows of ``b``, and it is b that is spread over waves.
    """
    outer, inner, columns, depth = b.shape
    along = ceil_div(columns, cfg.block_m)
    few = along * ceil_div(rows, cfg.block_n) * max(_products_of(a, rows), 1)
    splits = max(1, min(target.parallelism // few, depth // (_STEPS_PER_SPLIT * cfg.block_k)))
    grid = (along * ceil_div(a.shape[2], cfg.block_n), inner, outer * splits)
    number, sides = ACTIVATIONS[activation], {"a": b, "b": a, "splits": splits}
    if splits == 1:
        whole = None if bias is None else bias.broadcast_to(out.shape[2:]).swapaxes(0, 1)
        args = {**sides, "bias": whole, "out": out.swapaxes(2, 3)[None], "activation": number}
        launch(target, matmul.matmul, cfg, grid, args, stream)
        return
    stream = stream_of(a, stream)
    with inner_result((splits, *out.shape), FLOAT32, a, target, stream) as parts:
        args = {**sides, "out": parts.swapaxes(3, 4), "activation": 0}
        launch(target, matmul.matmul, cfg, grid, args, stream)
        launch_sum_splits(target, parts, bias, out, number, stream)


def launch_sum_splits(target: Target, parts: View, bias: View | None, out: View, number: int, stream: Stream) -> None:
    """``kernels.sum_splits``."""
    outer, inner, rows, columns = out.shape
    cfg = streaming.rows_config(sum_splits.Config, target.arch)
    grid = (ceil_div(rows, cfg.block_m) * ceil_div(columns, cfg.block_n), inner, outer)
    whole = None if bias is None else bias.broadcast_to(out.shape[2:])
    args = {"parts": parts, "bias": whole, "out": out, "activation": number}
    launch(target, sum_splits.sum_splits, cfg, grid, args, stream)
