"""The norms over the last axis, and the residual sum."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from rocmkern.matrix.common import WEIGHT_DTYPE, beside, elementwise, moved_bytes, options_of, oracles
from rocmkern.matrix.draw import Draw
from rocmkern.matrix.excerpts import along
from rocmkern.matrix.peers import torch_on, with_triton
from rocmkern.matrix.registry import Call, Dim, Domain, Feature, Operation, Output, Peer, PeerUnavailable

SIZE = Dim("size", "n", many=True)
EPS = Feature("eps", (float,))


def _rms_norm_call(draw: Draw) -> Call:
    shape = tuple(draw.dims["size"])
    arrays = {"x": draw.array("x", shape), "weight": beside(draw, "weight", shape[-1:], WEIGHT_DTYPE)}
    if draw.features["with_residual"]:
        arrays["residual"] = draw.array("residual", shape)
    options = options_of(draw.features, "eps", "weight_offset")
    return Call(arrays, options, (shape, shape) if draw.features["with_residual"] else (shape,))


def _layer_norm_call(draw: Draw) -> Call:
    shape = tuple(draw.dims["size"])
    arrays = {"x": draw.array("x", shape)}
    for name in ("weight", "bias"):
        if draw.features["parameters"] in (name, "both"):
            arrays[name] = beside(draw, name, shape[-1:], WEIGHT_DTYPE)
    return Call(arrays, options_of(draw.features, "eps"), (shape,))


def _add_residual_call(draw: Draw) -> Call:
    shape = tuple(draw.dims["size"])
    return Call({name: draw.array(name, shape) for name in ("x", "residual")}, {}, (shape,))


def _rms_norm_bytes(case: Any) -> float:
    return moved_bytes(4 if case.features["with_residual"] else 2)(case)


def _torch_rms_norm(call: Call, case: Any, target: str) -> Callable[[], Any]:
    torch, bring = torch_on(target)
    x, weight, residual = (bring(call.arguments.get(name)) for name in ("x", "weight", "residual"))
    eps, offset = call.options.get("eps", 1e-6), call.options.get("weight_offset", 0.0)
    weight = weight + offset if offset else weight
    norm = torch.nn.functional.rms_norm
    return lambda: norm(x if residual is None else x + residual, x.shape[-1:], weight, eps)


def _torch_layer_norm(call: Call, case: Any, target: str) -> Callable[[], Any]:
    torch, bring = torch_on(target)
    dtypes = [call.arguments[name].dtype for name in ("weight", "bias") if name in call.arguments]
    if len({*dtypes}) > 1 or not {*dtypes} <= {call.arguments["x"].dtype, np.dtype(np.float32)}:
        raise PeerUnavailable("weight and bias have the dtype of x, or float32")
    x, weight, bias = (bring(call.arguments.get(name)) for name in ("x", "weight", "bias"))
    return lambda: torch.nn.functional.layer_norm(x, x.shape[-1:], weight, bias, call.options.get("eps", 1e-5))


def _torch_add(call: Call, case: Any, target: str) -> Callable[[], Any]:
    _, bring = torch_on(target)
    x, residual = (bring(call.arguments[name]) for name in ("x", "residual"))
    return lambda: x + residual


# Of two numbers, and of one, a layer norm has only the sign of a difference left, which may be that of a rounding.
_ROWS = Domain({"size": (0, 30)}, {"eps": (1e-12, 0.5), "weight_offset": (1.0,)})
_LONGER_ROWS = Domain(
    {"size": (0, 30)}, {"eps": (1e-12, 0.5)}, accepts=lambda dims, features: dims["size"][-1] not in (1, 2)
)

OPERATIONS = (
    Operation(
        "rms_norm",
        **oracles("rms_norm"),
        call=_rms_norm_call,
        excerpts=along({"x": 0, "residual": 0}, 0),
        dims=(SIZE,),
        arrays=("x", "weight", "residual"),
        features=(
            EPS,
            Feature("weight_offset", (float,)),
            Feature("with_residual", (True,), default=False),
            WEIGHT_DTYPE,
        ),
        outputs=(Output("out"), Output("sum", feature="with_residual")),
        flops=elementwise(4),
        nbytes=_rms_norm_bytes,
        peers=with_triton(Peer("torch", _torch_rms_norm)),
        domain=_ROWS,
    ),
    Operation(
        "layer_norm",
        **oracles("layer_norm"),
        call=_layer_norm_call,
        excerpts=along({"x": 0}, 0),
        dims=(SIZE,),
        arrays=("x", "weight", "bias"),
        features=(EPS, Feature("parameters", ("weight", "bias", "none"), default="both"), WEIGHT_DTYPE),
        flops=elementwise(8),
        nbytes=moved_bytes(2),
        peers=with_triton(Peer("torch", _torch_layer_norm)),
        domain=_LONGER_ROWS,
    ),
    Operation(
        "add_residual",
        **oracles("add_residual"),
        call=_add_residual_call,
        excerpts=along({"x": 0, "residual": 0}, 0),
        dims=(SIZE,),
        arrays=("x", "residual"),
        in_place="x",
        flops=elementwise(1),
        nbytes=moved_bytes(3),
        peers=with_triton(Peer("torch", _torch_add)),
        domain=Domain({"size": (0, 30)}),
    ),
)
