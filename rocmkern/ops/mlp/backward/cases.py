"""Gradients of the MLP of a transformer layer."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from rocmkern.matrix.common import itemsize, oracles
from rocmkern.matrix.draw import Draw
from rocmkern.matrix.peers import activation_of, gradients
from rocmkern.matrix.registry import Call, Feature, Output, Peer
from rocmkern.ops.linear.cases import rows_of
from rocmkern.ops.mlp import cases as _forward

(_MLP,) = _forward.OPERATIONS
#: Whether all weights have a gradient, or none but that of the gate.
BOTH = Feature("both", (False,), default=True)


def _call(draw: Draw) -> Call:
    made = _MLP.call(draw)
    arrays = {"dout": np.asarray(draw.array("dout", made.out_shapes[0])), **made.arrays}
    # One that there is where there are a gate and biases is left out: an output depends on one feature.
    needed = [name for name in made.arrays if name != "b_gate"]
    if not draw.features["both"]:
        needed = [name for name in needed if name in ("x", "w_gate")]
    shapes = tuple(x.shape for x in (made.arrays[name] for name in needed) if x is not None)
    return Call(arrays, {**made.options, "needs": tuple(needed)}, shapes)


def _torch_result(torch: Any, tensors: Any, options: Any) -> Any:
    linear, activation = torch.nn.functional.linear, activation_of(torch, options.get("activation", "silu"))
    x, w_gate, w_up, w_down = (tensors.get(name) for name in ("x", "w_gate", "w_up", "w_down"))
    up = linear(x, w_up, tensors.get("b_up"))
    hidden = activation(up) if w_gate is None else activation(linear(x, w_gate, tensors.get("b_gate"))) * up
    return linear(hidden, w_down, tensors.get("b_down"))


def _flops(case: Any) -> float:
    """Each product of the forward call twice, and those of the hidden numbers once more."""
    assert _MLP.flops is not None
    products = 2 if case.features["gated"] else 1
    return float(2.0 * _MLP.flops(case) + 2.0 * rows_of(case) * case.dims["hidden"] * products * case.dims["k"])


def _nbytes(case: Any) -> float:
    dims, features = case.dims, case.features
    rows, hidden, depth, columns = rows_of(case), dims["hidden"], dims["k"], dims["out"]
    gate, others = (hidden * depth if features["gated"] else 0), hidden * (depth + columns)
    read = rows * (columns + depth) + gate + others
    written = rows * depth + gate + (others if features["both"] else 0)
    if features["bias"]:
        read += hidden * (2 if features["gated"] else 1) + columns
        written += hidden + columns
    return float((read + written) * itemsize(case))


OPERATIONS = (
    replace(
        _MLP,
        name="mlp_backward",
        **oracles("mlp_backward"),
        gradient_of="mlp",
        call=_call,
        excerpts=None,
        arrays=("dout", *_MLP.arrays),
        features=(*(feature for feature in _MLP.features if feature.name != "bias_dtype"), BOTH),
        outputs=(
            Output("dx"),
            Output("dw_gate", feature="gated"),
            Output("dw_up", feature="both"),
            Output("dw_down", feature="both"),
            Output("db_up", feature="bias"),
            Output("db_down", feature="bias"),
        ),
        flops=_flops,
        nbytes=_nbytes,
        peers=(Peer("torch", gradients(_MLP.arrays, _torch_result)),),
        domain=replace(_MLP.domain, accepts=lambda dims, features: features["both"] or not features["bias"])
        if _MLP.domain
        else None,
    ),
)
