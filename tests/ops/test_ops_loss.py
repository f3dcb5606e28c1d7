"""The cross-entropy of a linear layer and its gradient as operations, against the float64 reference."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import rocmkern
from rocmkern import reference
from rocmkern.ops.loss.api import linear_cross_entropy
from rocmkern.ops.loss.backward import gradients
from rocmkern.ops.loss.backward.api import linear_cross_entropy_backward
from rocmkern.runtime.errors import ArgumentError, ArgumentTypeError
from rocmkern.runtime.manager import default_manager

DTYPES = [np.float32, np.float16, ml_dtypes.bfloat16]
OPTIONS = [
    {},
    {"reduction": "sum", "label_smoothing": 0.3},
    {"reduction": "none", "z_loss": 0.1},
    {"softcap": 2.0, "label_smoothing": 0.1, "z_loss": 0.01},
]
pytestmark = pytest.mark.usefixtures("launch")


def targets(shape, tokens, ignored=-100):
    found = np.asarray(np.arange(int(np.prod(shape))).reshape(shape) * 7 % tokens)
    found.reshape(-1)[1::4] = ignored
    return found


def all_close(results, expected, dtype=np.float32):
    """Up to rounding errors of gradients of logits of a dtype, which cancel."""
    unit = 8 * float(ml_dtypes.finfo(dtype).eps)
    smallest = 3e-7 if dtype == np.float16 else 0.0
    for result, exact in zip(results, expected, strict=True):
        bound = max(unit, 2e-6) * np.abs(exact).max(initial=0) + smallest
        np.testing.assert_allclose(result.astype(np.float64), exact, rtol=unit, atol=bound)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("shape", [(3,), (), (2, 1, 5), (0,)], ids=str)
def test_loss_and_gradients(normal, dtype, options, shape):
    x, weight, bias = np.asarray(normal(*shape, 6, dtype=dtype)), normal(41, 6, dtype=dtype), normal(41)
    target = targets(shape, 41)
    expected = reference.linear_cross_entropy(x, weight, target, bias=bias, **options)
    loss, lse = linear_cross_entropy(x, weight, target, bias=bias, **options)
    assert loss.dtype == lse.dtype == np.float32 and loss.shape == expected[0].shape and lse.shape == shape
    np.testing.assert_allclose(loss, expected[0], rtol=3e-5, atol=3e-5)
    np.testing.assert_allclose(lse, expected[1], rtol=1e-5, atol=1e-5)
    dloss = np.asarray(normal(*loss.shape), np.float32)
    results = linear_cross_entropy_backward(dloss, x, weight, target, lse, bias=bias, **options)
    assert [each.dtype for each in results] == [dtype, dtype, np.float32]
    exact = reference.linear_cross_entropy_backward(dloss, x, weight, target, lse, bias=bias, **options)
    all_close(results, exact, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("share", [0.1, 100.0])
def test_gradients_are_added_to_others(normal, dtype, share, monkeypatch):
    """Whether the sum for x has little room or much."""
    monkeypatch.setattr(gradients, "SHARE", share)
    x, weight, bias, target = normal(2, 9, 5, dtype=dtype), normal(50, 5, dtype=dtype), normal(50), targets((2, 9), 50)
    loss, lse = linear_cross_entropy(x, weight, target, bias=bias, reduction="sum")
    out = tuple(each.copy() for each in (x, weight, bias))
    results = linear_cross_entropy_backward(
        np.ones_like(loss), x, weight, target, lse, bias=bias, reduction="sum", out=out, accumulate=True
    )
    assert all(result is each for result, each in zip(results, out, strict=True))
    added = reference.linear_cross_entropy_backward(np.ones(()), x, weight, target, lse, bias=bias, reduction="sum")
    exact = tuple(np.float64(old) + new for old, new in zip((x, weight, bias), added, strict=True))
    all_close(out, exact, dtype)


def test_only_what_is_needed(normal):
    x, weight, bias, target = normal(20, 5), normal(50, 5), normal(50), targets((20,), 50)
    loss, lse = linear_cross_entropy(x, weight, target, bias=bias)
    exact = reference.linear_cross_entropy_backward(np.ones(()), x, weight, target, lse, bias=bias)
    exact = dict(zip(("x", "weight", "bias"), exact, strict=True))
    for needs in (("x",), ("weight",), ("bias",), ("bias", "x")):
        results = linear_cross_entropy_backward(np.ones_like(loss), x, weight, target, lse, bias=bias, needs=needs)
        results = results if isinstance(results, tuple) else (results,)
        all_close(results, tuple(exact[name] for name in exact if name in needs))


def test_rows_and_results_in_any_layout(normal):
    weight, target = normal(23, 4), targets((2, 3), 23)
    for x in (normal(2, 6, 4)[:, ::2], normal(3, 2, 4).transpose(1, 0, 2), np.broadcast_to(normal(4), (2, 3, 4))):
        out = np.empty((3, 2), np.float32).T, np.empty((2, 6), np.float32)[:, ::2]
        loss, lse = linear_cross_entropy(x, weight, target.T.copy().T, reduction="none", out=out)
        assert loss is out[0] and lse is out[1]
        expected = reference.linear_cross_entropy(x, weight, target, reduction="none")
        np.testing.assert_allclose(loss, expected[0], rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(lse, expected[1], rtol=1e-5, atol=1e-5)
        dx = np.empty((3, 2, 4), np.float32).transpose(1, 0, 2)
        dloss = normal(3, 2).T
        options = {"reduction": "none", "needs": ("x",)}
        assert linear_cross_entropy_backward(dloss, x, weight, target, lse, **options, out=dx) is dx
        all_close((dx,), (reference.linear_cross_entropy_backward(dloss, x, weight, target, lse, **options),))


def test_what_is_ignored_may_be_anything(normal):
    x, weight = normal(3, 4), normal(7, 4)
    x[1] = np.nan
    target = np.array([2, 7, 6], np.int32)
    loss, lse = linear_cross_entropy(x, weight, target, ignore_index=7)
    expected, _ = linear_cross_entropy(x[::2], weight, target[::2])
    np.testing.assert_allclose(loss, expected, rtol=1e-6)
    dx = linear_cross_entropy_backward(np.ones_like(loss), x, weight, target, lse, ignore_index=7, needs=("x",))
    assert np.isfinite(dx[::2]).all() and (dx[1] == 0).all()


@pytest.mark.parametrize("biased", [False, True], ids=["", "bias"])
@pytest.mark.parametrize(
    ("dtype", "depth"), [(np.float32, 3), (np.float16, 3), (np.float16, 12), (np.float16, 60)], ids=str
)
def test_inner_results_are_a_tenth_of_the_logits(normal, dtype, depth, biased, held):
    """Whether the sum for x is small beside that or not."""
    x, weight, target = normal(320, depth, dtype=dtype), normal(700, depth, dtype=dtype), targets((320,), 700)
    bias = normal(700) if biased else None
    loss, lse = rocmkern.linear_cross_entropy(x, weight, target, bias=bias)
    held.clear()
    before = default_manager("host").memory_stats().held
    rocmkern.linear_cross_entropy_backward(np.ones_like(loss), x, weight, target, lse, bias=bias)
    assert held and max(held) - before <= 0.1 * 320 * 700 * np.dtype(dtype).itemsize
    assert default_manager("host").memory_stats().held == before


def test_behind_an_error_no_inner_result_is_copied(normal, monkeypatch):
    def broken(*args):
        raise KeyboardInterrupt

    x, weight, target = normal(4, 3, 8), normal(20, 8), targets((4, 3), 20)
    loss, lse = linear_cross_entropy(x, weight, target)
    monkeypatch.setattr("rocmkern.ops.loss.backward.api.token_gradients", broken)
    dx = np.full((4, 4, 8), 7, np.float32)[:, :3]
    with pytest.raises(KeyboardInterrupt):
        linear_cross_entropy_backward(np.ones_like(loss), x, weight, target, lse, needs=("x",), out=dx)
    assert (dx == 7).all()


def test_of_no_rows_there_is_one_part(normal, monkeypatch):
    steps = []
    monkeypatch.setattr(gradients, "multiply", lambda dz, *rest, **options: steps.append(dz.shape))
    x, weight, target = normal(0, 4), normal(3000, 4), np.zeros(0, np.int32)
    loss, lse = linear_cross_entropy(x, weight, target, reduction="sum")
    linear_cross_entropy_backward(np.ones_like(loss), x, weight, target, lse, reduction="sum")
    assert steps == [(0, 3000), (3000, 0)]


X, WEIGHT, TARGET = np.ones((3, 4), np.float32), np.ones((5, 4), np.float32), np.array([0, 4, 2])


@pytest.mark.parametrize(
    ("changes", "argument", "error"),
    [
        ({"x": [1.0]}, "x", ArgumentTypeError),
        ({"weight": WEIGHT[:, :3]}, "weight", ArgumentError),
        ({"weight": WEIGHT[:0]}, "weight", ArgumentError),
        ({"weight": WEIGHT.astype(np.float16)}, "weight", ArgumentTypeError),
        ({"target": TARGET[:2]}, "target", ArgumentError),
        ({"target": TARGET.astype(np.float32)}, "target", ArgumentTypeError),
        ({"target": np.array([0, 5, 2])}, "target", ArgumentError),
        ({"target": np.array([0, -1, 2])}, "target", ArgumentError),
        ({"bias": np.ones(4, np.float32)}, "bias", ArgumentError),
        ({"ignore_index": 2**31}, "ignore_index", ArgumentError),
        ({"ignore_index": -(2**31) - 1}, "ignore_index", ArgumentError),
        ({"ignore_index": None}, "ignore_index", ArgumentTypeError),
        ({"label_smoothing": -0.1}, "label_smoothing", ArgumentError),
        ({"z_loss": -0.1}, "z_loss", ArgumentError),
        ({"softcap": 0}, "softcap", ArgumentError),
        ({"reduction": "average"}, "reduction", ArgumentError),
        ({"out": np.empty(3, np.float32)}, "out", ArgumentTypeError),
        ({"out": (np.empty(3, np.float32), np.empty(3, np.float32))}, "out[0]", ArgumentError),
    ],
)
def test_bad_arguments(changes, argument, error):
    given = {"x": X, "weight": WEIGHT, "target": TARGET, **changes}
    with pytest.raises(error) as caught:
        linear_cross_entropy(**given)
    assert caught.value.argument == argument


@pytest.mark.parametrize(
    ("changes", "argument", "error"),
    [
        ({"dloss": np.ones(3, np.float32)}, "dloss", ArgumentError),
        ({"dloss": np.ones((), np.float16)}, "dloss", ArgumentTypeError),
        ({"lse": np.ones(2, np.float32)}, "lse", ArgumentError),
        ({"needs": ("target",)}, "needs", ArgumentError),
        ({"accumulate": True}, "accumulate", ArgumentError),
    ],
)
def test_bad_arguments_of_gradients(changes, argument, error):
    given = {
        "dloss": np.ones((), np.float32),
        "x": X,
        "weight": WEIGHT,
        "target": TARGET,
        "lse": np.ones(3, np.float32),
    }
    with pytest.raises(error) as caught:
        linear_cross_entropy_backward(**{**given, **changes})
    assert caught.value.argument == argument
