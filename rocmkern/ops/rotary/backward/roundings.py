"""What the roundings of the gradients of a rotation cost; see `rocmkern.reference.roundings`."""

from __future__ import annotations

from typing import Any

import numpy as np

from rocmkern.ops.rotary import roundings

__all__ = ["rope_backward"]


def rope_backward(dout: np.ndarray, positions: np.ndarray, **options: Any) -> np.ndarray:
    """`rocmkern.reference.rope_backward`: it is a rotation itself."""
    return roundings.rope(dout, positions, **options)
