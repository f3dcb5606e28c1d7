"""Operations on quantized blocks in the compute dtype."""

from __future__ import annotations

import numpy as np

from rocmkern.ops.precision import compute_dtype, rounded
from rocmkern.ops.quantized import reference as _quantized

__all__ = ["dequantize_rms_norm", "quantized_linear"]


def quantized_linear(x, blocks, format="q4_0", bias=None, activation=None, *, order="ggml"):
    """Decode to the dtype of x, then `rocmkern.reference.linear` in the compute dtype."""
    out = _quantized.decoded_linear(x, blocks, format, bias, activation, order, compute_dtype(x), x.dtype)
    return rounded(out, x.dtype)


def dequantize_rms_norm(blocks, weight, format="q4_0", eps=1e-6, *, weight_offset=0.0, order="ggml"):
    """`rocmkern.reference.dequantize_rms_norm` in float32."""
    out = _quantized.decoded_rms_norm(blocks, weight, format, eps, weight_offset, order, np.float32)
    return rounded(out, weight.dtype)
