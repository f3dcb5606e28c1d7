"""Operations on quantized blocks in the compute dtype."""

from __future__ import annotations

import numpy as np

from rocmkern.ops.precision import compute_dtype, rounded
from rocmkern.ops.quantized import reference as _quantized

__all__ = ["dequantize_rms_norm", "quantized_linear"]


def quantized_linear(
    x: np.ndarray,
    blocks: np.ndarray,
    format: str = "q4_0",
    bias: np.ndarray | None = None,
    activation: str | None = None,
    *,
    order: str = "ggml",
) -> np.ndarray:
    """Decode to the dtype of x, then `rocmkern.reference.linear` in the compute dtype."""
    out = _quantized.decoded_linear(x, blocks, format, bias, activation, order, compute_dtype(x), x.dtype)
    return rounded(out, x.dtype)


def dequantize_rms_norm(
    blocks: np.ndarray,
    weight: np.ndarray,
    format: str = "q4_0",
    eps: float = 1e-6,
    *,
    weight_offset: float = 0.0,
    order: str = "ggml",
) -> np.ndarray:
    """`rocmkern.reference.dequantize_rms_norm` in float32."""
    out = _quantized.decoded_rms_norm(blocks, weight, format, eps, weight_offset, order, np.float32)
    return rounded(out, weight.dtype)
