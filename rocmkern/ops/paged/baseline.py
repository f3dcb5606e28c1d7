"""Attention over pages in the compute dtype."""

from __future__ import annotations

from rocmkern.ops.attention.baseline import lse_kept
from rocmkern.ops.paged import reference

__all__ = ["paged_attention"]

paged_attention = lse_kept(reference.paged_attention)
