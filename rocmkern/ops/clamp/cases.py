"""Numbers between two bounds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rocmkern.matrix.common import elementwise, moved_bytes, options_of, oracles
from rocmkern.matrix.draw import Draw
from rocmkern.matrix.excerpts import along
from rocmkern.matrix.peers import torch_on, with_triton
from rocmkern.matrix.registry import Call, Dim, Domain, Feature, Operation, Peer


def _clamp_call(draw: Draw) -> Call:
    shape = tuple(draw.dims["size"])
    return Call({"x": draw.array("x", shape)}, options_of(draw.features, "min", "max"), (shape,))


def _torch_clamp(call: Call, case: Any, target: str) -> Callable[[], Any]:
    torch, bring = torch_on(target)
    x, low, high = bring(call.arguments["x"]), call.options.get("min"), call.options.get("max")
    return lambda: torch.clamp(x, low, high)


OPERATIONS = (
    Operation(
        "clamp",
        **oracles("clamp"),
        call=_clamp_call,
        excerpts=along({"x": 0}, 0),
        dims=(Dim("size", "n", many=True),),
        arrays=("x",),
        features=(Feature("min", (float,)), Feature("max", (float,))),
        in_place="x",
        flops=elementwise(2),
        nbytes=moved_bytes(2),
        peers=with_triton(Peer("torch", _torch_clamp)),
        domain=Domain(
            {"size": (0, 30)},
            {"min": (-0.5, 0.75), "max": (0.5, -1.0)},
            accepts=lambda dims, features: (features["min"], features["max"]) != (None, None),
        ),
    ),
)
