"""What a compiler leaves behind: reference cycles that must be gone when a launch returns."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collected() -> Iterator[None]:
    """Free the reference cycles that the block leaves.

    Numba leaves exceptions in them, which keep our callers' arrays alive through their frames. No collection runs
    within the block, so all of them are in the youngest generation behind it: finding them takes time in proportion to
    what the block has made, and not to everything that lives in the process.
    """
    enabled = gc.isenabled()
    try:
        gc.disable()
        yield
    finally:
        if enabled:
            gc.enable()
        gc.collect(0)
