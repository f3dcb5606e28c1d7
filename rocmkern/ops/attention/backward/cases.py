"""The gradient of attention: `flash_attention_backward`, packed and dense."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from rocmkern import reference
from rocmkern.matrix.common import (
    BATCH,
    HEAD_DIM,
    HEAD_DIM_V,
    HEADS,
    KV_HEADS,
    LAYOUT,
    SEQ_K,
    SEQ_Q,
    itemsize,
    options_of,
    oracles,
)
from rocmkern.matrix.draw import Draw
from rocmkern.matrix.excerpts import along
from rocmkern.matrix.registry import Call, Dim, Domain, Feature, Operation, Output
from rocmkern.ops.attention.cases import (
    DENSE_MASKS,
    DRAWN_DIMS,
    DRAWN_FEATURES,
    LENGTHS,
    PASSED_ON,
    SCORES,
    VISIBILITY,
    attention_arrays,
    attention_hidden,
    attention_probabilities,
    attention_shapes,
    heads_fit,
    lengths_fit,
    packed_arguments,
    packed_shapes,
    pairs,
)

#: What gradients are asked for by, and the feature without which there is no such argument.
ASKED = {"return_dbias": "bias", "return_dsinks": "sinks", "return_dalibi_slopes": "alibi"}
DLSE = Feature("dlse", (True,), default=False)
RESULTS = (
    Output("dq"),
    Output("dk"),
    Output("dv"),
    Output("dbias", feature="return_dbias"),
    Output("dsinks", "f32", feature="return_dsinks"),
    Output("dalibi_slopes", "f32", feature="return_dalibi_slopes"),
)


def _asked(*names: str) -> tuple[Feature, ...]:
    return tuple(Feature(name, (True,), default=False) for name in names)


def _dense_call(draw: Draw) -> Call:
    options = options_of(draw.features, *PASSED_ON, "layout")
    return _call(draw, attention_arrays(draw), options, attention_shapes(draw))


def _packed_call(draw: Draw) -> Call:
    return _call(draw, *packed_arguments(draw), packed_shapes(draw))


def _call(
    draw: Draw, arrays: dict[str, np.ndarray | None], options: dict[str, Any], shapes: tuple[tuple[int, ...], ...]
) -> Call:
    """Arguments of the gradient: those of the forward, its result, and gradients that are drawn."""
    arguments = {name: x for name, x in arrays.items() if x is not None} | options
    forward: list[np.ndarray] = []

    def result(number: int, dtype: Any) -> np.ndarray:
        if not forward:
            forward.extend(reference.flash_attention(**arguments, return_lse=True))
        return forward[number].astype(dtype)

    given = {
        "dout": draw.array("dout", shapes[0]),
        **{name: arrays.pop(name) for name in ("q", "k", "v")},
        "o": draw.made(shapes[0], draw.dtype, lambda: result(0, draw.dtype)),
        "lse": draw.made(shapes[1], np.float32, lambda: result(1, np.float32)),
        **arrays,
        "dlse": draw.array("dlse", shapes[1], np.float32) if draw.features["dlse"] else None,
    }
    asked = [name for name in ASKED if draw.features.get(name)]
    of = {"return_dbias": "bias", "return_dsinks": "sinks", "return_dalibi_slopes": "alibi_slopes"}
    like = ("q", "k", "v", *(of[name] for name in asked))
    return Call(given, options | dict.fromkeys(asked, True), tuple(given[name].shape for name in like))  # type: ignore[union-attr]


def _flops(case: Any) -> float:
    dims = case.dims
    visible = dims["batch"] * dims["heads"] * pairs(dims, case.features)
    return float(2.0 * visible * (3 * dims["head_dim"] + 2 * dims["head_dim_v"]))


def _bytes(case: Any) -> float:
    dims = case.dims
    queries = dims["heads"] * dims["seq_q"] * (2 * dims["head_dim"] + 2 * dims["head_dim_v"])
    keys = 2 * dims["kv_heads"] * dims["seq_k"] * (dims["head_dim"] + dims["head_dim_v"])
    return float(dims["batch"] * (queries + keys) * itemsize(case))


def _fits(dims: Mapping[str, Any], features: Mapping[str, Any]) -> bool:
    there = all(features.get(argument) for flag, argument in ASKED.items() if features.get(flag))
    return there and (lengths_fit if "lens_q" in dims else heads_fit)(dims, features)


_LENS = {"lens_q": (0, 40), "lens_k": (0, 40)}
_ARRAYS = ("dout", "q", "k", "v", "o", "lse")

OPERATIONS = (
    Operation(
        "flash_attention_backward",
        **oracles("flash_attention_backward"),
        call=_dense_call,
        excerpts=along(dict.fromkeys((*_ARRAYS, "dlse"), 0), 0, 0, 0, many=3),
        dims=(BATCH, HEADS, KV_HEADS, SEQ_Q, SEQ_K, HEAD_DIM, HEAD_DIM_V),
        arrays=(*_ARRAYS, "alibi_slopes", "bias", "mask", "sinks", "seqlens_k", "leftpad_k", "dlse"),
        features=(*VISIBILITY, *SCORES, *DENSE_MASKS, LENGTHS, LAYOUT, DLSE, *_asked(*ASKED)),
        outputs=RESULTS,
        flops=_flops,
        nbytes=_bytes,
        probabilities=attention_probabilities,
        hidden=attention_hidden,
        domain=Domain(DRAWN_DIMS, DRAWN_FEATURES, accepts=_fits),
        gradient_of="flash_attention",
    ),
    Operation(
        "flash_attention_backward_packed",
        **oracles("flash_attention_backward"),
        call=_packed_call,
        dims=(
            HEADS,
            KV_HEADS,
            Dim("lens_q", "q", many=True),
            Dim("lens_k", "k", default="lens_q", many=True),
            HEAD_DIM,
            HEAD_DIM_V,
        ),
        arrays=(*_ARRAYS, "cu_seqlens_q", "cu_seqlens_k", "alibi_slopes", "sinks", "dlse"),
        features=(
            *VISIBILITY,
            *SCORES,
            Feature("max_seqlens", (True,), default=False),
            DLSE,
            *_asked("return_dsinks", "return_dalibi_slopes"),
        ),
        outputs=tuple(output for output in RESULTS if output.name != "dbias"),
        probabilities=attention_probabilities,
        hidden=attention_hidden,
        domain=Domain(DRAWN_DIMS | _LENS, DRAWN_FEATURES, accepts=_fits),
        distinct=("cu_seqlens_q", "cu_seqlens_k"),
        gradient_of="flash_attention_packed",
    ),
)
