"""What the roundings of attention over pages cost; see `rocmkern.reference.roundings`."""

from __future__ import annotations

import numpy as np

from rocmkern.ops.attention.roundings import attended
from rocmkern.ops.paged import reference as _paged

__all__ = ["paged_attention"]


def paged_attention(
    q, key_cache, value_cache, *tables, key_scale=None, value_scale=None, num_splits=None, return_lse=False, **options
):
    """`rocmkern.reference.paged_attention`, as `flash_attention`."""
    caches = []
    for cache, factor in ((key_cache, key_scale), (value_cache, value_scale)):
        cache = cache.astype(np.float64)
        caches.append(cache if factor is None else cache * factor.astype(np.float64)[:, None])

    def attention(q, k, v, **options):
        return _paged.paged_attention(q, k, v, *tables, **options)

    return attended(attention, q, *caches, options, return_lse, rows_first=True)
