"""Gated activations in the compute dtype."""

from __future__ import annotations

from rocmkern.ops.activations import reference as _activations
from rocmkern.ops.precision import compute_dtype, rounded


def swiglu(gate, up=None, *, order="gate_up"):
    """`rocmkern.reference.swiglu` in the compute dtype."""
    return rounded(_activations._swiglu(gate, up, order, compute_dtype(gate)), gate.dtype)


def geglu(gate, up=None, *, approximate="none"):
    """`rocmkern.reference.geglu` in the compute dtype."""
    return rounded(_activations._geglu(gate, up, approximate, compute_dtype(gate)), gate.dtype)
