"""What the common parameters of flash-attn's functions mean, in this library's words.

Minus one in a window, and a softcap that is not positive, are how flash-attn says "none".
"""

from __future__ import annotations

import operator
from typing import Any, TypedDict

from rocmkern.calls import checks as _checks
from rocmkern.calls.types import Window
from rocmkern.calls.view import describe
from rocmkern.runtime.errors import ArgumentError, ArgumentTypeError


class Options(TypedDict):
    """Those of `rocmkern.flash_attention` and of `rocmkern.paged_attention`."""

    causal: bool
    window: Window
    scale: float | None
    softcap: float | None
    alibi_slopes: Any


def options_of(softmax_scale: Any, causal: Any, window_size: Any, softcap: Any, alibi_slopes: Any) -> Options:
    """Checked options from flash-attn's arguments; errors have flash-attn's names."""
    cap = _checks.number("softcap", softcap)
    return {
        "causal": _checks.flag("causal", causal),
        "window": window_of(window_size),
        "scale": None if softmax_scale is None else _checks.number("softmax_scale", softmax_scale),
        "softcap": cap if cap > 0 else None,
        "alibi_slopes": alibi_slopes,
    }


def window_of(window_size: Any) -> Window:
    """``(left, right)`` with None where a side is negative, which stands for no limit."""
    try:
        left, right = (operator.index(side) for side in window_size)
    except (TypeError, ValueError):
        allowed = "a pair of integers (left, right), negative for no limit"
        raise ArgumentTypeError("window_size", _shown(window_size), allowed) from None
    return (left if left >= 0 else None), (right if right >= 0 else None)


def _shown(value: Any) -> str:
    return repr(value) if isinstance(value, (tuple, list, int, float, type(None))) else describe(value)


def without_dropout(dropout_p: Any, deterministic: Any) -> None:
    """Refuse dropout; the result is deterministic, whether that is asked for or not."""
    _checks.flag("deterministic", deterministic)
    if _checks.number("dropout_p", dropout_p) != 0.0:
        allowed = "0.0: there is no dropout here (model.eval() sets it to 0 in most)"
        raise ArgumentError("dropout_p", repr(dropout_p), allowed)


def unstacked(name: str, x: Any, axes: str) -> tuple[Any, ...]:
    """The arrays stacked in an array, by slices: views of the kind of x, nothing is copied.

    The axes have their names in `axes`; the one they are stacked in has its length there: ``"B S 3 H D"``.
    """
    parts = axes.split()
    axis, count = next((i, int(part)) for i, part in enumerate(parts) if part.isdigit())
    shape = getattr(x, "shape", None)
    if shape is None:
        raise ArgumentTypeError(name, describe(x), f"an array [{', '.join(parts)}]")
    if len(shape) != len(parts) or shape[axis] != count:
        raise ArgumentError(name, f"shape {tuple(shape)}", f"{len(parts)} axes [{', '.join(parts)}]")
    before = (slice(None),) * axis
    return tuple(x[(*before, i)] for i in range(count))
