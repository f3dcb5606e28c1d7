"""`new_operation` against the float64 reference."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from rocmkern import reference, targets
from rocmkern.ops.new_operation.api import new_operation
from rocmkern.runtime.errors import ArgumentError, ArgumentTypeError


@pytest.fixture(params=["python", "cpu"], autouse=True)
def target(request):
    """The interpreter, then compiled code."""
    with targets.using(request.param):
        yield


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("shape", [(5,), (4, 33), (2, 3, 4, 6, 2)])
def test_numbers_are_those_of_the_reference(normal, close, dtype, shape):
    x = normal(*shape, dtype=dtype)
    close(new_operation(x), reference.new_operation(x))
    close(new_operation(x.T), reference.new_operation(x.T))


def test_infinities_and_nan(close):
    x = np.array([np.inf, -np.inf, np.nan, 0.0, -0.0], np.float32)
    np.testing.assert_array_equal(new_operation(x), reference.new_operation(x).astype(np.float32))


def test_the_result_may_overwrite_the_numbers(normal, close):
    x = normal(3, 70)
    expected = reference.new_operation(x)
    assert new_operation(x, out=x) is x
    close(x, expected)


@pytest.mark.parametrize(
    ("changes", "argument", "error"),
    [
        ({"x": [1.0, 2.0]}, "x", ArgumentTypeError),
        ({"x": np.ones((), np.float32)}, "x", ArgumentError),
        ({"out": np.ones((2, 3), np.float32)}, "out", ArgumentError),
    ],
)
def test_bad_arguments_are_named(changes, argument, error):
    with pytest.raises(error) as caught:
        new_operation(**({"x": np.ones((2, 4), np.float32)} | changes))
    assert caught.value.argument == argument
