"""Gradients of the norms as operations, against the float64 reference."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from rocmkern import reference, targets
from rocmkern.ops.norm.backward.api import layer_norm_backward, rms_norm_backward
from rocmkern.runtime.errors import ArgumentError, ArgumentTypeError

DTYPES = [np.float32, np.float16, ml_dtypes.bfloat16]
SHAPES = [(5,), (4, 33), (2, 4, 3), (2, 1, 3, 2, 3, 4)]


@pytest.mark.usefixtures("launch")
class TestOperations:
    @pytest.mark.parametrize("dtype", DTYPES)
    @pytest.mark.parametrize("shape", SHAPES)
    def test_rms_norm(self, normal, close, dtype, shape):
        dout, x, added = (normal(*shape, dtype=dtype) for _ in range(3))
        weight = normal(shape[-1])
        for options in ({}, {"eps": 0.5, "weight_offset": 1.0, "dresidual": added}):
            expected = reference.rms_norm_backward(dout, x, weight, **options)
            results = rms_norm_backward(dout, x, weight, **options)
            assert [result.dtype for result in results] == [dtype, np.float32]
            close(results[0], expected[0])
            close(results[1], expected[1])
            outs = np.empty(shape[::-1], dtype).T, np.empty(2 * shape[-1], np.float32)[::2]
            got = rms_norm_backward(dout, x, weight, **options, out=outs)
            assert got[0] is outs[0] and got[1] is outs[1]
            np.testing.assert_array_equal(outs[0], results[0])
            close(outs[1], expected[1])  # rows are joined otherwise, so they are added in another order

    @pytest.mark.parametrize("dtype", DTYPES)
    @pytest.mark.parametrize("shape", SHAPES)
    def test_layer_norm(self, normal, close, dtype, shape):
        dout, x = (normal(*shape, dtype=dtype) for _ in range(2))
        weight, bias = normal(shape[-1]), normal(shape[-1], dtype=dtype)
        for parameters in ((weight, bias), (weight,), (None, bias)):
            results = layer_norm_backward(dout, x, *parameters)
            for result, exact in zip(results, reference.layer_norm_backward(dout, x, *parameters), strict=True):
                close(result, exact)
        result = layer_norm_backward(dout, x, eps=0.5)
        close(result, reference.layer_norm_backward(dout, x, eps=0.5))
        out = np.empty(shape[::-1], dtype).T
        assert layer_norm_backward(dout, x, eps=0.5, out=out) is out

    def test_rows_of_many_axes_are_added_up(self, normal, close):
        """More axes than a launch has, none of which can be joined."""
        shape = (2, 3, 2, 2, 3, 8)
        dout, x, weight = normal(*shape), normal(*shape), normal(8)
        apart = [
            np.repeat(a.transpose(3, 2, 1, 0, 4, 5).copy().transpose(3, 2, 1, 0, 4, 5), 2, 1)[:, ::2] for a in (dout, x)
        ]
        for ours, exact in (
            (rms_norm_backward, reference.rms_norm_backward),
            (lambda *given: layer_norm_backward(*given, weight), lambda *given: exact_layer(*given, weight)),
        ):
            for result, expected in zip(ours(*apart, weight), exact(dout, x, weight), strict=True):
                close(result, expected)

    def test_no_rows_and_no_columns(self):
        weight = np.ones(4, np.float32)
        nothing = np.ones((0, 4), np.float32)
        dx, dweight = rms_norm_backward(nothing, nothing, weight)
        assert dx.shape == (0, 4) and (dweight == 0).all()
        outs = nothing.copy(), np.full(4, 7, np.float32), np.full(4, 8, np.float32)
        layer_norm_backward(nothing, nothing, weight, weight, accumulate=True, out=outs)
        assert (outs[1] == 7).all() and (outs[2] == 8).all()
        assert rms_norm_backward(nothing.T, nothing.T, weight[:0])[1].shape == (0,)

    @pytest.mark.parametrize(
        ("function", "changes", "argument", "error"),
        [
            (rms_norm_backward, {"dout": [1.0]}, "dout", ArgumentTypeError),
            (rms_norm_backward, {"x": np.ones((2, 3), np.float32)}, "x", ArgumentError),
            (rms_norm_backward, {"x": np.ones((2, 4), np.float16)}, "x", ArgumentTypeError),
            (rms_norm_backward, {"weight": np.ones(3, np.float32)}, "weight", ArgumentError),
            (rms_norm_backward, {"dresidual": np.ones((1, 4), np.float32)}, "dresidual", ArgumentError),
            (rms_norm_backward, {"accumulate": True}, "accumulate", ArgumentError),
            (rms_norm_backward, {"accumulate": 1}, "accumulate", ArgumentTypeError),
            (rms_norm_backward, {"out": np.ones((2, 4), np.float32)}, "out", ArgumentTypeError),
            (layer_norm_backward, {"bias": np.ones(3, np.float32)}, "bias", ArgumentError),
            (layer_norm_backward, {"eps": -1}, "eps", ArgumentError),
            (layer_norm_backward, {"weight": None, "out": np.ones((2, 3), np.float32)}, "out", ArgumentError),
            (layer_norm_backward, {"accumulate": True}, "accumulate", ArgumentError),
        ],
    )
    def test_bad_arguments(self, function, changes, argument, error):
        ones = np.ones((2, 4), np.float32)
        with pytest.raises(error) as caught:
            function(**{"dout": ones, "x": ones, "weight": np.ones(4, np.float32), **changes})
        assert caught.value.argument == argument


def exact_layer(dout, x, weight, bias):
    return reference.layer_norm_backward(dout, x, weight, bias)


@pytest.fixture(params=["python", "cpu"])
def target(request):
    with targets.using(request.param):
        yield


@pytest.mark.usefixtures("target")
@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16])
def test_what_is_accumulated_is_rounded_once(normal, close, dtype):
    dout, x = normal(3, 33), normal(3, 33)
    weight, bias = normal(33, dtype=dtype), normal(33, dtype=dtype)
    for function, exact, parameters in (
        (rms_norm_backward, reference.rms_norm_backward, (weight,)),
        (layer_norm_backward, reference.layer_norm_backward, (weight, bias)),
    ):
        before = [normal(33, dtype=dtype) for _ in parameters]
        outs = np.empty((3, 33), np.float32), *(each.copy() for each in before)
        got = function(dout, x, *parameters, accumulate=True, out=outs)
        dx, *sums = exact(dout, x, *parameters)
        close(got[0], dx)
        for result, part, total in zip(got[1:], sums, before, strict=True):
            exactly = part + total.astype(np.float64)
            half_an_ulp = float(ml_dtypes.finfo(dtype).eps) / 2
            assert (np.abs(result.astype(np.float64) - exactly) <= half_an_ulp * np.abs(exactly) + 1e-5).all()


@pytest.mark.usefixtures("target")
def test_bits_of_the_sums_are_the_same_every_time(normal):
    dout, x, weight = normal(300, 65), normal(300, 65), normal(65)
    first, second = (rms_norm_backward(dout, x, weight)[1] for _ in range(2))
    np.testing.assert_array_equal(first, second)
