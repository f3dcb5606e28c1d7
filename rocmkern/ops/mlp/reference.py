"""The MLP of a transformer layer in plain NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np

from rocmkern.ops.linear.reference import linear

__all__ = ["mlp"]


def mlp(
    x: Any,
    w_gate: Any,
    w_up: Any,
    w_down: Any,
    *,
    activation: str | None = "silu",
    b_gate: Any = None,
    b_up: Any = None,
    b_down: Any = None,
) -> Any:
    """``(activation(x @ w_gate^T + b_gate) * (x @ w_up^T + b_up)) @ w_down^T + b_down``.

    Without ``w_gate`` it is ``activation(x @ w_up^T + b_up) @ w_down^T + b_down``.
    """
    return linear(hidden(x, w_gate, w_up, activation, b_gate, b_up), w_down, b_down)


def hidden(
    x: Any, w_gate: Any, w_up: Any, activation: str | None, b_gate: Any, b_up: Any, compute: Any = np.float64
) -> Any:
    """What the last product multiplies."""
    if w_gate is None:
        return linear(x, w_up, b_up, activation, compute=compute)
    gate, up = linear(x, w_gate, b_gate, activation, compute=compute), linear(x, w_up, b_up, compute=compute)
    with np.errstate(all="ignore"):
        return gate * up
