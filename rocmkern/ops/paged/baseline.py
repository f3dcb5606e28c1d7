"""Attention over pages in the compute dtype."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rocmkern.ops.paged import reference
from rocmkern.ops.precision import in_compute_dtype

__all__ = ["paged_attention"]

paged_attention: Callable[..., Any] = in_compute_dtype(reference.paged_attention, lse=True)
