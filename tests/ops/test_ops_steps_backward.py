"""Gradients of the steps of attention as operations, against the float64 reference."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from rocmkern import reference
from rocmkern.ops.steps.backward.api import softmax_backward
from rocmkern.runtime.errors import ArgumentError, ArgumentTypeError

pytestmark = pytest.mark.usefixtures("launch")


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("shape", [(5,), (4, 33), (2, 3, 70), (2, 1, 3, 2, 3, 4)])
def test_softmax(normal, close, dtype, shape):
    dout, y = normal(*shape, dtype=dtype), reference.softmax(normal(*shape)).astype(dtype)
    close(softmax_backward(dout, y), reference.softmax_backward(dout, y))
    out = np.empty(shape[::-1], dtype).T
    assert softmax_backward(dout, y, scale=0.5, out=out) is out
    close(out, reference.softmax_backward(dout, y, scale=0.5))


def test_hidden_rows_have_no_gradient(normal):
    y = np.zeros((2, 5), np.float32)
    assert (softmax_backward(normal(2, 5), y) == 0).all()


@pytest.mark.parametrize(
    ("changes", "argument", "error"),
    [
        ({"dout": [1.0]}, "dout", ArgumentTypeError),
        ({"dout": np.ones((), np.float32)}, "dout", ArgumentError),
        ({"y": np.ones((2, 3), np.float32)}, "y", ArgumentError),
        ({"y": np.ones((2, 4), np.float16)}, "y", ArgumentTypeError),
        ({"scale": np.inf}, "scale", ArgumentError),
        ({"out": np.ones((2, 3), np.float32)}, "out", ArgumentError),
    ],
)
def test_bad_arguments(changes, argument, error):
    given = {"dout": np.ones((2, 4), np.float32), "y": np.ones((2, 4), np.float32), **changes}
    with pytest.raises(error) as caught:
        softmax_backward(**given)
    assert caught.value.argument == argument
