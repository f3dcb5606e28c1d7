"""Matrix products, linear layers and the MLP in the compute dtype."""

from __future__ import annotations

from rocmkern.ops.precision import compute_dtype, rounded
from rocmkern.reference import linear as _linear


def matmul(a, b, *, transpose_b=False, bias=None, activation=None):
    """`rocmkern.reference.matmul` in the compute dtype."""
    return rounded(_linear._matmul(a, b, transpose_b, bias, activation, compute_dtype(a)), a.dtype)


def linear(x, weight, bias=None, activation=None):
    """`rocmkern.reference.linear` in the compute dtype."""
    return rounded(_linear._matmul(x, weight, True, bias, activation, compute_dtype(x)), x.dtype)


def mlp(x, w_gate, w_up, w_down, *, activation="silu", b_gate=None, b_up=None, b_down=None):
    """`rocmkern.reference.mlp` in the compute dtype; what the last product multiplies has the dtype of x."""
    compute = compute_dtype(x)
    hidden = rounded(_linear._hidden(x, w_gate, w_up, activation, b_gate, b_up, compute), x.dtype)
    return rounded(_linear._matmul(hidden, w_down, True, b_down, None, compute), x.dtype)
