"""What the roundings of the gradients of operations that move elements cost; see `rocmkern.reference.roundings`."""

from __future__ import annotations

import numpy as np

from rocmkern.ops.rows.backward import reference
from rocmkern.reference.costs import UNIT, finite, wide

__all__ = ["embedding_backward"]


def embedding_backward(dout: np.ndarray, table: np.ndarray, indices: np.ndarray) -> np.ndarray:
    """`rocmkern.reference.embedding_backward`: sums."""
    (dout,) = wide(dout)
    return finite(UNIT * reference.embedding_backward(np.abs(dout), table, indices))
