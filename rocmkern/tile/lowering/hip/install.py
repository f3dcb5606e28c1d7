"""The tile language made known to numba-hip."""

from __future__ import annotations

import functools
from types import SimpleNamespace

from llvmlite import ir

from rocmkern.tile import api
from rocmkern.tile.binding import bind, bind_device_functions
from rocmkern.tile.lowering.hip.backend import NUMBA, TILE
from rocmkern.tile.lowering.hip.layouts import checked, rule_of_softmax_step
from rocmkern.tile.lowering.hip.products import HipLowering


@functools.cache
def _install_operations() -> None:
    # numba-hip rewrites llvmlite's typed pointers (``i8*``) to opaque ones, but not pointers to vectors and arrays.
    ir.types.ir_layer_typed_pointers_enabled = False
    rules = {op: checked(rule) for op, rule in TILE.rules.items()}
    rules[api.softmax_step] = rule_of_softmax_step(rules[api.softmax_step])
    tile = SimpleNamespace(**{**vars(TILE), "rules": rules})
    bind(NUMBA, tile, HipLowering(NUMBA, tile))


def install() -> None:
    """Make the tile language, and the device functions defined so far, known to numba-hip."""
    _install_operations()
    bind_device_functions(NUMBA)  # numba-hip looks at its registries again before each compilation
