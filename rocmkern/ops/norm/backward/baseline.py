"""Gradients of the norms in the compute dtype, each rounded to the dtype of its array."""

from __future__ import annotations

from typing import Any

from rocmkern.ops.norm.backward import reference
from rocmkern.ops.precision import compute_dtype, rounded

__all__ = ["layer_norm_backward", "rms_norm_backward"]


def rms_norm_backward(dout: Any, x: Any, weight: Any, *eps: float, **options: Any) -> Any:
    """`rocmkern.reference.rms_norm_backward`."""
    found = reference.rms_norm_backward(dout, x, weight, *eps, **options, compute=compute_dtype(x))
    return _rounded(found, x, weight)


def layer_norm_backward(dout: Any, x: Any, weight: Any = None, bias: Any = None, *eps: float, **options: Any) -> Any:
    """`rocmkern.reference.layer_norm_backward`."""
    found = reference.layer_norm_backward(dout, x, weight, bias, *eps, **options, compute=compute_dtype(x))
    return _rounded(found, x, weight, bias) if isinstance(found, tuple) else rounded(found, x.dtype)


def _rounded(found: Any, *arrays: Any) -> Any:
    dtypes = [array.dtype for array in arrays if array is not None]
    return tuple(rounded(each, dtype) for each, dtype in zip(found, dtypes, strict=True))
