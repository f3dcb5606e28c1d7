"""Gradients of matrix products and linear layers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from rocmkern.matrix.common import itemsize, oracles
from rocmkern.matrix.draw import Draw
from rocmkern.matrix.peers import activation_of, gradients
from rocmkern.matrix.registry import Call, Feature, Operation, Output, Peer
from rocmkern.ops.linear import cases as _forward

#: Whether both sides have a gradient; without it the second one has none.
BOTH = Feature("both", (False,), default=True)


def _with_gradient(forward: Operation, first: str) -> Callable[[Draw], Call]:
    """The call of an operation, with a gradient of its result first; ``first`` is its first side."""

    def call(draw: Draw) -> Call:
        made = forward.call(draw)
        arrays = {"dout": np.asarray(draw.array("dout", made.out_shapes[0])), **made.arrays}
        given = {name: x.shape for name, x in made.arrays.items() if x is not None}
        if draw.features["both"]:
            return Call(arrays, made.options, tuple(given.values()))
        needs = tuple(name for name in given if name in (first, "bias"))
        return Call(arrays, {**made.options, "needs": needs}, tuple(given[name] for name in needs))

    return call


def _nbytes(case: Any) -> float:
    """The gradient of the result; both sides and the bias, and their gradients."""
    dims, features = case.dims, case.features
    left = _forward.rows_of(case) * dims["k"]
    right = int(np.prod(dims.get("lead_b", ()), dtype=np.int64)) * dims["n"] * dims["k"]
    written = left + (right if features["both"] else 0)
    biases = 2 * dims["n"] if features["bias"] else 0
    return float((_forward.result_rows(case) * dims["n"] + left + right + written + biases) * itemsize(case))


def _torch_result(names: tuple[str, str]) -> Callable[[Any, Any, Any], Any]:
    """The result of the operation on sides of these names, in PyTorch."""

    def forward(torch: Any, tensors: Any, options: Any) -> Any:
        left, right = (tensors[name] for name in names)
        right = right.mT if names[1] == "weight" or options.get("transpose_b") else right
        total = left @ right if tensors.get("bias") is None else left @ right + tensors["bias"]
        return activation_of(torch, options.get("activation"))(total)

    return forward


def _backward(forward: Operation, sides: tuple[str, str]) -> Operation:
    """Two products and a sum of columns; one product more with an activation."""
    assert forward.flops is not None
    flops = forward.flops
    return replace(
        forward,
        name=f"{forward.name}_backward",
        **oracles(f"{forward.name}_backward"),
        gradient_of=forward.name,
        call=_with_gradient(forward, sides[0]),
        excerpts=None,
        arrays=("dout", *forward.arrays),
        outputs=(Output(f"d{sides[0]}"), Output(f"d{sides[1]}", feature="both"), Output("dbias", feature="bias")),
        features=(*(feature for feature in forward.features if feature.name != "bias_dtype"), BOTH),
        flops=lambda case: (3.0 if case.features["activation"] else 2.0) * flops(case),
        nbytes=_nbytes,
        peers=(Peer("torch", gradients((*sides, "bias"), _torch_result(sides))),),
    )


_MATMUL, _LINEAR = _forward.OPERATIONS
OPERATIONS = (_backward(_MATMUL, ("a", "b")), _backward(_LINEAR, ("x", "weight")))
