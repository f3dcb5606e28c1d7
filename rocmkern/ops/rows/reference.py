"""Operations that move elements, in plain NumPy."""

from __future__ import annotations

import numpy as np


def embedding(table, indices):
    """``table[indices]``; exact, returned in float64."""
    return table[indices].astype(np.float64)


def transpose(x, axes=None):
    """The axes of x in another order; exact, returned in float64."""
    return np.ascontiguousarray(x.transpose(axes)).astype(np.float64)
