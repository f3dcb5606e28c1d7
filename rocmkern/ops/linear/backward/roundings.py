"""What the roundings of the gradients of matrix products cost; see `rocmkern.reference.roundings`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from rocmkern.ops.linear.backward import reference
from rocmkern.ops.linear.roundings import product
from rocmkern.reference.costs import STEPS, UNIT, UNITS, finite, wide

__all__ = ["linear_backward", "matmul_backward"]

#: Bound of the second derivatives of all activations.
BENT = 0.8


def matmul_backward(
    dout: np.ndarray,
    a: np.ndarray,
    b: np.ndarray,
    *,
    transpose_b: bool = False,
    bias: np.ndarray | None = None,
    activation: str | None = None,
    needs: Sequence[str] | None = None,
) -> Any:
    """`rocmkern.reference.matmul_backward`: sums of products, of which one factor was rounded after an activation."""
    options: dict[str, Any] = {"transpose_b": transpose_b, "bias": bias, "needs": needs}
    given, left, right = wide(dout, a, b)
    with np.errstate(all="ignore"):
        if activation is None:
            dz, before = given, np.zeros(given.shape)
        else:
            dz = reference.before_activation(given, left, right, transpose_b, bias, activation)
            unit = 0.0 if dout.dtype == np.float32 else UNITS[dout.dtype.name]
            slope = BENT * product(a, b, transpose_b, bias, None) + STEPS * UNIT
            before = unit * np.abs(dz) + (0.0 if activation == "relu" else slope) * np.abs(given)
        summed = reference.matmul_backward(np.abs(dz), np.abs(left), np.abs(right), **options)
        spread = reference.matmul_backward(before**2, left**2, right**2, **options)
        if not isinstance(summed, tuple):
            return finite(UNIT * summed + np.sqrt(spread))
        return tuple(finite(UNIT * total + np.sqrt(each)) for total, each in zip(summed, spread, strict=True))


def linear_backward(
    dout: np.ndarray,
    x: np.ndarray,
    weight: np.ndarray,
    bias: np.ndarray | None = None,
    activation: str | None = None,
    *,
    needs: Sequence[str] | None = None,
) -> Any:
    """`rocmkern.reference.linear_backward`, as `matmul_backward`."""
    names = reference.of_products(needs)
    return matmul_backward(dout, x, weight, transpose_b=True, bias=bias, activation=activation, needs=names)
