"""Attention in the compute dtype, which log-sum-exps keep; the result is rounded to the dtype of the first argument."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rocmkern.ops.attention import reference
from rocmkern.ops.precision import in_compute_dtype

__all__ = ["decode_attention", "flash_attention", "merge_attention"]

flash_attention: Callable[..., Any] = in_compute_dtype(reference.flash_attention, lse=True)
decode_attention: Callable[..., Any] = in_compute_dtype(reference.decode_attention, lse=True)
merge_attention: Callable[..., Any] = in_compute_dtype(reference.merge_attention, lse=True)
