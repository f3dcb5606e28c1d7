"""The steps of attention as operations of their own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from rocmkern import reference
from rocmkern.matrix import peers
from rocmkern.matrix.common import (
    BATCH,
    HEAD_DIM,
    HEADS,
    KV_HEADS,
    LAYOUT,
    SCALE,
    SEQ_K,
    SEQ_Q,
    elementwise,
    in_layout,
    moved_bytes,
    options_of,
    oracles,
    product_bytes,
    product_flops,
    with_heads,
)
from rocmkern.matrix.draw import Draw
from rocmkern.matrix.excerpts import Excerpt, along, at, joined
from rocmkern.matrix.registry import Call, Dim, Domain, Feature, Operation


def _qk_call(draw: Draw) -> Call:
    dims = draw.dims
    batch, heads = dims["batch"], dims["heads"]
    arrays = {
        "q": with_heads(draw, "q", batch, heads, dims["seq_q"], dims["head_dim"]),
        "k": with_heads(draw, "k", batch, dims["kv_heads"], dims["seq_k"], dims["head_dim"]),
    }
    options = options_of(draw.features, "layout", "scale")
    return Call(arrays, options, ((batch, heads, dims["seq_q"], dims["seq_k"]),))


def _queries_of_scores(call: Call) -> Iterator[Excerpt]:
    yield from along({"q": 1 if call.options.get("layout") == "bshd" else 2}, 2)(call)


def _queries_of_values(call: Call) -> Iterator[Excerpt]:
    yield from along({"p": 2}, 1 if call.options.get("layout") == "bshd" else 2)(call)


def _masked_rows(call: Call) -> Iterator[Excerpt]:
    """Rows of scores, and those of a mask that has them."""
    mask, rows = call.arguments["mask"], call.arguments["scores"].shape[2]
    axis = 2 - (4 - mask.ndim)
    own = {"mask": axis} if mask.shape[axis] == rows else {}
    yield from along({"scores": 2, **own}, 2)(call)


def _mask_excerpts(call: Call) -> Iterator[Excerpt]:
    """The last rows of a mask whose diagonal ends in the corner, the first ones of another one."""
    rows, corner = call.options["sq"], call.options["causal"] != "top_left"
    for count in sorted({1, rows // 2, rows - 1} - {0, rows}):
        place = at(slice(rows - count, rows) if corner else slice(count), 0, 2)
        yield Excerpt(f"{count} of {rows} rows", call.arguments | {"sq": count}, (place,))


def _causal_mask_call(draw: Draw) -> Call:
    options = {"sq": draw.dims["seq_q"], "sk": draw.dims["seq_k"], "dtype": draw.dtype}
    options |= options_of(draw.features, "window")
    options["causal"] = draw.features["causal"]
    return Call({}, options, ((draw.dims["seq_q"], draw.dims["seq_k"]),))


def _apply_mask_call(draw: Draw) -> Call:
    dims, kind = draw.dims, draw.features["mask"]
    shape = (dims["batch"], dims["heads"], dims["seq_q"], dims["seq_k"])
    scores = draw.array("scores", shape)
    if kind == "boolean":
        mask = draw.rng("mask").random(shape) < 0.7
    elif kind == "boolean_per_key":
        mask = draw.rng("mask").random((shape[0], 1, 1, shape[3])) < 0.7
    elif kind == "additive":
        mask = draw.array("mask", shape)
    else:
        mask = np.where(np.tri(*shape[2:], dtype=bool), 0.0, -np.inf).astype(draw.dtype)
    return Call({"scores": scores, "mask": mask}, {}, (shape,))


def _softmax_call(draw: Draw) -> Call:
    shape = tuple(draw.dims["size"])
    x = draw.array("x", shape)
    hidden = draw.features["hidden"]
    if hidden == "rows":
        x[::2] = -np.inf
    elif hidden == "some":
        x[draw.rng("hidden").random(shape) < 0.3] = -np.inf
    elif hidden == "tail":
        x[..., 1:] = -np.inf
    return Call({"x": x}, {}, (shape,))


def _softmax_probabilities(call: Call) -> tuple[np.ndarray, np.ndarray]:
    x = call.arguments["x"]
    return reference.softmax(x), (~np.isneginf(x.astype(np.float64))).sum(axis=-1)


def _weighted_values_call(draw: Draw) -> Call:
    dims = draw.dims
    batch, heads = dims["batch"], dims["heads"]
    scores = draw.array("p", (batch, heads, dims["seq_q"], dims["seq_k"]), np.float64)
    weights = scores if draw.features["raw"] else reference.softmax(scores)
    arrays = {
        "p": weights.astype(draw.dtype),
        "v": with_heads(draw, "v", batch, dims["kv_heads"], dims["seq_k"], dims["head_dim"]),
    }
    out = in_layout((batch, heads, dims["seq_q"], dims["head_dim"]), draw.features["layout"])
    return Call(arrays, options_of(draw.features, "layout"), (out,))


def _scale_call(draw: Draw) -> Call:
    shape = tuple(draw.dims["size"])
    return Call({"x": draw.array("x", shape)}, {"factor": draw.features["factor"]}, (shape,))


def _repeat_kv_call(draw: Draw) -> Call:
    dims = draw.dims
    batch, kv_heads, rows, columns = dims["batch"], dims["kv_heads"], dims["seq"], dims["head_dim"]
    x = with_heads(draw, "x", batch, kv_heads, rows, columns)
    out = in_layout((batch, kv_heads * dims["n_rep"], rows, columns), draw.features["layout"])
    return Call({"x": x}, {"n_rep": dims["n_rep"], **options_of(draw.features, "layout")}, (out,))


def _heads_fit(dims: Mapping[str, Any], features: Mapping[str, Any]) -> bool:
    return bool(dims["heads"] % dims["kv_heads"] == 0)


# An output row of few numbers, which cancellation makes small, says little: the baseline's error in it is chance.
_WITH_HEADS = Domain(
    {"batch": (0, 2), "heads": (1, 6), "kv_heads": (1, 3), "seq_k": (8, 70), "head_dim": (8, 70)},
    {"scale": (0.25,)},
    accepts=_heads_fit,
)
_SMALL_ARRAYS = Domain({"size": (0, 40)})

OPERATIONS = (
    Operation(
        "qk_scores",
        **oracles("qk_scores"),
        call=_qk_call,
        excerpts=joined(along({"q": 0, "k": 0}, 0, many=5), _queries_of_scores),
        dims=(BATCH, HEADS, KV_HEADS, SEQ_Q, SEQ_K, HEAD_DIM),
        arrays=("q", "k"),
        features=(LAYOUT, SCALE),
        flops=product_flops,
        nbytes=product_bytes,
        domain=_WITH_HEADS,
    ),
    Operation(
        "causal_mask",
        **oracles("causal_mask"),
        call=_causal_mask_call,
        excerpts=_mask_excerpts,
        dims=(SEQ_Q, SEQ_K),
        arrays=(),
        features=(
            Feature("causal", (False, True, "top_left"), default="bottom_right"),
            Feature("window", (list,)),
        ),
        exact=True,
        domain=Domain(features={"window": ([3, 0], [0, 0], [None, 2])}),
    ),
    Operation(
        "apply_mask",
        **oracles("apply_mask"),
        call=_apply_mask_call,
        excerpts=_masked_rows,
        dims=(BATCH, HEADS, SEQ_Q, SEQ_K),
        arrays=("scores", "mask"),
        features=(Feature("mask", ("boolean", "boolean_per_key", "additive"), default="causal"),),
        exact=lambda features: features["mask"] != "additive",
        in_place="scores",
        flops=elementwise(1),
        nbytes=moved_bytes(2),
        domain=Domain({"batch": (0, 2), "heads": (0, 4)}),
    ),
    Operation(
        "softmax",
        **oracles("softmax"),
        call=_softmax_call,
        excerpts=along({"x": 0}, 0),
        dims=(Dim("size", "n", many=True),),
        arrays=("x",),
        features=(Feature("hidden", ("rows", "some", "tail")),),
        flops=elementwise(5),
        nbytes=moved_bytes(2),
        probabilities=_softmax_probabilities,
        peers=peers.with_triton(peers.TORCH_SOFTMAX),
        domain=_SMALL_ARRAYS,
    ),
    Operation(
        "weighted_values",
        **oracles("weighted_values"),
        call=_weighted_values_call,
        excerpts=joined(along({"p": 0, "v": 0}, 0, many=5), _queries_of_values),
        dims=(BATCH, HEADS, KV_HEADS, SEQ_Q, SEQ_K, HEAD_DIM),
        arrays=("p", "v"),
        features=(LAYOUT, Feature("raw", (True,), default=False)),
        flops=product_flops,
        nbytes=product_bytes,
        domain=_WITH_HEADS,
    ),
    Operation(
        "scale",
        **oracles("scale"),
        call=_scale_call,
        excerpts=along({"x": 0}, 0),
        dims=(Dim("size", "n", many=True),),
        arrays=("x",),
        features=(Feature("factor", (float,), default=0.125),),
        in_place="x",
        flops=elementwise(1),
        nbytes=moved_bytes(2),
        domain=Domain({"size": (0, 40)}, {"factor": (-2.5, 0.0)}),
    ),
    Operation(
        "repeat_kv",
        **oracles("repeat_kv"),
        call=_repeat_kv_call,
        excerpts=along({"x": 0}, 0),
        dims=(BATCH, Dim("kv_heads", "kv"), Dim("n_rep", "r"), Dim("seq", "s"), HEAD_DIM),
        arrays=("x",),
        features=(LAYOUT,),
        exact=True,
        domain=Domain({"batch": (0, 2), "kv_heads": (0, 3), "n_rep": (1, 4), "head_dim": (0, 70)}),
    ),
)
