"""The tile language made known to numba-cuda."""

from __future__ import annotations

import functools
import operator

from numba.cuda.descriptor import cuda_target

from rocmkern.tile import api
from rocmkern.tile.binding import bind, bind_device_functions
from rocmkern.tile.lowering.cuda.backend import NUMBA, TILE
from rocmkern.tile.lowering.cuda.layouts import (
    checked,
    rule_of_add,
    rule_of_load_operand,
    rule_of_load_rowdot,
    rule_of_matvec,
    rule_of_scores,
    rule_of_softmax_end,
    rule_of_softmax_step,
    rule_of_store_tile,
    rule_of_weighted,
)
from rocmkern.tile.lowering.cuda.products import CudaLowering
from rocmkern.tile.lowering.cuda.rings import PRODUCTS, CompletingLowering, install_rules, of_complete


@functools.cache
def _install_operations() -> None:
    install_rules(TILE.rules, operator.getitem)
    TILE.rules = {
        op: checked(rule) if op in PRODUCTS else checked(of_complete(rule)) for op, rule in TILE.rules.items()
    }
    TILE.rules[api.softmax_step] = rule_of_softmax_step(TILE.rules[api.softmax_step])
    TILE.rules[api.softmax_end] = rule_of_softmax_end(TILE.rules[api.softmax_end])
    TILE.rules[api.store_tile] = rule_of_store_tile(TILE.rules[api.store_tile])
    for scores in (api.dot_nt, api.load_tile, api.distance):
        TILE.rules[scores] = rule_of_scores(TILE.rules[scores])
    for product in (api.dot_nn, api.dot_nn_where):
        TILE.rules[product] = rule_of_weighted(TILE.rules[product])
    TILE.rules[api.load_operand] = rule_of_load_operand(TILE.rules[api.load_operand])
    TILE.rules[api.load_rowdot] = rule_of_load_rowdot(TILE.rules[api.load_rowdot])
    TILE.rules[api.matvec] = rule_of_matvec(TILE.rules[api.matvec])
    TILE.rules[operator.add] = rule_of_add(TILE.rules[operator.add])
    bind(NUMBA, TILE, CompletingLowering(CudaLowering(NUMBA, TILE)))
    # numba puts what it compiles lazily into the first registry it finds: its own must be there before ours.
    cuda_target.target_context.refresh()
    cuda_target.target_context.install_registry(NUMBA.lowering_registry)


def install() -> None:
    """Make the tile language, and the device functions defined so far, known to numba-cuda."""
    _install_operations()
    bind_device_functions(NUMBA)
    cuda_target.typing_context.install_registry(NUMBA.typing_registry)
