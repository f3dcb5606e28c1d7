"""Attention in the compute dtype, which log-sum-exps keep; the result is rounded to the dtype of the first argument."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import numpy as np

from rocmkern.ops.attention import reference
from rocmkern.ops.precision import compute_dtype, rounded

__all__ = ["decode_attention", "flash_attention", "merge_attention"]


def lse_kept(attention: Callable[..., Any]) -> Callable[..., Any]:
    """The baseline of a reference that returns a result, or a result and its log-sum-exp."""

    leading = next(iter(inspect.signature(attention).parameters))

    @functools.wraps(attention)
    def baseline(*arrays: np.ndarray, **named: Any) -> Any:
        first = arrays[0] if arrays else named[leading]
        results = attention(*arrays, **named, compute=compute_dtype(first))
        if isinstance(results, tuple):
            return rounded(results[0], first.dtype), results[1]
        return rounded(results, first.dtype)

    return baseline


flash_attention = lse_kept(reference.flash_attention)
decode_attention = lse_kept(reference.decode_attention)
merge_attention = lse_kept(reference.merge_attention)
