"""What the roundings of the gradients of the cross-entropy cost; see `rocmkern.reference.roundings`."""

from __future__ import annotations

from typing import Any

import numpy as np

from rocmkern.ops.linear.backward.reference import chosen
from rocmkern.ops.loss import reference
from rocmkern.ops.loss.backward.reference import logit_gradients
from rocmkern.ops.loss.roundings import of_logits
from rocmkern.reference.costs import STEPS, UNIT, UNITS, finite, wide

__all__ = ["linear_cross_entropy_backward"]


def linear_cross_entropy_backward(
    dloss: np.ndarray,
    x: np.ndarray,
    weight: np.ndarray,
    target: np.ndarray,
    lse: np.ndarray,
    *,
    bias: np.ndarray | None = None,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
    softcap: float | None = None,
    reduction: str = "mean",
    needs: Any = None,
) -> Any:
    """`rocmkern.reference.linear_cross_entropy_backward`: gradients of logits, rounded, in sums of products."""
    given, numbers, weights, sums, biases = wide(dloss, x, weight, lse, bias)
    options = ignore_index, label_smoothing, z_loss, softcap, reduction
    with np.errstate(all="ignore"):
        dz = np.abs(logit_gradients(given, numbers, weights, target, sums, biases, *options))
        z = reference.logits(numbers, weights, biases, softcap)
        # Without smoothing and target what is left is the share of a token, times the factor.
        share = np.abs(
            logit_gradients(
                given, numbers, weights, target, sums, biases, ignore_index, 1.0, z_loss, softcap, reduction
            )
        )
        share = share + np.exp(z - sums[..., None]) * (share != 0)
        exponent = of_logits(x, weight, bias, softcap, z) + UNIT * (STEPS + np.abs(z) + np.abs(sums)[..., None])
        unit = 0.0 if x.dtype == np.float32 else UNITS[x.dtype.name]
        before = unit * dz + STEPS * UNIT * dz + share * exponent
        if x.dtype == np.float16:
            before = before + 2.0**-25  # below the smallest normal number
        rows, (tokens, depth) = sums.size, weights.shape
        flat, given_x = (y.reshape(rows, n) for y, n in ((dz, tokens), (np.abs(numbers), depth)))
        spread = before.reshape(rows, tokens) ** 2
        costs = {
            "x": UNIT * dz @ np.abs(weights) + np.sqrt(before**2 @ weights**2),
            "weight": UNIT * flat.T @ given_x + np.sqrt(spread.T @ given_x**2),
        }
        if bias is not None:
            costs["bias"] = UNIT * flat.sum(axis=0) + np.sqrt(spread.sum(axis=0))
    found = chosen(costs, needs)
    return tuple(map(finite, found)) if isinstance(found, tuple) else finite(found)
