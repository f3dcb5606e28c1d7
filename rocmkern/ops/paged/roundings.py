"""What the roundings of attention over pages cost; see `rocmkern.reference.roundings`."""

from __future__ import annotations

from typing import Any

import numpy as np

from rocmkern.ops.attention.roundings import attended
from rocmkern.ops.paged import reference as _paged

__all__ = ["paged_attention"]


def paged_attention(
    q: np.ndarray,
    key_cache: np.ndarray,
    value_cache: np.ndarray,
    *tables: np.ndarray,
    key_scale: np.ndarray | None = None,
    value_scale: np.ndarray | None = None,
    num_splits: int | None = None,
    return_lse: bool = False,
    **options: Any,
) -> np.ndarray | tuple[np.ndarray, np.ndarray]:
    """`rocmkern.reference.paged_attention`, as `flash_attention`."""

    def decoded(cache: np.ndarray, factor: np.ndarray | None) -> np.ndarray:
        cache = cache.astype(np.float64)
        return cache if factor is None else cache * factor.astype(np.float64)[:, None]

    def attention(q: np.ndarray, k: np.ndarray, v: np.ndarray, **options: Any) -> Any:
        return _paged.paged_attention(q, k, v, *tables, **options)

    keys, values = decoded(key_cache, key_scale), decoded(value_cache, value_scale)
    return attended(attention, q, keys, values, options, return_lse, rows_first=True)
