"""What the families declare in modules of one name, found by their files when it is first asked for."""

from __future__ import annotations

import functools
from collections.abc import Callable
from importlib import import_module
from typing import Any

from rocmkern.ops.places import modules


@functools.cache
def gathered(module: str) -> dict[str, Callable[..., Any]]:
    """Functions by name: all that the families' modules ``reference``, ``baseline`` or ``roundings`` name as theirs."""
    found = {}
    for name in modules(module):
        family = import_module(name)
        found.update({each: getattr(family, each) for each in family.__all__})
    return found
