"""Gradients of the norms."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rocmkern.matrix.common import WEIGHT_DTYPE, beside, elementwise, moved_bytes, options_of, oracles
from rocmkern.matrix.draw import Draw
from rocmkern.matrix.peers import gradients
from rocmkern.matrix.registry import Call, Dim, Domain, Feature, Operation, Output, Peer, PeerUnavailable

SIZE = Dim("size", "n", many=True)
EPS = Feature("eps", (float,))


def _rms_norm_call(draw: Draw) -> Call:
    shape = tuple(draw.dims["size"])
    arrays = {name: draw.array(name, shape) for name in ("dout", "x")}
    arrays["weight"] = beside(draw, "weight", shape[-1:], WEIGHT_DTYPE)
    if draw.features["with_residual"]:
        arrays["dresidual"] = draw.array("dresidual", shape)
    return Call(arrays, options_of(draw.features, "eps", "weight_offset"), (shape, shape[-1:]))


def _layer_norm_call(draw: Draw) -> Call:
    shape = tuple(draw.dims["size"])
    arrays = {name: draw.array(name, shape) for name in ("dout", "x")}
    names = [name for name in ("weight", "bias") if draw.features[name]]
    arrays |= {name: beside(draw, name, shape[-1:], WEIGHT_DTYPE) for name in names}
    return Call(arrays, options_of(draw.features, "eps"), (shape, *[shape[-1:]] * len(names)))


def _torch_rms_norm(torch: Any, tensors: Mapping[str, Any], options: Mapping[str, Any]) -> Any:
    x, weight = tensors["x"], tensors["weight"] + options.get("weight_offset", 0.0)
    if tensors.get("dresidual") is not None:
        raise PeerUnavailable("a gradient of x beside that of the norm is another operation")
    return torch.nn.functional.rms_norm(x, x.shape[-1:], weight, options.get("eps", 1e-6))


def _torch_layer_norm(torch: Any, tensors: Mapping[str, Any], options: Mapping[str, Any]) -> Any:
    x, weight, bias = tensors["x"], tensors.get("weight"), tensors.get("bias")
    if len({each.dtype for each in (x, weight, bias) if each is not None}) > 1:
        raise PeerUnavailable("weight and bias have the dtype of x")
    return torch.nn.functional.layer_norm(x, x.shape[-1:], weight, bias, options.get("eps", 1e-5))


_ROWS = Domain({"size": (0, 30)}, {"eps": (1e-6, 0.5), "weight_offset": (1.0,)})
# Of two numbers, and of one, a layer norm has only the sign of a difference left, which may be that of a rounding.
_LONGER_ROWS = Domain(
    {"size": (0, 30)}, {"eps": (1e-6, 0.5)}, accepts=lambda dims, features: dims["size"][-1] not in (1, 2)
)

OPERATIONS = (
    Operation(
        "rms_norm_backward",
        **oracles("rms_norm_backward"),
        gradient_of="rms_norm",
        call=_rms_norm_call,
        dims=(SIZE,),
        arrays=("dout", "x", "weight", "dresidual"),
        features=(
            EPS,
            Feature("weight_offset", (float,)),
            Feature("with_residual", (True,), default=False),
            WEIGHT_DTYPE,
        ),
        outputs=(Output("dx"), Output("dweight", "weight_dtype")),
        flops=elementwise(10),
        nbytes=lambda case: moved_bytes(4 if case.features["with_residual"] else 3)(case),
        peers=(Peer("torch", gradients(("x", "weight"), _torch_rms_norm)),),
        domain=_ROWS,
    ),
    Operation(
        "layer_norm_backward",
        **oracles("layer_norm_backward"),
        gradient_of="layer_norm",
        call=_layer_norm_call,
        dims=(SIZE,),
        arrays=("dout", "x", "weight", "bias"),
        features=(
            EPS,
            Feature("weight", (False,), default=True),
            Feature("bias", (False,), default=True),
            WEIGHT_DTYPE,
        ),
        outputs=(
            Output("dx"),
            Output("dweight", "weight_dtype", feature="weight"),
            Output("dbias", "weight_dtype", feature="bias"),
        ),
        flops=elementwise(14),
        nbytes=moved_bytes(3),
        peers=(Peer("torch", gradients(("x", "weight", "bias"), _torch_layer_norm)),),
        domain=_LONGER_ROWS,
    ),
)
