"""Attention where every intermediate number is exact, so the result is too: no factor near 1 hides in a bound."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import rocmkern
from rocmkern import targets

FUNCTIONS = {
    "flash": rocmkern.flash_attention,
    "decode": rocmkern.decode_attention,
    "decode in parts": lambda *arrays, **options: rocmkern.decode_attention(*arrays, num_splits=2, **options),
}


@pytest.fixture(params=["python", "cpu"], autouse=True)
def target(request):
    with targets.using(request.param):
        yield


@pytest.fixture(params=FUNCTIONS)
def attention(request):
    return FUNCTIONS[request.param]


def same(out, expected, attention):
    """Equal; of parts, which are joined by float32 logarithms, to within a few units in the last place."""
    units = 4 if attention is FUNCTIONS["decode in parts"] else 0
    np.testing.assert_array_max_ulp(out, expected, units) if units else np.testing.assert_array_equal(out, expected)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
def test_equal_values_come_out_as_they_are(attention, dtype):
    """Equal scores over a power of two of keys: the weights are 1 before the division, and a power of two after it."""
    q, k = np.zeros((1, 2, 3, 16), dtype), np.ones((1, 2, 64, 16), dtype)
    v = np.broadcast_to(np.array([1.0, -3.0, 0.625, 100.0], dtype), (1, 2, 64, 4)).copy()
    out = attention(q, k, v)
    same(out.astype(np.float32), v[:, :, :3].astype(np.float32), attention)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
def test_a_row_that_sees_one_key_gives_its_value(attention, dtype):
    q, k, v = np.random.default_rng(0).standard_normal((3, 1, 2, 20, 16)).astype(np.float32).astype(dtype)
    out = attention(q, k, v, window=(0, 0))
    np.testing.assert_array_equal(out.astype(np.float32), v.astype(np.float32))


def test_halves_of_the_keys_average_exactly(attention):
    q, k = np.zeros((1, 1, 1, 8), np.float32), np.ones((1, 1, 32, 8), np.float32)
    v = np.arange(32 * 4, dtype=np.float32).reshape(1, 1, 32, 4)
    same(attention(q, k, v)[0, 0, 0], v[0, 0].mean(0), attention)


def test_equal_parts_merge_to_what_they_are():
    o, lse = np.full((1, 2, 3, 8), 5.25, np.float32), np.zeros((1, 2, 3), np.float32)
    out, _ = rocmkern.merge_attention(o, lse, o, lse)
    np.testing.assert_array_equal(out, o)
