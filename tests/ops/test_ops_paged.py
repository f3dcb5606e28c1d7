"""`paged_attention` as an operation: attention over the gathered keys, and over a cache that is filled step by step."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import rocmkern
from rocmkern import reference
from rocmkern.ops.paged import reference as paged_reference
from rocmkern.runtime.errors import ArgumentError


@pytest.fixture(params=["python", "cpu"])
def target(request):
    with rocmkern.using(request.param):
        yield request.param


def pages(lens, block_size, heads, dim, dtype=np.float32, seed=0):
    """Caches of random numbers with a table for the lengths."""
    rng = np.random.default_rng(seed)
    needed = [-(-n // block_size) for n in lens]
    order = rng.permutation(sum(needed) + 1)
    table = np.full((len(lens), max(needed) + 1), 10**6, np.int32)
    for n, count in enumerate(needed):
        table[n, :count], order = order[:count], order[count:]
    shape = (sum(needed) + 1, block_size, heads, dim)
    caches = [rng.standard_normal(shape).astype(dtype) for _ in range(2)]
    return *caches, table, np.array(lens, np.int32)


def test_one_sequence_equals_dense_decoding(target, normal):
    keys, values, table, lens = pages([37], 8, 2, 16)
    q = normal(1, 6, 16)
    k, v = (paged_reference.gather(x, table[0], 37).swapaxes(0, 1)[None] for x in (keys, values))
    out, lse = rocmkern.paged_attention(q, keys, values, table, lens, return_lse=True)
    dense, dense_lse = rocmkern.decode_attention(q[:, :, None], k, v, return_lse=True)
    np.testing.assert_allclose(out, dense[:, :, 0], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(lse, dense_lse[:, :, 0].T, rtol=1e-5, atol=1e-6)


def test_results_go_where_the_caller_wants(target, normal):
    keys, values, table, lens = pages([9, 20], 8, 2, 16)
    q = normal(2, 4, 16)
    expected, expected_lse = rocmkern.paged_attention(q, keys, values, table, lens, return_lse=True)
    out, lse = np.empty((2, 16, 4), np.float32).swapaxes(1, 2), np.empty((4, 2), np.float32)
    result = rocmkern.paged_attention(q, keys, values, table, lens, return_lse=True, out=(out, lse))
    assert result[0] is out and result[1] is lse
    np.testing.assert_array_equal(out, expected)
    np.testing.assert_array_equal(lse, expected_lse)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
def test_a_cache_filled_by_steps_equals_one_pass(target, normal, dtype):
    cache = rocmkern.KVCache(8, 4, num_kv_heads=2, head_dim=16, dtype=dtype)
    sequence, length = cache.add(), 11
    q, k, v = (normal(length, heads, 16, dtype=dtype) for heads in (4, 2, 2))
    positions = np.arange(length)
    turned = rocmkern.rope(q, positions)
    whole = reference.flash_attention(
        reference.rope(q, positions)[None],
        rocmkern.rope(k, positions)[None],
        v[None],
        layout="bshd",
        causal=True,
    )[0]
    bound = 40 * float(ml_dtypes.finfo(dtype).eps)
    # A prompt of 6 tokens, then one at a time.
    for start, stop in ((0, 6), *((t, t + 1) for t in range(6, length))):
        slots = cache.append(sequence, stop - start)
        new = slice(start, stop)
        rocmkern.rope_append_kv(k[new], v[new], positions[new], cache.keys[0], cache.values[0], slots)
        out = rocmkern.paged_attention(
            turned[new],
            cache.keys[0],
            cache.values[0],
            cache.block_table(),
            cache.context_lens(),
            cu_seqlens_q=np.array([0, stop - start], np.int32),
        )
        assert abs(out.astype(np.float64) - whole[new]).max() < bound


def test_a_fork_goes_its_own_way(target, normal):
    cache = rocmkern.KVCache(8, 4, num_kv_heads=1, head_dim=8)
    first = cache.add()
    k, v, q = normal(6, 1, 8), normal(6, 1, 8), normal(1, 2, 8)
    rocmkern.rope_append_kv(k, v, np.arange(6), cache.keys[0], cache.values[0], cache.append(first, 6))

    def attend(sequence):
        table, lens = cache.block_table([sequence]), cache.context_lens([sequence])
        return rocmkern.paged_attention(q, cache.keys[0], cache.values[0], table, lens)

    before = attend(first)
    second = cache.fork(first)
    np.testing.assert_array_equal(attend(second), before)
    new = normal(1, 1, 8)
    rocmkern.rope_append_kv(new, new, np.array([6]), cache.keys[0], cache.values[0], cache.append(second))
    assert abs(attend(second) - before).max() > 1e-3
    np.testing.assert_array_equal(attend(first), before)


def test_no_keys_and_no_queries(target, normal):
    keys, values, table, lens = pages([5, 3], 4, 1, 8)
    q = normal(2, 2, 8)
    out, lse = rocmkern.paged_attention(q, keys, values, table, lens * 0, return_lse=True)
    assert (out == 0).all() and (lse == -np.inf).all()
    sinks = np.array([0.5, -1.0], np.float32)
    out, lse = rocmkern.paged_attention(q, keys, values, table, lens * 0, sinks=sinks, return_lse=True)
    assert (out == 0).all() and (lse == sinks[:, None]).all()
    empty = rocmkern.paged_attention(q[:0], keys, values, table[:0], lens[:0])
    assert empty.shape == (0, 2, 8)
    cu = np.zeros(3, np.int32)
    assert rocmkern.paged_attention(q[:0], keys, values, table, lens, cu_seqlens_q=cu).shape == (0, 2, 8)


@pytest.mark.parametrize("entry", [-1, 4, 1000])
def test_a_block_that_is_not_there_is_named(normal, entry):
    keys, values, table, lens = pages([5, 9], 4, 1, 8)
    keys, values = keys[:4], values[:4]
    table[:, :3] = [[0, 1, 10**6], [2, 3, 0]]
    table[1, 1] = entry
    with pytest.raises(ArgumentError, match=rf"block {entry} at \[1, 1\].*from 0 to 3") as error:
        rocmkern.paged_attention(normal(2, 2, 8), keys, values, table, lens)
    assert error.value.argument == "block_table"


def test_a_table_that_is_too_short_is_refused(normal):
    keys, values, table, lens = pages([5, 9], 4, 1, 8)
    with pytest.raises(ArgumentError, match="2 blocks for the 9 tokens of sequence 1; allowed: at least 3 blocks of 4"):
        rocmkern.paged_attention(normal(2, 2, 8), keys, values, table[:, :2], lens)


def test_scales_belong_to_quantized_caches(normal):
    keys, values, table, lens = pages([5], 4, 1, 8)
    with pytest.raises(ArgumentError, match="None where the caches are float32") as error:
        rocmkern.paged_attention(normal(1, 2, 8), keys, values, table, lens, key_scale=np.ones(1, np.float32))
    assert error.value.argument == "key_scale"
