"""The norms in the compute dtype."""

from __future__ import annotations

from rocmkern.ops.norm import reference as _norm
from rocmkern.ops.precision import compute_dtype, rounded


def rms_norm(x, weight, eps=1e-6, *, residual=None, weight_offset=0.0):
    """`rocmkern.reference.rms_norm` in the compute dtype."""
    compute = compute_dtype(x)
    if residual is None:
        return rounded(_norm._rms_norm(x, weight, eps, weight_offset, compute), x.dtype)
    results = _norm._with_residual(x, weight, eps, residual, weight_offset, compute)
    return tuple(rounded(result, x.dtype) for result in results)


def layer_norm(x, weight=None, bias=None, eps=1e-5):
    """`rocmkern.reference.layer_norm` in the compute dtype."""
    return rounded(_norm._layer_norm(x, weight, bias, eps, compute_dtype(x)), x.dtype)


def add_residual(x, residual):
    """`rocmkern.reference.add_residual` in the compute dtype."""
    return rounded(_norm._add_residual(x, residual, compute_dtype(x)), x.dtype)
