"""Numbers between two bounds, in plain NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["clamp"]


def clamp(x: Any, min: float | None = None, max: float | None = None, *, compute: Any = np.float64) -> Any:
    """``min(max(x, min), max)``, without a bound that is None; NaN stays NaN."""
    x = x.astype(compute)
    x = x if min is None else np.maximum(x, compute(min))
    return x if max is None else np.minimum(x, compute(max))
