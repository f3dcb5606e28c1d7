"""`clamp` against the float64 reference."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from rocmkern import reference, targets
from rocmkern.ops.clamp.api import clamp
from rocmkern.runtime.errors import ArgumentError, ArgumentTypeError


@pytest.fixture(params=["python", "cpu"], autouse=True)
def target(request):
    """The interpreter, then compiled code."""
    with targets.using(request.param):
        yield


BOUNDS = [{"min": -0.5}, {"max": 0.25}, {"min": -0.5, "max": 0.25}, {"min": 0.5, "max": -0.25}]


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("shape", [(5,), (4, 33), (2, 3, 4, 6, 2)])
@pytest.mark.parametrize("bounds", BOUNDS)
def test_numbers_are_those_of_the_reference(normal, dtype, shape, bounds):
    x = normal(*shape, dtype=dtype)
    np.testing.assert_array_equal(clamp(x, **bounds), reference.clamp(x, **bounds))
    np.testing.assert_array_equal(clamp(x.T, **bounds), reference.clamp(x.T, **bounds))


@pytest.mark.parametrize("bounds", BOUNDS)
def test_infinities_are_bounded_and_nan_stays_nan(bounds):
    x = np.array([np.inf, -np.inf, np.nan, 0.0, -0.0], np.float32)
    np.testing.assert_array_equal(clamp(x, **bounds), reference.clamp(x, **bounds).astype(np.float32))
    assert np.isnan(clamp(x, **bounds)[2])


def test_the_upper_bound_wins():
    np.testing.assert_array_equal(clamp(np.arange(4, dtype=np.float32), 3, 1), np.ones(4, np.float32))


def test_the_result_may_overwrite_the_numbers(normal):
    x = normal(3, 70)
    expected = reference.clamp(x, 0.0, 1.0)
    assert clamp(x, 0.0, 1.0, out=x) is x
    np.testing.assert_array_equal(x, expected.astype(np.float32))


@pytest.mark.parametrize(
    ("changes", "argument", "error"),
    [
        ({"x": [1.0, 2.0]}, "x", ArgumentTypeError),
        ({"x": np.ones((), np.float32)}, "x", ArgumentError),
        ({"out": np.ones((2, 3), np.float32)}, "out", ArgumentError),
        ({"min": None}, "min", ArgumentError),
        ({"min": float("nan")}, "min", ArgumentError),
        ({"max": "1"}, "max", ArgumentTypeError),
        ({"max": 1e39}, "max", ArgumentError),
    ],
)
def test_bad_arguments_are_named(changes, argument, error):
    with pytest.raises(error) as caught:
        clamp(**({"x": np.ones((2, 4), np.float32), "min": 0.0} | changes))
    assert caught.value.argument == argument
