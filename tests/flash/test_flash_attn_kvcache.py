"""`flash_attn_with_kvcache` against the formula in float64: what it returns, and what it leaves in the cache."""

from __future__ import annotations

import numpy as np
import pytest
from attention_formula import attention, rotated

import rocmkern
from rocmkern.flash_attn import flash_attn_with_kvcache
from rocmkern.runtime.errors import ArgumentError, ArgumentTypeError

BOUNDS = {np.float32: 2e-5, np.float16: 5e-3}


def drawn(seed):
    """Arrays by name, options, and for each sequence the places of its rows in the caches."""
    rng = np.random.default_rng(seed)
    dtype, kind = [np.float32, np.float16][seed % 2], ["rows", "batch_idx", "pages"][seed // 2 % 3]
    batch, kv_heads, dim, room = int(rng.integers(1, 4)), int(rng.choice([1, 2])), int(rng.choice([8, 19])), 48
    heads, queries, new = kv_heads * int(rng.choice([1, 3])), int(rng.choice([1, 2, 7])), int(rng.choice([0, 1, 2, 7]))
    lengths = rng.integers(0, room - max(queries, new) + 1, batch).astype(np.int32)
    if not new:
        lengths = np.maximum(lengths, 1)
    arrays = {"q": rng.standard_normal((batch, queries, heads, dim)).astype(dtype)}
    size, table = room, np.arange(batch)[:, None]
    shape = (batch + int(rng.integers(2)), room)
    if kind == "pages":
        size = int(rng.choice([1, 5, 16, 544]))
        entries = -(-room // size)
        shape, table = (batch * entries + 1, size), rng.permutation(batch * entries + 1)[: batch * entries]
        arrays["block_table"] = table = table.astype(np.int32).reshape(batch, entries)
    elif kind == "batch_idx":
        shape = (batch + 2, room)
        arrays["cache_batch_idx"] = rng.permutation(batch + 2)[:batch].astype(np.int32)
        table = arrays["cache_batch_idx"][:, None]
    padding = rng.integers(0, lengths + 1).astype(np.int32) if rng.integers(2) else np.zeros(batch, np.int32)
    if padding.any():
        arrays["cache_leftpad"] = padding
    rows = np.arange(room)
    places = [(table[n, rows // size], rows % size) for n in range(batch)]
    for name in ("k_cache", "v_cache"):
        arrays[name] = np.full((*shape, kv_heads, dim), np.nan, dtype)  # what nobody may look at
        for n in range(batch):
            own = tuple(axis[padding[n] : lengths[n]] for axis in places[n])
            arrays[name][own] = rng.standard_normal((lengths[n] - padding[n], kv_heads, dim))
    options = {
        "causal": bool(rng.integers(2)),
        "window_size": [(-1, -1), (-1, -1), (7, 3), (-1, 2)][int(rng.integers(4))],
        "softcap": float(rng.choice([0.0, 4.0])),
        "num_splits": int(rng.integers(4)),
        "cache_seqlens": lengths,
    }
    if new:
        arrays["k"], arrays["v"] = rng.standard_normal((2, batch, new, kv_heads, dim)).astype(dtype)
        if rng.integers(2):
            angles = rng.random((room, int(rng.integers(1, dim // 2 + 1)))) * 6.3
            arrays["rotary_cos"], arrays["rotary_sin"] = np.cos(angles).astype(dtype), np.sin(angles).astype(dtype)
            options["rotary_interleaved"] = bool(rng.integers(2))
    if rng.integers(3) == 0:
        arrays["alibi_slopes"] = rng.random((batch, heads)).astype(np.float32)
    return arrays, options, places, padding, dtype


def expected_of(arrays, options, places, padding):
    """Result, lse and caches by the formula."""
    a = arrays
    q, keys, values = (a[name].astype(np.float64) for name in ("q", "k_cache", "v_cache"))
    local = options["causal"] or options["window_size"] != (-1, -1)
    interleaved = options.get("rotary_interleaved", True)
    outs, lses = [], []
    for n, at in enumerate(places):
        length, new, rows = int(options["cache_seqlens"][n]), 0, q[n]
        if "k" in a:
            new, k = a["k"].shape[1], a["k"][n]
            if "rotary_cos" in a:
                tables = (a["rotary_cos"], a["rotary_sin"], interleaved)
                k = rotated(k, length + np.arange(new), *tables)
                rows = rotated(rows, length + np.arange(len(rows)) * local, *tables)
            own = tuple(axis[length : length + new] for axis in at)
            keys[own], values[own] = k, a["v"][n]
        own = tuple(axis[padding[n] : length + new] for axis in at)
        slopes = a["alibi_slopes"][n] if "alibi_slopes" in a else None
        some = {"causal": options["causal"], "window": options["window_size"], "softcap": options["softcap"]}
        out, lse = attention(rows, keys[own], values[own], slopes=slopes, **some)
        outs.append(out)
        lses.append(lse)
    return np.stack(outs), np.stack(lses), keys, values


@pytest.mark.parametrize("seed", range(60))
def test_it_is_the_formula_over_the_cache_with_the_new_rows(library, seed):
    arrays, options, places, padding, dtype = drawn(seed)
    out, lse, keys, values = expected_of(arrays, options, places, padding)
    before = {name: x.copy() for name, x in arrays.items()}
    given = {name: library.bring(x) for name, x in {**arrays, **options}.items()}
    with rocmkern.using("cpu" if seed % 15 == 0 else "python"):  # most of them: variants take seconds to compile
        got, got_lse = flash_attn_with_kvcache(**given, return_softmax_lse=True)
    bound = BOUNDS[dtype]
    np.testing.assert_allclose(library.numbers(got), out, atol=bound, rtol=bound)
    np.testing.assert_allclose(library.numbers(got_lse), lse, atol=bound, rtol=bound)
    np.testing.assert_allclose(arrays["k_cache"].astype(np.float64), keys, atol=bound / 2, rtol=bound / 2)
    np.testing.assert_array_equal(arrays["v_cache"].astype(np.float64), values)
    for name in arrays.keys() - {"k_cache", "v_cache"}:
        np.testing.assert_array_equal(arrays[name], before[name])


def call(normal, **changes):
    """A call that is right but for the changes."""
    arguments = {
        "q": normal(2, 3, 4, 8), "k_cache": normal(2, 10, 2, 8), "v_cache": normal(2, 10, 2, 8),
        "k": normal(2, 3, 2, 8), "v": normal(2, 3, 2, 8), "cache_seqlens": np.array([2, 7], np.int32),
    }  # fmt: skip
    return {**arguments, **changes}


def test_a_number_is_the_length_of_all_sequences(normal):
    one, other = call(normal, cache_seqlens=4), call(normal, cache_seqlens=np.array([4, 4], np.int32))
    other = {**one, "cache_seqlens": other["cache_seqlens"]}
    for x in ("k_cache", "v_cache"):
        other[x] = one[x].copy()
    np.testing.assert_array_equal(flash_attn_with_kvcache(**one), flash_attn_with_kvcache(**other))
    np.testing.assert_array_equal(one["k_cache"], other["k_cache"])


def test_rows_behind_the_batch_are_left_alone(normal):
    arguments = call(normal, k_cache=normal(3, 10, 2, 8), v_cache=normal(3, 10, 2, 8))
    before = arguments["k_cache"][2].copy()
    flash_attn_with_kvcache(**arguments)
    np.testing.assert_array_equal(arguments["k_cache"][2], before)
    np.testing.assert_array_equal(arguments["k_cache"][1, 7:], arguments["k"][1])


@pytest.mark.parametrize(("changes", "argument", "error"), [
    ({"v": None}, "v", ArgumentError),
    ({"k": None}, "k", ArgumentError),
    ({"cache_seqlens": None}, "cache_seqlens", ArgumentError),
    ({"cache_seqlens": 8}, "cache_seqlens", ArgumentError),
    ({"cache_seqlens": -1}, "cache_seqlens", ArgumentError),
    ({"cache_seqlens": 2.5}, "cache_seqlens", ArgumentTypeError),
    ({"cache_seqlens": np.array([2, 8], np.int32)}, "cache_seqlens", ArgumentError),
    ({"cache_seqlens": np.array([2], np.int32)}, "cache_seqlens", ArgumentError),
    ({"cache_leftpad": np.array([0, 11], np.int32)}, "cache_leftpad", ArgumentError),
    ({"cache_batch_idx": np.array([0, 2], np.int32)}, "cache_batch_idx", ArgumentError),
    ({"cache_batch_idx": np.array([0, 1], np.int64)}, "cache_batch_idx", ArgumentTypeError),
    ({"block_table": np.array([[0], [1]], np.int32), "cache_seqlens": 8}, "block_table", ArgumentError),
    ({"block_table": np.array([[0], [2]], np.int32)}, "block_table", ArgumentError),
    ({"block_table": np.array([[0], [1]], np.int32), "cache_batch_idx": np.array([0, 1], np.int32)},
     "cache_batch_idx", ArgumentError),
    ({"rotary_cos": np.ones((10, 4), np.float32)}, "rotary_sin", ArgumentError),
    (dict.fromkeys(("rotary_cos", "rotary_sin"), np.ones((10, 5), np.float32)), "rotary_cos", ArgumentError),
    (dict.fromkeys(("rotary_cos", "rotary_sin"), np.ones((9, 4), np.float32)), "rotary_cos", ArgumentError),
    ({"num_splits": -1}, "num_splits", ArgumentError),
    ({"rotary_interleaved": 1}, "rotary_interleaved", ArgumentTypeError),
    ({"k": np.ones((2, 3, 1, 8), np.float32)}, "k", ArgumentError),
    (dict.fromkeys(("k_cache", "v_cache"), np.ones((1, 10, 2, 8), np.float32)), "k_cache", ArgumentError),
    ({"q": np.ones((2, 4, 8), np.float32)}, "q", ArgumentError),
])  # fmt: skip
def test_wrong_arguments_are_refused_before_anything_is_written(normal, changes, argument, error):
    arguments = call(normal, **changes)
    before = arguments["k_cache"].copy()
    with pytest.raises(error) as refusal:
        flash_attn_with_kvcache(**arguments)
    assert refusal.value.argument == argument
    np.testing.assert_array_equal(arguments["k_cache"], before)


def test_caches_that_share_memory_are_refused(normal):
    arguments = call(normal)
    arguments["v_cache"] = arguments["k_cache"]
    with pytest.raises(ArgumentError, match="overlaps with k_cache") as refusal:
        flash_attn_with_kvcache(**arguments)
    assert refusal.value.argument == "v_cache"
    arguments = call(normal)
    arguments["k"] = arguments["k_cache"][:, :3]
    with pytest.raises(ArgumentError, match="overlaps with k") as refusal:
        flash_attn_with_kvcache(**arguments)
    assert refusal.value.argument == "k_cache"


def test_tables_without_new_rows_are_refused(normal):
    table = np.ones((10, 4), np.float32)
    with pytest.raises(ArgumentError, match="None where there are no k and v") as refusal:
        flash_attn_with_kvcache(**call(normal, k=None, v=None), rotary_cos=table, rotary_sin=table)
    assert refusal.value.argument == "rotary_cos"
