"""The calls of common models, for the variants that a wheel brings: a decoder of Llama's kind, an encoder of BERT's.

Arrays are zeros that nobody fills, since the calls are recorded and not run (`_variants.Recorder`); sizes are those
that choose between variants: a prompt and one token, heads of 64 and of 128.
"""

from __future__ import annotations

from collections.abc import Callable

import ml_dtypes
import numpy as np

import rocmkern

DTYPES = {"float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}
_HEAD_DIMS = (64, 128)
_TOKENS = (1, 4, 16, 32, 100, 512, 2048)
#: Rows up to 4096 elements are one block, of 256 or a multiple of 512 columns; wider ones are taken in parts.
_WIDTHS = (64, *range(512, 4097, 512), 8192)
_HIDDEN, _INNER, _HEADS, _KV_HEADS, _FEW_KV_HEADS, _VOCABULARY, _PAGE = 1024, 4096, 16, 4, 2, 32000, 16


def make_calls(dtype: str) -> None:
    """Make the calls with arrays of one element type."""
    kind = DTYPES[dtype]

    def zeros(*shape: int) -> np.ndarray:
        return np.zeros(shape, kind)

    for width in _WIDTHS:
        _norms(zeros, width)
    for tokens in _TOKENS:
        _layers(zeros, tokens)
        for head_dim in _HEAD_DIMS:
            _encoder_attention(zeros, tokens, head_dim)
            _decoder_attention(zeros, tokens, head_dim)


def _norms(zeros: Callable[..., np.ndarray], width: int) -> None:
    x, weight = zeros(4, width), zeros(width)
    rocmkern.rms_norm(x, weight, eps=1e-6)
    rocmkern.rms_norm(x, weight, eps=1e-6, residual=x)
    rocmkern.layer_norm(x, weight, weight, eps=1e-6)
    rocmkern.add_residual(x, x)
    rocmkern.softmax(x)
    rocmkern.swiglu(x, x)
    rocmkern.geglu(x, x)


def _layers(zeros: Callable[..., np.ndarray], tokens: int) -> None:
    x, weight = zeros(tokens, _HIDDEN), zeros(_HIDDEN)
    up, down = zeros(_INNER, _HIDDEN), zeros(_HIDDEN, _INNER)
    rocmkern.linear(x, zeros(_HIDDEN, _HIDDEN))
    rocmkern.linear(x, zeros(_HIDDEN, _HIDDEN), bias=weight)
    rocmkern.linear(x, up, bias=zeros(_INNER), activation="gelu")
    rocmkern.mlp(x, up, up, down)
    rocmkern.embedding(zeros(_VOCABULARY, _HIDDEN), np.zeros(tokens, np.int32))
    logits = zeros(1, _VOCABULARY)
    rocmkern.sample(logits, seed=0, top_k=40, top_p=0.9)
    rocmkern.sample(logits, seed=0, offset=np.zeros(1, np.int64))  # a number for each row is another variant


def _encoder_attention(zeros: Callable[..., np.ndarray], tokens: int, head_dim: int) -> None:
    x = zeros(tokens, _HEADS, head_dim)
    ends = np.array([0, tokens], np.int32)
    rocmkern.flash_attention(x, x, x, cu_seqlens_q=ends, cu_seqlens_k=ends)
    batch = zeros(1, _HEADS, tokens, head_dim)
    rocmkern.flash_attention(batch, batch, batch)
    rocmkern.flash_attention(batch, batch, batch, causal=True)
    rocmkern.flash_attention(batch, batch, batch, mask=np.ones((1, 1, 1, tokens), bool))


def _decoder_attention(zeros: Callable[..., np.ndarray], tokens: int, head_dim: int) -> None:
    q, k = zeros(tokens, _HEADS, head_dim), zeros(tokens, _KV_HEADS, head_dim)
    positions, ends = np.arange(tokens, dtype=np.int32), np.array([0, tokens], np.int32)
    pages = -(-tokens // _PAGE)
    keys, values = zeros(pages, _PAGE, _KV_HEADS, head_dim), zeros(pages, _PAGE, _KV_HEADS, head_dim)
    for variant in ("half", "interleaved"):
        rocmkern.rope(q, positions, variant=variant)
        rocmkern.rope_append_kv(k, k, positions, keys, values, positions, variant=variant)
    table = np.arange(pages, dtype=np.int32)[None]
    for kv_heads in (_HEADS, _KV_HEADS, _FEW_KV_HEADS):
        cache = zeros(pages, _PAGE, kv_heads, head_dim)
        rocmkern.paged_attention(q, cache, cache, table, np.array([tokens], np.int32), cu_seqlens_q=ends)
        many = zeros(1, kv_heads, 4096, head_dim)
        rocmkern.decode_attention(zeros(1, _HEADS, 1, head_dim), many, many)
