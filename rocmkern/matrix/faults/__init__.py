"""Seeded faults: kernels and tile operations that are wrong on purpose, to prove that the matrix would notice.

`engine` says how one is put in and what catches it; every family of operations declares its own, beside its kernels.
"""

from __future__ import annotations

from rocmkern.matrix.faults.engine import Edit, Fault, FaultError, caught_by, inject

__all__ = ["Edit", "Fault", "FaultError", "caught_by", "inject"]
