"""Attention over ranks in the compute dtype."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rocmkern.distributed import reference
from rocmkern.ops.precision import in_compute_dtype

__all__ = ["distributed_attention"]

distributed_attention: Callable[..., Any] = in_compute_dtype(reference.distributed_attention, lse=True)
