"""RMS norms of a model by `rocmkern.rms_norm`.

A module is one if its class is called so and its replica computes ``x / sqrt(mean(x^2) + eps) * (weight + offset)``,
with an offset of 0, or 1 as in Gemma.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

import rocmkern
from rocmkern.transformers.replicas import CLOSE, difference, random, replica, why

_LENGTH = 16


def norm_replacement(module: torch.nn.Module) -> Callable[..., Any] | str | None:
    """The forward for a norm, the reason why it stays as it is, or None for another module."""
    if not type(module).__name__.endswith("RMSNorm"):
        return None
    weight = module._parameters.get("weight")
    eps = next((getattr(module, name) for name in ("variance_epsilon", "eps") if hasattr(module, name)), None)
    if weight is None or weight.dim() != 1 or set(module._parameters) != {"weight"} or not isinstance(eps, float):
        return "it has more or less than a weight for each column and an eps"
    x, small = 2 * random(3, _LENGTH), random(_LENGTH, seed=1)
    try:
        with torch.no_grad():
            found = replica(module, parameters={"weight": small})(x)
            mixed = replica(module, parameters={"weight": small})(x.to(torch.bfloat16)).dtype
    except Exception as error:
        return f"a small one cannot be run ({why(error)})"
    wide = x.double()
    normed = wide / (wide.pow(2).mean(-1, keepdim=True) + eps).sqrt()
    for offset in (0.0, 1.0):
        if difference(found, normed * (small.double() + offset)) < CLOSE:
            return partial(_forward, eps=eps, offset=offset, follows_x=mixed is torch.bfloat16)
    return "it is another formula than x / sqrt(mean(x^2) + eps) * (weight + 0 or 1)"


def _forward(
    self: torch.nn.Module, hidden_states: torch.Tensor, *, eps: float, offset: float, follows_x: bool
) -> torch.Tensor:
    """Where the result does not follow x, a weight of a wider type makes it wider."""
    weight: Any = self.weight
    if hidden_states.dtype is not weight.dtype and not follows_x:
        hidden_states = hidden_states.to(torch.promote_types(hidden_states.dtype, weight.dtype))
    return rocmkern.rms_norm(hidden_states, weight, eps, weight_offset=offset)
