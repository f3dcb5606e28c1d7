"""The cross-entropy of a linear layer over a vocabulary."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from rocmkern.calls.view import view_of
from rocmkern.matrix.common import itemsize, options_of, oracles
from rocmkern.matrix.draw import Draw
from rocmkern.matrix.peers import torch_on
from rocmkern.matrix.registry import Call, Dim, Domain, Feature, Operation, Output, Peer, PeerUnavailable
from rocmkern.ops.linear.cases import BIAS, DEPTH, weight_of

SIZE = Dim("size", "n", many=True)
TOKENS = Dim("vocabulary", "v")
NAMES = ("label_smoothing", "z_loss", "softcap", "reduction", "ignore_index")
FEATURES = (
    BIAS,
    Feature("label_smoothing", (float,)),
    Feature("z_loss", (float,)),
    Feature("softcap", (float,)),
    Feature("reduction", ("sum", "none"), default="mean"),
    Feature("ignore_index", (int,), default=-100),
    Feature("ignored", ("some", "all"), default="none"),
)
#: Numbers that fuzzing draws for the options.
DRAWN = {"label_smoothing": (0.1, 1.0), "z_loss": (0.01,), "softcap": (1.5,), "ignore_index": (0, -1)}


def arrays_of(draw: Draw) -> dict[str, np.ndarray | None]:
    """x, weight, target and bias."""
    dims, features = draw.dims, draw.features
    shape, tokens, depth = tuple(dims["size"]), dims["vocabulary"], dims["k"]
    arrays: dict[str, np.ndarray | None] = {
        "x": draw.array("x", (*shape, depth)),
        "weight": weight_of(draw, "weight", (tokens, depth), depth),
        "target": draw.made(shape, np.int64, lambda: _targets(draw, shape, tokens)),
    }
    if features["bias"]:
        arrays["bias"] = draw.array("bias", (tokens,))
    return arrays


def _targets(draw: Draw, shape: tuple[int, ...], tokens: int) -> np.ndarray:
    """Tokens, the first and the last among them, and ``ignore_index`` where rows are ignored."""
    targets = draw.rng("target").integers(0, tokens, shape)
    flat = targets.reshape(-1)
    flat[1:2], flat[2:3] = 0, tokens - 1
    if draw.features["ignored"] == "all":
        flat[:] = draw.features["ignore_index"]
    elif draw.features["ignored"] == "some":
        flat[::3] = draw.features["ignore_index"]
    return targets


def options_of_call(draw: Draw) -> dict[str, Any]:
    """Options that are not their defaults."""
    options = options_of(draw.features, *NAMES)
    return {name: x for name, x in options.items() if (name, x) not in (("reduction", "mean"), ("ignore_index", -100))}


def _call(draw: Draw) -> Call:
    shape = tuple(draw.dims["size"])
    options = options_of_call(draw)
    return Call(arrays_of(draw), options, (shape if options.get("reduction") == "none" else (), shape))


def copy_on_device(arrays: Mapping[str, Any]) -> None:
    """Targets in device memory, of any strides, are brought into the order of rows there."""
    # deferred: start-up
    from rocmkern.ops.rows.launch import launch_copy_integers

    labels = view_of(arrays["target"]).reshape((1, 1, 1, arrays["target"].size))
    launch_copy_integers(labels, view_of(np.empty(labels.shape, np.int32)), None)


def rows_of(case: Any) -> int:
    return int(np.prod(case.dims["size"], dtype=np.int64))


def flops(case: Any) -> float:
    """Of the product."""
    return float(2.0 * rows_of(case) * case.dims["vocabulary"] * case.dims["k"])


def read_bytes(case: Any) -> float:
    """Of x, weights, bias and targets."""
    dims, rows = case.dims, rows_of(case)
    depth = dims["k"] + (1 if case.features["bias"] else 0)
    return float(itemsize(case) * (dims["vocabulary"] * depth + rows * dims["k"]) + 8 * rows)


def loss_bytes(case: Any) -> float:
    """Of the loss, and of log-sum-exps."""
    rows = rows_of(case)
    return 4.0 * (rows + (rows if case.features["reduction"] == "none" else 1))


def _nbytes(case: Any) -> float:
    return read_bytes(case) + loss_bytes(case)


def _torch(call: Call, case: Any, target: str) -> Any:
    """PyTorch's linear layer and cross-entropy."""
    if call.options.get("z_loss") or call.options.get("softcap"):
        raise PeerUnavailable("PyTorch's cross-entropy has no z-loss and no cap")
    torch, bring = torch_on(target)
    x, weight, labels, bias = (bring(call.arrays.get(name)) for name in ("x", "weight", "target", "bias"))
    options = {
        name: call.options[name] for name in ("label_smoothing", "reduction", "ignore_index") if name in call.options
    }
    functional = torch.nn.functional

    def run() -> Any:
        with torch.no_grad():
            return functional.cross_entropy(
                functional.linear(x, weight, bias).flatten(0, -2), labels.flatten(), **options
            )

    return run


OPERATIONS = (
    Operation(
        "linear_cross_entropy",
        **oracles("linear_cross_entropy"),
        call=_call,
        excerpts=None,
        dims=(SIZE, TOKENS, DEPTH),
        arrays=("x", "weight", "target", "bias"),
        features=FEATURES,
        outputs=(Output("loss", dtype="f32"), Output("lse", dtype="f32")),
        flops=flops,
        nbytes=_nbytes,
        dense_on_device=("target",),
        only_on_device=copy_on_device,
        distinct=("target",),
        peers=(Peer("torch", _torch),),
        domain=Domain({"size": (0, 5), "vocabulary": (1, 70)}, DRAWN),
    ),
)
