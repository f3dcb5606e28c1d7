"""Attention over a cache with new rows, in the compute dtype."""

from __future__ import annotations

from typing import Any

from rocmkern.flash_attn import reference
from rocmkern.ops.precision import in_compute_dtype, rounded

__all__ = ["flash_attn_with_kvcache"]

_attention = in_compute_dtype(reference.flash_attn_with_kvcache, lse=True)


def flash_attn_with_kvcache(*arguments: Any, **named: Any) -> tuple[Any, ...]:
    """The result in the dtype of q, its log-sum-exp, and both caches in the dtype of q."""
    out, lse, *caches = _attention(*arguments, **named)
    return (out, lse, *(rounded(cache, out.dtype) for cache in caches))
