"""The tile language made known to numba-hip."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import SimpleNamespace

from llvmlite import ir

from rocmkern import tile as T
from rocmkern.tile import entry
from rocmkern.tile._lowering.hip.backend import NUMBA, TILE
from rocmkern.tile._lowering.hip.layouts import checked, rule_of_softmax_step
from rocmkern.tile._lowering.hip.products import HipLowering
from rocmkern.tile.binding import bind, bind_functions


@functools.cache
def _install_operations() -> None:
    # numba-hip rewrites llvmlite's typed pointers (``i8*``) to opaque ones, but not pointers to vectors and arrays.
    ir.types.ir_layer_typed_pointers_enabled = False
    rules = {op: checked(rule) for op, rule in TILE.rules.items()}
    rules[T.softmax_step] = rule_of_softmax_step(rules[T.softmax_step])
    rules[entry.argument] = lambda x, number: x
    tile = SimpleNamespace(**{**vars(TILE), "rules": rules})
    bind(NUMBA, tile, HipLowering(NUMBA, tile))


def install(kernel: Callable | None = None) -> None:
    """Make the tile language, the device functions defined so far and a kernel's functions known to numba-hip."""
    _install_operations()
    bind_functions(NUMBA, TILE, kernel)  # numba-hip looks at its registries again before each compilation
