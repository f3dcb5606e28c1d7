"""The tolerance rule, row by row."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from rocmkern.matrix import compare
from rocmkern.matrix.schema import Tolerance
from rocmkern.matrix.tolerance import Rule, dtype_name, rule_of, ulp

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


@pytest.mark.parametrize(
    ("value", "distance"),
    [(0.0, 2.0**-1074), (1e-320, 2.0**-1074), (2.0**-1022, 2.0**-1074), (2.0**-1021, 2.0**-1073), (1.0, 2.0**-52)],
)
def test_ulp_of_float64(value, distance):
    assert ulp(value, np.float64) == distance == np.spacing(value)


SMALL = 2.0**-10  # all numbers here are powers of two and exact in float32


def test_what_is_measured_of_the_worst_row():
    reference = SMALL * np.array([[1.0, -4.0, 2.0], [8.0, 0.5, -1.0]])
    out, baseline = reference.astype(np.float32), reference.astype(np.float32)
    out[1, 2] -= np.float32(SMALL * 2**-7)
    baseline[1, 0] += np.float32(SMALL * 2**-5)
    baseline[0, 0] += np.float32(SMALL)
    result = compare(out, reference, baseline)
    assert (result.error, result.e, result.ulp) == (SMALL * 2**-7, SMALL * 2**-5, 8 * SMALL * 2**-23)
    assert (result.bound, result.share, result.ok) == (2 * SMALL * 2**-5, 1 / 8, True)
    assert (result.index, result.got, result.expected) == ((1, 2), -SMALL * (1 + 2**-7), -SMALL)
    assert result.out_range == result.ref_range == (-4 * SMALL, 8 * SMALL)
    assert result.out_head == (*(SMALL * np.array([1, -4, 2, 8, 0.5])), -SMALL * (1 + 2**-7))
    assert result.ref_head == tuple(reference.reshape(-1)) and result.mismatch == ""
    assert result.parts == f"max(2 * {SMALL * 2**-5:.4g}, 2 * ulp {8 * SMALL * 2**-23:.4g})"


def test_what_roundings_cost_is_a_least_error_of_the_baseline():
    reference = SMALL * np.ones((2, 3))
    exact = reference.astype(np.float32)
    roundings = SMALL * np.array([[2.0**-8, 2.0**-6, 2.0**-9], [0, 0, 0]])
    result = compare(exact, reference, exact, roundings)
    assert (result.e, result.bound) == (SMALL * 2**-6, SMALL * 2**-5)
    baseline = exact.copy()
    baseline[0, 0] += np.float32(SMALL * 2**-4)
    assert compare(exact, reference, baseline, roundings).e == SMALL * 2**-4
    out = exact.copy()
    out[1, 1] += np.float32(SMALL * 2**-6)
    assert not compare(out, reference, exact, roundings).ok, "in their own row only"
    assert compare(exact, reference, exact, roundings, exact=True).e == 0


def test_what_is_no_number_is_in_no_measure():
    """Infinity and NaN of the reference, of the baseline and of roundings there."""
    reference = np.array([[np.inf, SMALL, -np.inf, np.nan], [70000.0, 0, 0, SMALL]])
    out = np.array([[np.inf, SMALL, -np.inf, np.nan], [np.inf, 0, 0, SMALL]], np.float16)
    roundings = np.array([[9.0, 0, np.inf, 9], [9, 0, 0, SMALL / 64]])
    baseline = out.copy()
    baseline[1, 3] = np.nan
    result = compare(out, reference, baseline, roundings)
    assert result.ok and result.share == 0 and (result.e, result.ulp) == (0, SMALL * 2**-10)
    out[1, 3] += np.float16(SMALL / 32)
    result = compare(out, reference, baseline, roundings)
    assert result.ok and (result.error, result.e, result.share) == (SMALL / 32, SMALL / 64, 1.0)
    assert result.ref_range == (0, 70000.0) and result.out_range == (0, SMALL + SMALL / 32)


def test_of_specials_that_differ_the_first_is_named_and_all_are_counted():
    reference = np.array([[1.0, 2.0, 3.0], [4.0, np.inf, 6.0]])
    out = np.array([[1.0, 2.0, np.nan], [-np.inf, 5.0, 6.0]], np.float32)
    result = compare(out, reference, name="lse")
    assert result.mismatch == "3 NaN or infinity differ, first at (0, 2): got nan, expected 3"
    assert result.index == (0, 2) and result.error == 0 and not result.ok
    assert "\n  3 NaN or infinity differ" in result.describe()


@pytest.mark.parametrize("shape", [(0,), (0, 3), (3, 0)])
def test_an_empty_output_is_measured_as_nothing(shape):
    result = compare(np.zeros(shape, np.float32), np.zeros(shape))
    assert (result.ok, result.index) == (True, None)
    assert (result.error, result.share) == (0.0, 0.0)
    assert np.isnan([result.got, result.expected, *result.out_range, *result.ref_range]).all()
    assert result.out_head == result.ref_head == ()


def test_of_an_output_without_axes_the_only_element_is_named():
    result = compare(np.array(1.5, np.float32), np.array(1.0))
    assert (result.index, result.got, result.expected, result.ok) == ((), 1.5, 1.0, False)
    assert result.share == 0.5 / 2.0**-22


@pytest.mark.parametrize(
    ("tolerance", "dtype", "exact", "rule"),
    [
        (None, "f32", False, Rule(2.0, 2.0)),
        (Tolerance(c=3.0, reason="told"), "f32", False, Rule(3.0, 2.0)),
        (Tolerance(u=4.0, reason="told"), "f32", False, Rule(2.0, 4.0)),
        (Tolerance(c=3.0, u=4.0, dtypes=["f16"], reason="told"), "f16", False, Rule(3.0, 4.0)),
        (Tolerance(c=3.0, u=4.0, dtypes=["f16"], reason="told"), "f32", False, Rule(2.0, 2.0)),
        (Tolerance(absolute=0.5, reason="told"), "f32", False, Rule(absolute=0.5)),
        (Tolerance(c=3.0, reason="told"), "f32", True, Rule(absolute=0.0)),
    ],
)
def test_the_rule_of_an_output(tolerance, dtype, exact, rule):
    assert rule_of(tolerance, dtype, exact) == rule


def test_a_rule_bounds_row_by_row_and_says_how():
    e, unit = np.array([1.0, 0.25]), np.array([0.5, 2.0])
    assert Rule(3.0, 4.0).bound(e, unit).tolist() == [3.0, 8.0]
    assert Rule(absolute=0.5).bound(e, unit).tolist() == [0.5, 0.5]
    assert Rule(3.0, 4.0).describe(1.0, 0.5) == "max(3 * 1, 4 * ulp 0.5)"
    assert (Rule(absolute=0.0).describe(1, 1), Rule(absolute=0.5).describe(1, 1)) == ("exact", "absolute")


def test_names_of_dtypes():
    names = {"float32": "f32", "float16": "f16", "float64": "f64", "int32": "int32"}
    assert {name: dtype_name(name) for name in names} == names and dtype_name(BF16) == "bf16"
