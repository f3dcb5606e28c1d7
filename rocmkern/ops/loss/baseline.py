"""The cross-entropy in the compute dtype, in which its results stay."""

from __future__ import annotations

from typing import Any

from rocmkern.ops.loss import reference
from rocmkern.ops.precision import compute_dtype

__all__ = ["linear_cross_entropy"]


def linear_cross_entropy(x: Any, weight: Any, target: Any, **options: Any) -> Any:
    """`rocmkern.reference.linear_cross_entropy` in the compute dtype."""
    return reference.linear_cross_entropy(x, weight, target, **options, compute=compute_dtype(x))
