"""A decoder of the Llama family, in float64 NumPy: all tokens of one sequence in one pass.

Written out here instead of composed of the other references, so that a mistake in one of them shows.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

__all__ = ["decoder_logits"]


def decoder_logits(tokens: Any, *, config: Any, prefill: Any = None, block_size: Any = None, **weights: Any) -> Any:
    """Logits ``[S, V]`` after every token; how the tokens are passed in does not matter."""
    return logits_in(np.float64, tokens, config, weights)


def logits_in(precision: Any, tokens: Any, config: Any, weights: dict[str, Any]) -> Any:
    """The same with all arithmetic in `precision`. Rotary scaling and sliding windows are not done here."""
    w = {name: np.asarray(array).astype(precision) for name, array in weights.items()}
    one = precision(1)

    def norm(x: Any, weight: Any) -> Any:
        root = np.sqrt((x * x).mean(axis=-1, keepdims=True) + precision(config.rms_norm_eps))
        return x / root * (weight + precision(config.norm_weight_offset))

    def linear(x: Any, name: str) -> Any:
        return x @ w[name].T + w.get(f"{name}_bias", precision(0))

    def turned(x: Any) -> Any:
        """Heads ``[S, H, D]``, each pair multiplied by ``exp(i * angle)``."""
        half = config.head_dim // 2
        frequencies = config.rope_base ** (-np.arange(half) / half) / w.get("rope_freq_factors", one)
        angle = np.arange(len(tokens))[:, None] * frequencies[None, :]
        turn = np.exp(1j * angle)[:, None, :]
        first, second = (x[..., :half], x[..., half:]) if config.rope_variant == "half" else (x[..., ::2], x[..., 1::2])
        result, point = np.empty_like(x), (first + 1j * second) * turn
        if config.rope_variant == "half":
            result[..., :half], result[..., half:] = point.real, point.imag
        else:
            result[..., ::2], result[..., 1::2] = point.real, point.imag
        return result

    def gated(x: Any) -> Any:
        if config.activation == "silu":
            return x / (one + np.exp(-x))
        if config.activation == "gelu":
            erf = np.vectorize(math.erf, otypes=[precision])
            return precision(0.5) * x * (one + erf(x / np.sqrt(precision(2))))
        inner = precision(np.sqrt(2 / np.pi)) * (x + precision(0.044715) * x**3)
        return precision(0.5) * x * (one + np.tanh(inner))

    length, groups = len(tokens), config.num_heads // config.num_kv_heads
    hidden_keys = np.arange(length)[None, :] > np.arange(length)[:, None]
    x = w["embedding"][np.asarray(tokens)] * precision(config.embedding_scale)
    for i in range(config.num_layers):
        layer = f"layers.{i}."
        h = norm(x, w[f"{layer}attention_norm"])
        q, k, v = (linear(h, layer + part).reshape(length, -1, config.head_dim) for part in "qkv")
        q, k = turned(q), turned(k)
        seen = np.empty_like(q)
        for head in range(config.num_heads):
            scores = q[:, head] @ k[:, head // groups].T / precision(np.sqrt(config.head_dim))
            scores[hidden_keys] = -np.inf
            p = np.exp(scores - scores.max(axis=1, keepdims=True))
            seen[:, head] = p @ v[:, head // groups] / p.sum(axis=1, keepdims=True)
        x = x + linear(seen.reshape(length, -1), f"{layer}o")
        h = norm(x, w[f"{layer}mlp_norm"])
        x = x + (gated(h @ w[f"{layer}gate"].T) * (h @ w[f"{layer}up"].T)) @ w[f"{layer}down"].T
    return norm(x, w["norm"]) @ w["output" if "output" in w else "embedding"].T
