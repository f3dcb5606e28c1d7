"""A whole sequence by the ranks of a group, for the tests: cut, computed, put together, and held to the rule.

The rule is always the same: as close to float64 as one process is, on the CPU with gloo as on a card with NCCL.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np

import rocmkern
from rocmkern import reference
from rocmkern.decoder import QuantizedWeight
from rocmkern.distributed import join_sequence, shard_decoder, shard_linear, shard_sequence


def error(got, exact):
    """The largest one."""
    return np.abs(got.astype(np.float64) - exact).max(initial=0.0)


def close(got, exact, one, units=2):
    """Within twice the error of one process, or so many units in the last place of the largest number."""
    assert got.dtype == one.dtype
    unit = float(ml_dtypes.finfo(got.dtype).eps)
    assert error(got, exact) <= max(2 * error(one, exact), units * unit * np.abs(exact).max(initial=0.0))


# --------------------------------------------------------------------------------------------------------- attention


def drawn(total, dtype=np.float32, heads=(4, 4), batch=2, keys=None, dim=32):
    """q, k and v."""
    rng = np.random.default_rng(total)
    q = rng.standard_normal((batch, heads[0], total, dim)).astype(dtype)
    k, v = (rng.standard_normal((batch, heads[1], keys or total, dim)).astype(dtype) for _ in range(2))
    return q, k, v


def over_ranks(ranks, size, q, k, v, *, split="contiguous", axis=-2, lse_axis=-1, lengths=None, **options):
    """Out and lse of the whole sequence, and the bytes that each rank sent."""

    def part(x, rank):
        if lengths is not None:
            ends = np.cumsum([0, *lengths])
            return np.take(x, np.arange(ends[rank], ends[rank + 1]), axis)
        return shard_sequence(x, axis=axis, split=split, rank=rank, size=size)

    arguments = [(*(part(x, rank) for x in (q, k, v)), {"split": split, **options}) for rank in range(size)]
    outs, lses, sent = zip(*ranks.call("steps:attention", arguments), strict=True)
    return join_sequence(outs, axis=axis, split=split), join_sequence(lses, axis=lse_axis, split=split), sent


def check(ranks, out, lse, arrays, **options):
    """Hold a result and its log-sum-exps to the rule, with the options of a plain call."""
    exact, exact_lse = reference.flash_attention(*arrays, return_lse=True, **options)
    ((one, one_lse),) = ranks.call("steps:plain_attention", [(*arrays, options)])
    assert out.dtype == arrays[0].dtype
    close(out, exact, one)
    seen = np.isfinite(exact_lse)
    np.testing.assert_array_equal(np.isfinite(lse), seen)
    close(lse[seen], exact_lse[seen], one_lse[seen])


# --------------------------------------------------------------------------------------------------------- gradients


def drawn_for_gradients(total, heads=(4, 2), batch=2, keys=None, dim=16):
    """q, k, v, and the gradients of the result and of its log-sum-exps."""
    rng = np.random.default_rng(total)
    of_queries, of_keys = (batch, heads[0], total, dim), (batch, heads[1], keys or total, dim)
    arrays = [rng.standard_normal(shape, dtype=np.float32) for shape in (of_queries, of_keys, of_keys, of_queries)]
    return *arrays, rng.standard_normal((batch, heads[0], total), dtype=np.float32)


def gradients_over_ranks(ranks, size, arrays, *, sinks=None, split="contiguous", axis=-2, without_dlse=(), **options):
    """dq, dk and dv of the whole sequence, and the sum of the ranks' gradients of sinks; the same bits twice.

    Some ranks may have no gradients of log-sum-exps.
    """

    def part(x, rank, axis=axis):
        return np.ascontiguousarray(shard_sequence(x, axis=axis, split=split, rank=rank, size=size))

    *rows, dlse = arrays
    arguments = []
    for rank in range(size):
        q, k, v, dout = (part(x, rank) for x in rows)
        of_lse = None if rank in without_dlse else part(dlse, rank, -1)
        arguments.append((q, k, v, sinks, dout, of_lse, {"split": split, **options}))
    found, again, _ = zip(*ranks.call("steps:gradients", arguments), strict=True)
    for one, other in zip(found, again, strict=True):
        assert all(map(np.array_equal, one, other))
    whole = [join_sequence([each[i] for each in found], axis=axis, split=split) for i in range(3)]
    return whole + ([] if sinks is None else [sum(each[3] for each in found)])


def check_gradients(ranks, found, arrays, sinks=None, **options):
    """Hold gradients to the rule, with the options of a plain call: they are sums, so some more units."""
    q, k, v, dout, dlse = arrays
    (one,) = ranks.call("steps:plain_gradients", [(q, k, v, sinks, dout, dlse, options)])
    asked, last = ({}, {}) if sinks is None else ({"sinks": sinks}, {"return_dsinks": True})
    o, lse = reference.flash_attention(q, k, v, return_lse=True, **options, **asked)
    exact = reference.flash_attention_backward(dout, q, k, v, o, lse, dlse=dlse, **options, **asked, **last)
    for got, wanted, single in zip(found, exact, one, strict=True):
        close(got, wanted, single, units=8)


# ----------------------------------------------------------------------------------------------------------- weights


def normal(*shape, scale=1.0, seed=0):
    """Numbers of a normal distribution."""
    return (np.random.default_rng(seed).standard_normal(shape) * scale).astype(np.float32)


def check_linears(ranks, size, sequence):
    """A layer by columns and one by rows."""
    x, first, second = normal(21, 32), normal(50, 32, scale=0.2), normal(24, 50, scale=0.2, seed=1)
    bias, bias_2 = normal(50, seed=2), normal(24, seed=3)
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
    ((one_hidden, one),) = ranks.call("steps:plain_linears", [(x, (first, bias), (second, bias_2))])
    exact_hidden = reference.linear(x, first, bias, "gelu")
    close(np.concatenate(hidden, 1), exact_hidden, one_hidden)
    exact = exact_hidden @ second.T.astype(np.float64) + bias_2
    if sequence:
        close(np.concatenate(out), exact, one)
    else:
        for of_rank in out:
            close(of_rank, exact, one)
            np.testing.assert_array_equal(of_rank, out[0])


def check_mlp(ranks, size, form, sequence):
    """An MLP, quantized in a format or not."""
    x, gate, up = normal(9, 64), normal(160, 64, scale=0.2, seed=1), normal(160, 64, scale=0.2, seed=2)
    down = normal(64, 160, scale=0.2, seed=3)
    weights, plain = (gate, up, down), (gate, up, down)
    if form:
        weights = [QuantizedWeight(rocmkern.quantize(w, form), form) for w in weights]
        plain = [reference.dequantize(w.blocks, form) for w in weights]
    arguments = []
    for rank in range(size):
        p = {"rank": rank, "size": size, "unit": 32 if form else 1}
        own = [shard_linear(w, by, **p) for w, by in zip(weights, ("columns", "columns", "rows"), strict=True)]
        tokens = shard_sequence(x, axis=0, rank=rank, size=size) if sequence else x
        arguments.append((tokens, own, {"sequence": sequence}))
    out = ranks.call("steps:mlp", arguments)
    (one,) = ranks.call("steps:plain_mlp", [(x, [np.asarray(w, np.float32) for w in plain])])
    close(np.concatenate(out) if sequence else out[-1], reference.mlp(x, *plain), one)


def decoder_weights(config, form=None, tied=False, seed=0):
    """Weights of a small model."""
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
        layer |= {"q_bias": normal(h, seed=i), "v_bias": normal(kv, seed=i), "o_bias": normal(hidden, seed=i)}
        weights |= {f"layers.{i}.{name}": array for name, array in layer.items()}
    return weights


def check_decoder(ranks, size, config, form=None, tied=False):
    """Each rank of a decoder draws what one that is alone does."""
    weights, prompts = decoder_weights(config, form, tied), [[3, 14, 15, 9, 2, 6], [5, 35]]
    options = {"temperature": 1.0, "seed": 7, "block_size": 4}
    own = [shard_decoder(weights, config, rank=rank, size=size) for rank in range(size)]
    results = ranks.call("steps:generated", [(config, some, prompts, options) for some in own])
    ((tokens, logits, _),) = ranks.call("steps:plain_generated", [(config, weights, prompts, options)])
    for drawn_tokens, of_rank, cache_shape in results:
        np.testing.assert_array_equal(drawn_tokens, tokens)
        np.testing.assert_allclose(of_rank, logits, atol=2e-5 * np.abs(logits).max())
        assert cache_shape[3] == max(1, config.num_kv_heads // size)
