"""What the roundings of matrix products cost; see `rocmkern.reference.roundings`."""

from __future__ import annotations

import numpy as np

from rocmkern.ops.linear import reference
from rocmkern.reference.costs import STEPS, UNIT, finite, wide

__all__ = ["linear", "matmul"]

#: Bound of the derivatives of all activations.
_STEEPEST = 1.13


def product(
    a: np.ndarray, b: np.ndarray, transpose_b: bool, bias: np.ndarray | None, activation: str | None
) -> np.ndarray:
    """Cost of a product and an activation."""
    a, b, bias = wide(a, b, bias)
    with np.errstate(all="ignore"):
        cost = UNIT * reference.matmul(np.abs(a), np.abs(b), transpose_b=transpose_b)
        cost = cost if bias is None else cost + UNIT * np.abs(bias)
        if activation is not None:
            total = reference.matmul(a, b, transpose_b=transpose_b, bias=bias)
            cost = activated(total, cost, activation)
        return finite(cost)


def matmul(
    a: np.ndarray,
    b: np.ndarray,
    *,
    transpose_b: bool = False,
    bias: np.ndarray | None = None,
    activation: str | None = None,
) -> np.ndarray:
    """`rocmkern.reference.matmul`: a sum, then an activation."""
    return product(a, b, transpose_b, bias, activation)


def linear(
    x: np.ndarray, weight: np.ndarray, bias: np.ndarray | None = None, activation: str | None = None
) -> np.ndarray:
    """`rocmkern.reference.linear`: a sum, then an activation."""
    return product(x, weight, True, bias, activation)


def activated(total: np.ndarray, cost: np.ndarray, activation: str | None) -> np.ndarray:
    """Cost of an activation of a sum that has a cost itself."""
    if activation is None:
        return cost
    result = reference.activated(total, activation)
    cost = _STEEPEST * cost + UNIT * (STEPS + np.abs(total)) * np.abs(result) + UNIT * np.abs(total)
    return cost
