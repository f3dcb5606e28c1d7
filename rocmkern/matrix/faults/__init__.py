"""Seeded faults: kernels and tile operations that are wrong on purpose, to prove that the matrix would notice.

`engine` says how one is put in and what catches it; every family of operations has a file of its own.
"""

from __future__ import annotations

from rocmkern.matrix.faults import (
    attention,
    linear,
    norm,
    quantized,
    rotary,
    runtime,
    sampling,
)
from rocmkern.matrix.faults.engine import Edit, Fault, FaultError, caught_by, inject

FAMILIES = (
    attention,
    linear,
    norm,
    rotary,
    quantized,
    sampling,
    runtime,
)
FAULTS: dict[str, Fault] = {fault.name: fault for family in FAMILIES for fault in family.FAULTS}

__all__ = ["FAULTS", "Edit", "Fault", "FaultError", "caught_by", "inject"]
