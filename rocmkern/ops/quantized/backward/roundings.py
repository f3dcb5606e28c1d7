"""What the roundings of the gradients of quantized linear layers cost; see `rocmkern.reference.roundings`."""

from __future__ import annotations

from typing import Any

import numpy as np

from rocmkern.ops.linear.backward.reference import before_activation
from rocmkern.ops.linear.backward.roundings import linear_backward
from rocmkern.ops.quantized.reference import dequantize
from rocmkern.ops.quantized.roundings import largest_shared
from rocmkern.reference.costs import UNIT, UNITS, finite, wide

__all__ = ["quantized_linear_backward"]


def quantized_linear_backward(
    dout: np.ndarray,
    x: np.ndarray,
    blocks: np.ndarray,
    format: str = "q4_0",
    bias: np.ndarray | None = None,
    activation: str | None = None,
    *,
    order: str = "ggml",
    needs: Any = None,
) -> Any:
    """`rocmkern.reference.quantized_linear_backward`: as `linear_backward`, and weights may be rounded when decoded."""
    weights = dequantize(blocks, format, order=order)
    needs = ("x",) if bias is None else ("x", "bias") if needs is None else needs
    costs = linear_backward(dout, x, weights, bias, activation, needs=needs)
    given, numbers, biases = wide(dout, x, bias)
    with np.errstate(all="ignore"):
        dz = np.abs(before_activation(given, numbers, weights, True, biases, activation))
        decoded = UNIT * dz @ largest_shared(weights, format)
        decoded = finite(decoded + UNITS[x.dtype.name] * np.sqrt(dz**2 @ weights**2))
    if not isinstance(costs, tuple):
        return costs + decoded if needs[0] == "x" else costs
    return costs[0] + decoded, costs[1]
