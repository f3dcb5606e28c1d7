"""The declarations of this library's own operations: what `matrix.yaml` may name. One family a file.

How arrays are made from a row's dimensions and features, what is compared with what, and what a call costs.
"""

from __future__ import annotations

from rocmkern.matrix.operations import attention, linear, quantized, steps
from rocmkern.matrix.registry import Registry

OPERATIONS = Registry(*attention.OPERATIONS, *steps.OPERATIONS, *linear.OPERATIONS, *quantized.OPERATIONS)
