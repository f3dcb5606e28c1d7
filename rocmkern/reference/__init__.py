"""Reference implementations in plain NumPy: the meaning of every operation, in float64.

``rocmkern.reference.<op>`` takes the array arguments of ``rocmkern.<op>`` as NumPy arrays of any floating dtype,
computes in float64 and returns float64. ``rocmkern.reference.baseline.<op>`` is the same text in the precision that a
kernel has, ``rocmkern.reference.roundings.<op>`` says what its roundings cost. Nothing here shares code with the
kernels.
"""

from __future__ import annotations

from rocmkern.decoder.reference import decoder_logits
from rocmkern.ops.activations.reference import geglu, swiglu
from rocmkern.ops.attention.reference import decode_attention, flash_attention, merge_attention
from rocmkern.ops.linear.reference import linear, matmul, mlp
from rocmkern.ops.norm.reference import add_residual, layer_norm, rms_norm
from rocmkern.ops.paged.reference import paged_attention
from rocmkern.ops.quantized.reference import dequantize, dequantize_rms_norm, quantize, quantized_linear
from rocmkern.ops.rotary.reference import rope, rope_append_kv
from rocmkern.ops.rows.reference import embedding, transpose
from rocmkern.ops.sampling.reference import sample
from rocmkern.ops.steps.reference import (
    apply_mask,
    causal_mask,
    qk_scores,
    repeat_kv,
    scale,
    softmax,
    weighted_values,
)
from rocmkern.reference import baseline, roundings

__all__ = [
    "add_residual",
    "apply_mask",
    "baseline",
    "causal_mask",
    "decode_attention",
    "decoder_logits",
    "dequantize",
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
    "quantize",
    "quantized_linear",
    "repeat_kv",
    "rms_norm",
    "rope",
    "rope_append_kv",
    "roundings",
    "sample",
    "scale",
    "softmax",
    "swiglu",
    "transpose",
    "weighted_values",
]
