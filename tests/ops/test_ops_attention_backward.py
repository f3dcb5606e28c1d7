"""The gradient of attention as an operation: layouts, features, results, errors, against the float64 reference."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from rocmkern import reference
from rocmkern.ops.attention.backward.api import flash_attention_backward
from rocmkern.runtime.errors import ArgumentError, ArgumentTypeError

pytestmark = pytest.mark.usefixtures("launch")


@pytest.fixture
def call(normal):
    """Arguments of a gradient, with the result and the log-sum-exp that the reference has."""

    def arguments(dtype=np.float32, q=(2, 4, 5, 8), k=(2, 2, 7, 8), dv=6, **options):
        q, k, v = normal(*q, dtype=dtype), normal(*k, dtype=dtype), normal(*k[:-1], dv, dtype=dtype)
        forward = {name: x for name, x in options.items() if not name.startswith(("return_", "dlse"))}
        o, lse = reference.flash_attention(q, k, v, return_lse=True, **forward)
        given = {"dout": normal(*o.shape, dtype=dtype), "q": q, "k": k, "v": v}
        return given | {"o": o.astype(dtype), "lse": lse.astype(np.float32)} | options

    return arguments


def check(close, arguments, **changed):
    results = flash_attention_backward(**arguments, **changed)
    expected = reference.flash_attention_backward(**arguments)
    assert isinstance(results, tuple) and len(results) == len(expected)
    for result, exact in zip(results, expected, strict=True):
        close(result, exact, arguments["q"].dtype)
    return results


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
def test_default_call(call, close, dtype):
    results = check(close, call(dtype))
    assert all(x.dtype == dtype for x in results)


@pytest.mark.parametrize("layout", ["bhsd", "bshd"])
def test_options(call, normal, close, layout):
    swapped = layout == "bshd"
    q, k = ((2, 5, 4, 8), (2, 7, 2, 8)) if swapped else ((2, 4, 5, 8), (2, 2, 7, 8))
    options = {"causal": True, "window": (3, 1), "scale": 0.5, "softcap": 2.0, "layout": layout}
    options |= {"alibi_slopes": np.abs(normal(2, 4)), "mask": normal(5, 7) > -1, "dlse": normal(2, 4, 5)}
    check(close, call(q=q, k=k, **options, return_dalibi_slopes=True))


@pytest.mark.parametrize("shape", [(2, 4, 5, 7), (1, 4, 5, 7), (4, 1, 1), (5, 1), (7,), (2, 1, 5, 7), (2, 1, 1, 7), ()])
def test_gradient_of_a_bias_that_repeats(call, normal, close, shape):
    arguments = call(bias=normal(*shape), return_dbias=True, causal="top_left")
    assert check(close, arguments)[3].shape == shape


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_gradients_have_the_dtypes_of_their_inputs(call, normal, close, dtype):
    more = {"bias": normal(5, 7, dtype=dtype), "sinks": normal(4, dtype=dtype), "alibi_slopes": np.abs(normal(4))}
    more["alibi_slopes"] = more["alibi_slopes"].astype(dtype)
    arguments = call(**more, return_dbias=True, return_dsinks=True, return_dalibi_slopes=True)
    results = flash_attention_backward(**arguments)
    for result, exact in zip(results, reference.flash_attention_backward(**arguments), strict=True):
        close(result, exact)
    assert [x.dtype for x in results] == [np.float32] * 3 + [dtype] * 3


def test_packed_sequences(call, normal, close):
    cu_q, cu_k = np.array([0, 3, 3, 5, 9], np.int32), np.array([0, 5, 7, 7, 11], np.int32)
    options = {"cu_seqlens_q": cu_q, "cu_seqlens_k": cu_k, "causal": True, "sinks": normal(4)}
    options |= {"alibi_slopes": np.abs(normal(4, 4)), "return_dsinks": True, "return_dalibi_slopes": True}
    _, dk, dv, dsinks, dslopes = check(close, call(q=(9, 4, 8), k=(11, 2, 8), **options))
    assert not dk[5:7].any() and not dv[5:7].any() and dsinks.shape == (4,) and not dslopes[1:3].any()


def test_results_go_to_out_also_in_float32(call, close):
    arguments = call(np.float16)
    out = tuple(np.empty(arguments[name].shape, np.float32) for name in ("q", "k", "v"))
    assert all(a is b for a, b in zip(check(close, arguments, out=out), out, strict=True))


def test_the_same_bits_every_time(call, normal):
    arguments = call(bias=normal(1, 4, 1, 7), sinks=normal(4), return_dbias=True, return_dsinks=True)
    first, second = flash_attention_backward(**arguments), flash_attention_backward(**arguments)
    assert all(np.array_equal(a, b) for a, b in zip(first, second, strict=True))


@pytest.mark.parametrize(
    "shapes", [((0, 4, 5, 8), (0, 2, 7, 8)), ((2, 4, 0, 8), (2, 2, 7, 8)), ((2, 4, 5, 8), (2, 2, 0, 8))]
)
def test_nothing_to_add_up_is_zero(call, normal, shapes):
    q, k = shapes
    arguments = call(q=q, k=k, bias=normal(4, 1, 1), sinks=normal(4), return_dbias=True, return_dsinks=True)
    results = flash_attention_backward(**arguments)
    assert [x.shape for x in results] == [q, k, (*k[:-1], 6), (4, 1, 1), (4,)]
    assert not any(x.any() for x in results)


@pytest.mark.parametrize(
    ("changes", "argument", "error"),
    [
        ({"dout": None}, "dout", ArgumentTypeError),
        ({"dout": np.zeros((2, 4, 5, 8), np.float32)}, "dout", ArgumentError),
        ({"dout": np.zeros((2, 4, 5, 6), np.float16)}, "dout", ArgumentTypeError),
        ({"o": np.zeros((2, 4, 6, 6), np.float32)}, "o", ArgumentError),
        ({"o": np.zeros((2, 4, 5, 6), np.float16)}, "o", ArgumentTypeError),
        ({"lse": np.zeros((2, 5, 4), np.float32)}, "lse", ArgumentError),
        ({"lse": np.zeros((2, 4, 5))}, "lse", ArgumentTypeError),
        ({"dlse": np.zeros((2, 4), np.float32)}, "dlse", ArgumentError),
        ({"return_dbias": True}, "return_dbias", ArgumentError),
        ({"return_dsinks": True}, "return_dsinks", ArgumentError),
        ({"return_dalibi_slopes": 1}, "return_dalibi_slopes", ArgumentTypeError),
        ({"out": np.zeros((2, 4, 5, 8), np.float32)}, "out", ArgumentTypeError),
        ({"out": ()}, "out", ArgumentTypeError),
        ({"out": (np.zeros((2, 4, 5, 8), np.float32),) * 3}, "out[1]", ArgumentError),
        ({"softcap": 0.0}, "softcap", ArgumentError),
        ({"k": np.zeros((2, 3, 7, 8), np.float32)}, "k", ArgumentError),
    ],
    ids=str,
)
def test_bad_arguments(call, changes, argument, error):
    with pytest.raises(error) as caught:
        flash_attention_backward(**{**call(), **changes})
    assert caught.value.argument == argument


def test_results_do_not_lie_in_inputs(call):
    arguments = call(dv=8, k=(2, 4, 5, 8))
    for name in ("q", "dout", "o"):
        out = arguments[name], *(np.empty_like(arguments[each]) for each in ("k", "v"))
        with pytest.raises(ArgumentError, match=r"overlaps with"):
            flash_attention_backward(**arguments, out=out)
