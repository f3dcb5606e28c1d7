"""Values of a checkpoint's configuration, which may be anything: of the kind that is needed, or an error by name."""

from __future__ import annotations

import math
from typing import Any

from rocmkern.checkpoint.names import shown
from rocmkern.runtime.errors import CheckpointError

#: No size of a model is larger.
LARGEST_SIZE = 2**31 - 1


def size(value: Any, name: str) -> int:
    """A whole number of at least 1."""
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= LARGEST_SIZE:
        raise CheckpointError(f"{name} is {shown(value)}, not a whole number from 1 to {LARGEST_SIZE}")
    return value


def number(value: Any, name: str) -> float:
    """A finite number."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) < math.inf:
        raise CheckpointError(f"{name} is {shown(value)}, not a finite number")
    try:
        return float(value)
    except OverflowError:
        raise CheckpointError(f"{name} is {shown(value)}, beyond what a float is") from None


def one_of(value: Any, name: str, known: Any) -> Any:
    """One of some words."""
    if not isinstance(value, str) or value not in known:
        raise CheckpointError(f"{name} is {shown(value)}; known are {', '.join(known)}")
    return value
