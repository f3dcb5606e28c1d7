"""What the roundings of the gradients of gated activations cost; see `rocmkern.reference.roundings`."""

from __future__ import annotations

from typing import Any

import numpy as np

from rocmkern.ops.activations import reference
from rocmkern.ops.activations.backward.reference import gelu_slope, silu_slope
from rocmkern.reference.costs import STEPS, UNIT, finite, wide

__all__ = ["geglu_backward", "swiglu_backward"]


def swiglu_backward(dout: np.ndarray, gate: np.ndarray, up: np.ndarray | None = None, *, order: str = "gate_up") -> Any:
    """`rocmkern.reference.swiglu_backward`: the rounding of an exponent is one of a factor; a slope is a sum of two."""
    return _costs(dout, gate, up, reference.silu, silu_slope, order == "up_gate")


def geglu_backward(
    dout: np.ndarray, gate: np.ndarray, up: np.ndarray | None = None, *, approximate: str = "none"
) -> Any:
    """`rocmkern.reference.geglu_backward`: 1 and an error function or a tangent cancel."""
    function, slope = ((lambda x, of=of: of(x, approximate)) for of in (reference.gelu, gelu_slope))
    return _costs(dout, gate, up, function, slope, False)


def _costs(dout: np.ndarray, gate: np.ndarray, up: np.ndarray | None, function: Any, slope: Any, up_first: bool) -> Any:
    dout, *pair = wide(dout, *reference.halves(gate, up))
    acted, factor = pair[::-1] if up_first else pair
    with np.errstate(all="ignore"):
        costs = [
            finite(STEPS * UNIT * np.abs(dout * factor) * _terms(acted, function(acted), slope(acted))),
            finite(UNIT * np.abs(dout) * (STEPS * np.abs(function(acted)) + np.abs(acted))),
        ]
    costs = costs[::-1] if up_first else costs
    return np.concatenate(costs, axis=-1) if up is None else tuple(costs)


def _terms(x: np.ndarray, function: np.ndarray, slope: np.ndarray) -> np.ndarray:
    """Sizes of what a slope is the sum of: below 0 a share and a product with x, above 0 what is left of 1."""
    share = np.where(x < 0, function / np.where(x < 0, x, 1.0), 1.0)
    return np.where(x < 0, share + np.abs(slope - share), 1.0)
