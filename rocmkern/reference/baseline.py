"""The straightforward algorithm in the compute dtype: what an ordinary float32 implementation would return.

Half inputs are widened to float32, all arithmetic is float32 (float64 for float64 inputs), and the result is rounded
once to the dtype of the first argument; log-sum-exps stay in the compute dtype. Its error against the float64 functions
of `rocmkern.reference` is the unit in which the error of a kernel is measured. Same arguments as there.
"""

from __future__ import annotations

from rocmkern.decoder.baseline import decoder_logits
from rocmkern.ops.activations.baseline import geglu, swiglu
from rocmkern.ops.attention.baseline import decode_attention, flash_attention, merge_attention
from rocmkern.ops.linear.baseline import linear, matmul, mlp
from rocmkern.ops.norm.baseline import add_residual, layer_norm, rms_norm
from rocmkern.ops.paged.baseline import paged_attention
from rocmkern.ops.quantized.baseline import dequantize_rms_norm, quantized_linear
from rocmkern.ops.rotary.baseline import rope, rope_append_kv
from rocmkern.ops.rows.baseline import embedding, transpose
from rocmkern.ops.steps.baseline import (
    apply_mask,
    causal_mask,
    qk_scores,
    repeat_kv,
    scale,
    softmax,
    weighted_values,
)

__all__ = [
    "add_residual",
    "apply_mask",
    "causal_mask",
    "decode_attention",
    "decoder_logits",
    "dequantize_rms_norm",
    "embedding",
    "flash_attention",
    "geglu",
    "layer_norm",
    "linear",
    "matmul",
    "merge_attention",
    "mlp",
    "paged_attention",
    "qk_scores",
    "quantized_linear",
    "repeat_kv",
    "rms_norm",
    "rope",
    "rope_append_kv",
    "scale",
    "softmax",
    "swiglu",
    "transpose",
    "weighted_values",
]
