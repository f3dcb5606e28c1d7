"""Faults of `new_operation`: how its kernel may be wrong, which its rows must notice."""

from __future__ import annotations

from rocmkern.matrix.faults.engine import Edit, Fault

FAULTS = (
    Fault(
        "new_operation_of_nothing",
        "numbers are copied as they are",
        ("new_operation",),
        edits=(Edit("new_operation", "T.map(of_number, t)", "t"),),
    ),
)
