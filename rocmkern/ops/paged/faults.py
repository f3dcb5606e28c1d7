"""Faults of attention over pages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from rocmkern.matrix.faults.engine import Edit, Fault

PAGED = ("paged_attention", "paged_attention_packed")


def _pages_in_order(right: Callable[..., Any]) -> Callable[..., Any]:
    def paged(st: Any, cache: Any, head: int, table: Any, stop: int) -> Any:
        pages = table.view(np.ndarray)
        return right(st, cache, head, np.sort(pages[pages >= 0]), stop)

    return paged


def _first_head(right: Callable[..., Any]) -> Callable[..., Any]:
    return lambda st, cache, head, table, stop: right(st, cache, 0, table, stop)


def _last_key_left(right: Callable[..., Any]) -> Callable[..., Any]:
    return lambda st, cache, head, table, stop: right(st, cache, head, table, stop - 1)


FAULTS = (
    Fault("pages_in_order", "pages are read in ascending order", PAGED, replace={"paged": _pages_in_order}),
    Fault("pages_of_first_head", "every head reads the first one", PAGED, replace={"paged": _first_head}),
    Fault("pages_last_key", "the last key of a sequence is not read", PAGED, replace={"paged": _last_key_left}),
    Fault(
        "key_scale_left_out",
        "quantized keys are not scaled",
        PAGED,
        edits=(Edit("flash_attention", "scale = scale * key_scale[kv_head]", "scale = scale * 1.0"),),
    ),
    Fault(
        "value_scale_of_first_head",
        "every head takes the value scale of the first one",
        PAGED,
        edits=(Edit("flash_attention", "value_factor = value_scale[kv_head]", "value_factor = value_scale[0]"),),
    ),
)
