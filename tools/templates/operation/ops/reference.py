"""The operation `new_operation`, in plain NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["new_operation"]


def new_operation(x: Any, *, compute: Any = np.float64) -> Any:
    """FILL IN: the formula; all arithmetic is in the precision ``compute``."""
    raise NotImplementedError("rocmkern/ops/new_operation/reference.py: what new_operation means")
