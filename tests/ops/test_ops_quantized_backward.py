"""Gradients of linear layers with quantized weights as operations, against the float64 reference."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import rocmkern
from rocmkern import reference
from rocmkern.ops.quantized.backward.api import quantized_linear_backward
from rocmkern.runtime.errors import ArgumentError, ArgumentTypeError

pytestmark = pytest.mark.usefixtures("launch")
DTYPES = [np.float32, np.float16, ml_dtypes.bfloat16]


def all_close(results, expected, dtype):
    unit = 16 * float(ml_dtypes.finfo(dtype).eps)
    for result, exact in zip(results, expected, strict=True):
        scale = float(np.abs(exact).max(initial=0))
        np.testing.assert_allclose(result.astype(np.float64), exact, rtol=unit, atol=unit * scale)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("activation", [None, "silu", "relu"])
@pytest.mark.parametrize("shape", [(2, 3), (), (0,)], ids=str)
def test_gradients(normal, dtype, activation, shape):
    blocks, bias = rocmkern.quantize(normal(37, 64), "q4_0"), normal(37)
    x = np.asarray(normal(*shape, 64)).astype(dtype)
    dout = np.asarray(normal(*shape, 37)).astype(dtype)
    results = quantized_linear_backward(dout, x, blocks, "q4_0", bias, activation)
    assert [result.dtype for result in results] == [dtype, np.float32]
    all_close(results, reference.quantized_linear_backward(dout, x, blocks, "q4_0", bias, activation), dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_gradients_are_added_to_others(normal, dtype):
    blocks, x, dout = rocmkern.quantize(normal(5, 32), "mxfp4"), normal(3, 32, dtype=dtype), normal(3, 5, dtype=dtype)
    out = x.copy()
    options = {"format": "mxfp4", "order": "ggml"}
    assert quantized_linear_backward(dout, x, blocks, **options, out=out, accumulate=True) is out
    added = reference.quantized_linear_backward(dout, x, blocks, **options)
    all_close((out,), (x.astype(np.float64) + added,), dtype)


def test_the_weights_are_never_whole(normal, monkeypatch):
    """Nothing is allocated but the result."""
    blocks, x, dout = rocmkern.quantize(normal(64, 256), "q4_k"), normal(2, 256), normal(2, 64)
    rooms = []
    monkeypatch.setattr("rocmkern.ops.inner.Inner.room", lambda self, *args: rooms.append(args))
    quantized_linear_backward(dout, x, blocks, "q4_k")
    assert not rooms


def test_bad_arguments(normal):
    given = {"dout": normal(3, 5), "x": normal(3, 32), "blocks": rocmkern.quantize(normal(5, 32), "q4_0")}
    for changes, argument, error in (
        ({"dout": normal(3, 4)}, "dout", ArgumentError),
        ({"x": normal(3, 64)}, "blocks", ArgumentError),
        ({"x": given["x"].astype(np.float16)}, "x", ArgumentTypeError),
        ({"blocks": given["blocks"].astype(np.int32)}, "blocks", ArgumentTypeError),
        ({"format": "q3_k"}, "format", ArgumentError),
        ({"needs": ("blocks",)}, "needs", ArgumentError),
    ):
        with pytest.raises(error) as caught:
            quantized_linear_backward(**{**given, **changes})
        assert caught.value.argument == argument
