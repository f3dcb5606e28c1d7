"""Matrix products, linear layers and the MLP."""

from __future__ import annotations

from typing import Any

import numpy as np

from rocmkern.matrix import peers
from rocmkern.matrix.common import BIAS_DTYPE, beside, itemsize, options_of, oracles
from rocmkern.matrix.draw import Draw
from rocmkern.matrix.registry import Call, Dim, Domain, Feature, Operation

ROWS = Dim("m", "m", default=1)
COLUMNS = Dim("n", "n")
DEPTH = Dim("k", "k")
LEAD = Dim("lead", "l", default=(), many=True)
HIDDEN = Dim("hidden", "h")
OUT = Dim("out", "o", default="k")

BIAS = Feature("bias", (True,), default=False)
NAMES = ("silu", "gelu", "gelu_tanh", "relu")
ACTIVATION = Feature("activation", NAMES)


def _shaped(draw: Draw, name: str, shape: tuple[int, ...], depth: int) -> np.ndarray:
    """A weight: divided by the root of the length of a sum, so that results are of the size of the inputs."""
    return draw.made(
        shape, draw.dtype, lambda: (draw.array(name, shape) / np.float64(max(depth, 1) ** 0.5)).astype(draw.dtype)
    )


def _matmul_call(draw: Draw) -> Call:
    dims, features = draw.dims, draw.features
    vector, transposed = features["vector"], bool(features["transpose_b"])
    # A vector is one column, whatever a row says.
    rows, columns, depth = dims["m"], 1 if vector in ("b", "both") else dims["n"], dims["k"]
    lead, lead_b = tuple(dims["lead"]), tuple(dims["lead_b"])
    a_shape = (depth,) if vector in ("a", "both") else (*lead, rows, depth)
    b_shape = (depth,) if vector in ("b", "both") else (*lead_b, depth, columns)
    if transposed and len(b_shape) > 1:
        b_shape = (*lead_b, columns, depth)
    arrays = {"a": draw.array("a", a_shape), "b": _shaped(draw, "b", b_shape, depth)}
    if features["bias"]:
        arrays["bias"] = beside(draw, "bias", (columns,), BIAS_DTYPE)
    batch = np.broadcast_shapes(a_shape[:-2], b_shape[:-2])
    kept = ((rows,) if len(a_shape) > 1 else ()) + ((columns,) if len(b_shape) > 1 else ())
    return Call(arrays, options_of(features, "transpose_b", "activation"), ((*batch, *kept),))


def _linear_call(draw: Draw) -> Call:
    dims = draw.dims
    lead = tuple(dims["lead"])
    arrays = {
        "x": draw.array("x", (*lead, dims["m"], dims["k"])),
        "weight": _shaped(draw, "weight", (dims["n"], dims["k"]), dims["k"]),
    }
    if draw.features["bias"]:
        arrays["bias"] = beside(draw, "bias", (dims["n"],), BIAS_DTYPE)
    return Call(arrays, options_of(draw.features, "activation"), ((*lead, dims["m"], dims["n"]),))


def _mlp_call(draw: Draw) -> Call:
    dims, features = draw.dims, draw.features
    lead, hidden, depth, columns = tuple(dims["lead"]), dims["hidden"], dims["k"], dims["out"]
    arrays: dict[str, np.ndarray | None] = {"x": draw.array("x", (*lead, dims["m"], depth))}
    if features["gated"]:
        arrays["w_gate"] = _shaped(draw, "w_gate", (hidden, depth), depth)
    arrays["w_up"] = _shaped(draw, "w_up", (hidden, depth), depth)
    arrays["w_down"] = _shaped(draw, "w_down", (columns, hidden), hidden)
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


def _rows(case: Any) -> int:
    return int(np.prod([*case.dims["lead"], case.dims["m"]], dtype=np.int64))


def _result_rows(case: Any) -> int:
    """The leading axes of both sides of a product go together."""
    lead = np.broadcast_shapes(tuple(case.dims["lead"]), tuple(case.dims.get("lead_b", ())))
    return int(np.prod([*lead, case.dims["m"]], dtype=np.int64))


def _flops(case: Any) -> float:
    return 2.0 * _result_rows(case) * case.dims["n"] * case.dims["k"]


def _nbytes(case: Any) -> float:
    rows, columns, depth = _rows(case), case.dims["n"], case.dims["k"]
    batch = int(np.prod(case.dims.get("lead_b", ()), dtype=np.int64))
    return float((rows * depth + batch * columns * depth + _result_rows(case) * columns) * itemsize(case))


def _products(case: Any) -> int:
    return 2 if case.features["gated"] else 1


def _mlp_flops(case: Any) -> float:
    dims = case.dims
    return 2.0 * _rows(case) * dims["hidden"] * (_products(case) * dims["k"] + dims["out"])


def _mlp_bytes(case: Any) -> float:
    dims = case.dims
    weights = dims["hidden"] * (_products(case) * dims["k"] + dims["out"])
    return float((weights + _rows(case) * (dims["k"] + dims["out"])) * itemsize(case))


def _leads_broadcast(dims: Any, features: Any) -> bool:
    """Whether the leading axes of both sides of a product go together."""
    try:
        np.broadcast_shapes(tuple(dims["lead"]), tuple(dims["lead_b"]))
    except ValueError:
        return False
    return True


_SMALL_LEAD = {"lead": (0, 3)}

OPERATIONS = (
    Operation(
        "matmul",
        **oracles("matmul"),
        call=_matmul_call,
        dims=(LEAD, Dim("lead_b", "lb", default=(), many=True), ROWS, COLUMNS, DEPTH),
        arrays=("a", "b", "bias"),
        features=(
            Feature("transpose_b", (True,), default=False),
            BIAS,
            BIAS_DTYPE,
            ACTIVATION,
            Feature("vector", ("a", "b", "both")),
        ),
        flops=_flops,
        nbytes=_nbytes,
        peers=(peers.TORCH_MATMUL, peers.NUMPY),
        # The product of two vectors has no axis that a layout could change.
        domain=Domain({**_SMALL_LEAD, "lead_b": (0, 3)}, {"vector": ("a", "b")}, accepts=_leads_broadcast),
    ),
    Operation(
        "linear",
        **oracles("linear"),
        call=_linear_call,
        dims=(LEAD, ROWS, COLUMNS, DEPTH),
        arrays=("x", "weight", "bias"),
        features=(BIAS, BIAS_DTYPE, ACTIVATION),
        flops=_flops,
        nbytes=_nbytes,
        peers=(peers.TORCH_LINEAR, peers.NUMPY),
        domain=Domain(_SMALL_LEAD),
    ),
    Operation(
        "mlp",
        **oracles("mlp"),
        call=_mlp_call,
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
        peers=(peers.TORCH_MLP, peers.NUMPY),
        domain=Domain({**_SMALL_LEAD, "hidden": (1, 70)}),
    ),
)
