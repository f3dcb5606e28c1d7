"""What the roundings of the gradients of norms cost; see `rocmkern.reference.roundings`."""

from __future__ import annotations

from typing import Any

import numpy as np

from rocmkern.ops.norm.reference import mean
from rocmkern.reference.costs import STEPS, UNIT, finite, wide

__all__ = ["layer_norm_backward", "rms_norm_backward"]


def rms_norm_backward(
    dout: np.ndarray,
    x: np.ndarray,
    weight: np.ndarray,
    eps: float = 1e-6,
    *,
    dresidual: np.ndarray | None = None,
    weight_offset: float = 0.0,
) -> Any:
    """`rocmkern.reference.rms_norm_backward`: a difference of two terms, one of them with a mean; a sum over rows."""
    dout, x, weight, added = wide(dout, x, weight, dresidual)
    with np.errstate(all="ignore"):
        unit = np.abs(x).max(axis=-1, keepdims=True, initial=0.0)
        unit = np.where(unit > 0, unit, 1.0)
        root = np.sqrt(mean((x / unit) ** 2) + eps / unit**2)
        normed = np.abs(x / unit / np.where(root == 0, 1.0, root))
        dout = np.abs(dout)
        g = dout * (np.abs(weight) + abs(weight_offset))
        dx = (g + normed * mean(g * normed)) / unit / np.where(root == 0, 1.0, root)
        dx = STEPS * UNIT * dx + (0.0 if added is None else UNIT * np.abs(added))
        return finite(dx), finite(STEPS * UNIT * _over_rows(dout * normed))


def layer_norm_backward(
    dout: np.ndarray,
    x: np.ndarray,
    weight: np.ndarray | None = None,
    bias: np.ndarray | None = None,
    eps: float = 1e-5,
) -> Any:
    """`rocmkern.reference.layer_norm_backward`: as of `rms_norm_backward`, and the mean that is taken away is a sum."""
    dout, x, weight = wide(dout, x, weight)
    with np.errstate(all="ignore"):
        centred = x - mean(x)
        root = np.sqrt(mean(centred**2) + eps)
        root = np.where(root == 0, 1.0, root)
        normed, taken = np.abs(centred) / root, 2 * UNIT * (np.abs(x) + mean(np.abs(x))) / root
        dout = np.abs(dout)
        g = dout if weight is None else dout * np.abs(weight)
        off = STEPS * UNIT * normed + taken
        dx = STEPS * UNIT * (g + mean(g) + normed * mean(g * normed)) + off * mean(g * normed) + normed * mean(g * off)
        found = [finite(dx / root)]
        if weight is not None:
            found.append(finite(_over_rows(dout * off)))
        if bias is not None:
            found.append(finite(UNIT * _over_rows(dout)))
    return tuple(found) if len(found) > 1 else found[0]


def _over_rows(x: np.ndarray) -> np.ndarray:
    return x.reshape(-1, x.shape[-1]).sum(axis=0) if x.size else np.zeros(x.shape[-1])
