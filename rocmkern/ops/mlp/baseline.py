"""The MLP in the compute dtype."""

from __future__ import annotations

from typing import Any

from rocmkern.ops.linear.reference import linear
from rocmkern.ops.mlp.reference import hidden
from rocmkern.ops.precision import compute_dtype, rounded

__all__ = ["mlp"]


def mlp(
    x: Any,
    w_gate: Any,
    w_up: Any,
    w_down: Any,
    *,
    activation: str | None = "silu",
    b_gate: Any = None,
    b_up: Any = None,
    b_down: Any = None,
) -> Any:
    """`rocmkern.reference.mlp` in the compute dtype; what the last product multiplies has the dtype of x."""
    compute = compute_dtype(x)
    between = rounded(hidden(x, w_gate, w_up, activation, b_gate, b_up, compute), x.dtype)
    return rounded(linear(between, w_down, b_down, compute=compute), x.dtype)
