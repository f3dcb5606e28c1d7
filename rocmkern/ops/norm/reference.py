"""The norms in plain NumPy, computed in float64 (other precisions: `rocmkern.reference.baseline`)."""

from __future__ import annotations

import math

import numpy as np


def rms_norm(x, weight, eps=1e-6, *, residual=None, weight_offset=0.0):
    """``x / sqrt(mean(x^2) + eps) * (weight + weight_offset)``: float64, over the last axis.

    With a residual x is ``x + residual``, rounded to the dtype of x, and the result is a pair with that sum.
    """
    if residual is None:
        return _rms_norm(x, weight, eps, weight_offset, np.float64)
    return _with_residual(x, weight, eps, residual, weight_offset, np.float64)


def layer_norm(x, weight=None, bias=None, eps=1e-5):
    """``(x - mean(x)) / sqrt(var(x) + eps) * weight + bias``: float64, over the last axis."""
    return _layer_norm(x, weight, bias, eps, np.float64)


def add_residual(x, residual):
    """``x + residual`` in float64."""
    return _add_residual(x, residual, np.float64)


def _mean(x):
    return x.sum(axis=-1, keepdims=True) / max(x.shape[-1], 1)


def _rms_norm(x, weight, eps, weight_offset, compute):
    x = x.astype(compute)
    with np.errstate(all="ignore"):
        # float32 does not hold the square of everything that it holds; in float64 this changes nothing.
        unit = np.maximum(np.abs(x).max(axis=-1, keepdims=True, initial=0), compute(math.sqrt(eps)))
        unit = np.where(np.isfinite(unit) & (unit > 0), unit, compute(1))
        root = np.sqrt(_mean((x / unit) ** 2) + (compute(math.sqrt(eps)) / unit) ** 2)
        # A row of zeros with an epsilon of 0.
        root = np.where(root == 0, compute(1), root)
        return x / unit / root * (weight.astype(compute) + compute(weight_offset))


def _layer_norm(x, weight, bias, eps, compute):
    x = x.astype(compute)
    with np.errstate(all="ignore"):
        x = x - _mean(x)
        root = np.sqrt(_mean(x * x) + compute(eps))
        x = x / np.where(root == 0, compute(1), root)
        x = x if weight is None else x * weight.astype(compute)
        return x if bias is None else x + bias.astype(compute)


def _add_residual(x, residual, compute):
    with np.errstate(all="ignore"):
        return x.astype(compute) + residual.astype(compute)


def _with_residual(x, weight, eps, residual, weight_offset, compute):
    with np.errstate(all="ignore"):
        total = _add_residual(x, residual, compute).astype(x.dtype)
    return _rms_norm(total, weight, eps, weight_offset, compute), total.astype(compute)
