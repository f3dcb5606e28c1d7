"""Faults of `clamp`: how its kernel may be wrong, which its rows must notice."""

from __future__ import annotations

from rocmkern.matrix.faults.engine import Edit, Fault


def _fault(name: str, description: str, old: str, new: str) -> Fault:
    return Fault(name, description, ("clamp",), edits=(Edit("clamp", old, new),))


FAULTS = (
    _fault("clamp_of_nothing", "numbers are copied as they are", "T.map(between, t, low, high)", "t"),
    _fault("clamp_bounds_nan", "NaN becomes the lower bound", "T.where(x < low, low, x)", "T.maximum(x, low)"),
    _fault(
        "clamp_low_wins",
        "where the bounds are exchanged, the lower one wins",
        "T.where(raised > high, high, raised)",
        "T.where(x > high, T.maximum(high, low), raised)",
    ),
)
