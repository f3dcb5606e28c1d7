"""The tile language made known to numba-cuda."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable

from numba.cuda.descriptor import cuda_target

from rocmkern import tile as T
from rocmkern.tile._lowering.cuda.backend import NUMBA, TILE
from rocmkern.tile._lowering.cuda.layouts import (
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
from rocmkern.tile._lowering.cuda.products import CudaLowering
from rocmkern.tile._lowering.cuda.rings import PRODUCTS, CompletingLowering, install_rules, of_complete
from rocmkern.tile.binding import bind, bind_functions


@functools.cache
def _install_operations() -> None:
    install_rules(TILE.rules, operator.getitem)
    TILE.rules = {
        op: checked(rule) if op in PRODUCTS else checked(of_complete(rule)) for op, rule in TILE.rules.items()
    }
    TILE.rules[T.softmax_step] = rule_of_softmax_step(TILE.rules[T.softmax_step])
    TILE.rules[T.softmax_end] = rule_of_softmax_end(TILE.rules[T.softmax_end])
    TILE.rules[T.store_tile] = rule_of_store_tile(TILE.rules[T.store_tile])
    for scores in (T.dot_nt, T.load_tile, T.distance):
        TILE.rules[scores] = rule_of_scores(TILE.rules[scores])
    for product in (T.dot_nn, T.dot_nn_where):
        TILE.rules[product] = rule_of_weighted(TILE.rules[product])
    TILE.rules[T.load_operand] = rule_of_load_operand(TILE.rules[T.load_operand])
    TILE.rules[T.load_rowdot] = rule_of_load_rowdot(TILE.rules[T.load_rowdot])
    TILE.rules[T.matvec] = rule_of_matvec(TILE.rules[T.matvec])
    TILE.rules[operator.add] = rule_of_add(TILE.rules[operator.add])
    bind(NUMBA, TILE, CompletingLowering(CudaLowering(NUMBA, TILE)))
    # numba puts what it compiles lazily into the first registry it finds: its own must be there before ours.
    cuda_target.target_context.refresh()
    cuda_target.target_context.install_registry(NUMBA.lowering_registry)


def install(kernel: Callable | None = None) -> None:
    """Make the tile language, the device functions defined so far and a kernel's functions known to numba-cuda."""
    _install_operations()
    bind_functions(NUMBA, TILE, kernel)
    cuda_target.typing_context.install_registry(NUMBA.typing_registry)
