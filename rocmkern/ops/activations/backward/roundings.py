"""What the roundings of the gradients of gated activations cost; see `rocmkern.reference.roundings`."""

from __future__ import annotations

from typing import Any

import numpy as np

from rocmkern.ops.activations import reference
from rocmkern.reference.costs import STEPS, UNIT, finite, wide

__all__ = ["geglu_backward", "swiglu_backward"]


def swiglu_backward(dout: np.ndarray, gate: np.ndarray, up: np.ndarray | None = None, *, order: str = "gate_up") -> Any:
    """`rocmkern.reference.swiglu_backward`: the rounding of an exponent is one of a factor; a slope is a sum of two."""
    return _costs(dout, gate, up, reference.silu, order == "up_gate")


def geglu_backward(
    dout: np.ndarray, gate: np.ndarray, up: np.ndarray | None = None, *, approximate: str = "none"
) -> Any:
    """`rocmkern.reference.geglu_backward`: 1 and an error function or a tangent cancel."""
    return _costs(dout, gate, up, lambda x: reference.gelu(x, approximate), False)


def _costs(dout: np.ndarray, gate: np.ndarray, up: np.ndarray | None, function: Any, up_first: bool) -> Any:
    dout, *pair = wide(dout, *reference.halves(gate, up))
    acted, factor = pair[::-1] if up_first else pair
    with np.errstate(all="ignore"):
        costs = [
            finite(STEPS * UNIT * np.abs(dout * factor)),
            finite(UNIT * np.abs(dout) * (STEPS * np.abs(function(acted)) + np.abs(acted))),
        ]
    costs = costs[::-1] if up_first else costs
    return np.concatenate(costs, axis=-1) if up is None else tuple(costs)
