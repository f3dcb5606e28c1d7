"""What the roundings of the gradients of an MLP cost; see `rocmkern.reference.roundings`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from rocmkern.ops.linear.backward.reference import activation_gradient, chosen
from rocmkern.ops.linear.backward.roundings import BENT
from rocmkern.ops.linear.reference import activated as _activated
from rocmkern.ops.linear.reference import linear
from rocmkern.ops.linear.roundings import activated, product
from rocmkern.ops.mlp.backward.reference import hidden_gradients
from rocmkern.reference.costs import STEPS, UNIT, UNITS, finite, wide

__all__ = ["mlp_backward"]


def mlp_backward(
    dout: np.ndarray,
    x: np.ndarray,
    w_gate: np.ndarray | None,
    w_up: np.ndarray,
    w_down: np.ndarray,
    *,
    activation: str | None = "silu",
    b_gate: np.ndarray | None = None,
    b_up: np.ndarray | None = None,
    b_down: np.ndarray | None = None,
    needs: Sequence[str] | None = None,
) -> Any:
    """`rocmkern.reference.mlp_backward`: h, and gradients of hidden numbers, are rounded and have costs."""
    unit = UNITS[dout.dtype.name]
    given, numbers, gates, ups, downs, bias_of_gate, bias_of_up = wide(dout, x, w_gate, w_up, w_down, b_gate, b_up)
    with np.errstate(all="ignore"):
        h, dh, dgate, dup = hidden_gradients(given, numbers, gates, ups, downs, activation, bias_of_gate, bias_of_up)
        of_dh = unit * np.abs(dh) + UNIT * np.abs(given) @ np.abs(downs)
        up, of_up = linear(numbers, ups, bias_of_up), product(x, w_up, True, b_up, None)
        if w_gate is None:
            of_h = activated(up, of_up, activation)
            of_dup = of_dh + _bent(up, dh, of_up, activation)
            costs = {"x": _sum(dup, ups, of_dup), "w_up": _sum(dup, numbers, of_dup, rows=True)}
        else:
            gate, of_gate = linear(numbers, gates, bias_of_gate), product(x, w_gate, True, b_gate, None)
            acted = _activated(gate, activation)
            of_acted = activated(gate, of_gate, activation)
            of_h = of_acted * np.abs(up) + of_up * np.abs(acted)
            of_dup = of_dh * np.abs(acted) + of_acted * np.abs(dh)
            slope = 1.13 * (of_dh * np.abs(up) + of_up * np.abs(dh))
            of_dgate = unit * np.abs(dgate) + slope + _bent(gate, dh * up, of_gate, activation)
            of_dup = of_dup + unit * np.abs(dup)
            costs = {"x": _sum(dgate, gates, of_dgate) + _sum(dup, ups, of_dup)}
            costs["w_gate"] = _sum(dgate, numbers, of_dgate, rows=True)
            costs["w_up"] = _sum(dup, numbers, of_dup, rows=True)
        costs["w_down"] = _sum(given, h, np.zeros(given.shape), rows=True, other=unit * np.abs(h) + of_h)
        for name, bias, dz, cost in (
            ("b_gate", b_gate, dgate, None if w_gate is None else of_dgate),
            ("b_up", b_up, dup, of_dup),
            ("b_down", b_down, given, np.zeros(given.shape)),
        ):
            if bias is not None:
                costs[name] = _sum(dz, np.ones((*dz.shape[:-1], 1)), cost, rows=True)[:, 0]
    found = chosen(costs, needs)
    return tuple(map(finite, found)) if isinstance(found, tuple) else finite(found)


def _bent(z: Any, dout: Any, cost: Any, activation: str | None) -> Any:
    """Cost of the slope of an activation at a sum that has a cost."""
    if activation in (None, "relu"):
        return np.zeros(z.shape)
    slope = np.abs(activation_gradient(z, np.ones(z.shape), activation))
    return np.abs(dout) * (BENT * cost + STEPS * UNIT * (1 + slope))


def _sum(left: Any, right: Any, cost: Any, rows: bool = False, other: Any = None) -> Any:
    """Cost of ``left @ right``, or of the sum over rows ``left^T @ right``, of which sides have costs."""
    if rows:
        count = left.size // max(left.shape[-1], 1) if left.shape[-1] else right.size // max(right.shape[-1], 1)
        left, cost = (x.reshape(count, left.shape[-1]).T for x in (left, cost))
        width = right.shape[-1]
        right = right.reshape(count, width)
        other = None if other is None else other.reshape(count, width)
    found = UNIT * np.abs(left) @ np.abs(right) + np.sqrt(cost**2 @ right**2)
    return found if other is None else found + np.sqrt(left**2 @ other**2)
