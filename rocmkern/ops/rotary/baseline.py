"""Rotated keys and values in the dtype of caches; `rope` itself is the reference in the compute dtype."""

from __future__ import annotations

from typing import Any

from rocmkern.ops.precision import compute_dtype, rounded
from rocmkern.ops.rotary.reference import put, rope

__all__ = ["rope_append_kv"]


def rope_append_kv(
    k: Any, v: Any, positions: Any, key_cache: Any, value_cache: Any, slots: Any, **options: Any
) -> tuple[Any, Any]:
    """`rocmkern.reference.rope_append_kv` in the dtype of the caches."""
    keys = k if positions is None else rounded(rope(k, positions, compute=compute_dtype(k), **options), k.dtype)
    return put(keys, key_cache, slots, k.dtype), put(v, value_cache, slots, v.dtype)
