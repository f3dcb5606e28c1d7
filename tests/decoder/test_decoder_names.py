"""Checkpoints of the Llama family as a decoder's configuration and weights."""

from __future__ import annotations

import dataclasses
import re

import ml_dtypes
import numpy as np
import pytest

pytest.importorskip("gguf")
pytest.importorskip("safetensors")

from small_checkpoints import CONFIG, HUGGING_FACE, hugging_face_weights, permuted, save_gguf, save_hugging_face

import rocmkern
from rocmkern.decoder import DecoderConfig, QuantizedWeight, load_weights, weight_parts
from rocmkern.ops.rotary import reference as rotary_reference
from rocmkern.runtime.errors import CheckpointError


def expected(weights):
    """The decoder's weights, by its names, of tensors with the names of Hugging Face, not fused."""
    names = {
        "model.embed_tokens.weight": "embedding",
        "model.norm.weight": "norm",
        "lm_head.weight": "output",
        "input_layernorm.weight": "attention_norm",
        "post_attention_layernorm.weight": "mlp_norm",
    }
    result = {}
    for name, array in weights.items():
        layer = re.match(r"model\.(layers\.\d+\.)(.*)", name)
        inner = layer[2] if layer else name
        short = names.get(inner) or re.sub(r".*\.(\w+?)_proj\.(weight|bias)", r"\1_\2", inner).removesuffix("_weight")
        result[(layer[1] if layer else "") + short] = array
    return result


@pytest.mark.parametrize("options", [{}, {"biases": True}, {"tied": True}, {"dtype": np.float16}])
def test_hugging_face_names(tmp_path, options):
    weights = hugging_face_weights(**options)
    with rocmkern.open_checkpoint(save_hugging_face(tmp_path, weights)) as checkpoint:
        config = DecoderConfig.from_hugging_face(checkpoint.metadata)
        loaded = load_weights(checkpoint, config)
    assert config == CONFIG
    assert not any(tensor.loaded for tensor in loaded.values())
    wanted = expected(weights)
    assert set(loaded) == set(wanted)
    for name, array in wanted.items():
        assert loaded[name].dtype == np.float32
        np.testing.assert_array_equal(loaded[name].to_numpy(), array, err_msg=name)


def test_fused_tensors_are_cut_by_rows_and_shared(tmp_path):
    with rocmkern.open_checkpoint(save_hugging_face(tmp_path, hugging_face_weights(fused=True))) as checkpoint:
        parts = weight_parts(checkpoint, CONFIG)
        loaded = load_weights(checkpoint, CONFIG)
    assert parts["layers.1.k"] == ("model.layers.1.self_attn.qkv_proj.weight", (32, 48))
    assert not loaded["layers.0.q"].loaded
    for name, array in expected(hugging_face_weights()).items():
        np.testing.assert_array_equal(loaded[name].to_numpy(), array, err_msg=name)
    assert loaded["layers.0.v"].data_ptr - loaded["layers.0.q"].data_ptr == 48 * 32 * 4


def test_gguf_rows_of_llama_are_interleaved(tmp_path):
    weights = hugging_face_weights()
    with rocmkern.open_checkpoint(save_gguf(tmp_path / "model.gguf", weights)) as checkpoint:
        config = DecoderConfig.from_gguf(checkpoint.metadata)
        loaded = load_weights(checkpoint, config, ml_dtypes.bfloat16)
    assert config == dataclasses.replace(CONFIG, rope_variant="interleaved", rms_norm_eps=config.rms_norm_eps)
    assert config.rms_norm_eps == pytest.approx(1e-5)
    wanted = expected(weights)
    for i in range(2):
        for name, heads in (("q", 4), ("k", 2)):
            wanted[f"layers.{i}.{name}"] = permuted(wanted[f"layers.{i}.{name}"], heads)
    assert set(loaded) == set(wanted)
    for name, array in wanted.items():
        np.testing.assert_array_equal(loaded[name].to_numpy(), array.astype(ml_dtypes.bfloat16), err_msg=name)


def test_gguf_rows_of_qwen2_are_in_halves_and_have_biases(tmp_path):
    weights = hugging_face_weights(biases=True, tied=True)
    with rocmkern.open_checkpoint(save_gguf(tmp_path / "model.gguf", weights, "qwen2")) as checkpoint:
        config = DecoderConfig.from_gguf(checkpoint.metadata)
        loaded = load_weights(checkpoint, config)
    assert config.rope_variant == "half" and "output" not in loaded
    for name, array in expected(weights).items():
        np.testing.assert_array_equal(loaded[name].to_numpy(), array, err_msg=name)


