"""Three NumPy operations and their registry, so that the tests of the matrix need no kernel."""

from __future__ import annotations

import numpy as np

from rocmkern.matrix import Call, Dim, Draw, Feature, Operation, Output, Registry
from rocmkern.matrix.excerpts import along
from rocmkern.runtime.errors import ArgumentError


def double(x, *, out=None):
    """``2 * x``."""
    if not isinstance(x, np.ndarray):
        raise ArgumentError("x", type(x).__name__, "an array")
    out = np.empty_like(x, order="C", subok=False) if out is None else out
    np.multiply(x, x.dtype.type(2), out=out)
    return out


def row_stats(x, *, centre=False, out=None):
    """Mean and, in float32, the sum of squares of each row."""
    wide = x.astype(np.float32)
    mean = wide.mean(axis=-1, dtype=np.float32)
    wide = wide - mean[..., None] if centre else wide
    results = (mean.astype(x.dtype), np.square(wide).sum(axis=-1, dtype=np.float32))
    if out is None:
        return results
    for target, value in zip(out, results, strict=True):
        target[...] = value
    return out


def reference_row_stats(x, *, centre=False):
    mean = x.mean(axis=-1)
    return mean, np.square(x - mean[..., None] if centre else x).sum(axis=-1)


def _double_call(draw: Draw) -> Call:
    shape = (draw.dims["rows"], draw.dims["columns"])
    return Call({"x": draw.array("x", shape)}, out_shapes=(shape,))


def _stats_call(draw: Draw) -> Call:
    shape = (draw.dims["rows"], draw.dims["columns"])
    options = {"centre": True} if draw.features["centre"] else {}
    return Call({"x": draw.array("x", shape)}, options, out_shapes=(shape[:1], shape[:1]))


def _share_call(draw: Draw) -> Call:
    shape = (draw.dims["rows"], draw.dims["columns"])
    return Call({"x": draw.array("x", shape)}, out_shapes=(shape,))


def share(x):
    """Softmax of the rows."""
    e = np.exp((x - x.max(axis=-1, keepdims=True)).astype(np.float32))
    return (e / e.sum(axis=-1, keepdims=True)).astype(x.dtype)


def reference_share(x):
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


DIMS = (Dim("rows", "r"), Dim("columns", "c", default="rows"))


def make_registry(**replaced) -> Registry:
    """The registry, with some functions replaced."""
    return Registry(
        Operation(
            "double",
            function=replaced.get("double", double),
            reference=lambda x: 2 * x,
            call=_double_call,
            excerpts=along({"x": 0}, 0),
            dims=DIMS,
            arrays=("x",),
            features=(Feature("mode", ("fast", "slow")),),
            exact=True,
            in_place="x",
        ),
        Operation(
            "row_stats",
            function=replaced.get("row_stats", row_stats),
            reference=reference_row_stats,
            baseline=row_stats,
            call=_stats_call,
            dims=DIMS,
            arrays=("x",),
            features=(Feature("centre", (True,), default=False), Feature("window", (list,)), Feature("cap", (float,))),
            outputs=(Output("mean"), Output("squares", "f32")),
        ),
        Operation(
            "share",
            function=replaced.get("share", share),
            reference=reference_share,
            call=_share_call,
            dims=DIMS,
            arrays=("x",),
            out=False,
            probabilities=lambda call: (
                reference_share(call.arguments["x"].astype(np.float64)),
                np.full(call.arguments["x"].shape[0], call.arguments["x"].shape[1]),
            ),
        ),
    )
