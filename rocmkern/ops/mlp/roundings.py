"""What the roundings of an MLP cost; see `rocmkern.reference.roundings`."""

from __future__ import annotations

import numpy as np

from rocmkern.ops.linear import reference as _linear
from rocmkern.ops.linear.roundings import product
from rocmkern.ops.mlp import reference as _mlp
from rocmkern.reference.costs import UNITS, finite, wide

__all__ = ["mlp"]


def mlp(
    x: np.ndarray,
    w_gate: np.ndarray | None,
    w_up: np.ndarray,
    w_down: np.ndarray,
    *,
    activation: str = "silu",
    b_gate: np.ndarray | None = None,
    b_up: np.ndarray | None = None,
    b_down: np.ndarray | None = None,
) -> np.ndarray:
    """`rocmkern.reference.mlp`: what the last product multiplies is rounded to the dtype of x and has a cost."""
    unit = UNITS[x.dtype.name]
    numbers, gates, ups, bias_of_gate, bias_of_up = wide(x, w_gate, w_up, b_gate, b_up)
    hidden = _mlp.hidden(numbers, gates, ups, activation, bias_of_gate, bias_of_up)
    with np.errstate(all="ignore"):
        if w_gate is None:
            before = product(x, w_up, True, b_up, activation)
        else:
            gate = _linear.linear(numbers, gates, bias_of_gate, activation)
            up = _linear.linear(numbers, ups, bias_of_up)
            before = product(x, w_gate, True, b_gate, activation) * np.abs(up)
            before = before + product(x, w_up, True, b_up, None) * np.abs(gate)
        each = unit * np.abs(hidden) + before
        (down,) = wide(w_down)
        return finite(product(hidden, w_down, True, b_down, None) + np.sqrt(each**2 @ (down**2).swapaxes(-1, -2)))
