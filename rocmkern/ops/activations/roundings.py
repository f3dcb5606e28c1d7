"""What the roundings of the gated activations cost; see `rocmkern.reference.roundings`."""

from __future__ import annotations

import numpy as np

from rocmkern.ops.activations import reference
from rocmkern.reference.costs import STEPS, UNIT, finite, wide

__all__ = ["geglu", "swiglu"]


def swiglu(gate: np.ndarray, up: np.ndarray | None = None, *, order: str = "gate_up") -> np.ndarray:
    """`rocmkern.reference.swiglu`: the rounding of an exponent is one of a factor."""
    first, second = reference.halves(*wide(gate, up))
    exponent = np.abs(second if order == "up_gate" else first)
    with np.errstate(all="ignore"):
        return finite(UNIT * (STEPS + exponent) * np.abs(reference.swiglu(*wide(gate, up), order=order)))


def geglu(gate: np.ndarray, up: np.ndarray | None = None, *, approximate: str = "none") -> np.ndarray:
    """`rocmkern.reference.geglu`: 1 and an error function or a tangent cancel."""
    first, second = reference.halves(*wide(gate, up))
    with np.errstate(all="ignore"):
        result = np.abs(reference.geglu(*wide(gate, up), approximate=approximate))
        return finite(UNIT * (STEPS * result + np.abs(first * second)))
