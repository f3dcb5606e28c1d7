"""Gradients of the steps of attention."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from rocmkern.matrix.common import elementwise, moved_bytes, options_of, oracles
from rocmkern.matrix.draw import Draw
from rocmkern.matrix.excerpts import along
from rocmkern.matrix.peers import torch_on
from rocmkern.matrix.registry import Call, Dim, Domain, Feature, Operation, Peer, PeerUnavailable
from rocmkern.ops.steps import reference


def _softmax_call(draw: Draw) -> Call:
    shape = tuple(draw.dims["size"])
    y = reference.softmax(draw.array("y", shape, np.float64)).astype(draw.dtype)
    if draw.features["hidden"]:
        y[::2] = 0
    return Call({"dout": draw.array("dout", shape), "y": y}, options_of(draw.features, "scale"), (shape,))


def _torch_softmax(call: Call, case: Any, target: str) -> Callable[[], Any]:
    """What PyTorch's own gradient of a softmax calls."""
    torch, bring = torch_on(target)
    if not hasattr(torch, "autograd"):
        raise PeerUnavailable("this torch has no gradients")
    if "scale" in call.options:
        raise PeerUnavailable("PyTorch's has no scale")
    dout, y = (bring(call.arguments[name]) for name in ("dout", "y"))
    return lambda: torch.ops.aten._softmax_backward_data(dout, y, -1, dout.dtype)


OPERATIONS = (
    Operation(
        "softmax_backward",
        **oracles("softmax_backward"),
        gradient_of="softmax",
        call=_softmax_call,
        excerpts=along({"dout": 0, "y": 0}, 0),
        dims=(Dim("size", "n", many=True),),
        arrays=("dout", "y"),
        features=(Feature("scale", (float,)), Feature("hidden", (True,), default=False)),
        flops=elementwise(5),
        nbytes=moved_bytes(3),
        peers=(Peer("torch", _torch_softmax),),
        domain=Domain({"size": (0, 40)}, {"scale": (0.125, -2.5)}),
    ),
)
