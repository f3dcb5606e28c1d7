"""Gradients of the gated activations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rocmkern.matrix.common import elementwise, moved_bytes, options_of, oracles
from rocmkern.matrix.draw import Draw
from rocmkern.matrix.excerpts import along
from rocmkern.matrix.peers import gradients
from rocmkern.matrix.registry import Call, Dim, Domain, Feature, Operation, Output, Peer

SIZE = Dim("size", "n", many=True)
#: Whether gate and up are two arrays, rather than a packed one.
APART = Feature("apart", (False,), default=True)
OUTPUTS = (Output("dgate"), Output("dup", feature="apart"))


def _call(draw: Draw) -> Call:
    shape = tuple(draw.dims["size"])
    options = options_of(draw.features, "order", "approximate")
    if draw.features["apart"]:
        return Call({name: draw.array(name, shape) for name in ("dout", "gate", "up")}, options, (shape, shape))
    whole = (*shape[:-1], 2 * shape[-1])
    return Call({"dout": draw.array("dout", shape), "gate": draw.array("gate", whole)}, options, (whole,))


def _halves(tensors: Mapping[str, Any], options: Mapping[str, Any]) -> list[Any]:
    """What the activation acts on, and its factor."""
    gate, up = tensors["gate"], tensors.get("up")
    halves = list(gate.chunk(2, dim=-1)) if up is None else [gate, up]
    return halves[::-1] if options.get("order") == "up_gate" else halves


def _torch_swiglu(torch: Any, tensors: Mapping[str, Any], options: Mapping[str, Any]) -> Any:
    acted, factor = _halves(tensors, options)
    return torch.nn.functional.silu(acted) * factor


def _torch_geglu(torch: Any, tensors: Mapping[str, Any], options: Mapping[str, Any]) -> Any:
    acted, factor = _halves(tensors, options)
    return torch.nn.functional.gelu(acted, approximate=options.get("approximate", "none")) * factor


OPERATIONS = (
    Operation(
        "swiglu_backward",
        **oracles("swiglu_backward"),
        gradient_of="swiglu",
        call=_call,
        excerpts=along({"dout": 0, "gate": 0, "up": 0}, 0),
        dims=(SIZE,),
        arrays=("dout", "gate", "up"),
        features=(APART, Feature("order", ("gate_up", "up_gate"))),
        outputs=OUTPUTS,
        flops=elementwise(10),
        nbytes=moved_bytes(5),
        peers=(Peer("torch", gradients(("gate", "up"), _torch_swiglu)),),
        domain=Domain({"size": (0, 30)}),
    ),
    Operation(
        "geglu_backward",
        **oracles("geglu_backward"),
        gradient_of="geglu",
        call=_call,
        excerpts=along({"dout": 0, "gate": 0, "up": 0}, 0),
        dims=(SIZE,),
        arrays=("dout", "gate", "up"),
        features=(APART, Feature("approximate", ("none", "tanh"))),
        outputs=OUTPUTS,
        flops=elementwise(25),
        nbytes=moved_bytes(5),
        peers=(Peer("torch", gradients(("gate", "up"), _torch_geglu)),),
        domain=Domain({"size": (0, 30)}),
    ),
)
