"""The precision of a baseline, and its only rounding."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import numpy as np


def compute_dtype(x: np.ndarray) -> type[np.floating[Any]]:
    """float64 for float64 arrays, else float32."""
    return np.float64 if x.dtype == np.float64 else np.float32


def rounded(result: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """A result in a dtype; what it does not hold becomes infinite."""
    with np.errstate(all="ignore"):
        return result.astype(dtype)


def in_compute_dtype(reference: Callable[..., Any], *, lse: bool = False) -> Callable[..., Any]:
    """A reference in the compute dtype of its first argument, to whose dtype its results are rounded.

    With ``lse``, a second result is a log-sum-exp, which stays in the compute dtype.
    """
    leading = next(iter(inspect.signature(reference).parameters))

    @functools.wraps(reference)
    def baseline(*arguments: Any, **named: Any) -> Any:
        first = arguments[0] if arguments else named[leading]
        results = reference(*arguments, **named, compute=compute_dtype(first))
        if not isinstance(results, tuple):
            return rounded(results, first.dtype)
        kept = 1 if lse else len(results)
        return (*(rounded(result, first.dtype) for result in results[:kept]), *results[kept:])

    return baseline
