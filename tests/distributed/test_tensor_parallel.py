"""Linear layers, MLPs and a decoder whose weights are cut among ranks are those of one process."""

import dataclasses

import numpy as np
import pytest

pytest.importorskip("torch", reason="torch.distributed is part of PyTorch")

import rocmkern
from rocmkern import reference
from rocmkern.decoder import Decoder, DecoderConfig, QuantizedWeight
from rocmkern.distributed import shard_decoder, shard_linear, shard_sequence
from rocmkern.runtime.errors import ArgumentError


def drawn(*shape, scale=1.0, seed=0):
    return (np.random.default_rng(seed).standard_normal(shape) * scale).astype(np.float32)


def close(got, exact, one):
    """Within twice the error of one process, or of two units in the last place of the largest number."""
    bound = max(2 * np.abs(one - exact).max(), 2 * np.finfo(np.float32).eps * np.abs(exact).max())
    assert np.abs(got - exact).max() <= bound


@pytest.mark.parametrize("sequence", [False, True])
@pytest.mark.parametrize("size", [1, 2, 4])
def test_columns_and_then_rows(ranks, size, sequence):
    x, first, second = drawn(21, 32), drawn(50, 32, scale=0.2), drawn(24, 50, scale=0.2, seed=1)
    bias, bias_2 = drawn(50, seed=2), drawn(24, seed=3)
    place = [{"rank": rank, "size": size} for rank in range(size)]
    arguments = [
        (
            shard_sequence(x, axis=0, **p) if sequence else x,
            (shard_linear(first, "columns", **p), shard_linear(bias, "columns", **p)),
            (shard_linear(second, "rows", **p), bias_2),
            {"sequence": sequence},
        )
        for p in place
    ]
    hidden, out = zip(*ranks.call("steps:linears", arguments), strict=True)
    exact_hidden = reference.linear(x, first, bias, "gelu")
    with rocmkern.using("cpu"):
        one_hidden = rocmkern.linear(x, first, bias, "gelu")
        one = rocmkern.linear(one_hidden, second, bias_2)
    close(np.concatenate(hidden, 1), exact_hidden, one_hidden)
    exact = exact_hidden @ second.T.astype(np.float64) + bias_2
    if sequence:
        close(np.concatenate(out), exact, one)
    else:
        for of_rank in out:
            close(of_rank, exact, one)
            np.testing.assert_array_equal(of_rank, out[0])


@pytest.mark.parametrize("sequence", [False, True])
@pytest.mark.parametrize("form", [None, "q4_0", "q8_0"])
def test_an_mlp(ranks, form, sequence):
    x, gate, up = drawn(9, 64), drawn(160, 64, scale=0.2, seed=1), drawn(160, 64, scale=0.2, seed=2)
    down, size = drawn(64, 160, scale=0.2, seed=3), 4
    weights, plain = (gate, up, down), (gate, up, down)
    if form:
        weights = [QuantizedWeight(rocmkern.quantize(w, form), form) for w in weights]
        plain = [reference.dequantize(w.blocks, form) for w in weights]
    arguments = []
    for rank in range(size):
        p = {"rank": rank, "size": size, "unit": 32 if form else 1}
        own = [shard_linear(w, by, **p) for w, by in zip(weights, ("columns", "columns", "rows"), strict=True)]
        arguments.append(
            (shard_sequence(x, axis=0, rank=rank, size=size) if sequence else x, own, {"sequence": sequence})
        )
    out = ranks.call("steps:mlp", arguments)
    exact = reference.mlp(x, *plain)
    with rocmkern.using("cpu"):
        one = rocmkern.mlp(x, *(np.asarray(w, np.float32) for w in plain))
    close(np.concatenate(out) if sequence else out[2], exact, one)


CONFIG = DecoderConfig(50, 64, 128, 2, 8, 4, 8, rope_base=500.0)


def decoder_weights(config, form=None, tied=False, seed=0):
    rng = np.random.default_rng(seed)

    def matrix(rows, columns):
        x = (rng.standard_normal((rows, columns)) / np.sqrt(columns)).astype(np.float32)
        return QuantizedWeight(rocmkern.quantize(x, form), form) if form else x

    h, kv = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    hidden, wide = config.hidden_size, config.intermediate_size
    weights = {"embedding": rng.standard_normal((50, hidden)).astype(np.float32), "norm": np.ones(hidden, np.float32)}
    if not tied:
        weights["output"] = matrix(50, hidden)
    for i in range(config.num_layers):
        layer = {"attention_norm": np.ones(hidden, np.float32), "mlp_norm": np.ones(hidden, np.float32)}
        layer |= {"q": matrix(h, hidden), "k": matrix(kv, hidden), "v": matrix(kv, hidden), "o": matrix(hidden, h)}
        layer |= {"gate": matrix(wide, hidden), "up": matrix(wide, hidden), "down": matrix(hidden, wide)}
        layer |= {"q_bias": drawn(h, seed=i), "v_bias": drawn(kv, seed=i), "o_bias": drawn(hidden, seed=i)}
        weights |= {f"layers.{i}.{name}": array for name, array in layer.items()}
    return weights


@pytest.mark.parametrize(("size", "kv_heads", "form", "tied"), [
    (1, 4, None, False), (2, 4, None, False), (4, 4, None, True), (4, 2, None, False), (2, 4, "q8_0", False),
])  # fmt: skip
def test_a_decoder_over_ranks_draws_the_same_tokens(ranks, size, kv_heads, form, tied):
    config = dataclasses.replace(CONFIG, num_kv_heads=kv_heads)
    weights = decoder_weights(config, form, tied)
    prompts = [[3, 14, 15, 9, 2, 6], [5, 35]]
    options = {"temperature": 1.0, "seed": 7, "block_size": 4}
    own = [shard_decoder(weights, config, rank=rank, size=size) for rank in range(size)]
    results = ranks.call("steps:generated", [(config, some, prompts, options) for some in own])
    with rocmkern.using("cpu"):
        one = Decoder(config, weights)
        tokens = one.generate(prompts, 12, **options)
        with one.new_cache(16, 4) as cache:
            logits = one.logits(cache, [cache.add(), cache.add()], prompts, every=True)
    for drawn_tokens, of_rank, cache_shape in results:
        np.testing.assert_array_equal(drawn_tokens, tokens)
        np.testing.assert_allclose(of_rank, logits, atol=2e-5 * np.abs(logits).max())
        assert cache_shape[3] == max(1, kv_heads // size)


def test_what_cannot_be_cut_is_refused():
    block = QuantizedWeight(rocmkern.quantize(drawn(8, 64), "q4_0"), "q4_0")
    with pytest.raises(ArgumentError, match="for each of 4 ranks"):
        shard_linear(block, "rows", rank=0, size=4)
    with pytest.raises(ArgumentError, match="end between blocks"):
        shard_linear(block, "rows", unit=8, rank=0, size=4)
    with pytest.raises(ArgumentError, match="multiple of unit"):
        shard_linear(drawn(10, 4), "columns", unit=4, rank=0, size=2)
    with pytest.raises(ArgumentError, match="6 heads"):
        shard_decoder({}, dataclasses.replace(CONFIG, num_heads=6, num_kv_heads=2), rank=0, size=4)
    with pytest.raises(ArgumentError, match="by"):
        shard_linear(drawn(4, 4), "heads", rank=0, size=2)
