"""Gated activations."""

from __future__ import annotations

from rocmkern.matrix import peers
from rocmkern.matrix.common import elementwise, moved_bytes, options_of, oracles
from rocmkern.matrix.draw import Draw
from rocmkern.matrix.registry import Call, Dim, Domain, Feature, Operation

SIZE = Dim("size", "n", many=True)
PACKED = Feature("packed", (True,), default=False)


def _gated_call(draw: Draw) -> Call:
    shape = tuple(draw.dims["size"])
    options = options_of(draw.features, "order", "approximate")
    if draw.features["packed"]:
        return Call({"gate": draw.array("gate", (*shape[:-1], 2 * shape[-1]))}, options, (shape,))
    return Call({name: draw.array(name, shape) for name in ("gate", "up")}, options, (shape,))


OPERATIONS = (
    Operation(
        "swiglu",
        **oracles("swiglu"),
        call=_gated_call,
        dims=(SIZE,),
        arrays=("gate", "up"),
        features=(PACKED, Feature("order", ("gate_up", "up_gate"))),
        flops=elementwise(5),
        nbytes=moved_bytes(3),
        peers=peers.with_triton(peers.TORCH_SWIGLU),
        domain=Domain({"size": (0, 30)}),
    ),
    Operation(
        "geglu",
        **oracles("geglu"),
        call=_gated_call,
        dims=(SIZE,),
        arrays=("gate", "up"),
        features=(PACKED, Feature("approximate", ("none", "tanh"))),
        flops=elementwise(12),
        nbytes=moved_bytes(3),
        peers=peers.with_triton(peers.TORCH_GEGLU),
        domain=Domain({"size": (0, 30)}),
    ),
)
