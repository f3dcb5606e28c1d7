"""The declarations of this library's own operations: what `matrix.yaml` may name. One family a file.

How arrays are made from a row's dimensions and features, what is compared with what, and what a call costs.
"""

from __future__ import annotations

from rocmkern.matrix.faults import FAULTS
from rocmkern.matrix.operations import (
    activations,
    attention,
    decoder,
    gather,
    linear,
    norm,
    quantized,
    rotary,
    sampling,
    steps,
)
from rocmkern.matrix.registry import Registry

FAMILIES = (
    attention,
    steps,
    norm,
    activations,
    gather,
    linear,
    rotary,
    quantized,
    sampling,
    decoder,
)
OPERATIONS = Registry(*(each for family in FAMILIES for each in family.OPERATIONS), faults=FAULTS.values())
