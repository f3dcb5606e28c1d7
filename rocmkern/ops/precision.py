"""The precision of a baseline, and its only rounding."""

from __future__ import annotations

import numpy as np


def compute_dtype(x):
    return np.float64 if x.dtype == np.float64 else np.float32


def rounded(result, dtype):
    with np.errstate(all="ignore"):
        return result.astype(dtype)
