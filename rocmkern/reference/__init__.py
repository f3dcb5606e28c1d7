"""Reference implementations in plain NumPy: the meaning of every operation, in float64.

``rocmkern.reference.<op>`` takes the array arguments of ``rocmkern.<op>`` as NumPy arrays of any floating dtype,
computes in float64 and returns float64. ``rocmkern.reference.baseline.<op>`` is the same text in the precision that a
kernel has, ``rocmkern.reference.roundings.<op>`` says what its roundings cost. Nothing here shares code with the
kernels.
"""

from __future__ import annotations

from rocmkern.reference import baseline, roundings
from rocmkern.reference.activations import geglu, swiglu
from rocmkern.reference.attention import decode_attention, flash_attention, merge_attention
from rocmkern.reference.decoder import decoder_logits
from rocmkern.reference.gather import embedding, transpose
from rocmkern.reference.linear import linear, matmul, mlp
from rocmkern.reference.norm import add_residual, layer_norm, rms_norm
from rocmkern.reference.paging import paged_attention
from rocmkern.reference.quantized import dequantize, dequantize_rms_norm, quantize, quantized_linear
from rocmkern.reference.rotary import rope, rope_append_kv
from rocmkern.reference.sampling import sample
from rocmkern.reference.steps import (
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
