"""What the roundings of an MLP cost; see `rocmkern.reference.roundings`."""

from __future__ import annotations

import numpy as np

from rocmkern.ops.linear import reference as _linear
from rocmkern.ops.linear.roundings import product
from rocmkern.ops.mlp import reference as _mlp
from rocmkern.reference.costs import UNITS, finite, wide

__all__ = ["mlp"]


def mlp(x, w_gate, w_up, w_down, *, activation="silu", b_gate=None, b_up=None, b_down=None):
    """`rocmkern.reference.mlp`: what the last product multiplies is rounded to the dtype of x and has a cost."""
    unit = UNITS[x.dtype.name]
    hidden = _mlp.hidden(*wide(x, w_gate, w_up), activation, *wide(b_gate, b_up))
    with np.errstate(all="ignore"):
        if w_gate is None:
            before = product(x, w_up, True, b_up, activation)
        else:
            gate = _linear.linear(*wide(x, w_gate, b_gate), activation)
            up = _linear.linear(*wide(x, w_up, b_up))
            before = product(x, w_gate, True, b_gate, activation) * np.abs(up)
            before = before + product(x, w_up, True, b_up, None) * np.abs(gate)
        each = unit * np.abs(hidden) + before
        (down,) = wide(w_down)
        return finite(product(hidden, w_down, True, b_down, None) + np.sqrt(each**2 @ (down**2).swapaxes(-1, -2)))
