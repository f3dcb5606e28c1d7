"""The step of attention whose dtype is an argument; the others are their references in the compute dtype."""

from __future__ import annotations

from typing import Any

import numpy as np

from rocmkern.ops.steps import reference

__all__ = ["causal_mask"]


def causal_mask(sq: int, sk: int, *, dtype: Any = np.float32, **options: Any) -> np.ndarray:
    """`rocmkern.reference.causal_mask` in `dtype`."""
    return reference.causal_mask(sq, sk, **options).astype(dtype)
