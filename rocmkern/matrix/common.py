"""What the declarations of all families share: dimensions, features, layouts, costs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from rocmkern.matrix.draw import Draw, numpy_dtype
from rocmkern.matrix.registry import Dim, Feature
from rocmkern.reference import roundings

BATCH = Dim("batch", "b")
HEADS = Dim("heads", "h")
KV_HEADS = Dim("kv_heads", "kv", default="heads")
SEQ_Q = Dim("seq_q", "s")
SEQ_K = Dim("seq_k", "k", default="seq_q")
HEAD_DIM = Dim("head_dim", "d")
HEAD_DIM_V = Dim("head_dim_v", "v", default="head_dim")

LAYOUT = Feature("layout", ("bhsd", "bshd"), default="bhsd")
SCALE = Feature("scale", (float,))
#: Element type of norm weights, and of biases, where it is not that of the row: files keep them in float32.
WEIGHT_DTYPE = Feature("weight_dtype", ("f32", "f16", "bf16"))
BIAS_DTYPE = Feature("bias_dtype", ("f32", "f16", "bf16"))


def beside(draw: Draw, name: str, shape: tuple[int, ...], feature: Feature) -> np.ndarray:
    """An array whose element type a feature of the row may name."""
    other = draw.features.get(feature.name)
    return draw.array(name, shape, None if other is None else numpy_dtype(other))


def with_heads(draw: Draw, name: str, batch: int, heads: int, rows: int, columns: int) -> np.ndarray:
    return draw.array(name, in_layout((batch, heads, rows, columns), draw.features["layout"]))


def in_layout(shape: tuple[int, int, int, int], layout: str) -> tuple[int, ...]:
    batch, heads, rows, columns = shape
    return shape if layout == "bhsd" else (batch, rows, heads, columns)


def options_of(features: Mapping[str, Any], *names: str) -> dict[str, Any]:
    """Keyword arguments of the features that are set; lists become the tuples that the functions take."""
    chosen = {name: features[name] for name in names if name in features}
    return {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in chosen.items()
        if value is not None and value is not False
    }


def itemsize(case: Any) -> int:
    return 4 if case.dtype == "f32" else 2


def product_flops(case: Any) -> float:
    dims = case.dims
    return 2.0 * dims["batch"] * dims["heads"] * dims["seq_q"] * dims["seq_k"] * dims["head_dim"]


def product_bytes(case: Any) -> float:
    dims = case.dims
    scores = dims["heads"] * dims["seq_q"] * dims["seq_k"]
    rows = (dims["heads"] * dims["seq_q"] + dims["kv_heads"] * dims["seq_k"]) * dims["head_dim"]
    return float(dims["batch"] * (scores + rows) * itemsize(case))


def elements(case: Any) -> int:
    if "size" in case.dims:
        return int(np.prod(case.dims["size"]))
    return int(np.prod([value for value in case.dims.values()]))


def elementwise(per_element: float) -> Callable[[Any], float]:
    return lambda case: per_element * elements(case)


def moved_bytes(arrays: float) -> Callable[[Any], float]:
    return lambda case: arrays * elements(case) * itemsize(case)


def oracles(name: str) -> dict[str, Any]:
    """The public function, its float64 reference, its baseline and its roundings, which have the same name."""
    found = {
        "function": f"rocmkern:{name}",
        "reference": f"rocmkern.reference:{name}",
        "baseline": f"rocmkern.reference:baseline.{name}",
    }
    # An operation that only moves or rounds has none.
    return found | ({"roundings": f"rocmkern.reference:roundings.{name}"} if hasattr(roundings, name) else {})
