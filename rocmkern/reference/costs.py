"""Unit roundoffs, and what the formulas of `rocmkern.reference.roundings` share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

#: Unit roundoff of float32, and of the dtypes that a kernel may keep numbers in between two products.
UNIT = 2.0**-24
UNITS = {"float32": UNIT, "float16": 2.0**-11, "bfloat16": 2.0**-8}
#: Operations in a row of an exponential, an activation or a norm: shift, scale, power of two, sum, quotient.
STEPS = 4


def finite(values: Any) -> np.ndarray:
    """Costs with 0 where magnitudes are not finite."""
    values = np.asarray(values, np.float64)
    return np.where(np.isfinite(values), values, 0.0)


def wide(*arrays: Any) -> Iterator[Any]:
    """The arrays in float64; None for one that is not there."""
    return (None if x is None else np.asarray(x).astype(np.float64) for x in arrays)
