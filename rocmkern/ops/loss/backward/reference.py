"""Gradients of the cross-entropy of a linear layer in plain NumPy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from rocmkern.ops.linear.backward.reference import chosen
from rocmkern.ops.loss.reference import logits

__all__ = ["linear_cross_entropy_backward"]


def linear_cross_entropy_backward(
    dloss: Any,
    x: Any,
    weight: Any,
    target: Any,
    lse: Any,
    *,
    bias: Any = None,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
    softcap: float | None = None,
    reduction: str = "mean",
    needs: Sequence[str] | None = None,
    compute: Any = np.float64,
) -> Any:
    """Gradients of the loss with respect to x, weight and bias; ``lse`` is that of the forward call."""
    dz = logit_gradients(
        dloss, x, weight, target, lse, bias, ignore_index, label_smoothing, z_loss, softcap, reduction, compute
    )
    x, weight = x.astype(compute), weight.astype(compute)
    with np.errstate(all="ignore"):
        rows, (tokens, depth) = lse.size, weight.shape
        gradients = {
            "x": dz @ weight,
            "weight": dz.reshape(rows, tokens).T @ x.reshape(rows, depth),
            "bias": dz.reshape(rows, tokens).sum(axis=0),
        }
    if bias is None:
        del gradients["bias"]
    return chosen(gradients, needs)


def logit_gradients(
    dloss: Any,
    x: Any,
    weight: Any,
    target: Any,
    lse: Any,
    bias: Any,
    ignore_index: int,
    label_smoothing: float,
    z_loss: float,
    softcap: float | None,
    reduction: str,
    compute: Any = np.float64,
) -> Any:
    """``f (p (1 + 2 z_loss lse) - s / V - (1 - s) [target])``, and the slope of the cap."""
    z, lse = logits(x, weight, bias, softcap, compute), lse.astype(compute)
    counted = np.asarray(target) != ignore_index
    with np.errstate(all="ignore"):
        gradient = np.exp(z - lse[..., None]) * (1 + 2 * compute(z_loss) * lse)[..., None]
        gradient = gradient - compute(label_smoothing / z.shape[-1])
        place = np.where(counted, target, 0).astype(np.int64)[..., None]
        kept = np.take_along_axis(gradient, place, -1) - compute(1 - label_smoothing)
        np.put_along_axis(gradient, place, kept, -1)
        if softcap is not None:
            gradient = gradient * (1 - (z / compute(softcap)) ** 2)
        factor = np.where(counted, dloss.astype(compute), compute(0))
        if reduction == "mean":
            factor = factor / compute(max(counted.sum(), 1))
        return np.where(factor[..., None] == 0, compute(0), gradient * factor[..., None])
