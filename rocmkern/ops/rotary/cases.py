"""Rotary embeddings: `rope`, and `rope_append_kv` into the pages of a cache."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import ml_dtypes
import numpy as np

import rocmkern
from rocmkern.matrix.common import (
    HEAD_DIM,
    HEAD_DIM_V,
    HEADS,
    itemsize,
    options_of,
    oracles,
)
from rocmkern.matrix.draw import Draw
from rocmkern.matrix.excerpts import Excerpt, along, orders
from rocmkern.matrix.inputs import duplicate
from rocmkern.matrix.peers import torch_on, with_triton
from rocmkern.matrix.registry import Call, Dim, Domain, Feature, Operation, Output, Peer, PeerUnavailable
from rocmkern.ops.paged.cases import BLOCK_SIZE, cache_of

SCALINGS: dict[str, dict[str, Any]] = {
    "linear": {"rope_type": "linear", "factor": 2.5},
    "llama3": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    },
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4096},
    "yarn_mscale": {
        "type": "yarn",
        "factor": 40.0,
        "original_max_position_embeddings": 4096,
        "mscale": 0.707,
        "mscale_all_dim": 1.0,
        "beta_fast": 16.0,
        "truncate": False,
    },
    # As newer configurations have them: the base is among the parameters.
    "theta": {"rope_type": "default", "rope_theta": 1e6},
    "linear_theta": {"rope_type": "linear", "factor": 2.5, "rope_theta": 1e6},
}
ROTATION = (
    Feature("variant", ("interleaved",), default="half"),
    Feature("base", (float,)),
    Feature("rotary_dim", (int,)),
    Feature("scaling", tuple(SCALINGS)),
    Feature("freq_factors", (True,), default=False),
    Feature("positions", (list,)),
)
TOKENS = Dim("seq", "s")


def _rotation(draw: Draw) -> dict[str, Any]:
    options = options_of(draw.features, "variant", "base", "rotary_dim")
    if draw.features.get("scaling") is not None:
        options["scaling"] = SCALINGS[draw.features["scaling"]]
    if draw.features.get("freq_factors"):
        rotated = draw.dims["head_dim"] if draw.features["rotary_dim"] is None else draw.features["rotary_dim"]
        pairs = rotated // (4 if draw.features.get("block_positions") else 2)
        options["freq_factors"] = tuple(draw.rng("freq_factors").uniform(0.5, 9.0, pairs).astype(np.float32).tolist())
    return options


def _positions(draw: Draw, count: int) -> np.ndarray:
    """Those of the row, repeated, or 0, 1, 2, ..."""
    given = draw.features["positions"]
    if given is None:
        return np.arange(count, dtype=np.int32)
    return np.resize(np.array(given, np.int32), count)


def rope_call(draw: Draw, name: str = "x") -> Call:
    """A call of `rope`, or of its gradient, whose first array has another name."""
    dims, features = draw.dims, draw.features
    batch, seq, heads = dims["batch"], dims["seq"], dims["heads"]
    shape = (seq, heads, dims["head_dim"])
    if features["layout"] == "hsd":
        shape = (heads, seq, dims["head_dim"])
    leading = () if features["rows"] == "one" else (batch,)
    arrays: dict[str, np.ndarray | None] = {
        name: draw.array(name, (*leading, *shape)),
        "positions": _positions(draw, seq),
        "block_positions": None,
    }
    if features["rows"] == "per_batch":
        arrays["positions"] = draw.rng("positions").integers(0, 4096, (batch, seq)).astype(np.int64)
    if features["block_positions"]:
        arrays["block_positions"] = draw.rng("block_positions").integers(0, 512, seq).astype(np.int32)
    options = _rotation(draw) | options_of(features, "inverse", "layout")
    return Call(arrays, options, ((*leading, *shape),))


def _rope_excerpts(call: Call) -> Iterator[Excerpt]:
    """Some of the positions."""
    axis = -2 if call.options.get("layout") == "hsd" else -3
    yield from along({"x": axis, "positions": -1, "block_positions": -1}, axis)(call)


def _append_excerpts(call: Call) -> Iterator[Excerpt]:
    """Some of the tokens: what is at their slots."""
    slots, size = call.arguments["slots"], call.arguments["key_cache"].shape[1]
    for name, order in orders(len(slots), many=0).items():  # each token has a slot of its own
        given = {each: call.arrays.get(each) for each in ("k", "v", "slots", "positions")}
        some = {each: x[..., order] if each == "positions" else x[order] for each, x in given.items() if x is not None}
        written = slots[order][slots[order] >= 0]
        place = (written // size, written % size)
        yield Excerpt(f"{name} of {len(slots)}", call.arguments | some, (place, place), (place, place))


def append_to_copies(key_cache: np.ndarray, value_cache: np.ndarray, **arguments: Any) -> tuple[Any, Any]:
    """`rocmkern.rope_append_kv` on copies of the caches, in their layouts; the row keeps its own."""
    keys, values = duplicate(key_cache), duplicate(value_cache)
    return rocmkern.rope_append_kv(key_cache=keys, value_cache=values, **arguments)


def append_codes(**arguments: Any) -> tuple[np.ndarray, np.ndarray]:
    """What the numbers of the caches after `append_to_copies` stand for, as float32."""
    keys, values = append_to_copies(**arguments)
    return keys.astype(np.float32), values.astype(np.float32)


def _append_call(draw: Draw) -> Call:
    dims = draw.dims
    tokens, heads, size = dims["seq"], dims["kv_heads"], dims["block_size"]
    blocks = -(-tokens // size) + 2
    keys, values = (blocks, size, heads, dims["head_dim"]), (blocks, size, heads, dims["head_dim_v"])
    slots = draw.rng("slots").permutation(blocks * size)[:tokens]
    if draw.features["padding"]:
        slots[::3] = -1
    arrays: dict[str, np.ndarray | None] = {
        "k": draw.array("k", (tokens, heads, dims["head_dim"])),
        "v": draw.array("v", (tokens, heads, dims["head_dim_v"])),
        "positions": None if draw.features.get("unrotated") else _positions(draw, tokens),
        "key_cache": cache_of(draw, "key_cache", keys),
        "value_cache": cache_of(draw, "value_cache", values),
        "slots": slots.astype(np.int64),
    }
    options = _rotation(draw) | ({"positions": None} if draw.features.get("unrotated") else {})
    return Call(arrays, options, (keys, values))


def _append_codes_call(draw: Draw) -> Call:
    call, heads, kind = _append_call(draw), draw.dims["kv_heads"], draw.features["cache"]
    scales: dict[str, np.ndarray | None] = {"key_scale": None, "value_scale": None}
    # One number in twenty is beyond the largest one of int8; E4M3 has numbers for all.
    unit = 1 / 64 if kind == "int8" else 1.0
    for name in scales:
        if draw.features["scales"] == "drawn":
            scales[name] = (draw.rng(name).uniform(0.8, 1.2, heads) * unit).astype(np.float32)
        elif draw.features["scales"] == "powers":
            # Not the same ones, or it would not show if they were exchanged.
            scales[name] = np.exp2((np.arange(heads) + (name == "value_scale")) % 3 - 1).astype(np.float32)
    if draw.features["contents"]:
        for name in ("k", "v"):
            x, scale = call.arrays[name], scales["key_scale" if name == "k" else "value_scale"]
            assert x is not None
            x[...] = _between_codes(x.shape, kind) * (1 if scale is None else scale[:, None])
    return Call({**call.arrays, **scales}, call.options, call.out_shapes)


def _between_codes(shape: tuple[int, ...], kind: str) -> np.ndarray:
    """float32: all numbers of a dtype of 8 bits, what lies in the middle of two neighbours, and what lies beyond."""
    dtype = np.dtype(getattr(ml_dtypes, kind, kind))
    every = np.arange(256, dtype=np.uint8).view(dtype).astype(np.float32)
    numbers = np.unique(every[np.isfinite(every)])
    middles, largest = (numbers[1:] + numbers[:-1]) / 2, numbers[-1]
    beyond = np.array([largest * 1.25, largest * 64, np.inf, np.nan], np.float32)
    return np.resize(np.concatenate([beyond, -beyond, middles, numbers]), shape)


def _pairs(case: Any) -> float:
    dims = case.dims
    return float(dims["batch"] * dims["seq"] * dims["heads"] * dims["head_dim"] // 2)


def _rotation_fits(dims: Mapping[str, Any], features: Mapping[str, Any]) -> bool:
    """Pairs are whole; with 2-D positions those of both halves; and nothing is said twice."""
    scaling, factors = features["scaling"] or "", features["freq_factors"]
    if (scaling.endswith("theta") and features["base"] is not None) or (factors and scaling == "llama3"):
        return False
    if features.get("unrotated"):
        return features["rotary_dim"] is None and not factors
    rotated = features["rotary_dim"] or dims["head_dim"]
    return bool(rotated <= dims["head_dim"] and rotated % (4 if features.get("block_positions") else 2) == 0)


_ROTATIONS = {"base": (500.0,), "rotary_dim": (2, 8), "positions": ([131071, 0, 5], [-3])}


def _torch_rope(call: Call, case: Any, target: str) -> Callable[[], Any]:
    """``x * cos + rotate_half(x) * sin``, as models write it, the tables of cosine and sine made before."""
    torch, bring = torch_on(target)
    features, dims = case.features, case.dims
    usual = {feature.name: feature.default for feature in case.operation.features}
    if any(features[name] != usual[name] for name in usual if name not in ("layout", "positions", "rows")):
        raise PeerUnavailable("the plain form only")
    x, positions = (bring(call.arguments[name]) for name in ("x", "positions"))
    dim = dims["head_dim"]
    angle = positions.float()[..., None] * 10000.0 ** (-torch.arange(0, dim, 2, device=x.device).float() / dim)
    angle = torch.cat((angle, angle), -1)
    if features["layout"] == "shd":
        angle = angle[..., None, :]
    elif positions.ndim > 1:
        angle = angle[..., None, :, :]
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)

    def run() -> Any:
        return x * cos + torch.cat((-x[..., dim // 2 :], x[..., : dim // 2]), -1) * sin

    return run


OPERATIONS = (
    Operation(
        "rope",
        **oracles("rope"),
        call=rope_call,
        excerpts=_rope_excerpts,
        dims=(Dim("batch", "b", default=1), TOKENS, HEADS, HEAD_DIM),
        arrays=("x", "positions", "block_positions"),
        features=(
            *ROTATION,
            Feature("rows", ("one", "per_batch"), default="shared"),
            Feature("block_positions", (True,), default=False),
            Feature("inverse", (True,), default=False),
            Feature("layout", ("hsd",), default="shd"),
        ),
        in_place="x",
        flops=lambda case: 6 * _pairs(case),
        nbytes=lambda case: 4 * _pairs(case) * itemsize(case),
        peers=with_triton(Peer("torch", _torch_rope)),
        domain=Domain(
            {"batch": (0, 2), "seq": (0, 20), "heads": (0, 5), "head_dim": (1, 70)}, _ROTATIONS, accepts=_rotation_fits
        ),
    ),
    Operation(
        "rope_append_kv",
        **{**oracles("rope_append_kv"), "function": append_to_copies},
        call=_append_call,
        excerpts=_append_excerpts,
        dims=(TOKENS, Dim("kv_heads", "kv"), BLOCK_SIZE, HEAD_DIM, HEAD_DIM_V),
        arrays=("k", "v", "positions", "key_cache", "value_cache", "slots"),
        features=(*ROTATION, Feature("padding", (True,), default=False), Feature("unrotated", (True,), default=False)),
        outputs=(Output("key_cache"), Output("value_cache")),
        out=False,
        domain=Domain(
            {
                "seq": (0, 20),
                "kv_heads": (1, 4),
                "block_size": (1, 17),
                "head_dim": (1, 70),
                "head_dim_v": (1, 70),
            },
            _ROTATIONS,
            accepts=_rotation_fits,
            plain=("slots",),
        ),
        distinct=("slots", "key_cache", "value_cache"),
    ),
    Operation(
        "rope_append_kv_codes",
        function=append_codes,
        reference="rocmkern.reference:rope_append_kv",
        call=_append_codes_call,
        excerpts=_append_excerpts,
        dims=(TOKENS, Dim("kv_heads", "kv"), BLOCK_SIZE, HEAD_DIM, HEAD_DIM_V),
        arrays=("k", "v", "positions", "key_cache", "value_cache", "slots", "key_scale", "value_scale"),
        features=(
            *(feature for feature in ROTATION if feature.name in ("variant", "rotary_dim", "positions")),
            Feature("padding", (True,), default=False),
            Feature("cache", ("float8_e4m3fn", "float8_e5m2"), default="int8"),
            Feature("scales", ("powers", "none"), default="drawn"),
            Feature("contents", ("between_codes",)),
        ),
        outputs=(Output("key_cache", "f32"), Output("value_cache", "f32")),
        exact=True,
        out=False,
        distinct=("slots", "key_cache", "value_cache"),
    ),
)
