"""Settings of the memory manager that tests and debugging change."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from rocmkern.runtime.errors import ArgumentError

VARIABLE = "ROCMKERN_MEMORY"


@dataclass(frozen=True)
class MemorySettings:
    """How buffers are made.

    Attributes
    ----------
    pool : bool
        Keep dead buffers for reuse (default). Off, every buffer is fresh and freed at once.
    poison : bool
        Fill fresh and returned buffers with bytes 0xFF, which are NaN, so that an element that a kernel left out and a
        read after the end of a buffer's life show. `ResourceManager.zeros` still gives zeros.
    guard : bool
        Put random NaN on both sides of every buffer, for `ResourceManager.check_guards`.
    """

    pool: bool = True
    poison: bool = False
    guard: bool = False

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] = os.environ) -> MemorySettings:
        """Read ``ROCMKERN_MEMORY``: a comma-separated list of ``nopool``, ``poison``, ``guard``."""
        words = {word.strip() for word in environ.get(VARIABLE, "").split(",")} - {""}
        unknown = words - {"nopool", "poison", "guard"}
        if unknown:
            raise ArgumentError(VARIABLE, ", ".join(sorted(unknown)), "a list of nopool, poison, guard")
        return cls(pool="nopool" not in words, poison="poison" in words, guard="guard" in words)
