"""The MLP of a transformer layer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from rocmkern.matrix.common import BIAS_DTYPE, beside, itemsize, oracles
from rocmkern.matrix.draw import Draw
from rocmkern.matrix.excerpts import along, joined
from rocmkern.matrix.peers import NUMPY, products
from rocmkern.matrix.registry import Call, Dim, Domain, Feature, Operation, Peer
from rocmkern.ops.linear.cases import BIAS, DEPTH, LEAD, ROWS, SMALL_LEAD, rows_of, weight_of

HIDDEN = Dim("hidden", "h")
OUT = Dim("out", "o", default="k")


def _mlp_call(draw: Draw) -> Call:
    dims, features = draw.dims, draw.features
    lead, hidden, depth, columns = tuple(dims["lead"]), dims["hidden"], dims["k"], dims["out"]
    arrays: dict[str, np.ndarray | None] = {"x": draw.array("x", (*lead, dims["m"], depth))}
    if features["gated"]:
        arrays["w_gate"] = weight_of(draw, "w_gate", (hidden, depth), depth)
    arrays["w_up"] = weight_of(draw, "w_up", (hidden, depth), depth)
    arrays["w_down"] = weight_of(draw, "w_down", (columns, hidden), hidden)
    if features["bias"]:
        if features["gated"]:
            arrays["b_gate"] = beside(draw, "b_gate", (hidden,), BIAS_DTYPE)
        arrays["b_up"] = beside(draw, "b_up", (hidden,), BIAS_DTYPE)
        arrays["b_down"] = beside(draw, "b_down", (columns,), BIAS_DTYPE)
    options: dict[str, Any] = {} if features["gated"] else {"w_gate": None}
    name = features["activation"]
    if name != "silu":
        options["activation"] = None if name == "none" else name
    return Call(arrays, options, ((*lead, dims["m"], columns),))


def _products(case: Any) -> int:
    return 2 if case.features["gated"] else 1


def _mlp_flops(case: Any) -> float:
    dims = case.dims
    return float(2.0 * rows_of(case) * dims["hidden"] * (_products(case) * dims["k"] + dims["out"]))


def _mlp_bytes(case: Any) -> float:
    dims = case.dims
    weights = dims["hidden"] * (_products(case) * dims["k"] + dims["out"])
    return float((weights + rows_of(case) * (dims["k"] + dims["out"])) * itemsize(case))


def _torch_mlp(
    functional: Any, activation: Callable[[Any], Any], tensors: dict[str, Any], options: dict[str, Any]
) -> Callable[[], Any]:
    x, w_gate, w_up, w_down = (tensors.get(name) for name in ("x", "w_gate", "w_up", "w_down"))
    b_gate, b_up, b_down = (tensors.get(name) for name in ("b_gate", "b_up", "b_down"))

    def run() -> Any:
        up = functional.linear(x, w_up, b_up)
        hidden = activation(up) if w_gate is None else activation(functional.linear(x, w_gate, b_gate)) * up
        return functional.linear(hidden, w_down, b_down)

    return run


OPERATIONS = (
    Operation(
        "mlp",
        **oracles("mlp"),
        call=_mlp_call,
        excerpts=joined(along({"x": -2}, -2), along({"x": 0}, 0)),
        dims=(LEAD, ROWS, DEPTH, HIDDEN, OUT),
        arrays=("x", "w_gate", "w_up", "w_down", "b_gate", "b_up", "b_down"),
        features=(
            Feature("gated", (False,), default=True),
            BIAS,
            BIAS_DTYPE,
            Feature("activation", ("none", "gelu", "gelu_tanh", "relu"), default="silu"),
        ),
        flops=_mlp_flops,
        nbytes=_mlp_bytes,
        peers=(Peer("torch", products(_torch_mlp)), NUMPY),
        domain=Domain({**SMALL_LEAD, "hidden": (1, 70)}),
    ),
)
