"""Gradients of the MLP as an operation, against the float64 reference."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from rocmkern import reference
from rocmkern.ops.mlp.backward.api import mlp_backward
from rocmkern.runtime.errors import ArgumentError, ArgumentTypeError

pytestmark = pytest.mark.usefixtures("launch")
NAMES = ("x", "w_gate", "w_up", "w_down", "b_gate", "b_up", "b_down")
SHAPES = {
    "x": (2, 3, 5),
    "w_gate": (7, 5),
    "w_up": (7, 5),
    "w_down": (4, 7),
    "b_gate": (7,),
    "b_up": (7,),
    "b_down": (4,),
}


def all_close(results, expected, dtype):
    unit = 16 * float(ml_dtypes.finfo(dtype).eps)
    for result, exact in zip(results, expected, strict=True):
        scale = float(np.abs(exact).max(initial=0))
        np.testing.assert_allclose(result.astype(np.float64), exact, rtol=unit, atol=unit * scale)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("activation", [None, "silu", "gelu", "gelu_tanh", "relu"])
@pytest.mark.parametrize("gated", [True, False])
def test_gradients(normal, dtype, activation, gated):
    given = {name: normal(*shape, dtype=dtype) for name, shape in SHAPES.items()}
    if not gated:
        given["w_gate"], given["b_gate"] = None, None
    dout = normal(2, 3, 4, dtype=dtype)
    results = mlp_backward(dout, **given, activation=activation)
    assert all(result.dtype == dtype for result in results)
    all_close(results, reference.mlp_backward(dout, **given, activation=activation), dtype)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_gradients_are_added_to_others(normal, dtype):
    given = {name: normal(*shape, dtype=dtype) for name, shape in SHAPES.items()}
    dout, out = normal(2, 3, 4, dtype=dtype), tuple(x.copy() for x in given.values())
    results = mlp_backward(dout, **given, out=out, accumulate=True)
    assert all(result is each for result, each in zip(results, out, strict=True))
    added = reference.mlp_backward(dout, **given)
    all_close(out, [np.float64(x) + new for x, new in zip(given.values(), added, strict=True)], dtype)


@pytest.mark.parametrize("needs", [("x",), ("w_gate",), ("b_down",), ("w_down", "x"), ("b_gate", "b_up")])
def test_only_what_is_needed(normal, needs):
    given = {name: normal(*shape) for name, shape in SHAPES.items()}
    dout = normal(2, 3, 4)
    exact = dict(zip(NAMES, reference.mlp_backward(dout, **given), strict=True))
    results = mlp_backward(dout, **given, needs=needs)
    results = results if isinstance(results, tuple) else (results,)
    all_close(results, [exact[name] for name in NAMES if name in needs], np.float32)


def test_bad_arguments(normal):
    given = {name: normal(*shape) for name, shape in SHAPES.items()}
    for changes, argument, error in (
        ({"dout": normal(2, 3, 5)}, "dout", ArgumentError),
        ({"w_gate": None}, "b_gate", ArgumentError),
        ({"w_up": normal(6, 5)}, "w_gate", ArgumentError),
        ({"x": given["x"].astype(np.float16)}, "w_gate", ArgumentTypeError),
        ({"needs": ("w",)}, "needs", ArgumentError),
    ):
        with pytest.raises(error) as caught:
            mlp_backward(**{"dout": normal(2, 3, 4), **given, **changes})
        assert caught.value.argument == argument
