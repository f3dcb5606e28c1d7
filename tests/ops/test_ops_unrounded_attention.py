"""Attention of halves may write float32, and a merge may write over one of its parts: what joins many parts needs."""

import ml_dtypes
import numpy as np
import pytest

import rocmkern
from rocmkern import reference
from rocmkern.runtime.errors import ArgumentError, ArgumentTypeError

HALVES = [np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16)]


@pytest.fixture(params=["cpu", "python"])
def target(request):
    with rocmkern.using(request.param):
        yield request.param


def drawn(dtype, keys=75):
    rng = np.random.default_rng(0)
    q = rng.standard_normal((2, 4, 19, 32)).astype(dtype)
    k, v = (rng.standard_normal((2, 2, keys, 32)).astype(dtype) for _ in range(2))
    return q, k, v


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_a_float32_result_of_halves_is_not_rounded(target, dtype):
    q, k, v = drawn(dtype)
    wide, lse = np.empty(q.shape, np.float32), np.empty(q.shape[:3], np.float32)
    rocmkern.flash_attention(q, k, v, causal=True, return_lse=True, out=(wide, lse))
    narrow = rocmkern.flash_attention(q, k, v, causal=True)
    np.testing.assert_array_equal(wide.astype(dtype), narrow)
    exact = reference.flash_attention(q, k, v, causal=True)
    # Weights of halves are products' operands: on the CPU they stay float32.
    assert np.abs(wide - exact).max() < 1e-5


@pytest.mark.parametrize("splits", [1, 4])
def test_so_is_one_of_split_keys(target, splits):
    q, k, v = drawn(HALVES[0], 700)
    wide = np.empty(q.shape, np.float32)
    rocmkern.decode_attention(q, k, v, num_splits=splits, out=wide)
    assert np.abs(wide - reference.flash_attention(q, k, v)).max() < 1e-5


def test_a_merge_may_write_over_its_first_part(target):
    q, k, v = drawn(np.float32)
    first, second = (rocmkern.flash_attention(q, k[:, :, part], v[:, :, part], return_lse=True)
                     for part in (slice(0, 40), slice(40, None)))  # fmt: skip
    apart, lse = rocmkern.merge_attention(*first, *second)
    lse_out = np.empty_like(lse)
    merged, _ = rocmkern.merge_attention(*first, *second, out=(first[0], lse_out))
    assert merged is first[0]
    np.testing.assert_array_equal(merged, apart)
    np.testing.assert_array_equal(lse_out, lse)


def test_the_lse_of_a_merge_is_apart():
    q, k, v = drawn(np.float32)
    part = rocmkern.flash_attention(q, k, v, return_lse=True)
    other = rocmkern.flash_attention(q, k, v, return_lse=True)
    with pytest.raises(ArgumentError, match=r"out\[1\]"):
        rocmkern.merge_attention(*part, *other, out=part)


def test_other_halves_are_refused():
    q, k, v = drawn(HALVES[0])
    with pytest.raises(ArgumentTypeError, match="float16 or float32"):
        rocmkern.flash_attention(q, k, v, out=np.empty(q.shape, HALVES[1]))
