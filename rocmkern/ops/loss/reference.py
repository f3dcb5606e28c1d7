"""The cross-entropy of a linear layer in plain NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np

from rocmkern.ops.linear.reference import linear

__all__ = ["linear_cross_entropy"]


def linear_cross_entropy(
    x: Any,
    weight: Any,
    target: Any,
    *,
    bias: Any = None,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
    softcap: float | None = None,
    reduction: str = "mean",
    compute: Any = np.float64,
) -> Any:
    """Loss, and log-sum-exp of each row: ``lse - (1 - s) z_target - s / V sum_j z_j + z_loss lse^2``."""
    z = logits(x, weight, bias, softcap, compute)
    with np.errstate(all="ignore"):
        lse = log_sum_exp(z)
        counted = np.asarray(target) != ignore_index
        place = np.where(counted, target, 0).astype(np.int64)[..., None]
        loss = lse - compute(1 - label_smoothing) * np.take_along_axis(z, place, -1)[..., 0]
        if label_smoothing:
            loss = loss - compute(label_smoothing) / z.shape[-1] * z.sum(axis=-1)
        if z_loss:
            loss = loss + compute(z_loss) * lse**2
        loss = np.where(counted, loss, compute(0))
        if reduction == "sum":
            loss = loss.sum()
        elif reduction == "mean":
            loss = loss.sum() / compute(counted.sum())
    return np.asarray(loss), lse


def logits(x: Any, weight: Any, bias: Any, softcap: float | None, compute: Any = np.float64) -> Any:
    """What the cross-entropy is of."""
    z = linear(x, weight, bias, compute=compute)
    if softcap is None:
        return z
    cap = compute(softcap)
    return cap * np.tanh(z / cap)


def log_sum_exp(z: Any) -> Any:
    """Of the last axis, in the dtype of z."""
    largest = z.max(axis=-1)
    base = np.where(np.isinf(largest), z.dtype.type(0), largest)
    return np.log(np.exp(z - base[..., None]).sum(axis=-1)) + base
