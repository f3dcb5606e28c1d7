"""The decoder step by step on the interpreter, with a tiny model; and what it asks of the operations."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

import rocmkern
from rocmkern import reference
from rocmkern.decoder import Decoder, DecoderConfig, QuantizedWeight
from rocmkern.decoder.model import decoder_logits
from rocmkern.runtime.errors import ArgumentError

TINY = DecoderConfig(6, 8, 4, num_layers=1, num_heads=2, num_kv_heads=1, head_dim=4)
TOKENS = np.array([1, 2, 5, 4, 0, 3, 1], np.int32)


@pytest.fixture(autouse=True)
def _on_the_interpreter():
    with rocmkern.using("python"):
        yield


def tiny_weights(config=TINY, *, tied=False, biases=False):
    rng, hidden, wide, dim = np.random.default_rng(3), config.hidden_size, config.intermediate_size, config.head_dim
    q, kv = config.num_heads * dim, config.num_kv_heads * dim
    shapes = {"embedding": (config.vocab_size, hidden), "norm": (hidden,)}
    shapes |= {} if tied else {"output": (config.vocab_size, hidden)}
    for i in range(config.num_layers):
        layer = {"attention_norm": (hidden,), "mlp_norm": (hidden,), "q": (q, hidden), "k": (kv, hidden)}
        layer |= {"v": (kv, hidden), "o": (hidden, q), "gate": (wide, hidden), "up": (wide, hidden)}
        layer |= {"down": (hidden, wide)}
        layer |= {"q_bias": (q,), "k_bias": (kv,), "v_bias": (kv,), "o_bias": (hidden,)} if biases else {}
        shapes |= {f"layers.{i}.{name}": shape for name, shape in layer.items()}
    return {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


@pytest.mark.parametrize(
    ("fields", "options"),
    [
        ({"num_layers": 2}, {}),
        ({}, {"tied": True}),
        ({}, {"biases": True}),
        ({"activation": "gelu"}, {}),
        ({"activation": "gelu_tanh", "embedding_scale": 8**0.5, "norm_weight_offset": 1.0}, {}),
        ({"rope_variant": "interleaved", "rope_base": 7.0}, {}),
        ({"rms_norm_eps": 0.5}, {}),
    ],
    ids=str,
)
def test_logits_are_those_of_the_float64_model(fields, options):
    config = dataclasses.replace(TINY, **fields)
    weights = tiny_weights(config, **options)
    expected = reference.decoder_logits(TOKENS, config=config, **weights)
    np.testing.assert_allclose(decoder_logits(TOKENS, config=config, prefill=4, **weights), expected, atol=1e-4)


def test_of_each_sequence_the_last_logits_or_all():
    decoder = Decoder(TINY, tiny_weights())
    with decoder.new_cache(4, 4) as cache:
        sequences = [cache.add(), cache.add()]
        every = decoder.logits(cache, sequences, [TOKENS[:5], TOKENS[:2]], every=True)
    with decoder.new_cache(4, 4) as cache:
        sequences = [cache.add(), cache.add()]
        last = decoder.logits(cache, sequences, [TOKENS[:5], TOKENS[:2]])
    assert every.shape == (7, 6)
    np.testing.assert_array_equal(last, every[[4, 6]])


@pytest.mark.parametrize("window", [1, 3, 7])
def test_a_token_sees_its_window(monkeypatch, window):
    """In one layer, the logits are those of the tokens of the window alone: rotation sees distances only."""
    asked, attention = [], rocmkern.paged_attention
    monkeypatch.setattr(rocmkern, "paged_attention", lambda *a, **k: asked.append(k["window"]) or attention(*a, **k))
    config, weights = dataclasses.replace(TINY, sliding_window=window), tiny_weights()
    got = decoder_logits(TOKENS, config=config, **weights)
    for i, row in enumerate(got):
        seen = TOKENS[max(0, i - window + 1) : i + 1]
        np.testing.assert_allclose(row, reference.decoder_logits(seen, config=TINY, **weights)[-1], atol=1e-4)
    assert asked == [(window - 1, 0)]


def test_quantized_matrices_are_their_numbers():
    wide = dataclasses.replace(TINY, hidden_size=32, intermediate_size=32, num_kv_heads=2, head_dim=16)
    for activation in ("silu", "gelu", "gelu_tanh"):
        config = dataclasses.replace(wide, activation=activation)
        weights = {name: array / 4 for name, array in tiny_weights(config).items()}
        quantized, numbers = dict(weights), dict(weights)
        for name in ("layers.0.q", "layers.0.down", "output", "embedding"):
            blocks = rocmkern.quantize(weights[name], "q8_0")
            quantized[name], numbers[name] = QuantizedWeight(blocks, "q8_0"), rocmkern.dequantize(blocks, "q8_0")
        expected = reference.decoder_logits(TOKENS[:3], config=config, **numbers)
        decoder = Decoder(config, quantized)
        with decoder.new_cache(1) as cache:
            got = decoder.logits(cache, [cache.add()], [TOKENS[:3]], every=True)
        np.testing.assert_allclose(got, expected, atol=1e-3)


class Counting(Decoder):
    """The token behind `n` is `n + 1`, whatever was before; what it is asked for is written down."""

    def __init__(self, config=TINY):
        super().__init__(config, tiny_weights(config))
        self.caches, self.asked = [], []

    def new_cache(self, num_blocks, block_size=16):
        self.caches.append((num_blocks, block_size))
        return super().new_cache(num_blocks, block_size)

    def logits(self, cache, sequences, tokens, *, every=False):
        self.asked.append([list(some) for some in tokens])
        for sequence, some in zip(sequences, tokens, strict=True):
            cache.append(sequence, len(some))
        rows = np.full((len(tokens), self.config.vocab_size), -5, np.float32)
        for row, some in zip(rows, tokens, strict=True):
            row[(some[-1] + 1) % len(row)] = 5
        return rows


@pytest.mark.parametrize(
    ("most", "stop", "new", "asked"),
    [
        (0, (), [[], []], 0),
        (1, (), [[3], [5]], 1),
        (3, (), [[3, 4, 5], [5, 0, 1]], 3),
        (3, [5], [[3, 4, 5], [5]], 3),
        (9, [5, 3], [[3], [5]], 1),
        (9, [5], [[3, 4, 5], [5]], 3),
        (4, [0], [[3, 4, 5, 0], [5, 0]], 4),
    ],
)
def test_generation_ends_with_a_stop_or_the_last_token(most, stop, new, asked):
    decoder = Counting()
    got = decoder.generate([[1, 2], [4]], most, temperature=0, seed=0, stop=stop, block_size=2)
    assert [tokens.tolist() for tokens in got] == new and all(tokens.dtype == np.int32 for tokens in got)
    assert len(decoder.asked) == asked
    # Room for all tokens of each prompt, by blocks of two.
    assert decoder.caches == ([(-(-(2 + most) // 2) + -(-(1 + most) // 2), 2)] if most else [])
    # First the prompts, then what is new of those that go on.
    assert decoder.asked[:1] == ([[[1, 2], [4]]] if most else [])
    for step, tokens in enumerate(decoder.asked[1:]):
        assert tokens == [[some[step]] for some in new if len(some) > step + 1]


def test_what_is_drawn_depends_on_the_position(monkeypatch):
    calls, sample = [], rocmkern.sample
    monkeypatch.setattr(rocmkern, "sample", lambda *given, **named: calls.append(named) or sample(*given, **named))
    decoder = Counting()
    new = decoder.generate([[1, 2], [4]], 3, seed=[7, 2**64 - 1], top_k=[None, 1], top_p=[0.5, None], stop=[3])
    assert [tokens.tolist() for tokens in new] == [[3], [5, 0, 1]]
    assert [call["offset"].tolist() for call in calls] == [[2, 1], [2], [3]]
    assert [call["seed"].tolist() for call in calls] == [[7, 2**64 - 1], [2**64 - 1], [2**64 - 1]]
    assert calls[0]["top_k"].tolist() == [2**31 - 1, 1] and calls[0]["top_p"].tolist() == [0.5, 1.0]
    assert all(call["temperature"] == 1.0 for call in calls)
    assert calls[1]["top_k"].tolist() == [1] and calls[1]["top_p"].tolist() == [1.0]
    decoder.generate([[1]], 1, seed=3)
    assert (calls[-1]["seed"], calls[-1]["top_k"], calls[-1]["top_p"]) == (3, None, None)
    assert decoder.caches[-1] == (1, 16)


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("seed", [1], "1 numbers; allowed: one number, or one for each of the 2 prompts"),
        ("top_p", [0.5] * 3, "3 numbers; allowed: one number, or one for each of the 2 prompts"),
        ("seed", [1, -2], "-2 in row 1"),
        ("temperature", [1.0, -1.0], "-1.0 in row 1"),
        ("top_k", [None, 0], "0 in row 1"),
        ("top_p", [None, 1.5], "1.5 in row 1"),
    ],
)
def test_a_number_of_a_prompt_that_is_none_is_named(name, value, words):
    with pytest.raises(ArgumentError, match=words) as caught:
        Counting().generate([[1], [2]], 2, **{"seed": 0, name: value})
    assert caught.value.argument == name


def test_tokens_and_sequences_belong_together():
    decoder = Decoder(TINY, tiny_weights())
    with decoder.new_cache(4) as cache:
        sequence = cache.add()
        for tokens, words in (
            ([], "tokens: got 0 arrays; allowed: one for each of the 1 sequences"),
            ([[1], [2]], "tokens: got 2 arrays; allowed: one for each of the 1 sequences"),
            ([[]], "tokens: got a sequence without new tokens; allowed: at least one for each sequence"),
        ):
            with pytest.raises(ArgumentError) as caught:
                decoder.logits(cache, [sequence], tokens)
            assert str(caught.value) == words
        assert cache.length(sequence) == 0


def test_a_cache_is_made_for_the_decoder():
    decoder = Decoder(dataclasses.replace(TINY, num_layers=3), tiny_weights(dataclasses.replace(TINY, num_layers=3)))
    with decoder.new_cache(5) as cache:
        assert len(cache.keys) == len(cache.values) == 3
        assert {array.shape for array in (*cache.keys, *cache.values)} == {(5, 16, 1, 4)}
