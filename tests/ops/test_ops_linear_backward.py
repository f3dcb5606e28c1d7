"""Gradients of products and linear layers as operations, against the float64 reference."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import rocmkern
from rocmkern import reference
from rocmkern.ops.linear.backward.api import linear_backward, matmul_backward
from rocmkern.runtime.errors import ArgumentError, ArgumentTypeError

DTYPES = [np.float32, np.float16, ml_dtypes.bfloat16]
ACTIVATIONS = [None, "silu", "gelu", "gelu_tanh", "relu"]
pytestmark = pytest.mark.usefixtures("launch")


def all_close(close, results, expected):
    results = results if isinstance(results, tuple) else (results,)
    expected = expected if isinstance(expected, tuple) else (expected,)
    for result, exact in zip(results, expected, strict=True):
        scale = max(1.0, float(np.abs(exact).max(initial=0)))
        close((result / result.dtype.type(scale)).astype(result.dtype), exact / scale)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("a", "b"),
    [
        ((3, 5), (5, 4)),
        ((5,), (5, 4)),
        ((3, 5), (5,)),
        ((5,), (5,)),
        ((5,), (2, 5, 4)),
        ((2, 3, 5), (5,)),
        ((2, 1, 3, 5), (4, 5, 6)),
        ((2, 1, 2, 2, 3, 5), (4, 1, 1, 5, 2)),
        ((2, 3, 5), (5, 4)),
        ((0, 3, 5), (5, 4)),
        ((3, 0), (0, 4)),
    ],
    ids=str,
)
def test_what_was_broadcast_is_summed(normal, close, dtype, a, b):
    a, b = normal(*a, dtype=dtype), normal(*b, dtype=dtype)
    dout = normal(*np.matmul(a.astype(np.float32), b.astype(np.float32)).shape).astype(dtype)
    dout = np.asarray(dout)
    expected = reference.matmul_backward(dout, a, b)
    results = matmul_backward(dout, a, b)
    assert [x.dtype for x in results] == [dtype, dtype]
    all_close(close, results, expected)
    if b.ndim > 1:
        turned = np.ascontiguousarray(b.swapaxes(-1, -2))
        results = matmul_backward(dout, a, turned, transpose_b=True)
        all_close(close, (results[0], results[1].swapaxes(-1, -2)), expected)


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_through_activations(normal, close, activation, dtype):
    x, weight, bias, dout = (normal(*shape, dtype=dtype) for shape in ((2, 3, 5), (4, 5), (4,), (2, 3, 4)))
    bias = bias.astype(np.float32)
    results = linear_backward(dout, x, weight, bias, activation)
    assert [gradient.dtype for gradient in results] == [dtype, dtype, np.float32]
    expected = reference.linear_backward(dout, x, weight, bias, activation)
    all_close(close, results[:2], expected[:2])
    all_close(close, results[2].astype(dtype), expected[2])


def test_only_what_is_needed(normal, close):
    x, weight, bias, dout = normal(3, 5), normal(4, 5), normal(4), normal(3, 4)
    expected = dict(zip(("x", "weight", "bias"), reference.linear_backward(dout, x, weight, bias), strict=True))
    for needs in (("x",), ["weight"], ("bias",), ("bias", "x"), ("weight", "bias", "x")):
        results = linear_backward(dout, x, weight, bias, needs=needs)
        assert isinstance(results, tuple) == (len(needs) > 1)
        all_close(close, results, tuple(expected[name] for name in expected if name in needs))
    out = np.empty((4, 5), np.float32)
    assert linear_backward(dout, x, weight, needs=("weight",), out=out) is out
    all_close(close, out, expected["weight"])


@pytest.mark.parametrize("dtype", DTYPES)
def test_gradients_are_added_to_others_and_rounded_once(normal, close, dtype):
    x, weight, bias, dout = (normal(*shape, dtype=dtype) for shape in ((2, 3, 5), (4, 5), (4,), (2, 3, 4)))
    before = tuple(x.copy() for x in (x, weight, bias))
    out = tuple(x.copy() for x in before)
    results = linear_backward(dout, x, weight, bias, out=out, accumulate=True)
    assert all(result is each for result, each in zip(results, out, strict=True))
    added = reference.linear_backward(dout, x, weight, bias)
    all_close(close, out, tuple(np.float64(old) + new for old, new in zip(before, added, strict=True)))


def test_gradients_of_batches_are_added_to_others(normal, close):
    a, b, dout = normal(2, 3, 4, 5), normal(3, 5, 6), normal(2, 3, 4, 6)
    before = normal(2, 3, 4, 5), normal(3, 5, 6)
    out = tuple(x.copy() for x in before)
    matmul_backward(dout, a, b, out=out, accumulate=True)
    added = reference.matmul_backward(dout, a, b)
    all_close(close, out, tuple(np.float64(old) + new for old, new in zip(before, added, strict=True)))


def test_a_long_sum_is_added_to_others(normal, close):
    dout, a, b = normal(600, 2), normal(600, 3), normal(3, 2)
    out = np.ones((3, 2), np.float32)
    matmul_backward(dout, a, b, needs=("b",), out=out, accumulate=True)
    all_close(close, out, 1 + reference.matmul_backward(dout, a, b, needs=("b",)))


def test_the_bits_are_the_same_every_time(normal):
    x, weight, bias, dout = normal(70, 33), normal(40, 33), normal(40), normal(70, 40)
    first = linear_backward(dout, x, weight, bias, "gelu")
    for _ in range(2):
        again = linear_backward(dout.copy(), x.copy(), weight.copy(), bias, "gelu")
        assert all(one.tobytes() == other.tobytes() for one, other in zip(first, again, strict=True))


def test_rows_in_any_layout(normal, close):
    weight = normal(4, 5)
    for x in (
        normal(2, 3, 7, 5)[:, ::2],
        normal(7, 3, 2, 5).transpose(2, 1, 0, 3),
        np.broadcast_to(normal(5), (2, 3, 5)),
        normal(2, 1, 3, 1, 2, 5)[:, :, ::-1],
    ):
        dout = normal(*x.shape[:-1], 8)[..., ::2]
        all_close(close, linear_backward(dout, x, weight), reference.linear_backward(dout, x, weight))


DOUT, X, WEIGHT, BIAS = (np.ones(shape, np.float32) for shape in ((3, 4), (3, 5), (4, 5), (4,)))


@pytest.mark.parametrize(
    ("changes", "argument", "error"),
    [
        ({"dout": [1.0]}, "dout", ArgumentTypeError),
        ({"dout": DOUT[:2]}, "dout", ArgumentError),
        ({"x": X.astype(np.float16)}, "x", ArgumentTypeError),
        ({"x": X[:, :4], "dout": DOUT}, "weight", ArgumentError),
        ({"weight": WEIGHT[None]}, "weight", ArgumentError),
        ({"bias": BIAS[:3]}, "bias", ArgumentError),
        ({"activation": "tanh"}, "activation", ArgumentError),
        ({"needs": "x"}, "needs", ArgumentTypeError),
        ({"needs": ()}, "needs", ArgumentError),
        ({"needs": ("x", "x")}, "needs", ArgumentError),
        ({"needs": ("bias",)}, "needs", ArgumentError),
        ({"needs": (True, False)}, "needs", ArgumentError),
        ({"accumulate": True}, "accumulate", ArgumentError),
        ({"accumulate": 1}, "accumulate", ArgumentTypeError),
        ({"out": X.copy()}, "out", ArgumentTypeError),
        ({"out": (X.copy(), WEIGHT[:3].copy())}, "out[1]", ArgumentError),
        ({"out": (X, WEIGHT.copy())}, "out[0]", ArgumentError),
        ({"needs": ("x",), "out": (X.copy(), WEIGHT.copy())}, "out", ArgumentTypeError),
    ],
)
def test_bad_arguments(changes, argument, error):
    given = {"dout": DOUT, "x": X, "weight": WEIGHT, **changes}
    with pytest.raises(error) as caught:
        linear_backward(**given)
    assert caught.value.argument == argument


def test_gradients_may_not_share_memory():
    square = np.ones((3, 3), np.float32)
    out = np.empty((3, 3), np.float32)
    with pytest.raises(ArgumentError) as caught:
        rocmkern.matmul_backward(square, square, square, out=(out, out))
    assert caught.value.argument == "out[1]"
