"""What a kernel is made of: itself, the device functions that it reaches, and functions of numbers that they name.

A function that a kernel or a device function names, and that is neither a device function nor an operation, can only be
meant for `map`; so can one that such a function names. A change in any of them changes what is compiled.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable
from typing import Any

from rocmkern.tile.language.kernel import DEVICE_FUNCTIONS
from rocmkern.tile.language.operation import OF_FUNCTION


def named_by(fn: Callable[..., Any]) -> list[tuple[str, Any]]:
    """Globals that a function names, and what it may take from the modules among them, in the order of its code."""
    names = fn.__code__.co_names
    found = [(name, fn.__globals__[name]) for name in names if name in fn.__globals__]
    modules = [value for _, value in found if isinstance(value, types.ModuleType)]
    return found + [(name, getattr(m, name)) for m in modules for name in names if hasattr(m, name)]


def is_device_function(value: Any) -> bool:
    """Whether a kernel can call it as a part of itself."""
    return any(value is each for each in DEVICE_FUNCTIONS)


def is_of_numbers(value: Any) -> bool:
    """Whether a function that is named may be meant for `map`."""
    return inspect.isfunction(value) and value not in OF_FUNCTION and not is_device_function(value)


def reached(kernel: Callable[..., Any]) -> list[Callable[..., Any]]:
    """A kernel and the functions that it reaches, in an order that follows from their code."""
    seen: dict[Callable[..., Any], None] = {}
    waiting = [kernel]
    while waiting:
        fn = waiting.pop()
        if fn not in seen:
            seen[fn] = None
            waiting += [value for _, value in named_by(fn) if is_device_function(value) or is_of_numbers(value)]
    return list(seen)


def functions_of_numbers(kernel: Callable[..., Any]) -> list[Callable[..., Any]]:
    """Those of them that `map` may be given."""
    return [fn for fn in reached(kernel)[1:] if not is_device_function(fn)]
