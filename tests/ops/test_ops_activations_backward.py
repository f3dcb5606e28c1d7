"""Gradients of the gated activations as operations, against the float64 reference."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from rocmkern import reference
from rocmkern.ops.activations.backward.api import geglu_backward, swiglu_backward
from rocmkern.runtime.errors import ArgumentError, ArgumentTypeError

pytestmark = pytest.mark.usefixtures("launch")

CALLS = [
    (swiglu_backward, {}),
    (swiglu_backward, {"order": "up_gate"}),
    (geglu_backward, {}),
    (geglu_backward, {"approximate": "tanh"}),
]


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize(("function", "options"), CALLS)
@pytest.mark.parametrize("shape", [(5,), (4, 33), (2, 1, 3, 2, 3, 4)])
def test_two_arrays_and_one_packed(normal, close, function, options, dtype, shape):
    dout, gate, up = (normal(*shape, dtype=dtype) for _ in range(3))
    expected = getattr(reference, function.__name__)(dout, gate, up, **options)
    for result, exact in zip(function(dout, gate, up, **options), expected, strict=True):
        close(result, exact)
    packed, whole = np.concatenate([gate, up], axis=-1), np.concatenate(expected, axis=-1)
    close(function(dout, packed, **options), whole)
    assert function(dout, packed, **options, out=packed) is packed
    close(packed, whole)


@pytest.mark.parametrize(("function", "options"), CALLS)
def test_results_may_overwrite_inputs(normal, close, function, options):
    arrays = [normal(3, 8) for _ in range(3)]
    expected = getattr(reference, function.__name__)(*arrays, **options)
    for first, second in ((1, 2), (2, 1), (0, 1)):
        given = [x.copy() for x in arrays]
        out = given[first], given[second]
        results = function(*given, **options, out=out)
        assert results[0] is out[0] and results[1] is out[1]
        for result, exact in zip(results, expected, strict=True):
            close(result, exact)


def test_no_elements():
    nothing = np.ones((3, 0), np.float32)
    assert [x.shape for x in swiglu_backward(nothing, nothing, nothing)] == [(3, 0)] * 2
    assert geglu_backward(nothing, nothing).shape == (3, 0)


ONES, HALF, TWICE = np.ones((2, 4), np.float32), np.ones((2, 4), np.float16), np.ones((2, 4), np.float32)


@pytest.mark.parametrize(
    ("function", "changes", "argument", "error"),
    [
        (swiglu_backward, {"dout": [1.0, 2.0]}, "dout", ArgumentTypeError),
        (swiglu_backward, {"dout": ONES[:, :3]}, "dout", ArgumentError),
        (swiglu_backward, {"up": None}, "dout", ArgumentError),
        (swiglu_backward, {"gate": ONES[:, :3], "up": None}, "gate", ArgumentError),
        (swiglu_backward, {"gate": np.ones((), np.float32)}, "gate", ArgumentError),
        (swiglu_backward, {"gate": HALF}, "gate", ArgumentTypeError),
        (swiglu_backward, {"up": ONES[:1]}, "up", ArgumentError),
        (swiglu_backward, {"order": None}, "order", ArgumentError),
        (swiglu_backward, {"out": np.empty((2, 4), np.float32)}, "out", ArgumentTypeError),
        (geglu_backward, {"approximate": "sigmoid"}, "approximate", ArgumentError),
        (geglu_backward, {"out": (TWICE, TWICE[:, :3])}, "out[1]", ArgumentError),
        (geglu_backward, {"out": (TWICE, TWICE)}, "out[1]", ArgumentError),
    ],
)
def test_bad_arguments(function, changes, argument, error):
    given = {"dout": ONES, "gate": ONES.copy(), "up": ONES.copy(), **changes}
    with pytest.raises(error) as caught:
        function(**given)
    assert caught.value.argument == argument
