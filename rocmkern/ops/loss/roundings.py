"""What the roundings of the cross-entropy of a linear layer cost; see `rocmkern.reference.roundings`."""

from __future__ import annotations

from typing import Any

import numpy as np

from rocmkern.ops.linear.roundings import product
from rocmkern.ops.loss import reference
from rocmkern.reference.costs import STEPS, UNIT, finite, wide

__all__ = ["linear_cross_entropy"]


def linear_cross_entropy(
    x: np.ndarray,
    weight: np.ndarray,
    target: np.ndarray,
    *,
    bias: np.ndarray | None = None,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
    softcap: float | None = None,
    reduction: str = "mean",
) -> Any:
    """`rocmkern.reference.linear_cross_entropy`: of each logit by its probability, and those that the loss adds up."""
    numbers, weights, biases = wide(x, weight, bias)
    with np.errstate(all="ignore"):
        z = reference.logits(numbers, weights, biases, softcap)
        each = of_logits(x, weight, bias, softcap, z)
        lse = reference.log_sum_exp(z)
        of_lse = of_log_sum_exp(z, each, lse)
        counted = np.asarray(target) != ignore_index
        place = np.where(counted, target, 0).astype(np.int64)[..., None]
        picked = (np.take_along_axis(each + UNIT * np.abs(z), place, -1))[..., 0]
        loss = of_lse + (1 - label_smoothing) * picked + 2 * z_loss * np.abs(lse) * (of_lse + UNIT * np.abs(lse))
        loss = loss + label_smoothing / z.shape[-1] * (each + UNIT * np.abs(z)).sum(axis=-1)
        loss = np.where(counted, loss, 0.0)
        if reduction != "none":
            loss = loss.sum() / (max(counted.sum(), 1) if reduction == "mean" else 1)
    return finite(loss), finite(of_lse)


def of_logits(x: np.ndarray, weight: np.ndarray, bias: np.ndarray | None, softcap: float | None, z: Any) -> Any:
    """Cost of each logit; a cap has no slope above 1."""
    cost = product(x, weight, True, bias, None)
    return cost if softcap is None else cost + STEPS * UNIT * np.abs(z)


def of_log_sum_exp(z: Any, each: Any, lse: Any) -> Any:
    """Cost of log-sum-exps: what exponents below the largest cost, and of the last sum."""
    share = np.exp(z - lse[..., None])
    below = np.abs(z - z.max(axis=-1, keepdims=True))
    return (share * (each + UNIT * (STEPS + below))).sum(axis=-1) + UNIT * np.abs(lse)
