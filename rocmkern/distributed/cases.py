"""Attention over ranks: processes of this machine, whose parts are put together."""

from __future__ import annotations

import numpy as np

from rocmkern.matrix.common import BATCH, HEAD_DIM, HEADS, KV_HEADS, LAYOUT, SEQ_K, SEQ_Q, in_layout, options_of
from rocmkern.matrix.draw import Draw
from rocmkern.matrix.registry import Call, Feature, Operation, Output

VISIBILITY = (Feature("causal", (True, "top_left"), default=False), Feature("window", (list,)))


def _call(draw: Draw) -> Call:
    dims, features = draw.dims, draw.features
    batch, heads, seq_q, seq_k = dims["batch"], dims["heads"], dims["seq_q"], dims["seq_k"]
    head_dim = dims["head_dim"]

    def array(name: str, count: int, rows: int) -> np.ndarray:
        return draw.array(name, in_layout((batch, count, rows, head_dim), features["layout"]))

    arrays: dict[str, np.ndarray | None] = {"q": array("q", heads, seq_q)}
    arrays |= {name: array(name, dims["kv_heads"], seq_k) for name in ("k", "v")}
    arrays["sinks"] = draw.array("sinks", (heads,), np.float32) if features["sinks"] else None
    options = options_of(features, "causal", "window", "softcap", "layout", "split", "mode", "ranks", "return_lse")
    out = in_layout((batch, heads, seq_q, head_dim), features["layout"])
    return Call(arrays, options, (out, (batch, heads, seq_q))[: 1 + features["return_lse"]])


OPERATIONS = (
    Operation(
        "distributed_attention",
        function="rocmkern.distributed.whole:distributed_attention",
        reference="rocmkern.reference:distributed_attention",
        baseline="rocmkern.reference:baseline.distributed_attention",
        roundings="rocmkern.reference:roundings.distributed_attention",
        call=_call,
        dims=(BATCH, HEADS, KV_HEADS, SEQ_Q, SEQ_K, HEAD_DIM),
        arrays=("q", "k", "v", "sinks"),
        features=(
            Feature("ranks", (1, 2, 4), default=2),
            Feature("split", ("zigzag",), default="contiguous"),
            Feature("mode", ("heads",), default="ring"),
            *VISIBILITY,
            Feature("softcap", (float,)),
            Feature("sinks", (True,), default=False),
            LAYOUT,
            Feature("return_lse", (True,), default=False),
        ),
        outputs=(Output("out"), Output("lse", "f32", feature="return_lse")),
        out=False,
        on_device=False,
        needs=("torch",),
    ),
)
