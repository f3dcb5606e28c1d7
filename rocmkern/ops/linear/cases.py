"""Matrix products and linear layers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from rocmkern.matrix.common import BIAS_DTYPE, beside, itemsize, options_of, oracles
from rocmkern.matrix.draw import Draw
from rocmkern.matrix.excerpts import Excerpt, along, joined
from rocmkern.matrix.peers import NUMPY, products
from rocmkern.matrix.registry import Call, Dim, Domain, Feature, Operation, Peer

ROWS = Dim("m", "m", default=1)
COLUMNS = Dim("n", "n")
DEPTH = Dim("k", "k")
LEAD = Dim("lead", "l", default=(), many=True)

BIAS = Feature("bias", (True,), default=False)
NAMES = ("silu", "gelu", "gelu_tanh", "relu")
ACTIVATION = Feature("activation", NAMES)


def weight_of(draw: Draw, name: str, shape: tuple[int, ...], depth: int) -> np.ndarray:
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
    arrays = {"a": draw.array("a", a_shape), "b": weight_of(draw, "b", b_shape, depth)}
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
        "weight": weight_of(draw, "weight", (dims["n"], dims["k"]), dims["k"]),
    }
    if draw.features["bias"]:
        arrays["bias"] = beside(draw, "bias", (dims["n"],), BIAS_DTYPE)
    return Call(arrays, options_of(draw.features, "activation"), ((*lead, dims["m"], dims["n"]),))


def _matmul_excerpts(call: Call) -> Iterator[Excerpt]:
    """Rows of a; where b is a vector the result has them last."""
    vector = call.arguments["b"].ndim == 1
    yield from along({"a": -2}, -1 if vector else -2)(call)


def rows_of(case: Any) -> int:
    return int(np.prod([*case.dims["lead"], case.dims["m"]], dtype=np.int64))


def result_rows(case: Any) -> int:
    """The leading axes of both sides of a product go together."""
    lead = np.broadcast_shapes(tuple(case.dims["lead"]), tuple(case.dims.get("lead_b", ())))
    return int(np.prod([*lead, case.dims["m"]], dtype=np.int64))


def _flops(case: Any) -> float:
    return float(2.0 * result_rows(case) * case.dims["n"] * case.dims["k"])


def _nbytes(case: Any) -> float:
    rows, columns, depth = rows_of(case), case.dims["n"], case.dims["k"]
    batch = int(np.prod(case.dims.get("lead_b", ()), dtype=np.int64))
    return float((rows * depth + batch * columns * depth + result_rows(case) * columns) * itemsize(case))


def _leads_broadcast(dims: Any, features: Any) -> bool:
    """Whether the leading axes of both sides of a product go together."""
    try:
        np.broadcast_shapes(tuple(dims["lead"]), tuple(dims["lead_b"]))
    except ValueError:
        return False
    return True


def _torch_matmul(
    functional: Any, activation: Callable[[Any], Any], tensors: dict[str, Any], options: dict[str, Any]
) -> Callable[[], Any]:
    a, b, bias = tensors["a"], tensors["b"], tensors.get("bias")
    if options.get("transpose_b"):
        b = b.mT
    return lambda: activation(a @ b if bias is None else a @ b + bias)


def _torch_linear(
    functional: Any, activation: Callable[[Any], Any], tensors: dict[str, Any], options: dict[str, Any]
) -> Callable[[], Any]:
    x, weight, bias = tensors["x"], tensors["weight"], tensors.get("bias")
    return lambda: activation(functional.linear(x, weight, bias))


#: Sizes of leading axes that fuzzing draws.
SMALL_LEAD = {"lead": (0, 3)}

OPERATIONS = (
    Operation(
        "matmul",
        **oracles("matmul"),
        call=_matmul_call,
        excerpts=_matmul_excerpts,
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
        peers=(Peer("torch", products(_torch_matmul)), NUMPY),
        # The product of two vectors has no axis that a layout could change.
        domain=Domain({**SMALL_LEAD, "lead_b": (0, 3)}, {"vector": ("a", "b")}, accepts=_leads_broadcast),
    ),
    Operation(
        "linear",
        **oracles("linear"),
        call=_linear_call,
        excerpts=joined(along({"x": -2}, -2), along({"x": 0}, 0)),
        dims=(LEAD, ROWS, COLUMNS, DEPTH),
        arrays=("x", "weight", "bias"),
        features=(BIAS, BIAS_DTYPE, ACTIVATION),
        flops=_flops,
        nbytes=_nbytes,
        peers=(Peer("torch", products(_torch_linear)), NUMPY),
        domain=Domain(SMALL_LEAD),
    ),
)
