"""Launches of attention's gradient: ``[batch, head, row, column]`` views."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rocmkern.calls.arguments import FLOAT32, Argument
from rocmkern.calls.axes import heads_second
from rocmkern.calls.launch import ceil_div, inner_result, launch, stream_of, target_for
from rocmkern.calls.types import Stream
from rocmkern.calls.view import View
from rocmkern.ops.attention.backward import tuning
from rocmkern.ops.attention.backward.kernels import (
    bias_gradient,
    key_value_gradient,
    query_gradient,
    row_deltas,
    sum_heads,
)
from rocmkern.ops.attention.backward.kernels.softmax_gradient import Config
from rocmkern.ops.attention.backward.problem import Given
from rocmkern.ops.attention.launch import kernel_arguments
from rocmkern.ops.attention.problem import Attention, heads_before_rows, lse_with_batch
from rocmkern.ops.linear.launch import launch_sum_splits
from rocmkern.ops.streaming import by_rows
from rocmkern.targets import Target


def launch_gradients(problem: Attention, given: Given, results: Mapping[str, Argument], stream: Stream) -> None:
    """All kernels of a gradient; ``results`` by name: dq, dk, dv, and dbias, dsinks, dalibi_slopes where asked for."""
    tensors, sequences = problem.tensors, problem.sequences
    q, k, v = tensors.views()
    target, stream = target_for(q), stream_of(q, stream)
    layout = tensors.layout
    dout, o = (heads_before_rows(x.aligned(), layout) for x in (given.dout, given.o))
    dim = max(q.shape[3], v.shape[3])
    cfg = tuning.query_gradient(target.arch, dim, q.dtype.itemsize, problem.scores.modified)
    products: dict[str, Any] = {"dout": dout, "q": q, "k": k, "v": v}
    # Offsets and deltas, then what sinks and slopes get of each query.
    numbers = 2 + ("dsinks" in results) + ("dalibi_slopes" in results)
    with inner_result((numbers, *q.shape[:3]), FLOAT32, q, target, stream) as rows:
        offsets, deltas, *parts = (rows[n] for n in range(numbers))
        more = dict(zip((name for name in ("dsinks", "dalibi_slopes") if name in results), parts, strict=True))
        _launch_deltas(problem, given, o, dout, offsets, deltas, more.get("dsinks"), target, stream)

        given_rows: dict[str, Any] = {**products, "offsets": offsets, "deltas": deltas}
        kernel: Any = query_gradient.query_gradient
        arguments = given_rows | kernel_arguments(kernel, problem, target, stream)
        arguments["dq"] = heads_before_rows(results["dq"].view, layout)
        arguments["distances"] = more.get("dalibi_slopes")
        grid = (ceil_div(sequences.max_q, cfg.block_m), q.shape[1], sequences.count)
        launch(target, kernel, cfg, grid, arguments, stream)

        into = {name: heads_second(results[name].view, layout) for name in ("dk", "dv")}
        _launch_keys(problem, given_rows, into, target, stream)

        if "dbias" in results:
            _launch_bias(problem, cfg, results["dbias"].view, given_rows, target, stream)
        for name, numbers_of_rows in more.items():
            _launch_sums(problem, numbers_of_rows, results[name].view, target, stream)


def _launch_deltas(
    problem: Attention,
    given: Given,
    o: View,
    dout: View,
    offsets: View,
    deltas: View,
    dsink: View | None,
    target: Target,
    stream: Stream,
) -> None:
    """``kernels.row_deltas``."""
    layout = problem.tensors.layout
    lse, dlse = (None if x is None else lse_with_batch(x.aligned(), layout) for x in (given.lse, given.dlse))
    arguments = {"dout": dout, "out": o, "lse": lse, "dlse": dlse, "offsets": offsets, "deltas": deltas, "dsink": dsink}
    if dsink is not None:
        arguments |= kernel_arguments(row_deltas.row_deltas, problem, target, stream)
    by_rows(row_deltas.row_deltas, row_deltas.Config, o, arguments, stream)


def _launch_keys(
    problem: Attention, arguments: dict[str, Any], results: Mapping[str, View], target: Target, stream: Stream
) -> None:
    """``kernels.key_value_gradient``, and the sums over the heads that share a key."""
    sequences, kernel = problem.sequences, key_value_gradient.key_value_gradient
    q, k, v = (arguments[name] for name in "qkv")
    arguments = arguments | kernel_arguments(kernel, problem, target, stream)
    turned = [name for name in ("bias", "mask") if arguments.get(name) is not None]
    arguments |= {name: arguments[name].swapaxes(2, 3) for name in turned}
    # Rows of k that are no keys have gradients, too.
    longest = k.shape[2] if sequences.cu_seqlens_k is None else sequences.max_k
    dim = max(q.shape[3], v.shape[3])
    variants = tuning.key_value_gradient(target.arch, dim, q.dtype.itemsize, problem.scores.modified)

    def compute(into: Mapping[str, View]) -> None:
        for cfg in variants:
            some = {name: into[name] for name, asked in (("dk", cfg.keys), ("dv", cfg.values)) if asked}
            grid = (ceil_div(longest, cfg.block_m), q.shape[1], sequences.count)
            launch(target, kernel, cfg, grid, arguments | some, stream)

    if q.shape[1] == k.shape[1]:
        compute(results)
        return
    shapes = [(*q.shape[:2], k.shape[2], x.shape[3]) for x in (k, v)]
    with (
        inner_result(shapes[0], FLOAT32, q, target, stream) as dk,
        inner_result(shapes[1], FLOAT32, q, target, stream) as dv,
    ):
        compute({"dk": dk, "dv": dv})
        for parts, out in ((dk, results["dk"]), (dv, results["dv"])):
            batch, heads, rows, columns = out.shape
            shared = parts.reshape(batch, heads, q.shape[1] // heads, rows, columns).transpose(2, 0, 1, 3, 4)
            launch_sum_splits(target, shared, None, out, 0, stream)


def _launch_bias(
    problem: Attention, cfg: Config, dbias: View, arguments: Mapping[str, Any], target: Target, stream: Stream
) -> None:
    """``kernels.bias_gradient``, and the sum of its rows where a bias is the same for all queries."""
    missing = 4 - dbias.ndim
    dbias = dbias.part(0, (1,) * missing + dbias.shape, (0,) * missing + dbias.strides)
    kernel, over_queries = bias_gradient.bias_gradient, dbias.shape[2] == 1
    arguments = {**arguments, **kernel_arguments(kernel, problem, target, stream)}
    rows = cfg.block_m if over_queries else dbias.shape[2]
    grid = (ceil_div(rows, cfg.block_m) * ceil_div(dbias.shape[3], cfg.block_n), dbias.shape[1], dbias.shape[0])
    if not over_queries:
        launch(target, kernel, cfg, grid, {**arguments, "dbias": dbias}, stream)
        return
    shape = (*dbias.shape[:2], rows, dbias.shape[3])
    with inner_result(shape, FLOAT32, arguments["q"], target, stream) as parts:
        launch(target, kernel, cfg, grid, {**arguments, "dbias": parts}, stream)
        launch_sum_splits(target, parts.transpose(2, 0, 1, 3)[:, :, :, None], None, dbias, 0, stream)


def _launch_sums(problem: Attention, x: View, out: View, target: Target, stream: Stream) -> None:
    """``kernels.sum_heads``: of each sequence for a result with two axes."""
    arguments: dict[str, Any] = {"x": x, "out": out if out.ndim == 2 else out[None]}
    lengths = problem.sequences.cu_seqlens_q
    if out.ndim == 2 and lengths is not None:
        arguments["cu_seqlens"] = lengths.aligned()
    cfg = tuning.sums(target.arch)
    launch(target, sum_heads.sum_heads, cfg, (1, *arguments["out"].shape[::-1]), arguments, stream)
