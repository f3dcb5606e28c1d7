"""The gradients of the cross-entropy in the compute dtype, rounded to the dtype of x."""

from __future__ import annotations

from typing import Any

from rocmkern.ops.loss.backward import reference
from rocmkern.ops.precision import compute_dtype, rounded

__all__ = ["linear_cross_entropy_backward"]


def linear_cross_entropy_backward(dloss: Any, x: Any, *arrays: Any, **options: Any) -> Any:
    """`rocmkern.reference.linear_cross_entropy_backward` in the compute dtype."""
    if "compute" not in options:
        options["compute"] = compute_dtype(x)
    found = reference.linear_cross_entropy_backward(dloss, x, *arrays, **options)
    return tuple(rounded(each, x.dtype) for each in found) if isinstance(found, tuple) else rounded(found, x.dtype)
