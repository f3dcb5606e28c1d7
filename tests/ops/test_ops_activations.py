"""Gated activations as operations, against the float64 reference."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from rocmkern import reference
from rocmkern.ops.activations.api import geglu, swiglu
from rocmkern.runtime.errors import ArgumentError, ArgumentTypeError

pytestmark = pytest.mark.usefixtures("launch")

DTYPES = [np.float32, np.float16, ml_dtypes.bfloat16]
CALLS = [
    (swiglu, reference.swiglu, {}),
    (swiglu, reference.swiglu, {"order": "up_gate"}),
    (geglu, reference.geglu, {}),
    (geglu, reference.geglu, {"approximate": "tanh"}),
]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("function", "exact", "options"), CALLS)
@pytest.mark.parametrize("shape", [(5,), (4, 33), (2, 512), (2, 3, 4, 6), (2, 1, 3, 2, 3, 4)])
def test_two_arrays_and_one_packed(normal, close, function, exact, options, dtype, shape):
    gate, up = normal(*shape, dtype=dtype), normal(*shape, dtype=dtype)
    expected = exact(gate, up, **options)
    close(function(gate, up, **options), expected)
    packed = np.concatenate([gate, up], axis=-1)
    close(function(packed, **options), expected)
    for place in ([gate.copy(), up.copy()], np.split(packed.copy(), 2, axis=-1)):
        for i in (0, 1):
            arrays = [x.copy() for x in place]
            assert function(*arrays, **options, out=arrays[i]) is arrays[i]
            close(arrays[i], expected)


def test_the_result_may_overwrite_a_half_of_a_packed_array(normal, close):
    packed = normal(3, 8)
    expected = reference.swiglu(packed)
    swiglu(packed, out=packed[:, 4:])
    close(packed[:, 4:], expected)


@pytest.mark.parametrize(("function", "exact", "options"), CALLS)
def test_large_gates_and_a_factor_of_zero(close, function, exact, options):
    gate = np.array([1e4, -1e4, 88.8, -88.8, 3e38, -3e38, np.inf, -np.inf], np.float32)
    for up in (np.ones(8, np.float32), np.zeros(8, np.float32)):
        arrays = (up, gate) if options.get("order") == "up_gate" else (gate, up)
        close(function(*arrays, **options), exact(*arrays, **options))


@pytest.mark.parametrize(
    ("function", "changes", "argument", "error"),
    [
        (swiglu, {"gate": [1.0, 2.0]}, "gate", ArgumentTypeError),
        (swiglu, {"gate": np.ones((), np.float32)}, "gate", ArgumentError),
        (swiglu, {"up": np.ones((2, 3), np.float32)}, "up", ArgumentError),
        (swiglu, {"up": np.ones((2, 4), np.float16)}, "up", ArgumentTypeError),
        (swiglu, {"gate": np.ones((2, 3), np.float32), "up": None}, "gate", ArgumentError),
        (swiglu, {"order": None}, "order", ArgumentError),
        (geglu, {"approximate": "sigmoid"}, "approximate", ArgumentError),
        (geglu, {"out": np.ones((2, 3), np.float32)}, "out", ArgumentError),
    ],
)
def test_bad_arguments(function, changes, argument, error):
    given = {"gate": np.ones((2, 4), np.float32), "up": np.ones((2, 4), np.float32), **changes}
    with pytest.raises(error) as caught:
        function(**given)
    assert caught.value.argument == argument
