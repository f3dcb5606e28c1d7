"""The gradient of the cross-entropy of a linear layer."""

from __future__ import annotations

from typing import Any

import numpy as np

from rocmkern.matrix.common import itemsize, oracles
from rocmkern.matrix.draw import Draw
from rocmkern.matrix.peers import torch_on
from rocmkern.matrix.registry import Call, Domain, Feature, Operation, Output, Peer, PeerUnavailable
from rocmkern.ops.linear.cases import DEPTH
from rocmkern.ops.loss import cases as _forward
from rocmkern.ops.loss import reference

#: Whether x and weights have a gradient; without it weights and the bias have none.
BOTH = Feature("both", (False,), default=True)


def _call(draw: Draw) -> Call:
    shape, options = tuple(draw.dims["size"]), _forward.options_of_call(draw)
    arrays = _forward.arrays_of(draw)
    each = options.get("reduction") == "none"
    dloss = np.asarray(draw.array("dloss", shape if each else (), np.float32))

    def sums() -> np.ndarray:
        given: dict[str, Any] = {**arrays, **options}
        return np.asarray(reference.linear_cross_entropy(**given)[1], np.float32)

    made = {"dloss": dloss, **arrays, "lse": draw.made(shape, np.float32, sums)}
    outputs = [arrays[name] for name in ("x", "weight", "bias") if arrays.get(name) is not None]
    shapes = tuple(x.shape for x in outputs if x is not None)
    if not draw.features["both"]:
        return Call(made, {**options, "needs": ("x",)}, shapes[:1])
    return Call(made, options, shapes)


def _nbytes(case: Any) -> float:
    """What is read, and the gradients."""
    dims, features = case.dims, case.features
    written = _forward.rows_of(case) * dims["k"] + (dims["vocabulary"] * dims["k"] if features["both"] else 0)
    written += dims["vocabulary"] if features["bias"] else 0
    return _forward.read_bytes(case) + _forward.loss_bytes(case) + float(written * itemsize(case))


def _torch(call: Call, case: Any, target: str) -> Any:
    """PyTorch's own gradients, of a graph that is made once."""
    if call.options.get("z_loss") or call.options.get("softcap"):
        raise PeerUnavailable("PyTorch's cross-entropy has no z-loss and no cap")
    torch, bring = torch_on(target)
    if not hasattr(torch, "autograd"):
        raise PeerUnavailable("this torch has no gradients")
    names = ("dloss", "x", "weight", "target", "bias")
    dloss, x, weight, labels, bias = (bring(call.arrays.get(name)) for name in names)
    inputs = [tensor.requires_grad_() for tensor in (x, weight, bias) if tensor is not None]
    options = {
        name: call.options[name] for name in ("label_smoothing", "reduction", "ignore_index") if name in call.options
    }
    functional = torch.nn.functional
    with torch.enable_grad():
        logits = functional.linear(x, weight, bias).flatten(0, -2)
        loss = functional.cross_entropy(logits, labels.flatten(), **options)
    return lambda: torch.autograd.grad(loss, inputs, dloss.reshape(loss.shape).to(loss.dtype), retain_graph=True)[0]


OPERATIONS = (
    Operation(
        "linear_cross_entropy_backward",
        **oracles("linear_cross_entropy_backward"),
        gradient_of="linear_cross_entropy",
        call=_call,
        dims=(_forward.SIZE, _forward.TOKENS, DEPTH),
        arrays=("dloss", "x", "weight", "target", "lse", "bias"),
        features=(*_forward.FEATURES, BOTH),
        outputs=(Output("dx"), Output("dweight", feature="both"), Output("dbias", feature="bias")),
        flops=lambda case: 3.0 * _forward.flops(case),
        nbytes=_nbytes,
        dense_on_device=("target",),
        only_on_device=_forward.copy_on_device,
        distinct=("target", "lse"),
        peers=(Peer("torch", _torch),),
        domain=Domain(
            {"size": (0, 5), "vocabulary": (1, 70)},
            _forward.DRAWN,
            accepts=lambda dims, features: features["both"] or not features["bias"],
        ),
    ),
)
