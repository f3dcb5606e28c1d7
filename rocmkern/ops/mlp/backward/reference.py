"""Gradients of the MLP of a transformer layer in plain NumPy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from rocmkern.ops.linear.backward.reference import activation_gradient, chosen
from rocmkern.ops.linear.reference import activated, linear

__all__ = ["mlp_backward"]


def mlp_backward(
    dout: Any,
    x: Any,
    w_gate: Any,
    w_up: Any,
    w_down: Any,
    *,
    activation: str | None = "silu",
    b_gate: Any = None,
    b_up: Any = None,
    b_down: Any = None,
    needs: Sequence[str] | None = None,
    compute: Any = np.float64,
    between: Any = np.asarray,
) -> Any:
    """Gradients of ``(activation(x @ w_gate^T + b_gate) * (x @ w_up^T + b_up)) @ w_down^T + b_down``.

    ``between`` makes of h, and of the gradients that are multiplied again, what is multiplied.
    """
    h, _, dgate, dup = hidden_gradients(dout, x, w_gate, w_up, w_down, activation, b_gate, b_up, compute, between)
    x, dout, w_up, w_down = (each.astype(compute) for each in (x, dout, w_up, w_down))
    with np.errstate(all="ignore"):
        found: dict[str, Any] = {"x": dup @ w_up}
        if w_gate is not None:
            found["x"] = dgate @ w_gate.astype(compute) + found["x"]
            found["w_gate"] = _of_weight(dgate, x)
        found["w_up"], found["w_down"] = _of_weight(dup, x), _of_weight(dout, h)
        for name, bias, dz in (("b_gate", b_gate, dgate), ("b_up", b_up, dup), ("b_down", b_down, dout)):
            if bias is not None:
                found[name] = dz.sum(axis=tuple(range(dz.ndim - 1)))
    return chosen(found, needs)


def hidden_gradients(
    dout: Any, x: Any, w_gate: Any, w_up: Any, w_down: Any, activation: str | None, b_gate: Any, b_up: Any,
    compute: Any = np.float64, between: Any = np.asarray,
) -> Any:  # fmt: skip
    """h, its gradient, and those of gate (None without one) and up."""
    with np.errstate(all="ignore"):
        dh = between(dout.astype(compute) @ w_down.astype(compute))
        up = linear(x, w_up, b_up, compute=compute)
        if w_gate is None:
            dup = dh if activation is None else between(activation_gradient(up, dh, activation))
            return between(activated(up, activation)), dh, None, dup
        gate = linear(x, w_gate, b_gate, compute=compute)
        acted = activated(gate, activation)
        dgate = dh * up if activation is None else activation_gradient(gate, dh * up, activation)
        return between(acted * up), dh, between(dgate), between(dh * acted)


def _of_weight(dz: Any, x: Any) -> Any:
    rows = dz.size // max(dz.shape[-1], 1) if dz.shape[-1] else x.size // max(x.shape[-1], 1)
    return dz.reshape(rows, dz.shape[-1]).T @ x.reshape(rows, x.shape[-1])
