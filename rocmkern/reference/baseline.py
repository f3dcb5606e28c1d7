"""The straightforward algorithm in the compute dtype: what an ordinary float32 implementation would return.

Half inputs are widened to float32, all arithmetic is float32 (float64 for float64 inputs), and the results are rounded
once to the dtype of the first argument. The error against the float64 functions of `rocmkern.reference` is the unit in
which the error of a kernel is measured. Same arguments as there.

It is the text of the reference, by its argument ``compute``. A family has a ``baseline.py`` of its own for what is not:
log-sum-exps, which stay in the compute dtype, or numbers between two products, which have the dtype of the operands.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from rocmkern.ops.precision import in_compute_dtype
from rocmkern.reference.gathered import gathered


def __getattr__(name: str) -> Callable[..., Any]:
    found = None if name.startswith("__") else gathered("baseline").get(name) or _in_compute_dtype(name)
    if found is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return found


def __dir__() -> list[str]:
    own = gathered("baseline")
    return sorted({*globals(), *own, *(name for name in gathered("reference") if _in_compute_dtype(name))})


@functools.cache
def _in_compute_dtype(name: str) -> Callable[..., Any] | None:
    """A reference in the compute dtype of its first argument, if it can be computed in other precisions."""
    reference = gathered("reference").get(name)
    if reference is None or "compute" not in inspect.signature(reference).parameters:
        return None
    return in_compute_dtype(reference)
