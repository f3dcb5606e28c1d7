"""The tolerance rule, row by row."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from rocmkern.matrix import compare
from rocmkern.matrix.schema import Tolerance
from rocmkern.matrix.tolerance import ulp

BF16 = np.dtype(ml_dtypes.bfloat16)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, BF16], ids=["f32", "f16", "bf16"])
def test_ulp_is_the_distance_to_the_next_number(dtype):
    dtype = np.dtype(dtype)
    bits = np.uint16 if dtype.itemsize == 2 else np.uint32
    values = np.array([1.0, 1.5, 2.0, 0.1, 200.0, 3e-5, 1e-7, 0.0]).astype(dtype)
    above = (values.view(bits) + bits(1)).view(dtype)
    distance = above.astype(np.float64) - values.astype(np.float64)
    assert (ulp(values.astype(np.float64), dtype) == distance).all()
    assert (ulp(-values.astype(np.float64), dtype) == distance).all()


def test_ulp_of_the_largest_finite_number():
    assert ulp(65504.0, np.float16) == 32.0
    assert ulp(np.nextafter(2.0, 0), np.float32) == 2.0**-23


def test_two_ulp_of_the_largest_value_of_the_row_are_allowed_where_the_baseline_is_exact():
    reference = np.array([[1.0, 0.25], [100.0, 1.0]])
    out = reference.astype(np.float32)
    out[1, 1] += np.float32(2 * 2.0**-17)
    assert compare(out, reference, reference.astype(np.float32)).ok
    out[1, 1] += np.float32(2.0**-17)
    result = compare(out, reference, reference.astype(np.float32))
    assert not result.ok
    assert result.index == (1, 1) and result.bound == 2.0**-16 and result.share == pytest.approx(1.5)


def test_a_large_row_does_not_hide_a_small_one():
    reference = np.array([[1e6, 1e6], [1e-3, 1e-3]])
    out = reference.astype(np.float32)
    out[1, 0] += np.float32(1e-6)
    result = compare(out, reference, out_of(reference))
    assert not result.ok and result.index == (1, 0)
    assert result.bound == pytest.approx(2 * ulp(1e-3, np.float32))


def out_of(reference):
    return reference.astype(np.float32)


def test_twice_the_error_of_the_baseline_is_allowed():
    reference = np.ones((2, 3))
    baseline = reference.astype(np.float32)
    baseline[0, 2] += np.float32(1e-4)
    out = reference.astype(np.float32)
    out[0, 0] += np.float32(1.99e-4)
    assert compare(out, reference, baseline).ok
    out[1, 0] += np.float32(1e-4)
    result = compare(out, reference, baseline)
    assert not result.ok and result.index == (1, 0), "the baseline's error counts in its own row only"
    assert not compare(out, reference, baseline, tolerance=Tolerance(c=0.5, reason="half")).ok


def test_other_factors_and_an_absolute_bound():
    reference = np.ones((1, 2))
    out = reference.astype(np.float32)
    out[0, 1] += np.float32(2.0**-20)
    assert not compare(out, reference).ok
    assert compare(out, reference, tolerance=Tolerance(u=8.0, reason="wide")).ok
    assert compare(out, reference, tolerance=Tolerance(absolute=1e-6, reason="fixed")).ok
    assert not compare(out, reference, tolerance=Tolerance(absolute=9e-7, reason="fixed")).ok


def test_exact_means_equal_by_value():
    reference = np.array([0.0, -np.inf, 3.0, np.nan])
    assert compare(np.array([-0.0, -np.inf, 3.0, np.nan], np.float32), reference, exact=True).ok
    result = compare(
        np.array([0.0, -np.inf, np.nextafter(np.float32(3), 4), np.nan], np.float32), reference, exact=True
    )
    assert not result.ok and result.share == np.inf and result.index == (2,)


@pytest.mark.parametrize(
    ("got", "expected"),
    [(np.nan, 1.0), (1.0, np.nan), (np.inf, 1.0), (np.inf, -np.inf), (np.nan, np.inf), (0.0, np.inf)],
)
def test_nan_and_infinity_stand_where_the_reference_has_them(got, expected):
    reference = np.array([[0.0, 1.0], [2.0, expected]])
    out = np.array([[0.0, 1.0], [2.0, got]], np.float32)
    result = compare(out, reference, out)
    assert not result.ok and result.index == (1, 1) and "NaN or infinity" in result.mismatch
    assert compare(reference.astype(np.float32), reference).ok


def test_a_reference_that_overflows_the_dtype_asks_for_infinity():
    assert compare(np.array([np.inf, 1.0], np.float16), np.array([70000.0, 1.0])).ok
    assert not compare(np.array([65504.0, 1.0], np.float16), np.array([70000.0, 1.0])).ok


def test_rounding_to_nearest_is_always_within_the_bound():
    rng = np.random.default_rng(0)
    for dtype in (np.float32, np.float16, BF16):
        reference = rng.standard_normal((50, 7)) * 10.0 ** rng.uniform(-6, 4, (50, 1))
        result = compare(reference.astype(dtype), reference)
        assert result.ok and result.share <= 0.5


@pytest.mark.parametrize("shape", [(0,), (0, 3), (3, 0), ()])
def test_empty_and_scalar_outputs(shape):
    result = compare(np.zeros(shape, np.float32), np.zeros(shape))
    assert result.ok and result.error == 0.0


def test_shapes_must_agree():
    with pytest.raises(ValueError, match="shape"):
        compare(np.zeros((2, 1), np.float32), np.zeros((1, 2)))


def test_the_description_says_what_was_measured():
    reference = np.arange(12.0).reshape(3, 4)
    out = reference.astype(np.float32)
    out[2, 1] = 9.5
    text = compare(out, reference, name="lse").describe()
    for words in ("output lse: WRONG", "worst at (2, 1): got 9.5, expected 9", "error 0.5", "2 * ulp 9.537e-07"):
        assert words in text
    assert "first 10: [0, 1, 2, 3, 4, 5, 6, 7, 8, 9.5]" in text and "min 0 max 11" in text
