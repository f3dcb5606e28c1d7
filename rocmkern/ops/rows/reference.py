"""Operations that move elements, in plain NumPy. They are exact in every precision."""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["embedding", "transpose"]


def embedding(table: Any, indices: Any, *, compute: Any = np.float64) -> Any:
    """``table[indices]``."""
    return table[indices].astype(compute)


def transpose(x: Any, axes: Any = None, *, compute: Any = np.float64) -> Any:
    """The axes of x in another order."""
    return np.ascontiguousarray(x.transpose(axes)).astype(compute)
