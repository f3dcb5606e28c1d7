"""What a checkpoint's configuration means, family by family: every field, what is taken where one is absent."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest

from rocmkern.decoder import DecoderConfig
from rocmkern.runtime.errors import ArgumentError, CheckpointError


def HF(config):
    """With strings that were read, not those of this file."""
    return DecoderConfig.from_hugging_face(json.loads(json.dumps(config)))


def GGUF(metadata):
    return DecoderConfig.from_gguf(json.loads(json.dumps(metadata)))


#: As little as a file may say.
LITTLE = {
    "model_type": "llama", "vocab_size": 300, "hidden_size": 48, "intermediate_size": 96, "num_hidden_layers": 3,
    "num_attention_heads": 6, "rms_norm_eps": 1e-5, "hidden_act": "silu",
}  # fmt: skip
PLAIN = DecoderConfig(
    vocab_size=300, hidden_size=48, intermediate_size=96, num_layers=3, num_heads=6, num_kv_heads=6, head_dim=8,
    rms_norm_eps=1e-5, norm_weight_offset=0.0, rope_variant="half", rope_base=10000.0, rope_scaling=None,
    activation="silu", embedding_scale=1.0, sliding_window=None,
)  # fmt: skip
LINEAR = {"rope_type": "linear", "factor": 2.0}


def changed(**fields):
    return dataclasses.replace(PLAIN, **fields)


def test_sizes_alone_are_a_configuration():
    sizes = {name: getattr(PLAIN, name) for name in list(LITTLE)[1:4]} | {"num_layers": 3, "num_heads": 6}
    assert DecoderConfig(**sizes, num_kv_heads=6, head_dim=8) == changed(rms_norm_eps=1e-6)


@pytest.mark.parametrize(
    ("more", "fields"),
    [
        ({}, {}),
        ({"num_key_value_heads": 2}, {"num_kv_heads": 2}),
        ({"num_key_value_heads": None, "head_dim": None}, {}),  # as files say of what they have not
        ({"head_dim": 16}, {"head_dim": 16}),
        ({"rope_theta": 5e5}, {"rope_base": 5e5}),
        ({"rope_scaling": LINEAR, "rope_theta": 5e5}, {"rope_base": 5e5, "rope_scaling": LINEAR}),
        ({"rope_parameters": LINEAR | {"rope_theta": 2e5}}, {"rope_base": 2e5, "rope_scaling": LINEAR}),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 2e5}}, {"rope_base": 2e5}),
        ({"rope_scaling": {"type": "default"}}, {}),
        ({"rope_scaling": None}, {}),
        ({"hidden_act": "gelu"}, {"activation": "gelu"}),
        ({"hidden_act": "gelu_pytorch_tanh"}, {"activation": "gelu_tanh"}),
        ({"model_type": "mistral", "sliding_window": 7}, {"sliding_window": 7}),
        ({"model_type": "mistral", "sliding_window": None}, {}),
        ({"model_type": "qwen2", "sliding_window": 7}, {}),
        ({"model_type": "qwen2", "sliding_window": 7, "use_sliding_window": False, "max_window_layers": 2}, {}),
        ({"model_type": "qwen2", "sliding_window": 7, "use_sliding_window": True}, {"sliding_window": 7}),
        (
            {"model_type": "qwen2", "sliding_window": 7, "use_sliding_window": True, "max_window_layers": 0},
            {"sliding_window": 7},
        ),
        (
            {"model_type": "gemma"},
            {"norm_weight_offset": 1.0, "activation": "gelu_tanh", "embedding_scale": 48**0.5},
        ),
        (
            {"model_type": "gemma", "hidden_activation": "gelu"},
            {"norm_weight_offset": 1.0, "activation": "gelu", "embedding_scale": 48**0.5},
        ),
    ],
)
def test_a_configuration_of_hugging_face(more, fields):
    assert HF(LITTLE | more) == changed(**fields)


@pytest.mark.parametrize("name", [name for name in LITTLE if name != "model_type"])
def test_what_a_configuration_of_hugging_face_must_have(name):
    with pytest.raises(CheckpointError, match=rf"config\.json of llama has no {name}"):
        HF({key: value for key, value in LITTLE.items() if key != name})


def test_a_window_of_some_layers_is_refused():
    some = LITTLE | {"model_type": "qwen2", "use_sliding_window": True, "sliding_window": 7, "max_window_layers": 2}
    with pytest.raises(CheckpointError, match="only some layers have a sliding window"):
        HF(some)


@pytest.mark.parametrize("kind", ["phi3", None, "gemma2"])
def test_a_family_that_is_none_of_these_is_named(kind):
    with pytest.raises(CheckpointError, match=r"model_type is .*; this decoder is for llama, mistral, qwen2, gemma"):
        HF(LITTLE | {"model_type": kind})
    with pytest.raises(CheckpointError, match=r"architecture is .*; this decoder is for llama, mistral, qwen2, gemma"):
        GGUF({"general.architecture": kind})


def pairs(kind, **more):
    """As little as a GGUF file may say."""
    names = {
        "vocab_size": 300, "embedding_length": 48, "feed_forward_length": 96, "block_count": 3,
        "attention.head_count": 6, "attention.layer_norm_rms_epsilon": 1e-5,
    }  # fmt: skip
    return {"general.architecture": kind} | {f"{kind}.{name}": value for name, value in (names | more).items()}


@pytest.mark.parametrize(
    ("kind", "more", "fields"),
    [
        ("llama", {}, {"rope_variant": "interleaved"}),
        ("qwen2", {}, {}),
        ("gemma", {}, {"activation": "gelu_tanh", "embedding_scale": 48**0.5}),
        ("qwen2", {"attention.head_count_kv": 2}, {"num_kv_heads": 2}),
        ("qwen2", {"attention.key_length": 16, "rope.dimension_count": 16}, {"head_dim": 16}),
        ("qwen2", {"rope.dimension_count": 8}, {}),
        ("qwen2", {"rope.freq_base": 5e5}, {"rope_base": 5e5}),
        ("qwen2", {"rope.scaling.type": "none", "rope.scaling.factor": 2.0}, {}),
        ("qwen2", {"rope.scaling.type": "linear", "rope.scaling.factor": 2.0}, {"rope_scaling": LINEAR}),
        ("qwen2", {"rope.scaling.type": "linear"}, {"rope_scaling": LINEAR | {"factor": 1.0}}),
        ("mistral", {"attention.sliding_window": 7}, {"sliding_window": 7}),
    ],
)
def test_a_configuration_of_gguf(kind, more, fields):
    assert GGUF(pairs(kind, **more)) == changed(**fields)


def test_the_words_of_a_file_count_before_a_number_of_them():
    assert GGUF(pairs("qwen2") | {"tokenizer.ggml.tokens": ["a", "b", "c"]}) == changed(vocab_size=3)


@pytest.mark.parametrize("name", [name for name in pairs("llama") if name.startswith("llama.")])
def test_what_a_gguf_file_must_have(name):
    with pytest.raises(CheckpointError, match=rf"the GGUF file has no {name}"):
        GGUF({key: value for key, value in pairs("llama").items() if key != name})


def test_what_a_decoder_does_not_do_is_refused():
    with pytest.raises(CheckpointError, match=r"llama\.rope\.dimension_count differs from the head dimension 8"):
        GGUF(pairs("llama") | {"llama.rope.dimension_count": 4})
    with pytest.raises(CheckpointError, match=r"llama\.rope\.scaling\.type is 'yarn'; pass rope_scaling= by"):
        GGUF(pairs("llama") | {"llama.rope.scaling.type": "yarn"})


@pytest.mark.parametrize("name", ["head_dim", "num_key_value_heads", "hidden_size"])
@pytest.mark.parametrize("given", [0, False, "", -1])
def test_a_size_that_is_none_is_no_default(name, given):
    with pytest.raises(CheckpointError, match=rf"config\.json: {name} is .*, not a whole number"):
        HF({**LITTLE, name: given})
    assert name == "hidden_size" or dataclasses.asdict(HF({**LITTLE, name: None}))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        *(({name: 0}, f"{name}: got 0; allowed: an integer of at least 1")
          for name in ("vocab_size", "hidden_size", "intermediate_size", "num_layers", "num_heads", "num_kv_heads",
                       "head_dim", "sliding_window")),
        ({"num_layers": 2**31}, f"num_layers: got {2**31}; allowed: at most {2**31 - 1}"),
        ({"sliding_window": 2**31}, f"sliding_window: got {2**31}; allowed: at most {2**31 - 1}"),
        ({"num_kv_heads": 4}, "num_kv_heads: got 4; allowed: a divisor of num_heads=6"),
        ({"num_kv_heads": 12}, "num_kv_heads: got 12; allowed: a divisor of num_heads=6"),
        ({"head_dim": 7}, "head_dim: got 7; allowed: an even number from 2 to 256"),
        ({"head_dim": 258}, "head_dim: got 258; allowed: an even number from 2 to 256"),
        ({"rms_norm_eps": -1.0}, "rms_norm_eps: got -1.0; allowed: 0 or a positive number"),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps: got nan; allowed: a finite number in the range of float32"),
        ({"rope_base": 0.0}, "rope_base: got 0.0; allowed: a number above 1"),
        ({"rope_base": 1.0}, "rope_base: got 1.0; allowed: a number above 1"),
        ({"norm_weight_offset": float("inf")},
         "norm_weight_offset: got inf; allowed: a finite number in the range of float32"),
        ({"embedding_scale": float("inf")},
         "embedding_scale: got inf; allowed: a finite number in the range of float32"),
        ({"rope_variant": "whole"}, "rope_variant: got 'whole'; allowed: 'half', 'interleaved'"),
        ({"activation": "relu"}, "activation: got 'relu'; allowed: 'silu', 'gelu', 'gelu_tanh'"),
    ],
)  # fmt: skip
def test_a_field_that_no_decoder_has_is_refused_by_name(fields, message):
    with pytest.raises(ArgumentError) as caught:
        changed(**fields)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    "fields",
    [
        {"head_dim": 2}, {"head_dim": 256}, {"num_kv_heads": 1}, {"num_kv_heads": 6}, {"rms_norm_eps": 0.0},
        {"rope_base": 1.5}, {"sliding_window": 1}, {"sliding_window": 2**31 - 1}, {"norm_weight_offset": -1.0},
        {"embedding_scale": 0.5}, {"num_layers": np.int64(4)},
    ],
)  # fmt: skip
def test_fields_at_their_limits(fields):
    assert dataclasses.asdict(changed(**fields)) == dataclasses.asdict(PLAIN) | fields


def test_what_a_file_says_must_go_together():
    with pytest.raises(
        CheckpointError, match=r"^config\.json: num_kv_heads: got 4; allowed: a divisor of num_heads=6$"
    ):
        HF(LITTLE | {"num_key_value_heads": 4})
    with pytest.raises(CheckpointError, match=r"^the GGUF file: head_dim: got 5; allowed: an even number"):
        GGUF(pairs("llama") | {"llama.attention.key_length": 5})
