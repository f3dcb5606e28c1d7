"""What the roundings of a rotation cost; see `rocmkern.reference.roundings`."""

from __future__ import annotations

from typing import Any

import numpy as np

from rocmkern.reference.costs import STEPS, UNIT, wide

__all__ = ["rope", "rope_append_kv"]


def rope(x: np.ndarray, positions: np.ndarray, **options: Any) -> np.ndarray:
    """`rocmkern.reference.rope`: two products of numbers with a sine and a cosine, which are rounded themselves."""
    (x,) = wide(x)
    largest = np.where(np.isfinite(x), np.abs(x), 0.0).max(axis=-1, keepdims=True, initial=0.0)
    return np.broadcast_to(STEPS * UNIT * largest, x.shape)


def rope_append_kv(
    k: np.ndarray,
    v: np.ndarray,
    positions: np.ndarray | None,
    key_cache: np.ndarray,
    value_cache: np.ndarray,
    slots: np.ndarray,
    **options: Any,
) -> tuple[np.ndarray, np.ndarray]:
    """`rocmkern.reference.rope_append_kv`: rotated keys as in `rope`, values are copied."""
    largest = max((float(np.abs(x[np.isfinite(x)]).max(initial=0.0)) for x in wide(k)), default=0.0)
    return np.full(key_cache.shape, STEPS * UNIT * largest), np.zeros(value_cache.shape)
