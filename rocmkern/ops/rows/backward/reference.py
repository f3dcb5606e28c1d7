"""Gradients of operations that move elements, in plain NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["embedding_backward"]


def embedding_backward(dout: Any, table: Any, indices: Any, *, compute: Any = np.float64) -> Any:
    """Rows of dout added up, by the row of the table that each was taken from."""
    total = np.zeros(table.shape, compute)
    with np.errstate(all="ignore"):
        np.add.at(total, indices.reshape(-1), dout.astype(compute).reshape(indices.size, table.shape[1]))
    return total
