"""Faults of the lowerings, by what they are about; `rocmkern.matrix.faults.lowering` says how they are put in."""

from __future__ import annotations

from rocmkern.matrix.faults.lowering import LoweringFault
from rocmkern.matrix.faults.lowerings import cpu, cuda, hip, shared

LOWERING_FAULTS: dict[str, LoweringFault] = {
    fault.name: fault for family in (shared, cpu, hip, cuda) for fault in family.FAULTS
}