def test_quantized_matrices_arrive_as_blocks(tmp_path):
    gguf = pytest.importorskip("gguf")
    weights = hugging_face_weights()
    path = save_gguf(tmp_path / "model.gguf", weights, quantized="Q8_0")
    with rocmkern.open_checkpoint(path) as checkpoint:
        loaded = load_weights(checkpoint, DecoderConfig.from_gguf(checkpoint.metadata))
    up = loaded["layers.1.up"]
    assert isinstance(up, QuantizedWeight) and up.format == "q8_0" and not up.blocks.loaded
    matrix = weights["model.layers.1.mlp.up_proj.weight"]
    np.testing.assert_array_equal(up.blocks.to_numpy(), gguf.quantize(matrix, gguf.GGMLQuantizationType.Q8_0))
    assert loaded["embedding"].dtype == np.float32


def test_formats_without_operations_are_refused_when_weights_are_loaded(tmp_path):
    gguf = pytest.importorskip("gguf")
    kind = gguf.GGMLQuantizationType.IQ4_NL
    weights = hugging_face_weights()
    blocks = np.zeros((64, 32 // 32 * 18), np.uint8)
    name = "model.layers.1.mlp.up_proj.weight"
    rest = {key: weight for key, weight in weights.items() if key != name}
    extra = [("blk.1.ffn_up.weight", blocks, kind)]
    with rocmkern.open_checkpoint(save_gguf(tmp_path / "model.gguf", rest, extra=extra)) as checkpoint:
        config = DecoderConfig.from_gguf(checkpoint.metadata)
        with pytest.raises(CheckpointError, match=r"model\.gguf: blk\.1\.ffn_up\.weight is iq4_nl.* q5_1.*quantize"):
            load_weights(checkpoint, config)


def test_rows_of_blocks_have_the_length_of_the_matrix(tmp_path):
    gguf = pytest.importorskip("gguf")
    kind = gguf.GGMLQuantizationType.Q5_0
    weights = hugging_face_weights()
    name = "model.layers.1.mlp.up_proj.weight"
    rest = {key: weight for key, weight in weights.items() if key != name}
    extra = [("blk.1.ffn_up.weight", np.zeros((64, 2 * 22), np.uint8), kind)]
    checkpoint = rocmkern.open_checkpoint(save_gguf(tmp_path / "model.gguf", rest, extra=extra))
    with checkpoint, pytest.raises(CheckpointError, match=r"blk\.1\.ffn_up\.weight has shape \(64, 44\)"):
        load_weights(checkpoint, DecoderConfig.from_gguf(checkpoint.metadata))


HF, GGUF = DecoderConfig.from_hugging_face, DecoderConfig.from_gguf
FILE = {
    "general.architecture": "llama", "llama.block_count": 2, "llama.embedding_length": 32, "llama.vocab_size": 50,
    "llama.feed_forward_length": 64, "llama.attention.head_count": 4, "llama.attention.layer_norm_rms_epsilon": 1e-5,
}  # fmt: skip


@pytest.mark.parametrize(
    ("read", "sound", "key", "values"),
    [
        (HF, HUGGING_FACE, "num_attention_heads", (0, -1, 2.0, "4", True, [], 1 << 40)),
        (HF, HUGGING_FACE, "num_hidden_layers", (0.5, "2", None)),
        (HF, HUGGING_FACE, "rms_norm_eps", ("x", float("nan"), float("inf"), 10**400, None)),
        (HF, HUGGING_FACE, "rope_theta", ("x", float("inf"))),
        (HF, HUGGING_FACE, "rope_scaling", ("x", [1])),
        (HF, HUGGING_FACE, "hidden_act", ([], {}, 3)),
        (HF, HUGGING_FACE, "sliding_window", ("x", -1)),
        (HF, HUGGING_FACE, "model_type", ([], 3)),
        (GGUF, FILE, "llama.attention.head_count", (0, -1, 2.5, "4", [4, 4])),
        (GGUF, FILE, "llama.vocab_size", ("x",)),
        (GGUF, FILE, "llama.attention.layer_norm_rms_epsilon", ("x", [])),
        (GGUF, FILE, "llama.rope.freq_base", ("x", float("nan"))),
        (GGUF, FILE, "llama.rope.scaling.type", (3, [])),
        (GGUF, FILE, "llama.attention.sliding_window", ("x",)),
    ],
)
def test_configurations_of_other_kinds_are_named(read, sound, key, values):
    read(sound)
    for value in values:
        with pytest.raises(CheckpointError) as caught:
            read(sound | {key: value})
        assert len(str(caught.value)) < 200
        if key != "hidden_act":
            assert key in str(caught.value)


@pytest.mark.parametrize(
    ("read", "sound", "key", "of"),
    [
        (HF, HUGGING_FACE, "num_hidden_layers", "num_layers"),
        (HF, HUGGING_FACE, "sliding_window", "sliding_window"),
        (GGUF, FILE, "llama.block_count", "num_layers"),
        (GGUF, FILE, "llama.attention.sliding_window", "sliding_window"),
    ],
)
@pytest.mark.parametrize("value", [1, 2**31 - 1])
def test_the_smallest_and_the_largest_size_are_sizes(read, sound, key, of, value):
    assert getattr(read(sound | {key: value}), of) == value
    for beyond in (0, 2**31):
        with pytest.raises(CheckpointError, match=rf"{key} is {beyond}, not a whole number from 1 to 2147483647"):
            read(sound | {key: beyond})


def test_a_number_of_layers_is_not_believed(tmp_path):
    checkpoint = rocmkern.open_checkpoint(save_hugging_face(tmp_path, hugging_face_weights()))
    with checkpoint, pytest.raises(CheckpointError, match="too few for 2147483647 layers"):
        load_weights(checkpoint, dataclasses.replace(CONFIG, num_layers=2**31 - 1))


def refused(tmp_path, weights, config=CONFIG):
    (tmp_path / "model.safetensors").unlink(missing_ok=True)
    with rocmkern.open_checkpoint(save_hugging_face(tmp_path, weights)) as checkpoint:
        with pytest.raises(CheckpointError) as caught:
            weight_parts(checkpoint, config)
        return str(caught.value)


def test_of_many_names_eight_are_listed_and_the_others_counted(tmp_path):
    weights = hugging_face_weights()
    of_layers = [name for name in weights if ".layers." in name]
    assert len(of_layers) == 18
    for left, commas, rest in ((17, 0, ""), (13, 4, ""), (10, 7, ""), (9, 7, " and 1 more"), (2, 7, " and 8 more")):
        message = refused(tmp_path, {k: w for k, w in weights.items() if k not in of_layers[left:]})
        assert message.endswith(rest) and message.count(",") == commas and ("more" in message) == bool(rest)
    strangers = {f"stranger.{n}": np.ones(1, np.float32) for n in range(9)}
    assert refused(tmp_path, weights | strangers).endswith("stranger.7 and 1 more")


def test_what_does_not_fit_is_named(tmp_path):
    weights = hugging_face_weights()
    name = "model.layers.1.mlp.down_proj.weight"
    assert "layers.1.down" in refused(tmp_path, {key: w for key, w in weights.items() if key != name})
    message = refused(tmp_path, weights | {name: weights[name].T.copy()})
    assert name in message and "(32, 64)" in message
    assert "pre_feedforward" in refused(tmp_path, weights | {"model.layers.0.pre_feedforward.weight": weights[name]})
    assert "layer" in refused(tmp_path, weights, dataclasses.replace(CONFIG, num_layers=1))
    fused = hugging_face_weights(fused=True)
    name = "model.layers.0.self_attn.qkv_proj.weight"
    message = refused(tmp_path, fused | {name: fused[name][1:]})
    assert message.startswith(f"{name} has shape (63, 32); ") and message.endswith(" have 64 rows")
    integers = weights | {"model.norm.weight": np.ones(32, np.int32)}
    (tmp_path / "model.safetensors").unlink()
    checkpoint = rocmkern.open_checkpoint(save_hugging_face(tmp_path, integers))
    with checkpoint, pytest.raises(CheckpointError, match="int32"):
        load_weights(checkpoint, CONFIG)


def test_frequencies_that_are_computed_here_are_left_out(tmp_path):
    weights = hugging_face_weights() | {"model.layers.0.self_attn.rotary_emb.inv_freq": np.ones(4, np.float32)}
    with rocmkern.open_checkpoint(save_hugging_face(tmp_path, weights)) as checkpoint:
        assert set(weight_parts(checkpoint, CONFIG)) == set(expected(hugging_face_weights()))


LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


def with_factors(tmp_path, factors, place="extra"):
    """A GGUF file with factors of its own, open, and its configuration."""
    added = {place: [("rope_freqs.weight", np.asarray(factors))]}
    checkpoint = rocmkern.open_checkpoint(save_gguf(tmp_path / "model.gguf", hugging_face_weights(), **added))
    return checkpoint, DecoderConfig.from_gguf(checkpoint.metadata)


@pytest.mark.parametrize("place", ["extra", "before"])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_the_frequency_factors_of_a_file_are_read(tmp_path, dtype, place):
    checkpoint, config = with_factors(tmp_path, np.array([1, 1.5, 3, 8], dtype), place)
    with checkpoint:
        loaded = load_weights(checkpoint, config, ml_dtypes.bfloat16)
    assert set(loaded) == {*expected(hugging_face_weights()), "rope_freq_factors"}
    assert config.rope_scaling is None and loaded["rope_freq_factors"].dtype == np.float32
    np.testing.assert_array_equal(loaded["rope_freq_factors"], [1, 1.5, 3, 8])


def test_a_scaling_by_hand_must_be_that_of_the_file(tmp_path):
    scaling = {**LLAMA3, "original_max_position_embeddings": 300}
    radians = 500.0 ** (-np.arange(4) / 4)
    factors = radians / rotary_reference.frequencies(8, 500.0, scaling)[0]
    assert factors[0] == 1 and 1 < factors[2] < 8 == factors[3]
    checkpoint, config = with_factors(tmp_path, factors.astype(np.float32))
    with checkpoint:
        load_weights(checkpoint, dataclasses.replace(config, rope_scaling=scaling))
        for other in (
            {"rope_type": "linear", "factor": 999.0},
            {"rope_type": "linear", "factor": 2.0},
            {**scaling, "factor": 7.9},
            {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 300},
        ):
            with pytest.raises(CheckpointError, match=r"rope_freqs\.weight divides .* leave rope_scaling out"):
                load_weights(checkpoint, dataclasses.replace(config, rope_scaling=other))


@pytest.mark.parametrize(
    ("factors", "words"),
    [
        (np.ones(5, np.float32), r"shape \(5,\)"),
        (np.array([1, 0, 1, 1], np.float32), "0.0 at index 1"),
        (np.array([1, 1, 1, np.nan], np.float32), "nan at index 3"),
        (np.ones(4, np.int32), "int32"),
    ],
)
def test_factors_that_divide_nothing_are_refused_by_name(tmp_path, factors, words):
    checkpoint, config = with_factors(tmp_path, factors)
    with checkpoint, pytest.raises(CheckpointError, match=rf"rope_freqs\.weight.*{words}"):
        load_weights(checkpoint, config)


@pytest.mark.parametrize(
    ("changes", "expected_changes"),
    [
        ({}, {}),
        ({"rope_scaling": LLAMA3}, {"rope_scaling": LLAMA3}),
        ({"rope_theta": None, "rope_parameters": {"rope_type": "default", "rope_theta": 7.0}}, {"rope_base": 7.0}),
        ({"model_type": "mistral", "sliding_window": 16}, {"sliding_window": 16}),
        ({"model_type": "qwen2", "sliding_window": 16, "use_sliding_window": False}, {}),
        ({"head_dim": 16}, {"head_dim": 16}),
        ({"num_key_value_heads": None}, {"num_kv_heads": 4}),
        (
            {"model_type": "gemma", "hidden_act": "gelu"},
            {"activation": "gelu_tanh", "norm_weight_offset": 1.0, "embedding_scale": 32**0.5},
        ),
    ],
)
def test_hugging_face_configurations(changes, expected_changes):
    config = DecoderConfig.from_hugging_face(HUGGING_FACE | changes)
    assert config == dataclasses.replace(CONFIG, **expected_changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "gpt2"}, "gpt2"),
        ({"hidden_act": "mish"}, "mish"),
        (
            {"model_type": "qwen2", "sliding_window": 8, "use_sliding_window": True, "max_window_layers": 1},
            "some layers",
        ),
    ],
)
def test_other_configurations_are_refused(changes, message):
    with pytest.raises(CheckpointError, match=message):
        DecoderConfig.from_hugging_face(HUGGING_FACE | changes)
    with pytest.raises(CheckpointError, match="num_hidden_layers"):
        DecoderConfig.from_hugging_face({k: v for k, v in HUGGING_FACE.items() if k != "num_hidden_layers"})


def test_gguf_configurations_of_others_are_refused():
    with pytest.raises(CheckpointError, match="bert"):
        DecoderConfig.from_gguf({"general.architecture": "bert"})
    with pytest.raises(CheckpointError, match=r"llama\.attention\.head_count"):
        DecoderConfig.from_gguf({"general.architecture": "llama"})
