"""Faults of the gradients of operations that move elements."""

from __future__ import annotations

from rocmkern.matrix.faults.engine import Edit, Fault


def _edited(name: str, description: str, old: str, new: str) -> Fault:
    return Fault(name, description, ("embedding_backward",), edits=(Edit("embedding_backward", old, new),))


FAULTS = (
    _edited(
        "embedding_backward_first_only",
        "of rows of equal indices the first one counts",
        "here = is_here(ids, place, row, here)",
        "here = is_here(ids, place, row - 1, here)",
    ),
    _edited(
        "embedding_backward_not_in_order",
        "rows are those of the places, not those that stand there",
        "token = T.load_integers(order, (place,), here)",
        "token = place",
    ),
    _edited(
        "embedding_backward_one_halving_less",
        "the search for the first place ends too soon",
        "range(steps)",
        "range(steps - 1)",
    ),
)
