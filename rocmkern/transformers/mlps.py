"""Gated MLPs of a model by `rocmkern.mlp`.

A module is one if its parts are linear layers ``gate_proj``, ``up_proj`` and ``down_proj``, or ``gate_up_proj`` with
both behind one another, and its replica computes ``(activation(x @ gate^T) * (x @ up^T)) @ down^T`` with an activation
that the kernel has.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import torch
from torch.nn import functional

import rocmkern
from rocmkern.transformers.replicas import CLOSE, difference, random, replica, why

_THREE, _TWO = ("gate_proj", "up_proj", "down_proj"), ("gate_up_proj", "down_proj")
_WIDTH, _HIDDEN = 8, 12
#: Where a module keeps who waits for it to be called.
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
Activation = Literal["silu", "gelu", "gelu_tanh", "relu"]
_ACTIVATIONS: dict[Activation, Callable[[torch.Tensor], torch.Tensor]] = {
    "silu": functional.silu,
    "gelu": functional.gelu,
    "gelu_tanh": lambda x: functional.gelu(x, approximate="tanh"),
    "relu": functional.relu,
}


def mlp_replacement(module: torch.nn.Module) -> Callable[..., Any] | str | None:
    """The forward for an MLP, the reason why it stays as it is, or None for another module."""
    parts = module._modules
    names = next((names for names in (_THREE, _TWO) if set(names) <= set(parts)), None)
    if names is None:
        return "it is a mixture of experts" if "experts" in parts else None
    other = next((name for name in names if not _plain(parts, (name,))), None)
    if other is not None:
        return f"its {other} is no plain torch.nn.Linear"
    small = _small(module, names)
    x = 2 * random(5, _WIDTH, seed=9)
    try:
        with torch.no_grad():
            found = replica(module, modules=small)(x)
    except Exception as error:
        return f"a small one cannot be run ({why(error)})"
    for name, activation in _ACTIVATIONS.items():
        if difference(found, _formula(x.double(), small, activation)) < CLOSE:
            return partial(_of_three if names is _THREE else _of_two, activation=name)
    return f"it is another formula than down(activation(gate(x)) * up(x)) with one of {', '.join(_ACTIVATIONS)}"


def _small(module: torch.nn.Module, names: tuple[str, ...]) -> dict[str, torch.nn.Module]:
    """Linear layers of a few numbers, with biases where the module's have some."""
    sizes = {"gate_proj": (_HIDDEN, _WIDTH), "up_proj": (_HIDDEN, _WIDTH), "gate_up_proj": (2 * _HIDDEN, _WIDTH)}
    made: dict[str, torch.nn.Module] = {}
    for seed, name in enumerate(names):
        rows, columns = sizes.get(name, (_WIDTH, _HIDDEN))
        biased = getattr(module, name).bias is not None
        layer = torch.nn.Linear(columns, rows, bias=biased, device="meta")
        layer.weight = torch.nn.Parameter(random(rows, columns, seed=seed), requires_grad=False)
        if biased:
            layer.bias = torch.nn.Parameter(random(rows, seed=seed + 4), requires_grad=False)
        made[name] = layer
    return made


def _formula(x: torch.Tensor, small: dict[str, torch.nn.Module], activation: Callable[..., Any]) -> torch.Tensor:
    def product(name: str, x: torch.Tensor) -> torch.Tensor:
        layer: Any = small[name]
        return functional.linear(x, layer.weight.double(), None if layer.bias is None else layer.bias.double())

    gate, up = product("gate_up_proj", x).chunk(2, -1) if len(small) == 2 else (product(n, x) for n in _THREE[:2])
    return product("down_proj", activation(gate) * up)


def _plain(parts: dict[str, Any], names: tuple[str, ...]) -> bool:
    """Whether the layers are still what they were: adapters are put in their place, later than this one maybe."""
    return all(map(_is_plain, [parts[name] for name in names]))


def _is_plain(layer: Any) -> bool:
    """Whether a layer is nothing but its formula with its own weight, and nobody waits for it to be called."""
    known = layer.__dict__
    hooked = any([known[kind] for kind in _HOOKS])
    return type(layer) is torch.nn.Linear and "forward" not in known and not hooked and "weight" in known["_parameters"]


def _of_three(self: Any, x: torch.Tensor, *, activation: Activation) -> torch.Tensor:
    parts = self._modules
    if not _plain(parts, _THREE):
        return type(self).forward(self, x)
    gate, up, down = parts["gate_proj"]._parameters, parts["up_proj"]._parameters, parts["down_proj"]._parameters
    return rocmkern.mlp(
        x,
        gate["weight"],
        up["weight"],
        down["weight"],
        activation=activation,
        b_gate=gate["bias"],
        b_up=up["bias"],
        b_down=down["bias"],
    )


def _of_two(self: Any, hidden_states: torch.Tensor, *, activation: Activation) -> torch.Tensor:
    parts = self._modules
    if not _plain(parts, _TWO):
        return type(self).forward(self, hidden_states)
    both, down = parts["gate_up_proj"]._parameters, parts["down_proj"]._parameters
    gate, up = both["weight"].chunk(2)
    b_gate, b_up = (None, None) if both["bias"] is None else both["bias"].chunk(2)
    return rocmkern.mlp(
        hidden_states,
        gate,
        up,
        down["weight"],
        activation=activation,
        b_gate=b_gate,
        b_up=b_up,
        b_down=down["bias"],
    )
