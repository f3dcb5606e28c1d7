"""Attention over a cache that new rows are appended to: `flash_attn_with_kvcache`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from rocmkern.flash_attn import flash_attn_with_kvcache
from rocmkern.matrix.common import BATCH, HEAD_DIM, HEADS, KV_HEADS, options_of
from rocmkern.matrix.draw import Draw
from rocmkern.matrix.inputs import duplicate
from rocmkern.matrix.registry import Call, Dim, Domain, Feature, Operation, Output

ARRAYS = (
    "q", "k_cache", "v_cache", "k", "v", "rotary_cos", "rotary_sin", "cache_seqlens", "cache_batch_idx",
    "cache_leftpad", "block_table", "alibi_slopes",
)  # fmt: skip


def attend_to_copies(k_cache: np.ndarray, v_cache: np.ndarray, **arguments: Any) -> tuple[Any, ...]:
    """The function on copies of the caches, in their layouts; the row keeps its own."""
    keys, values = duplicate(k_cache), duplicate(v_cache)
    out, lse = flash_attn_with_kvcache(k_cache=keys, v_cache=values, return_softmax_lse=True, **arguments)
    return out, lse, keys, values


def _call(draw: Draw) -> Call:
    dims, features = draw.dims, draw.features
    batch, queries, new, heads, kv_heads = (dims[x] for x in ("batch", "seq_q", "new", "heads", "kv_heads"))
    rows, dim, size = dims["rows"], dims["head_dim"], dims["block_size"]
    arrays: dict[str, np.ndarray | None] = dict.fromkeys(ARRAYS)
    arrays["q"] = draw.array("q", (batch, queries, heads, dim))
    cache: tuple[int, ...] = (batch, rows, kv_heads, dim)
    if size:
        entries = -(-rows // size)
        cache = (batch * entries + 2, size, kv_heads, dim)
        arrays["block_table"] = _some(draw, "block_table", cache[0], batch * entries).reshape(batch, entries)
    elif features["batch_idx"]:
        cache = (batch + 2, rows, kv_heads, dim)
        arrays["cache_batch_idx"] = _some(draw, "cache_batch_idx", batch + 2, batch)
    arrays["k_cache"], arrays["v_cache"] = draw.array("k_cache", cache), draw.array("v_cache", cache)
    lengths = draw.rng("cache_seqlens").integers(0, max(rows - max(new, queries), 0) + 1, batch).astype(np.int32)
    if new or features["lengths"]:
        arrays["cache_seqlens"] = lengths
    if new:
        arrays["k"] = draw.array("k", (batch, new, kv_heads, dim))
        arrays["v"] = draw.array("v", (batch, new, kv_heads, dim))
    if features["leftpad"]:
        ends = lengths if arrays["cache_seqlens"] is not None else np.full(batch, rows)
        arrays["cache_leftpad"] = draw.rng("cache_leftpad").integers(0, ends + 1).astype(np.int32)
    if features["pairs"]:
        angles = draw.rng("angles").uniform(0, 2 * np.pi, (rows, features["pairs"]))
        arrays["rotary_cos"] = np.cos(angles).astype(draw.dtype)
        arrays["rotary_sin"] = np.sin(angles).astype(draw.dtype)
    if features["alibi"]:
        shape = (heads,) if features["alibi"] == "per_head" else (batch, heads)
        arrays["alibi_slopes"] = draw.rng("alibi_slopes").uniform(0.25, 1.0, shape).astype(np.float32)
    options = options_of(features, "causal", "window_size", "softcap", "num_splits")
    if features["pairs"]:
        options["rotary_interleaved"] = features["variant"] == "interleaved"
    return Call(arrays, options, ((batch, queries, heads, dim), (batch, heads, queries), cache, cache))


def _some(draw: Draw, name: str, count: int, chosen: int) -> np.ndarray:
    """Some of the first numbers, in any order."""
    return draw.rng(name).permutation(count)[:chosen].astype(np.int32)


def _fits(dims: Mapping[str, Any], features: Mapping[str, Any]) -> bool:
    pairs = features["pairs"] or 0
    return (
        dims["heads"] % dims["kv_heads"] == 0
        and max(dims["new"], dims["seq_q"]) <= dims["rows"]
        and 2 * pairs <= dims["head_dim"]
        and not (pairs and not dims["new"])
        and not (features["batch_idx"] and dims["block_size"])
    )


OPERATIONS = (
    Operation(
        "flash_attn_with_kvcache",
        function=attend_to_copies,
        reference="rocmkern.reference:flash_attn_with_kvcache",
        baseline="rocmkern.reference:baseline.flash_attn_with_kvcache",
        roundings="rocmkern.reference:roundings.flash_attn_with_kvcache",
        call=_call,
        dims=(
            BATCH, HEADS, KV_HEADS, Dim("seq_q", "s", default=1), Dim("new", "n", default=0), Dim("rows", "k"),
            Dim("block_size", "bs", default=0), HEAD_DIM,
        ),
        arrays=ARRAYS,
        features=(
            Feature("lengths", (True,), default=False),
            Feature("leftpad", (True,), default=False),
            Feature("batch_idx", (True,), default=False),
            Feature("pairs", (int,)),
            Feature("variant", ("interleaved",), default="half"),
            Feature("causal", (True,), default=False),
            Feature("window_size", (list,)),
            Feature("softcap", (float,)),
            Feature("alibi", ("per_head", "per_batch")),
            Feature("num_splits", (int,)),
        ),
        outputs=(Output("out"), Output("lse", "f32"), Output("k_cache"), Output("v_cache")),
        out=False,
        domain=Domain(
            {
                "batch": (0, 3), "heads": (1, 6), "kv_heads": (1, 3), "seq_q": (1, 6), "new": (0, 6), "rows": (6, 70),
                "block_size": (0, 20), "head_dim": (8, 70),
            },
            {"pairs": (1, 4), "window_size": ([3, 0], [-1, 2], [70, -1]), "softcap": (5.0,), "num_splits": (1, 3)},
            accepts=_fits,
            plain=("block_table", "cache_batch_idx", "cache_seqlens", "cache_leftpad"),
        ),
        distinct=("k_cache", "v_cache", "block_table", "cache_batch_idx", "cache_seqlens", "cache_leftpad"),
    ),
)  # fmt: skip
