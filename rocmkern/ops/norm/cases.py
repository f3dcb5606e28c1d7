"""The norms over the last axis, and the residual sum."""

from __future__ import annotations

from typing import Any

from rocmkern.matrix import peers
from rocmkern.matrix.common import WEIGHT_DTYPE, beside, elementwise, moved_bytes, options_of, oracles
from rocmkern.matrix.draw import Draw
from rocmkern.matrix.registry import Call, Dim, Domain, Feature, Operation, Output

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
        peers=peers.with_triton(peers.TORCH_RMS_NORM),
        domain=_ROWS,
    ),
    Operation(
        "layer_norm",
        **oracles("layer_norm"),
        call=_layer_norm_call,
        dims=(SIZE,),
        arrays=("x", "weight", "bias"),
        features=(EPS, Feature("parameters", ("weight", "bias", "none"), default="both"), WEIGHT_DTYPE),
        flops=elementwise(8),
        nbytes=moved_bytes(2),
        peers=peers.with_triton(peers.TORCH_LAYER_NORM),
        domain=_LONGER_ROWS,
    ),
    Operation(
        "add_residual",
        **oracles("add_residual"),
        call=_add_residual_call,
        dims=(SIZE,),
        arrays=("x", "residual"),
        in_place="x",
        flops=elementwise(1),
        nbytes=moved_bytes(3),
        peers=peers.with_triton(peers.TORCH_ADD),
        domain=Domain({"size": (0, 30)}),
    ),
)
