"""The norms and the residual sum as operations, against the float64 reference."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from rocmkern import reference
from rocmkern.ops.norm import api as norm
from rocmkern.runtime.errors import ArgumentError, ArgumentTypeError

pytestmark = pytest.mark.usefixtures("launch")

DTYPES = [np.float32, np.float16, ml_dtypes.bfloat16]
SHAPES = [(5,), (4, 33), (2, 4, 1), (2, 3, 4, 65), (2, 1, 3, 2, 3, 4)]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_rms_norm(normal, close, dtype, shape):
    x, weight = normal(*shape, dtype=dtype), normal(shape[-1], dtype=dtype)
    result = norm.rms_norm(x, weight)
    assert result.dtype == dtype
    close(result, reference.rms_norm(x, weight))
    close(norm.rms_norm(x, weight, 0.5, weight_offset=1), reference.rms_norm(x, weight, 0.5, weight_offset=1))
    out = np.empty(shape[::-1], dtype).T
    assert norm.rms_norm(x, weight, out=out) is out
    close(out, reference.rms_norm(x, weight))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_rms_norm_of_the_rounded_sum(normal, close, dtype, shape):
    x, residual, weight = normal(*shape, dtype=dtype), normal(*shape, dtype=dtype), normal(shape[-1], dtype=dtype)
    expected, total = reference.rms_norm(x, weight, residual=residual)
    result, result_sum = norm.rms_norm(x, weight, residual=residual)
    close(result, expected)
    np.testing.assert_array_equal(result_sum.astype(float), total)
    np.testing.assert_array_equal(result, norm.rms_norm(result_sum, weight))
    outs = np.empty(shape, dtype), np.empty(shape[::-1], dtype).T
    got = norm.rms_norm(x, weight, residual=residual, out=outs)
    assert got[0] is outs[0] and got[1] is outs[1]
    close(outs[0], expected)
    np.testing.assert_array_equal(outs[1], result_sum)


def test_rms_norm_of_numbers_whose_squares_float32_does_not_hold(close):
    ones = np.ones(300, np.float32)
    for size in (3e38, 1e25, 1.0, 1e-25):
        x = np.linspace(-size, size, 300, dtype=np.float32)[None]
        close(norm.rms_norm(x, ones, 0.0), reference.rms_norm(x, ones, 0.0))
    close(norm.rms_norm(np.full((2, 4096), 300, np.float16), np.ones(4096, np.float16)), np.ones((2, 4096)))
    assert (norm.rms_norm(np.zeros((2, 5), np.float32), ones[:5], 0.0) == 0).all()
    half = norm.rms_norm(np.full((1, 5), 1e-3, np.float32), ones[:5], 1e-6)
    close(half, np.full((1, 5), np.sqrt(0.5)))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_layer_norm(normal, close, dtype, shape):
    x, weight, bias = normal(*shape, dtype=dtype), normal(shape[-1], dtype=dtype), normal(shape[-1], dtype=dtype)
    for parameters in ((), (weight,), (None, bias), (weight, bias)):
        close(norm.layer_norm(x, *parameters), reference.layer_norm(x, *parameters))
    out = np.empty(shape[::-1], dtype).T
    assert norm.layer_norm(x, weight, bias, 0.5, out=out) is out
    close(out, reference.layer_norm(x, weight, bias, 0.5))


def test_layer_norm_of_a_large_mean(close):
    x = (1e4 + np.arange(70, dtype=np.float32)).reshape(1, 70)
    close(norm.layer_norm(x, eps=0.0), reference.layer_norm(x, eps=0.0))


def test_layer_norm_of_equal_numbers_is_the_bias():
    x, bias = np.full((2, 33), 0.1, np.float32), np.arange(33, dtype=np.float32)
    np.testing.assert_array_equal(norm.layer_norm(x, None, bias, 0.0)[1], bias)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [*SHAPES, (2, 1024), (3, 512)])
def test_add_residual(normal, close, dtype, shape):
    x, residual = normal(*shape, dtype=dtype), normal(*shape, dtype=dtype)
    expected = reference.add_residual(x, residual)
    close(norm.add_residual(x, residual), expected)
    for place in (0, 1):
        arrays = [x.copy(), residual.copy()]
        assert norm.add_residual(*arrays, out=arrays[place]) is arrays[place]
        close(arrays[place], expected)


@pytest.mark.parametrize("function", [norm.rms_norm, norm.layer_norm])
def test_a_norm_of_nothing_is_empty(function):
    for shape in ((0, 4), (4, 0)):
        assert function(np.ones(shape, np.float32), np.ones(shape[-1], np.float32)).shape == shape


def arguments(**changes):
    x = np.ones((3, 5), np.float32)
    return {"x": x, "weight": np.ones(5, np.float32), **changes}


@pytest.mark.parametrize(
    ("changes", "argument", "error"),
    [
        ({"x": np.float32(1)}, "x", ArgumentTypeError),
        ({"x": np.ones((), np.float32)}, "x", ArgumentError),
        ({"weight": np.ones((1, 5), np.float32)}, "weight", ArgumentError),
        ({"eps": -1e-6}, "eps", ArgumentError),
        ({"eps": -0.0}, "eps", ArgumentError),
        ({"eps": 1e-60}, "eps", ArgumentError),
        ({"eps": "1e-6"}, "eps", ArgumentTypeError),
        ({"residual": np.ones((3, 4), np.float32)}, "residual", ArgumentError),
        ({"residual": np.ones((3, 5), np.float32), "out": np.ones((3, 5), np.float32)}, "out", ArgumentTypeError),
        ({"weight_offset": True}, "weight_offset", ArgumentTypeError),
    ],
)
def test_bad_arguments_of_rms_norm(changes, argument, error):
    with pytest.raises(error) as caught:
        norm.rms_norm(**arguments(**changes))
    assert caught.value.argument == argument


def test_the_outputs_of_rms_norm_lie_apart():
    given = arguments(residual=np.ones((3, 5), np.float32))
    one = np.empty((3, 5), np.float32)
    with pytest.raises(ArgumentError, match="out"):
        norm.rms_norm(**given, out=(one, one))
    with pytest.raises(ArgumentError, match="residual"):
        norm.rms_norm(**given, out=(one, given["residual"]))
