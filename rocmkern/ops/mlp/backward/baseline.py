"""The gradients of the MLP in the compute dtype."""

from __future__ import annotations

from typing import Any

from rocmkern.ops.mlp.backward import reference
from rocmkern.ops.precision import compute_dtype, rounded

__all__ = ["mlp_backward"]


def mlp_backward(dout: Any, *arrays: Any, **options: Any) -> Any:
    """`rocmkern.reference.mlp_backward` in the compute dtype; what is multiplied again has the dtype of dout."""
    compute = compute_dtype(dout)

    def between(values: Any) -> Any:
        return rounded(values, dout.dtype).astype(compute)

    found = reference.mlp_backward(dout, *arrays, **options, compute=compute, between=between)
    return (
        tuple(rounded(each, dout.dtype) for each in found) if isinstance(found, tuple) else rounded(found, dout.dtype)
    )
