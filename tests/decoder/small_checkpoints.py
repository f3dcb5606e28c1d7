"""Small models as Hugging Face and GGUF checkpoints, for the tests."""

from __future__ import annotations

import json

import numpy as np

from rocmkern.decoder import DecoderConfig

CONFIG = DecoderConfig(
    vocab_size=50,
    hidden_size=32,
    intermediate_size=64,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_dim=8,
    rms_norm_eps=1e-5,
    rope_base=500.0,
)
HUGGING_FACE = {
    "model_type": "llama",
    "vocab_size": 50,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500.0,
    "hidden_act": "silu",
}


def hugging_face_weights(*, biases=False, tied=False, fused=False, dtype=np.float32):
    """Tensors by the names of Hugging Face, with random values."""
    rng = np.random.default_rng(42)

    def draw(*shape, near=0.0):
        return (near + rng.standard_normal(shape) / 6).astype(dtype)

    weights = {"model.embed_tokens.weight": draw(50, 32), "model.norm.weight": draw(32, near=1.0)}
    if not tied:
        weights["lm_head.weight"] = draw(50, 32)
    for i in range(2):
        layer = f"model.layers.{i}."
        weights[layer + "input_layernorm.weight"] = draw(32, near=1.0)
        weights[layer + "post_attention_layernorm.weight"] = draw(32, near=1.0)
        parts = {"q": draw(32, 32), "k": draw(16, 32), "v": draw(16, 32)}
        gate, up = draw(64, 32), draw(64, 32)
        if fused:
            weights[layer + "self_attn.qkv_proj.weight"] = np.concatenate([*parts.values()])
            weights[layer + "mlp.gate_up_proj.weight"] = np.concatenate([gate, up])
        else:
            for name, part in parts.items():
                weights[f"{layer}self_attn.{name}_proj.weight"] = part
            weights[layer + "mlp.gate_proj.weight"], weights[layer + "mlp.up_proj.weight"] = gate, up
        if biases:
            for name, part in parts.items():
                weights[f"{layer}self_attn.{name}_proj.bias"] = draw(len(part))
        weights[layer + "self_attn.o_proj.weight"] = draw(32, 32)
        weights[layer + "mlp.down_proj.weight"] = draw(32, 64)
    return weights


def save_hugging_face(directory, weights, **changes):
    """A directory with ``model.safetensors`` and ``config.json``."""
    from safetensors.numpy import save_file

    save_file(weights, directory / "model.safetensors")
    (directory / "config.json").write_text(json.dumps(HUGGING_FACE | changes))
    return directory


def permuted(rows, heads):
    """Rows of q or k as llama.cpp writes them for Llama: those of a pair (i, i + d / 2) beside each other."""
    return rows.reshape(heads, 2, -1, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)


GGUF_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def save_gguf(path, weights, architecture="llama", quantized=None, extra=(), before=()):
    """The same model as a GGUF file; matrices of the layers in the format `quantized` where given.

    Tensors of other names, (name, array) or (name, array, type), stand before and behind its own.
    """
    import gguf

    writer = gguf.GGUFWriter(str(path), architecture)
    writer.add_block_count(2)
    writer.add_embedding_length(32)
    writer.add_feed_forward_length(64)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(500.0)
    writer.add_vocab_size(50)
    for name, array, *kind in before:
        writer.add_tensor(name, array, raw_dtype=kind[0] if kind else None)
    for name, array in weights.items():
        stem, _, kind = name.rpartition(".")
        prefix = ""
        if stem.startswith("model.layers."):
            _, _, number, stem = stem.split(".", 3)
            prefix = f"blk.{number}."
        if architecture == "llama" and stem[-6:] in ("q_proj", "k_proj"):
            array = permuted(array, 4 if stem.endswith("q_proj") else 2)
        full = f"{prefix}{GGUF_NAMES[stem]}.{kind}"
        if quantized and prefix and array.ndim == 2:
            kind = gguf.GGMLQuantizationType[quantized]
            writer.add_tensor(full, gguf.quantize(array.astype(np.float32), kind), raw_dtype=kind)
        else:
            writer.add_tensor(full, array)
    for name, array, *kind in extra:
        writer.add_tensor(name, array, raw_dtype=kind[0] if kind else None)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
