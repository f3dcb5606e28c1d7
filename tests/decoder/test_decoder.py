"""The decoder: checkpoints of both kinds are the same model; sequences do not see each other; generation."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

pytest.importorskip("gguf")
pytest.importorskip("safetensors")

from small_checkpoints import CONFIG, hugging_face_weights, save_gguf, save_hugging_face

import rocmkern
from rocmkern import reference
from rocmkern.decoder import Decoder, DecoderConfig, QuantizedWeight, load_weights
from rocmkern.runtime.errors import ArgumentError, CheckpointError

TOKENS = np.array([3, 14, 15, 9, 2, 6, 5, 35, 8], np.int32)


@pytest.fixture(autouse=True)
def _on_the_cpu():
    with rocmkern.using("cpu"):
        yield


def hugging_face(tmp_path, **options):
    with rocmkern.open_checkpoint(save_hugging_face(tmp_path, hugging_face_weights(**options))) as checkpoint:
        return Decoder(CONFIG, load_weights(checkpoint, CONFIG))


def gguf(tmp_path, **options):
    with rocmkern.open_checkpoint(save_gguf(tmp_path / "model.gguf", hugging_face_weights(), **options)) as checkpoint:
        config = DecoderConfig.from_gguf(checkpoint.metadata)
        return Decoder(config, load_weights(checkpoint, config))


def logits(decoder, tokens=TOKENS):
    with decoder.new_cache(8, 4) as cache:
        return np.asarray(decoder.logits(cache, [cache.add()], [tokens], every=True))


def oracle(decoder):
    weights = {name: np.asarray(array) for name, array in decoder.weights.items()}
    return reference.decoder_logits(TOKENS, config=decoder.config, **weights)


@pytest.mark.parametrize("fused", [False, True])
def test_a_hugging_face_checkpoint_is_the_float64_model(tmp_path, fused):
    decoder = hugging_face(tmp_path, fused=fused)
    got = logits(decoder)
    np.testing.assert_allclose(got, oracle(decoder), atol=1e-4)


@pytest.mark.parametrize("architecture", ["llama", "qwen2"])
def test_a_gguf_file_is_the_same_model_whatever_the_order_of_its_rows(tmp_path, architecture):
    expected = logits(hugging_face(tmp_path))
    decoder = gguf(tmp_path, architecture=architecture)
    assert decoder.config.rope_variant == ("interleaved" if architecture == "llama" else "half")
    np.testing.assert_allclose(logits(decoder), expected, atol=1e-4)


def test_the_frequency_factors_of_a_file_turn_its_heads(tmp_path):
    plain = logits(gguf(tmp_path))
    decoder = gguf(tmp_path, extra=[("rope_freqs.weight", np.array([1, 2, 5, 8], np.float32))])
    got = logits(decoder)
    np.testing.assert_allclose(got, oracle(decoder), atol=1e-4)
    assert np.abs(got - plain)[1:].max() > 0.01
    once = gguf(tmp_path, extra=[("rope_freqs.weight", np.ones(4, np.float32))])
    np.testing.assert_array_equal(logits(once), plain)


def test_factors_by_hand_must_not_contradict_the_configuration(tmp_path):
    decoder = hugging_face(tmp_path)
    weights = decoder.weights | {"rope_freq_factors": np.full(4, 2, np.float32)}
    linear = {"rope_type": "linear", "factor": 2.0}
    expected = logits(Decoder(dataclasses.replace(CONFIG, rope_scaling=linear), decoder.weights))
    np.testing.assert_allclose(logits(Decoder(CONFIG, weights)), expected, atol=1e-5)
    agreeing = Decoder(dataclasses.replace(CONFIG, rope_scaling=linear), weights)
    np.testing.assert_array_equal(logits(agreeing), logits(Decoder(CONFIG, weights)))
    with pytest.raises(CheckpointError, match="rope_freqs"):
        Decoder(dataclasses.replace(CONFIG, rope_scaling=linear | {"factor": 999.0}), weights)


@pytest.mark.parametrize("format", ["Q8_0", "Q4_1", "Q5_0", "Q5_1"])
def test_quantized_weights_are_the_model_of_their_numbers(tmp_path, format):
    decoder = gguf(tmp_path, quantized=format)
    plain = {
        name: rocmkern.dequantize(weight.blocks, weight.format) if isinstance(weight, QuantizedWeight) else weight
        for name, weight in decoder.weights.items()
    }
    assert isinstance(decoder.weights["layers.0.gate"], QuantizedWeight)
    np.testing.assert_allclose(logits(decoder), logits(Decoder(decoder.config, plain)), atol=1e-4)


@pytest.mark.parametrize("activation", ["silu", "gelu", "gelu_tanh"])
def test_a_quantized_mlp_has_the_activation_of_the_model(tmp_path, activation):
    decoder = gguf(tmp_path, quantized="Q8_0")
    config = dataclasses.replace(decoder.config, activation=activation, num_layers=1)
    plain = {
        name: rocmkern.dequantize(weight.blocks, weight.format) if isinstance(weight, QuantizedWeight) else weight
        for name, weight in decoder.weights.items()
    }
    expected = reference.decoder_logits(TOKENS, config=config, **{n: np.asarray(a) for n, a in plain.items()})
    np.testing.assert_allclose(logits(Decoder(config, decoder.weights)), expected, atol=2e-5)


def test_a_quantized_embedding_is_decoded(tmp_path):
    decoder = hugging_face(tmp_path, tied=True)
    table = np.asarray(decoder.weights["embedding"])
    blocks = rocmkern.default_manager().from_numpy(rocmkern.quantize(table, "q8_0"))
    other = dict(decoder.weights)
    other["embedding"] = rocmkern.dequantize(blocks, "q8_0")
    expected = logits(Decoder(CONFIG, other))
    other["embedding"] = QuantizedWeight(blocks, "q8_0")
    np.testing.assert_allclose(logits(Decoder(CONFIG, other)), expected, atol=1e-4)


def test_sequences_of_a_batch_do_not_see_each_other(tmp_path):
    decoder = hugging_face(tmp_path)
    prompts = [TOKENS[:5], TOKENS[3:4], TOKENS]
    with decoder.new_cache(12, 4) as cache:
        sequences = [cache.add() for _ in prompts]
        together = np.asarray(decoder.logits(cache, sequences, prompts))
        more = np.asarray(decoder.logits(cache, sequences[1:], [[7], [1, 2]]))
    for row, prompt in zip(together, prompts, strict=True):
        np.testing.assert_allclose(row, logits(decoder, prompt)[-1], atol=1e-5)
    for row, prompt, added in zip(more, prompts[1:], ([7], [1, 2]), strict=True):
        np.testing.assert_allclose(row, logits(decoder, np.append(prompt, added))[-1], atol=1e-5)


def test_a_window_hides_what_lies_further_back(tmp_path):
    decoder = hugging_face(tmp_path)
    narrow = Decoder(dataclasses.replace(CONFIG, sliding_window=3, num_layers=1), decoder.weights)
    other = TOKENS.copy()
    other[0] += 1
    changed = np.abs(logits(narrow) - logits(narrow, other)).max(axis=1) > 1e-6
    np.testing.assert_array_equal(changed, [True] * 3 + [False] * 6)


def test_generation_at_temperature_0_takes_the_largest_logit_each_time(tmp_path):
    decoder = hugging_face(tmp_path)
    prompts = [TOKENS[:4], TOKENS[:7]]
    expected = []
    for prompt in prompts:
        tokens = list(prompt)
        for _ in range(6):
            tokens.append(int(logits(decoder, np.array(tokens))[-1].argmax()))
        expected.append(tokens[len(prompt) :])
    got = decoder.generate(prompts, 6, temperature=0, seed=0, block_size=4)
    assert [tokens.tolist() for tokens in got] == expected
    stop = expected[0][2]
    stopped = decoder.generate(prompts, 6, temperature=0, seed=0, stop=[stop])
    for tokens, whole in zip(stopped, expected, strict=True):
        length = whole.index(stop) + 1 if stop in whole else len(whole)
        assert tokens.tolist() == whole[:length]


def test_generation_depends_on_the_seed_only(tmp_path):
    decoder = hugging_face(tmp_path)
    draws = [decoder.generate([TOKENS], 8, top_p=0.95, seed=seed)[0].tolist() for seed in (1, 1, 2)]
    assert draws[0] == draws[1] != draws[2]
    assert decoder.generate([TOKENS], 0, seed=1)[0].shape == (0,)
    assert decoder.generate([], 3, seed=1) == []


def generated(decoder, prompts, steps=10, **options):
    return [tokens.tolist() for tokens in decoder.generate(prompts, steps, block_size=4, **options)]


@pytest.mark.parametrize("options", [{}, {"temperature": 0.6, "top_k": 20}, {"top_p": 0.8}], ids=str)
def test_what_a_sequence_gets_does_not_depend_on_its_neighbours(tmp_path, options):
    decoder = hugging_face(tmp_path)
    prompts = [[4], [1, 2], TOKENS, TOKENS[2:5], [7, 8]]
    together = generated(decoder, prompts, seed=3, **options)
    for prompt, expected in zip(prompts, together, strict=True):
        assert generated(decoder, [prompt], seed=3, **options) == [expected]
    assert generated(decoder, prompts[::-1], seed=3, **options) == together[::-1]
    assert generated(decoder, [*prompts, [9]], seed=3, **options)[:-1] == together


def test_a_sequence_that_ends_does_not_change_the_others(tmp_path):
    decoder = hugging_face(tmp_path)
    prompts = [[4], [1, 2], TOKENS]
    whole = generated(decoder, prompts, seed=5)
    stop = whole[0][2]
    stopped = generated(decoder, prompts, seed=5, stop=[stop])
    assert len(stopped[0]) <= 3
    for tokens, expected in zip(stopped, whole, strict=True):
        assert tokens == expected[: expected.index(stop) + 1 if stop in expected else None]


def test_a_continuation_goes_on_where_it_was_interrupted(tmp_path):
    """The random number belongs to the position, wherever the prompt ends."""
    decoder = hugging_face(tmp_path)
    whole = generated(decoder, [TOKENS], seed=6)[0]
    assert generated(decoder, [[*TOKENS.tolist(), *whole[:4]]], 6, seed=6)[0] == whole[4:]


@pytest.mark.parametrize(("prompts", "tokens"), [([], 3), ([TOKENS], 0), ([TOKENS, TOKENS[:2]], 0), ([], 0)])
def test_nothing_to_generate_is_nothing(tmp_path, prompts, tokens):
    new = hugging_face(tmp_path).generate(prompts, tokens, seed=1)
    assert [array.tolist() for array in new] == [[] for _ in prompts] and all(a.dtype == np.int32 for a in new)


def test_one_token_more_is_one_token_more(tmp_path):
    decoder = hugging_face(tmp_path)
    one, two = (decoder.generate([TOKENS], n, seed=[3], block_size=4)[0] for n in (1, 2))
    assert len(one) == 1 and len(two) == 2 and two[0] == one[0] and one.dtype == np.int32


def test_every_prompt_may_have_numbers_of_its_own(tmp_path):
    decoder = hugging_face(tmp_path)
    numbers = {
        "temperature": [0.0, 0.5, 1.5, 1.0],
        "top_k": [None, 5, 20, None],
        "top_p": [None, 0.9, None, 0.5],
        "seed": [1, 2**64 - 1, 2**63, 1],
    }
    prompts = [TOKENS, TOKENS, TOKENS, TOKENS]
    together = generated(decoder, prompts, **numbers)
    for i, expected in enumerate(together):
        assert generated(decoder, [TOKENS], **{name: values[i] for name, values in numbers.items()}) == [expected]
    several = generated(decoder, prompts, seed=[1, 2, 3, 4])
    assert len(set(map(tuple, several))) == 4
    assert len(set(map(tuple, generated(decoder, prompts, seed=1)))) == 1


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("seed", [1], "1 numbers"),
        ("seed", [1, -2], "-2 in row 1"),
        ("seed", [1, 1.5], "dtype"),
        ("temperature", [1.0, -1.0], "-1.0 in row 1"),
        ("top_k", [None, 0], "0 in row 1"),
        ("top_p", [0.5, 0.5, 0.5], "3 numbers"),
    ],
)
def test_a_bad_number_of_a_prompt_is_named(tmp_path, name, value, words):
    decoder = hugging_face(tmp_path)
    with pytest.raises(ArgumentError, match=words) as error:
        decoder.generate([[1], [2]], 2, **{"seed": 0, name: value})
    assert error.value.argument == name


def test_wrong_tokens_are_named(tmp_path):
    decoder = hugging_face(tmp_path)
    with decoder.new_cache(4) as cache:
        sequence = cache.add()
        for tokens in ([], [TOKENS, TOKENS], [[]]):
            with pytest.raises(ArgumentError, match="tokens"):
                decoder.logits(cache, [sequence], tokens)
