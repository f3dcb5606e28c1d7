"""The decoder: all operations of a small model in one row."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from rocmkern.decoder import DecoderConfig
from rocmkern.matrix.draw import Draw
from rocmkern.matrix.excerpts import Excerpt
from rocmkern.matrix.registry import Call, Dim, Domain, Feature, Operation

SEED = 42
GEMMA: dict[str, Any] = {"activation": "gelu_tanh", "norm_weight_offset": 1.0}


def _decoder_call(draw: Draw) -> Call:
    dims, features = draw.dims, draw.features
    hidden, heads, kv_heads, wide = dims["hidden"], dims["heads"], dims["kv_heads"], dims["intermediate"]
    config = DecoderConfig(
        vocab_size=dims["vocabulary"],
        hidden_size=hidden,
        intermediate_size=wide,
        num_layers=dims["layers"],
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=hidden // heads,
        rope_variant=features["variant"],
        **(GEMMA | {"embedding_scale": math.sqrt(hidden)} if features["gemma"] else {}),
    )
    rng = np.random.default_rng(SEED)

    def matrix(rows: int, columns: int) -> np.ndarray:
        return (rng.standard_normal((rows, columns)) / math.sqrt(columns)).astype(draw.dtype)

    def near(value: float, length: int) -> np.ndarray:
        return (value + 0.1 * rng.standard_normal(length)).astype(draw.dtype)

    norm = 1.0 - config.norm_weight_offset
    arrays = {"tokens": rng.integers(0, dims["vocabulary"], dims["tokens"]).astype(np.int32)}
    if features["freq_factors"]:
        arrays["rope_freq_factors"] = np.linspace(1.0, 8.0, config.head_dim // 2, dtype=np.float32)
    arrays |= {"embedding": matrix(dims["vocabulary"], hidden) * draw.dtype.type(4), "norm": near(norm, hidden)}
    if not features["tied"]:
        arrays["output"] = matrix(dims["vocabulary"], hidden)
    kv = kv_heads * config.head_dim
    for i in range(dims["layers"]):
        layer = {"attention_norm": near(norm, hidden), "mlp_norm": near(norm, hidden)}
        layer |= {"q": matrix(hidden, hidden), "k": matrix(kv, hidden), "v": matrix(kv, hidden)}
        layer |= {"o": matrix(hidden, hidden), "gate": matrix(wide, hidden), "up": matrix(wide, hidden)}
        layer |= {"down": matrix(hidden, wide)}
        if features["biases"]:
            layer |= {"q_bias": near(0, hidden), "k_bias": near(0, kv), "v_bias": near(0, kv)}
        arrays |= {f"layers.{i}.{name}": array for name, array in layer.items()}
    options = {"config": config} | {
        key: features[key] for key in ("prefill", "block_size") if features[key] is not None
    }
    return Call(arrays, options, ((dims["tokens"], dims["vocabulary"]),))


def _passes(call: Call) -> Iterator[Excerpt]:
    """The tokens in two passes, and one by one: prompts of some of them, and then single tokens."""
    count = call.out_shapes[0][0]
    for prefill in sorted({1, count // 2, count - 1} - {0}):
        yield Excerpt(f"{prefill} of {count} tokens at first", call.arguments | {"prefill": prefill}, ((...,),))


def _drawn(dims: Mapping[str, Any], features: Mapping[str, Any]) -> bool:
    """Heads of an even dimension that share key-value heads, and a first pass that is no longer than the tokens."""
    heads, kv_heads, prefill = dims["heads"], dims["kv_heads"], features["prefill"]
    return (
        heads % kv_heads == 0 and dims["hidden"] % (2 * heads) == 0 and (prefill is None or prefill <= dims["tokens"])
    )


OPERATIONS = (
    Operation(
        "decoder",
        function="rocmkern.decoder:decoder_logits",
        reference="rocmkern.reference:decoder_logits",
        baseline="rocmkern.reference:baseline.decoder_logits",
        roundings="rocmkern.reference:roundings.decoder_logits",
        call=_decoder_call,
        excerpts=_passes,
        dims=(
            Dim("vocabulary", "v"),
            Dim("hidden", "d"),
            Dim("layers", "l"),
            Dim("heads", "h"),
            Dim("kv_heads", "kv", default="heads"),
            Dim("intermediate", "i", default=96),
            Dim("tokens", "s"),
        ),
        arrays=("tokens", "embedding", "norm", "output"),
        features=(
            Feature("prefill", (int,)),
            Feature("block_size", (int,)),
            Feature("variant", ("interleaved",), default="half"),
            Feature("tied", (True,), default=False),
            Feature("biases", (True,), default=False),
            Feature("gemma", (True,), default=False),
            Feature("freq_factors", (True,), default=False),
        ),
        out=False,
        # In half precision every operation rounds, which has bounds of its own in the table.
        domain=Domain(
            {
                # The baseline of a row of one number may be right by luck, and then its bound says nothing.
                "vocabulary": (8, 40),
                "hidden": (8, 48),
                "layers": (1, 2),
                "heads": (1, 4),
                "kv_heads": (1, 2),
                "intermediate": (1, 70),
                "tokens": (1, 20),
            },
            {"prefill": (1, 5), "block_size": (2, 16)},
            dtypes=("f32",),
            accepts=_drawn,
            # Repeated words would make a row of one number too.
            plain=("embedding", "output"),
        ),
        distinct=("embedding", "output"),
    ),
)
