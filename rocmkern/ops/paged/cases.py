"""Attention over the pages of a cache, with one query for each sequence, and packed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import ml_dtypes
import numpy as np

from rocmkern.matrix.common import HEAD_DIM, HEAD_DIM_V, HEADS, KV_HEADS, itemsize, options_of, oracles
from rocmkern.matrix.draw import Draw
from rocmkern.matrix.excerpts import Excerpt, orders
from rocmkern.matrix.registry import Call, Dim, Domain, Feature, Operation, Output
from rocmkern.ops.attention.cases import LSE, PASSED_ON, RETURN_LSE, SCORES

BLOCK_SIZE = Dim("block_size", "bs", default=16)
CONTEXT = Dim("lens", "k", many=True)
PAGES = (
    Feature("cache", ("int8", "float8_e4m3fn", "float8_e5m2")),
    Feature("table", ("shared",)),
    Feature("leftpad", (True,), default=False),
    Feature("causal", (False, "bottom_right", "top_left"), default=True),
    Feature("window", (list,)),
)
#: More than one gives q an axis for them.
QUERIES = Dim("seq_q", "s", default=1)

PAGED_ARRAYS = (
    "q", "key_cache", "value_cache", "block_table", "context_lens", "cu_seqlens_q", "leftpad_k", "key_scale",
    "value_scale", "alibi_slopes", "sinks",
)  # fmt: skip
PAGED_DIMS = (HEADS, KV_HEADS, CONTEXT, BLOCK_SIZE, HEAD_DIM, HEAD_DIM_V)


def cache_of(draw: Draw, name: str, shape: tuple[int, ...]) -> np.ndarray:
    """A cache whose element type a feature of the row may name."""
    kind = draw.features.get("cache")
    if kind is None:
        return draw.array(name, shape)
    dtype = np.dtype(getattr(ml_dtypes, kind, kind))

    def make() -> np.ndarray:
        values = draw.array(name, shape, np.float32)
        if kind == "int8":
            values = np.clip(np.rint(values * 32), -127, 127)
        return values.astype(dtype)

    return draw.made(shape, dtype, make)


def _paged_call(draw: Draw) -> Call:
    dims, features = draw.dims, draw.features
    heads, kv_heads, lens, size = dims["heads"], dims["kv_heads"], dims["lens"], dims["block_size"]
    lens_q, queries = dims.get("lens_q"), dims.get("seq_q", 1)
    count = len(lens) if lens_q is None else sum(lens_q)
    tokens = (count, queries) if queries > 1 else (count,)
    table, blocks = _table(draw, lens, size)
    arrays: dict[str, np.ndarray | None] = {
        "q": draw.array("q", (*tokens, heads, dims["head_dim"])),
        "key_cache": cache_of(draw, "key_cache", (blocks, size, kv_heads, dims["head_dim"])),
        "value_cache": cache_of(draw, "value_cache", (blocks, size, kv_heads, dims["head_dim_v"])),
        "block_table": table,
        "context_lens": np.array(lens, np.int32),
        "cu_seqlens_q": None if lens_q is None else np.concatenate([[0], np.cumsum(lens_q)]).astype(np.int32),
        "leftpad_k": None,
        "key_scale": None,
        "value_scale": None,
        "alibi_slopes": None,
        "sinks": draw.array("sinks", (heads,), np.float32) if features["sinks"] else None,
    }
    if features["cache"]:
        unit = 1 / 32 if features["cache"] == "int8" else 1.0
        for name in ("key_scale", "value_scale"):
            arrays[name] = (draw.rng(name).uniform(0.5, 1.5, kv_heads) * unit).astype(np.float32)
    if features["alibi"]:
        shape = (heads,) if features["alibi"] == "per_head" else (len(lens), heads)
        arrays["alibi_slopes"] = draw.rng("alibi_slopes").uniform(0.25, 1.0, shape).astype(np.float32)
    if features["leftpad"]:
        arrays["leftpad_k"] = draw.rng("leftpad_k").integers(0, np.array(lens, np.int64) + 1).astype(np.int32)
    _hide_unused(arrays, lens, size)
    options = options_of(features, *PASSED_ON, "num_splits", "return_lse")
    if features["causal"] is False:
        options["causal"] = False
    elif features["causal"] is True:
        del options["causal"]  # the default
    out: tuple[int, ...] = (*tokens, heads, dims["head_dim_v"])
    lse: tuple[int, ...] = (heads, count)
    if queries > 1:
        lse = (count, heads, queries)
    return Call(arrays, options, (out, lse)[: 1 + features["return_lse"]])


def _table(draw: Draw, lens: list[int], size: int) -> tuple[np.ndarray, int]:
    """Blocks of each sequence in random order, and the number of blocks. Entries behind the last one mean nothing."""
    needed = [-(-n // size) for n in lens]
    table = np.full((len(lens), max(needed, default=0) + 1), -5, np.int32)
    order = draw.rng("block_table").permutation(sum(needed) + 1)
    for n, count in enumerate(needed):
        first = 0 if draw.features["table"] == "shared" else sum(needed[:n])
        table[n, :count] = order[first : first + count]
    return table, len(order)


def _hide_unused(arrays: dict[str, Any], lens: list[int], size: int) -> None:
    """NaN in all rows of floating caches that no sequence has."""
    used = np.zeros(arrays["key_cache"].shape[:2], bool)
    first = np.zeros(len(lens), np.int32) if arrays["leftpad_k"] is None else arrays["leftpad_k"]
    for blocks, start, length in zip(arrays["block_table"], first, lens, strict=True):
        token = np.arange(start, length)
        used[blocks[token // size], token % size] = True
    for name in ("key_cache", "value_cache"):
        if arrays[name].dtype != np.int8:
            cache = arrays[name]
            arrays[name] = np.where(used[..., None, None], cache, np.array(np.nan, cache.dtype))


def paged_excerpts(call: Call) -> Iterator[Excerpt]:
    """Some of the sequences; and the last query of each alone, dense, where the cache has the dtype of the queries."""
    arguments, size = call.arguments, call.arguments["key_cache"].shape[1]
    lens, starts = arguments["context_lens"], arguments.get("cu_seqlens_q")
    count = len(lens)
    rows = [np.arange(n, n + 1) if starts is None else np.arange(*starts[n : n + 2]) for n in range(count)]
    own = ["leftpad_k"] if "leftpad_k" in arguments else []
    own += ["alibi_slopes"] if "alibi_slopes" in arguments and arguments["alibi_slopes"].ndim == 2 else []
    outputs = len(call.out_shapes)
    for name, order in orders(count, many=3).items():
        some = {each: arguments[each][order] for each in ("block_table", "context_lens", *own)}
        index = np.concatenate([rows[n] for n in order])
        some["q"] = arguments["q"][index]
        if starts is not None:
            some["cu_seqlens_q"] = np.concatenate([[0], np.cumsum([len(rows[n]) for n in order])]).astype(np.int32)
        places = ((index,), (slice(None), index))[:outputs]
        yield Excerpt(f"{name} of {count} sequences", arguments | some, places)
    passed_on = {
        name: arguments[name]
        for name in ("scale", "softcap", "window", "sinks", "return_lse", "causal")
        if name in arguments
    }
    dense = arguments["key_cache"].dtype == arguments["q"].dtype and "leftpad_k" not in arguments
    if not dense or arguments["q"].ndim > 3 or arguments.get("causal", True) is not True:
        return
    for n in range(count):
        if not lens[n] or not len(rows[n]):
            continue
        token, last = np.arange(lens[n]), rows[n][-1:]
        page, line = arguments["block_table"][n, token // size], token % size
        keys, values = (arguments[name][page, line][None] for name in ("key_cache", "value_cache"))
        some = {"q": arguments["q"][last][:, None], "k": keys, "v": values, "causal": True, "layout": "bshd"}
        if "alibi_slopes" in arguments:
            slopes = arguments["alibi_slopes"]
            some["alibi_slopes"] = slopes[n : n + 1] if slopes.ndim == 2 else slopes
        places = ((last,), (slice(None), last))[:outputs]
        alone = ((slice(None), 0), (0,))[:outputs]
        function = "rocmkern:flash_attention"
        yield Excerpt(f"the last query of sequence {n} alone, dense", passed_on | some, places, alone, function)


def _paged_flops(case: Any) -> float:
    dims = case.dims
    return float(2.0 * dims["heads"] * dims["seq_q"] * sum(dims["lens"]) * (dims["head_dim"] + dims["head_dim_v"]))


def _paged_bytes(case: Any) -> float:
    dims = case.dims
    size = 1 if case.features["cache"] else itemsize(case)
    return float(dims["kv_heads"] * sum(dims["lens"]) * (dims["head_dim"] + dims["head_dim_v"]) * size)


def _pages_fit(dims: Mapping[str, Any], features: Mapping[str, Any]) -> bool:
    """Heads are grouped, and the queries of a sequence are among its tokens."""
    lens, lens_q = dims["lens"], dims.get("lens_q")
    queries_fit = lens_q is None or (
        len(lens_q) == len(lens) and all(q <= k for q, k in zip(lens_q, lens, strict=True))
    )
    # Two sequences that share blocks have as many of them.
    alike = features["table"] is None or len({-(-n // dims["block_size"]) for n in lens}) == 1
    return dims["heads"] % dims["kv_heads"] == 0 and queries_fit and alike


_PAGED = Domain(
    {
        "heads": (1, 6),
        "kv_heads": (1, 3),
        "lens_q": (0, 6),
        "seq_q": (1, 4),
        "block_size": (1, 20),
        "head_dim": (8, 70),
        "head_dim_v": (8, 70),
    },
    {"window": ([3, 0], [0, 0]), "scale": (0.25,), "softcap": (5.0,), "num_splits": (1, 3)},
    accepts=_pages_fit,
    plain=("block_table", "context_lens", "cu_seqlens_q"),
)

OPERATIONS = (
    Operation(
        "paged_attention",
        **oracles("paged_attention"),
        call=_paged_call,
        excerpts=paged_excerpts,
        dims=(*PAGED_DIMS[:2], QUERIES, *PAGED_DIMS[2:]),
        arrays=tuple(name for name in PAGED_ARRAYS if name != "cu_seqlens_q"),
        features=(*PAGES, *SCORES, Feature("num_splits", (int,)), RETURN_LSE),
        outputs=(Output("out"), LSE),
        flops=_paged_flops,
        nbytes=_paged_bytes,
        domain=_PAGED,
        distinct=("leftpad_k",),
    ),
    Operation(
        "paged_attention_packed",
        **oracles("paged_attention"),
        call=_paged_call,
        excerpts=paged_excerpts,
        dims=(*PAGED_DIMS[:2], Dim("lens_q", "q", many=True), *PAGED_DIMS[2:]),
        arrays=PAGED_ARRAYS,
        features=(*PAGES, *SCORES, Feature("num_splits", (int,)), RETURN_LSE),
        outputs=(Output("out"), LSE),
        domain=_PAGED,
        distinct=("cu_seqlens_q", "leftpad_k"),
    ),
)
