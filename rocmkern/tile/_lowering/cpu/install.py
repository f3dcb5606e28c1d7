"""The tile language made known to numba's CPU target."""

from __future__ import annotations

import functools
from collections.abc import Callable

from numba.core.registry import cpu_target

from rocmkern.tile._lowering.cpu.backend import NUMBA, TILE
from rocmkern.tile._lowering.cpu.products import CpuLowering
from rocmkern.tile.binding import bind, bind_functions


@functools.cache
def _install_operations() -> None:
    bind(NUMBA, TILE, CpuLowering(NUMBA, TILE))
    # numba puts what it compiles lazily into the first registry it finds: its own must be there before ours.
    cpu_target.target_context.refresh()
    cpu_target.target_context.install_registry(NUMBA.lowering_registry)


def install(kernel: Callable | None = None) -> None:
    """Make the tile language, device functions defined so far, and a kernel's functions known to numba's CPU target."""
    _install_operations()
    bind_functions(NUMBA, TILE, kernel)
    cpu_target.typing_context.install_registry(NUMBA.typing_registry)
