"""Gated activations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rocmkern.matrix.common import elementwise, moved_bytes, options_of, oracles
from rocmkern.matrix.draw import Draw
from rocmkern.matrix.excerpts import along
from rocmkern.matrix.peers import torch_on, with_triton
from rocmkern.matrix.registry import Call, Dim, Domain, Feature, Operation, Peer

SIZE = Dim("size", "n", many=True)
PACKED = Feature("packed", (True,), default=False)


def _gated_call(draw: Draw) -> Call:
    shape = tuple(draw.dims["size"])
    options = options_of(draw.features, "order", "approximate")
    if draw.features["packed"]:
        return Call({"gate": draw.array("gate", (*shape[:-1], 2 * shape[-1]))}, options, (shape,))
    return Call({name: draw.array(name, shape) for name in ("gate", "up")}, options, (shape,))


def _halves(bring: Callable[[Any], Any], call: Call) -> list[Any]:
    gate, up = (bring(call.arguments.get(name)) for name in ("gate", "up"))
    halves = list(gate.chunk(2, dim=-1)) if up is None else [gate, up]
    return halves[::-1] if call.options.get("order") == "up_gate" else halves


def _torch_swiglu(call: Call, case: Any, target: str) -> Callable[[], Any]:
    torch, bring = torch_on(target)
    gate, up = _halves(bring, call)
    return lambda: torch.nn.functional.silu(gate) * up


def _torch_geglu(call: Call, case: Any, target: str) -> Callable[[], Any]:
    torch, bring = torch_on(target)
    gate, up = _halves(bring, call)
    approximate = call.options.get("approximate", "none")
    return lambda: torch.nn.functional.gelu(gate, approximate=approximate) * up


OPERATIONS = (
    Operation(
        "swiglu",
        **oracles("swiglu"),
        call=_gated_call,
        excerpts=along({"gate": 0, "up": 0}, 0),
        dims=(SIZE,),
        arrays=("gate", "up"),
        features=(PACKED, Feature("order", ("gate_up", "up_gate"))),
        flops=elementwise(5),
        nbytes=moved_bytes(3),
        peers=with_triton(Peer("torch", _torch_swiglu)),
        domain=Domain({"size": (0, 30)}),
    ),
    Operation(
        "geglu",
        **oracles("geglu"),
        call=_gated_call,
        excerpts=along({"gate": 0, "up": 0}, 0),
        dims=(SIZE,),
        arrays=("gate", "up"),
        features=(PACKED, Feature("approximate", ("none", "tanh"))),
        flops=elementwise(12),
        nbytes=moved_bytes(3),
        peers=with_triton(Peer("torch", _torch_geglu)),
        domain=Domain({"size": (0, 30)}),
    ),
)
