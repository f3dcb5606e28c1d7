"""Attention: `flash_attention`, packed and dense, `decode_attention`, `merge_attention`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields
from typing import Any

import numpy as np

import rocmkern
from rocmkern import reference
from rocmkern.matrix import peers
from rocmkern.matrix.common import (
    BATCH,
    HEAD_DIM,
    HEAD_DIM_V,
    HEADS,
    KV_HEADS,
    LAYOUT,
    SCALE,
    SEQ_K,
    SEQ_Q,
    in_layout,
    itemsize,
    options_of,
    oracles,
    with_heads,
)
from rocmkern.matrix.draw import Draw
from rocmkern.matrix.excerpts import Excerpt, along, at
from rocmkern.matrix.registry import Call, Dim, Domain, Feature, Operation, Output
from rocmkern.ops.attention.problem import UNLIMITED, Scores, Visibility

# The softmax weights of a case are looked at up to this many keys; beyond, they would cost more than the case.
MAX_KEYS_LOOKED_AT = 512

VISIBILITY = (
    Feature("causal", (True, "bottom_right", "top_left"), default=False),
    Feature("window", (list,)),
)
SCORES = (
    SCALE,
    Feature("softcap", (float,)),
    Feature("alibi", ("per_head", "per_batch")),
    Feature("sinks", (True,), default=False),
)
DENSE_MASKS = (
    Feature("bias", ("full", "shared", "per_head", "per_key", "minus_inf", "half_min")),
    Feature("mask", ("random", "shared", "per_key", "empty_rows", "nothing_visible")),
)
LENGTHS = Feature("lengths", ("ends", "starts", "both"))
#: Those that are arguments as they are; of the others arrays are made.
PASSED_ON = ("causal", "window", "scale", "softcap")
#: What says which weights there are.
LOOKED_AT = (
    "q", "k", "v", "alibi_slopes", "bias", "mask", "sinks", "seqlens_k", "leftpad_k", "cu_seqlens_q", "cu_seqlens_k",
    "max_seqlen_q", "max_seqlen_k", "layout", *PASSED_ON,
)  # fmt: skip
RETURN_LSE = Feature("return_lse", (True,), default=False)
LSE = Output("lse", "f32", feature="return_lse")


# Arguments of attention


def _attention_call(draw: Draw) -> Call:
    arrays = attention_arrays(draw)
    options = options_of(draw.features, *PASSED_ON, "layout", "num_splits", "return_lse")
    return Call(arrays, options, attention_shapes(draw)[: 1 + draw.features["return_lse"]])


def attention_arrays(draw: Draw) -> dict[str, np.ndarray | None]:
    """Arrays of an attention with a batch axis."""
    dims, features = draw.dims, draw.features
    batch, heads, seq_q, seq_k = dims["batch"], dims["heads"], dims["seq_q"], dims["seq_k"]
    return {
        "q": with_heads(draw, "q", batch, heads, seq_q, dims["head_dim"]),
        "k": with_heads(draw, "k", batch, dims["kv_heads"], seq_k, dims["head_dim"]),
        "v": with_heads(draw, "v", batch, dims["kv_heads"], seq_k, dims["head_dim_v"]),
        "alibi_slopes": _slopes(draw, batch),
        "bias": _bias(draw, (batch, heads, seq_q, seq_k)),
        "mask": _mask(draw, (batch, heads, seq_q, seq_k)),
        "sinks": draw.array("sinks", (heads,), np.float32) if features["sinks"] else None,
        **_lengths(draw, batch, seq_k),
    }


def attention_shapes(draw: Draw) -> tuple[tuple[int, ...], ...]:
    """Shapes of its result and of its log-sum-exp."""
    dims = draw.dims
    batch, heads, seq_q = dims["batch"], dims["heads"], dims["seq_q"]
    return in_layout((batch, heads, seq_q, dims["head_dim_v"]), draw.features["layout"]), (batch, heads, seq_q)


def _packed_call(draw: Draw) -> Call:
    arrays, options = packed_arguments(draw)
    options |= options_of(draw.features, "return_lse")
    return Call(arrays, options, packed_shapes(draw)[: 1 + draw.features["return_lse"]])


def packed_arguments(draw: Draw) -> tuple[dict[str, np.ndarray | None], dict[str, Any]]:
    """Arrays and options of an attention of packed sequences."""
    dims, features = draw.dims, draw.features
    heads, lens_q, lens_k = dims["heads"], dims["lens_q"], dims["lens_k"]
    total_q, total_k = sum(lens_q), sum(lens_k)
    arrays: dict[str, np.ndarray | None] = {
        "q": draw.array("q", (total_q, heads, dims["head_dim"])),
        "k": draw.array("k", (total_k, dims["kv_heads"], dims["head_dim"])),
        "v": draw.array("v", (total_k, dims["kv_heads"], dims["head_dim_v"])),
        "cu_seqlens_q": _offsets(lens_q),
        "cu_seqlens_k": _offsets(lens_k),
        "alibi_slopes": _slopes(draw, len(lens_q)),
        "sinks": draw.array("sinks", (heads,), np.float32) if features["sinks"] else None,
    }
    options = options_of(features, *PASSED_ON)
    if features["max_seqlens"]:
        options |= {"max_seqlen_q": max(lens_q, default=0), "max_seqlen_k": max(lens_k, default=0)}
    return arrays, options


def packed_shapes(draw: Draw) -> tuple[tuple[int, ...], ...]:
    """Shapes of its result and of its log-sum-exp."""
    heads, total_q = draw.dims["heads"], sum(draw.dims["lens_q"])
    return (total_q, heads, draw.dims["head_dim_v"]), (heads, total_q)


def _lengths(draw: Draw, batch: int, seq_k: int) -> dict[str, np.ndarray | None]:
    """Where the keys of each batch element end, and where they start: some of the rows, all, or none."""
    kind = draw.features["lengths"]
    arrays: dict[str, np.ndarray | None] = {"seqlens_k": None, "leftpad_k": None}
    ends = np.full(batch, seq_k)
    if kind in ("ends", "both"):
        ends = draw.rng("seqlens_k").integers(0, seq_k + 1, batch)
        arrays["seqlens_k"] = ends.astype(np.int32)
    if kind in ("starts", "both"):
        arrays["leftpad_k"] = draw.rng("leftpad_k").integers(0, ends + 1).astype(np.int32)
    return arrays


def _offsets(lens: list[int]) -> np.ndarray:
    return np.concatenate([[0], np.cumsum(lens)]).astype(np.int32)


def _slopes(draw: Draw, batch: int) -> np.ndarray | None:
    """Slopes between 0.25 and 1: small enough that distant keys still count."""
    kind, heads = draw.features["alibi"], draw.dims["heads"]
    if kind is None:
        return None
    shape = (heads,) if kind == "per_head" else (batch, heads)
    return draw.rng("alibi_slopes").uniform(0.25, 1.0, shape).astype(np.float32)


def _bias(draw: Draw, shape: tuple[int, int, int, int]) -> np.ndarray | None:
    kind = draw.features["bias"]
    if kind is None:
        return None
    bias = draw.array("bias", _mask_shape(kind, shape))
    if kind in ("minus_inf", "half_min"):
        # The smallest finite float16 is what many models write where they mean "hidden": it is data, not a mask.
        value = -np.inf if kind == "minus_inf" else float(np.finfo(np.float16).min)
        bias[draw.rng("bias hidden").random(bias.shape) < 0.3] = value
    return bias


def _mask(draw: Draw, shape: tuple[int, int, int, int]) -> np.ndarray | None:
    kind = draw.features["mask"]
    if kind is None:
        return None
    mask = draw.rng("mask").random(_mask_shape(kind, shape)) < 0.7
    if kind == "empty_rows":
        mask[:, :, ::3] = False
    elif kind == "nothing_visible":
        mask[...] = False
    return mask


def _mask_shape(kind: str, shape: tuple[int, int, int, int]) -> tuple[int, ...]:
    batch, heads, seq_q, seq_k = shape
    return {"shared": (seq_q, seq_k), "per_head": (heads, seq_q, seq_k), "per_key": (batch, 1, 1, seq_k)}.get(
        kind, shape
    )


# Calls with some of the rows


def attention_excerpts(call: Call) -> Iterator[Excerpt]:
    """Some of the batch; and of each sequence some of the queries, with the keys up to the last one that is seen."""
    arguments = call.arguments
    batch = arguments["q"].shape[0]
    own: list[str] = []
    own += [name for name in ("bias", "mask") if name in arguments and arguments[name].ndim == 4]
    own += ["alibi_slopes"] if "alibi_slopes" in arguments and arguments["alibi_slopes"].ndim == 2 else []
    axes = dict.fromkeys(("q", "k", "v", "seqlens_k", "leftpad_k", *own), 0)
    yield from along(axes, 0, many=3)(call) if batch > 1 else ()
    if not {"seqlens_k", "leftpad_k"} & arguments.keys():
        yield from _pieces(call)


def _pieces(call: Call) -> Iterator[Excerpt]:
    """Some queries side by side of every sequence."""
    arguments = call.arguments
    axis = 1 if arguments.get("layout") == "bshd" else 2
    queries, keys = arguments["q"].shape[axis], arguments["k"].shape[axis]
    seen = Visibility.of(arguments.get("causal", False), arguments.get("window"))
    everything = seen.left == seen.right == UNLIMITED
    for first, last in ((0, 1), (queries // 2, queries // 2 + 1), (queries - 1, queries), (queries // 3, queries)):
        end = keys
        if not everything and seen.bottom_right:
            end -= queries - last
        if end < 1 or not (everything or (seen.right == 0 if seen.bottom_right else first == 0)):
            continue  # a piece has its diagonal elsewhere
        some = {"q": arguments["q"][at(slice(first, last), axis, 4)]}
        some |= {name: arguments[name][at(slice(end), axis, 4)] for name in ("k", "v")}
        for name in ("bias", "mask"):
            if name in arguments:
                x = arguments[name][..., :end]
                some[name] = x[..., first:last, :] if x.shape[-2] == queries else x
        places = (at(slice(first, last), axis, 4), at(slice(first, last), 2, 3))[: len(call.out_shapes)]
        for function in ("flash_attention", "decode_attention")[: 1 + (last - first == 1)]:
            name = f"{function} of queries {first} to {last} of {queries}"
            yield Excerpt(name, arguments | some, places, function=f"rocmkern:{function}")


def packed_excerpts(call: Call) -> Iterator[Excerpt]:
    """Each sequence alone, dense."""
    arguments = {name: x for name, x in call.arguments.items() if "seqlen" not in name}
    starts_q, starts_k = (call.arguments[f"cu_seqlens_{side}"] for side in "qk")
    slopes = arguments.get("alibi_slopes")
    for n in range(len(starts_q) - 1):
        rows, keys = slice(*starts_q[n : n + 2]), slice(*starts_k[n : n + 2])
        some = {name: arguments[name][rows if name == "q" else keys].swapaxes(0, 1)[None] for name in ("q", "k", "v")}
        if slopes is not None and slopes.ndim == 2:
            some["alibi_slopes"] = slopes[n : n + 1]
        if rows.start == rows.stop or keys.start == keys.stop:
            continue
        index: Any = np.arange(rows.start, rows.stop)
        places = ((index,), (slice(None), index))[: len(call.out_shapes)]
        alone = ((0,), (0,))[: len(places)]
        yield Excerpt(f"sequence {n} alone", arguments | some, places, alone, function=dense_by_rows)


def dense_by_rows(**arguments: Any) -> tuple[np.ndarray, ...]:
    """`rocmkern.flash_attention` of one sequence, ``[1, rows, heads, dim]`` and ``[1, heads, rows]``."""
    result = rocmkern.flash_attention(**arguments)
    out, *lse = result if isinstance(result, tuple) else (result,)
    return out.swapaxes(1, 2), *lse


# What the mask shows


def _weights(call: Call, scores: bool) -> np.ndarray:
    """Softmax weights ``[..., Sk]`` by the reference with unit vectors as values; ``scores=False``: all scores equal.

    With equal scores a weight is positive exactly where the key is visible.
    """
    arguments = {name: x for name, x in call.arguments.items() if name in LOOKED_AT}
    k = arguments["k"]
    packed, swapped = "cu_seqlens_q" in arguments, arguments.get("layout") == "bshd"
    key_axis = 0 if packed else 1 if swapped else 2
    unit = np.eye(k.shape[key_axis])
    if packed:
        arguments["v"] = np.broadcast_to(unit[:, None], (*k.shape[:2], len(unit)))
    else:
        arguments["v"] = np.broadcast_to(unit[:, None] if swapped else unit, (*k.shape[:3], len(unit)))
    if not scores:
        for field in fields(Scores):
            if field.name not in ("bias", "mask"):
                arguments.pop(field.name, None)
        arguments["q"], arguments["k"] = np.zeros(arguments["q"].shape), np.zeros(k.shape)
        if "bias" in arguments:
            arguments["bias"] = np.where(np.isneginf(arguments["bias"].astype(np.float64)), -np.inf, 0.0)
    weights = reference.flash_attention(**arguments)
    return np.swapaxes(weights, 1, 2) if swapped else weights


def attention_probabilities(call: Call) -> tuple[np.ndarray, np.ndarray]:
    """Softmax weights, and how many keys each query sees; nothing where they would be many."""
    key_axis = 0 if "cu_seqlens_q" in call.arrays else 1 if call.options.get("layout") == "bshd" else 2
    keys = call.arguments["k"].shape[key_axis]
    if keys == 0 or keys > MAX_KEYS_LOOKED_AT:
        return np.zeros((0, 1)), np.zeros(0)
    return _weights(call, scores=True), (_weights(call, scores=False) > 0).sum(axis=-1)


def attention_hidden(call: Call, where: str) -> dict[str, np.ndarray]:
    """Elements of k and v that no query sees (``hidden``), or those of the last key (``last_key``)."""
    k = call.arguments["k"]
    swapped, packed = call.options.get("layout") == "bshd", "cu_seqlens_q" in call.arrays
    key_axis, head_axis = (0, 1) if packed else (1, 2) if swapped else (2, 1)
    keys, kv_heads = k.shape[key_axis], k.shape[head_axis]
    if where == "last_key":
        last = np.zeros(keys, bool)
        last[-1:] = True
        shape = [1] * k.ndim
        shape[key_axis] = keys
        hidden = last.reshape(shape)
    else:
        visible: Any = _weights(call, scores=False) > 0
        if packed:
            seen = visible.any(axis=0).reshape(kv_heads, -1, keys).any(axis=1)
            hidden = ~seen.T[..., None]
        else:
            batch = visible.shape[0]
            seen = visible.any(axis=2).reshape(batch, kv_heads, -1, keys).any(axis=2)
            hidden = ~(seen.swapaxes(1, 2) if swapped else seen)[..., None]
    return {"k": hidden, "v": hidden}


def _merge_call(draw: Draw) -> Call:
    dims = draw.dims
    batch, heads, rows = dims["batch"], dims["heads"], dims["seq_q"]
    arrays: dict[str, np.ndarray] = {}
    for part in ("1", "2"):
        arrays[f"o{part}"] = with_heads(draw, f"o{part}", batch, heads, rows, dims["head_dim"])
        arrays[f"lse{part}"] = draw.array(f"lse{part}", (batch, heads, rows), np.float32)
    empty = draw.features["empty"]
    for number, (part, lse, o) in enumerate((("first", "lse1", "o1"), ("second", "lse2", "o2"))):
        if empty is not None:
            # A part that saw no key: its output is zero by definition, but no matter what it is.
            row = np.arange(rows) % 3
            unseen = row == number if empty == "rows" else np.full(rows, empty in (part, "both"))
            arrays[lse][..., unseen] = -np.inf
            by_row = np.swapaxes(arrays[o], 1, 2) if draw.features["layout"] == "bhsd" else arrays[o]
            by_row[:, unseen] = np.nan if draw.features["unread"] else 0
    out = in_layout((batch, heads, rows, dims["head_dim"]), draw.features["layout"])
    return Call(arrays, options_of(draw.features, "layout"), (out, (batch, heads, rows)))


# Cost


def pairs(dims: Mapping[str, Any], features: Mapping[str, Any]) -> int:
    """Visible (query, key) pairs of one head, by alignment and window."""
    sq, sk = dims["seq_q"], dims["seq_k"]
    seen = Visibility.of(features.get("causal", False), features.get("window"))
    diagonal = np.arange(sq) + seen.offset(sq, sk)
    first, last = np.clip(diagonal - seen.left, 0, sk), np.clip(diagonal + seen.right + 1, 0, sk)
    return int(np.maximum(last - first, 0).sum())


def _attention_flops(case: Any) -> float:
    dims = case.dims
    visible = dims["batch"] * dims["heads"] * pairs(dims, case.features)
    return float(2.0 * visible * (dims["head_dim"] + dims["head_dim_v"]))


def _attention_bytes(case: Any) -> float:
    dims, size = case.dims, itemsize(case)
    queries = dims["heads"] * dims["seq_q"] * (dims["head_dim"] + dims["head_dim_v"])
    keys = dims["kv_heads"] * dims["seq_k"] * (dims["head_dim"] + dims["head_dim_v"])
    return float(dims["batch"] * (queries + keys) * size)


def heads_fit(dims: Mapping[str, Any], features: Mapping[str, Any]) -> bool:
    """Whether key-value heads divide query heads."""
    return bool(dims["heads"] % dims["kv_heads"] == 0)


def lengths_fit(dims: Mapping[str, Any], features: Mapping[str, Any]) -> bool:
    """The same, and whether there are as many sequences of queries as of keys."""
    return heads_fit(dims, features) and len(dims["lens_q"]) == len(dims["lens_k"])


DRAWN_DIMS = {"batch": (0, 2), "heads": (1, 6), "kv_heads": (1, 3), "head_dim": (1, 70), "head_dim_v": (8, 70)}
DRAWN_FEATURES = {
    "window": ([3, 0], [0, 0], [None, 2], [70, None]),
    "scale": (0.25, -0.5),
    "softcap": (5.0,),
    # Values that hide everything, or are as large as float16 goes, have rows of their own.
    "bias": ("full", "shared", "per_head", "per_key", "minus_inf"),
    "num_splits": (1, 3),
}
_DRAWN = Domain(DRAWN_DIMS, DRAWN_FEATURES, accepts=heads_fit)
_DRAWN_PACKED = Domain(DRAWN_DIMS | {"lens_q": (0, 40), "lens_k": (0, 40)}, DRAWN_FEATURES, accepts=lengths_fit)

ATTENTION_ARRAYS = ("q", "k", "v", "alibi_slopes", "bias", "mask", "sinks", "seqlens_k", "leftpad_k")

OPERATIONS = (
    Operation(
        "flash_attention",
        **oracles("flash_attention"),
        call=_attention_call,
        excerpts=attention_excerpts,
        dims=(BATCH, HEADS, KV_HEADS, SEQ_Q, SEQ_K, HEAD_DIM, HEAD_DIM_V),
        arrays=ATTENTION_ARRAYS,
        features=(*VISIBILITY, *SCORES, *DENSE_MASKS, LENGTHS, LAYOUT, RETURN_LSE),
        outputs=(Output("out"), LSE),
        flops=_attention_flops,
        nbytes=_attention_bytes,
        probabilities=attention_probabilities,
        hidden=attention_hidden,
        peers=(peers.TORCH_SDPA, *peers.SDPA_BACKENDS, peers.NUMPY),
        domain=_DRAWN,
    ),
    Operation(
        "flash_attention_packed",
        **oracles("flash_attention"),
        call=_packed_call,
        excerpts=packed_excerpts,
        dims=(
            HEADS,
            KV_HEADS,
            Dim("lens_q", "q", many=True),
            Dim("lens_k", "k", default="lens_q", many=True),
            HEAD_DIM,
            HEAD_DIM_V,
        ),
        arrays=("q", "k", "v", "cu_seqlens_q", "cu_seqlens_k", "alibi_slopes", "sinks"),
        features=(*VISIBILITY, *SCORES, Feature("max_seqlens", (True,), default=False), RETURN_LSE),
        outputs=(Output("out"), LSE),
        probabilities=attention_probabilities,
        hidden=attention_hidden,
        domain=_DRAWN_PACKED,
        distinct=("cu_seqlens_q", "cu_seqlens_k"),
    ),
    Operation(
        "decode_attention",
        **oracles("decode_attention"),
        call=_attention_call,
        excerpts=attention_excerpts,
        dims=(
            BATCH,
            HEADS,
            KV_HEADS,
            Dim("seq_q", "s", default=1),
            Dim("seq_k", "k"),
            HEAD_DIM,
            HEAD_DIM_V,
        ),
        arrays=ATTENTION_ARRAYS,
        features=(*VISIBILITY, *SCORES, *DENSE_MASKS, LENGTHS, LAYOUT, Feature("num_splits", (int,)), RETURN_LSE),
        outputs=(Output("out"), LSE),
        flops=_attention_flops,
        nbytes=_attention_bytes,
        probabilities=attention_probabilities,
        hidden=attention_hidden,
        peers=(peers.TORCH_SDPA, *peers.SDPA_BACKENDS, peers.NUMPY),
        domain=_DRAWN,
    ),
    Operation(
        "merge_attention",
        **oracles("merge_attention"),
        call=_merge_call,
        excerpts=along({"o1": 0, "lse1": 0, "o2": 0, "lse2": 0}, 0, many=3),
        dims=(BATCH, HEADS, SEQ_Q, HEAD_DIM),
        arrays=("o1", "lse1", "o2", "lse2"),
        features=(LAYOUT, Feature("empty", ("first", "second", "both", "rows")), Feature("unread", ("nan",))),
        outputs=(Output("out"), Output("lse", "f32")),
        domain=Domain({"batch": (0, 2), "heads": (1, 4), "head_dim": (8, 70)}),
    ),
)
