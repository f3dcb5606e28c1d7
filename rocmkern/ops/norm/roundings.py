"""What the roundings of the norms cost; see `rocmkern.reference.roundings`."""

from __future__ import annotations

import numpy as np

from rocmkern.ops.norm import reference
from rocmkern.reference.costs import STEPS, UNIT, finite, wide

__all__ = ["layer_norm", "rms_norm"]


def rms_norm(
    x: np.ndarray,
    weight: np.ndarray,
    eps: float = 1e-6,
    *,
    residual: np.ndarray | None = None,
    weight_offset: float = 0.0,
) -> np.ndarray | tuple[np.ndarray, np.ndarray]:
    """`rocmkern.reference.rms_norm`: operations in a row; weight and offset may cancel."""
    if residual is None:
        return normed(x, weight, eps, weight_offset)
    total = reference.add_residual(x, residual)
    return normed(total, weight, eps, weight_offset), np.zeros(np.shape(total))


def layer_norm(
    x: np.ndarray, weight: np.ndarray | None = None, bias: np.ndarray | None = None, eps: float = 1e-5
) -> np.ndarray:
    """`rocmkern.reference.layer_norm`: the mean that is taken away is a sum, and so is what the bias is added to."""
    x, weight, bias = wide(x, weight, bias)
    with np.errstate(all="ignore"):
        centred = x - reference.mean(x)
        root = np.sqrt(reference.mean(centred**2) + eps)
        taken = 2 * (np.abs(x) + reference.mean(np.abs(x))) / np.where(root == 0, 1.0, root)
        cost = (STEPS * np.abs(centred) / np.where(root == 0, 1.0, root) + taken) * UNIT
        cost = cost if weight is None else cost * np.abs(weight)
        return finite(cost if bias is None else cost + UNIT * np.abs(bias))


def normed(x: np.ndarray, weight: np.ndarray, eps: float, weight_offset: float) -> np.ndarray:
    """Cost of an RMS norm of x."""
    (x,) = wide(x)
    magnitude = np.abs(np.asarray(weight).astype(np.float64)) + abs(weight_offset)
    return finite(STEPS * UNIT * np.abs(reference.rms_norm(x, magnitude, eps)))
