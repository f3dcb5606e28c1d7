"""Gradients of linear layers with quantized weights in plain NumPy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from rocmkern.ops.linear.backward.reference import linear_backward
from rocmkern.ops.quantized.reference import dequantize

__all__ = ["quantized_linear_backward"]


def quantized_linear_backward(
    dout: Any,
    x: Any,
    blocks: Any,
    format: str = "q4_0",
    bias: Any = None,
    activation: str | None = None,
    *,
    order: str = "ggml",
    needs: Sequence[str] | None = None,
    compute: Any = np.float64,
) -> Any:
    """Gradients of ``activation(x @ dequantize(blocks).T + bias)`` with respect to x and bias."""
    weights = dequantize(blocks, format, order=order)
    needs = ("x",) if bias is None else ("x", "bias") if needs is None else needs
    return linear_backward(dout, x, weights, bias, activation, needs=needs, compute=compute)
