"""Operations on quantized blocks: shapes, layouts, outputs, round trips, and what they refuse."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import rocmkern
from rocmkern import reference
from rocmkern.ops.quantized.api import FORMATS
from rocmkern.ops.quantized.reference import BLOCKS
from rocmkern.runtime.errors import ArgumentError, ArgumentTypeError

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)


def packed(normal, format, *shape, blocks=2):
    """Numbers ``[*shape, n]`` and their blocks."""
    x = normal(*shape, blocks * BLOCKS[format][0])
    return x, rocmkern.quantize(x, format)


@pytest.mark.parametrize("format", FORMATS)
def test_dequantize(launch, normal, format):
    x, blocks = packed(normal, format, 2, 3)
    out = rocmkern.dequantize(blocks, format)
    assert out.shape == x.shape and out.dtype == np.float32
    np.testing.assert_array_equal(out, reference.dequantize(blocks, format))


@pytest.mark.parametrize("dtype", [np.float16, BFLOAT16, "float32"])
def test_dequantize_rounds_to_the_dtype_that_is_asked_for(launch, normal, dtype):
    _, blocks = packed(normal, "q8_0", 3)
    out = rocmkern.dequantize(blocks, "q8_0", dtype)
    assert out.dtype == np.dtype(dtype)
    np.testing.assert_array_equal(out, reference.dequantize(blocks, "q8_0").astype(dtype))


def test_dequantize_takes_one_row_many_axes_and_any_strides(launch, normal):
    _, blocks = packed(normal, "q4_0", 2, 2, 2, 2, 3)
    expected = reference.dequantize(blocks, "q4_0")
    np.testing.assert_array_equal(rocmkern.dequantize(blocks), expected)
    np.testing.assert_array_equal(rocmkern.dequantize(blocks[0, 0, 0, 0, 0]), expected[0, 0, 0, 0, 0])
    np.testing.assert_array_equal(rocmkern.dequantize(blocks[::-1, :, ::2]), expected[::-1, :, ::2])
    swapped = np.ascontiguousarray(blocks[0, 0, 0, 0].T).T
    np.testing.assert_array_equal(rocmkern.dequantize(swapped), expected[0, 0, 0, 0])


def test_results_go_to_out(launch, normal, close):
    x, blocks = packed(normal, "mxfp8_e4m3", 4)
    into = np.empty(x.shape[::-1], np.float16).T
    assert rocmkern.dequantize(blocks, "mxfp8_e4m3", np.float16, out=into) is into
    np.testing.assert_array_equal(into, reference.dequantize(blocks, "mxfp8_e4m3").astype(np.float16))
    left, out = normal(2, x.shape[1]), np.empty((2, 4), np.float32)
    assert rocmkern.quantized_linear(left, blocks, "mxfp8_e4m3", out=out) is out
    close(out, reference.quantized_linear(left, blocks, "mxfp8_e4m3"))
    bytes_of = np.empty(blocks.shape, np.uint8)
    assert rocmkern.quantize(x, "mxfp8_e4m3", out=bytes_of) is bytes_of
    np.testing.assert_array_equal(bytes_of, blocks)


def test_order_of_nibbles(launch, normal):
    x = normal(3, 64)
    ours, theirs = rocmkern.quantize(x, "mxfp4"), rocmkern.quantize(x, "mxfp4", order="ocp")
    assert (ours != theirs).any()
    np.testing.assert_array_equal(rocmkern.dequantize(ours, "mxfp4"), rocmkern.dequantize(theirs, "mxfp4", order="ocp"))


@pytest.mark.parametrize("format", ["mxfp4", "q4_k"])
def test_quantized_linear(launch, normal, close, format):
    w, blocks = packed(normal, format, 5)
    x, bias = normal(2, 3, w.shape[1]), normal(5)
    for activation in (None, "silu"):
        out = rocmkern.quantized_linear(x, blocks, format, bias, activation)
        close(out / 8, reference.quantized_linear(x, blocks, format, bias, activation) / 8)
    row = rocmkern.quantized_linear(x[0, 0], blocks, format)
    assert row.shape == (5,)


def test_dequantize_rms_norm(launch, normal, close):
    x, blocks = packed(normal, "q8_0", 2, 3)
    weight = normal(x.shape[-1], dtype=np.float16)
    out = rocmkern.dequantize_rms_norm(blocks, weight, "q8_0", 0.25, weight_offset=1.0)
    assert out.dtype == np.float16
    close(out, reference.dequantize_rms_norm(blocks, weight, "q8_0", 0.25, weight_offset=1.0))
    zeros = rocmkern.quantize(np.zeros((1, 32), np.float32), "q8_0")
    np.testing.assert_array_equal(rocmkern.dequantize_rms_norm(zeros, np.ones(32, np.float32), "q8_0", 0.0), 0)


# Largest error of a round trip, in shares of the largest number of a block (of its range, for those with a minimum):
# half a step, what rounding the scales costs, and for formats that saturate what lies beyond the largest element.
BOUNDS = {
    "mxfp4": 0.25,
    "mxfp6_e2m3": 0.0626,
    "mxfp6_e3m2": 0.126,
    "mxfp8_e4m3": 0.126,
    "mxfp8_e5m2": 0.126,
    "q4_0": 0.126,
    "q4_1": 0.035,
    "q5_0": 0.0635,
    "q5_1": 0.018,
    "q8_0": 0.0045,
    "q4_k": 0.055,
    "q5_k": 0.035,
    "q6_k": 0.04,
}


@pytest.mark.parametrize("format", FORMATS)
def test_round_trips_are_bounded(normal, format):
    x = normal(64, BLOCKS[format][0]) * np.exp2(np.arange(64, dtype=np.float32) % 16 - 8)[:, None]
    x[0], x[1, 1:], x[2] = 0, 0, np.linspace(-8, 8, x.shape[1])
    with rocmkern.using("python"):
        back = rocmkern.dequantize(rocmkern.quantize(x, format), format)
    size = np.abs(x).max(axis=1)
    if format in ("q4_1", "q5_1", "q4_k", "q5_k"):
        size = np.maximum(x.max(axis=1), 0) - np.minimum(x.min(axis=1), 0)
    assert (np.abs(back - x).max(axis=1) <= BOUNDS[format] * size).all()


@pytest.mark.parametrize("format", FORMATS)
def test_a_block_with_nan_or_infinity_is_refused_or_becomes_nan(normal, format):
    elements = BLOCKS[format][0]
    x = normal(1, 3 * elements)
    x[0, 1], x[0, elements] = np.nan, np.inf
    with pytest.raises(ArgumentError, match=r"x: got NaN or infinity.*propagate"):
        rocmkern.quantize(x, format)
    with rocmkern.using("python"):
        back = rocmkern.dequantize(rocmkern.quantize(x, format, nan="propagate"), format)
    assert np.isnan(back[0, : 2 * elements]).all() and np.isfinite(back[0, 2 * elements :]).all()


@pytest.mark.parametrize("format", [name for name in FORMATS if not name.startswith("mx")])
def test_numbers_beyond_the_scales_are_refused(format):
    x = np.full((1, BLOCKS[format][0]), 1e9, np.float32)
    with pytest.raises(ArgumentError, match=r"x: got a number of size 1e\+09"):
        rocmkern.quantize(x, format)


def test_what_is_refused(normal):
    x, blocks = packed(normal, "q4_0", 4)
    cases = [
        ("format", lambda: rocmkern.dequantize(blocks, "q3_k")),
        ("format", lambda: rocmkern.dequantize(blocks, None)),
        ("order", lambda: rocmkern.dequantize(blocks, "q4_0", order="ocp")),
        ("order", lambda: rocmkern.dequantize(blocks, "mxfp4", order="mixed")),
        ("blocks", lambda: rocmkern.dequantize(blocks[:, :-1])),
        ("out", lambda: rocmkern.dequantize(blocks, out=np.empty((4, 32), np.float32))),
        ("blocks", lambda: rocmkern.quantized_linear(x[:, :32], blocks)),
        ("blocks", lambda: rocmkern.quantized_linear(x, blocks[None])),
        ("bias", lambda: rocmkern.quantized_linear(x, blocks, bias=normal(5))),
        ("activation", lambda: rocmkern.quantized_linear(x, blocks, activation="swish")),
        ("x", lambda: rocmkern.quantize(x[:, :33], "q4_0")),
        ("nan", lambda: rocmkern.quantize(x, "q4_0", nan="ignore")),
        ("out", lambda: rocmkern.quantize(x, "q4_0", out=np.empty((4, 18), np.uint8))),
        ("weight", lambda: rocmkern.dequantize_rms_norm(blocks, normal(32))),
        ("eps", lambda: rocmkern.dequantize_rms_norm(blocks, normal(64), eps=-1.0)),
    ]
    for argument, call in cases:
        with pytest.raises(ArgumentError) as caught:
            call()
        assert caught.value.argument == argument
    kinds = [
        ("blocks", lambda: rocmkern.dequantize(blocks.astype(np.int8))),
        ("dtype", lambda: rocmkern.dequantize(blocks, dtype=np.int32)),
        ("x", lambda: rocmkern.quantize(x.astype(np.float64), "q4_0")),
        ("bias", lambda: rocmkern.quantized_linear(x, blocks, bias=normal(4).astype(np.float64))),
    ]
    for argument, call in kinds:
        with pytest.raises(ArgumentTypeError) as caught:
            call()
        assert caught.value.argument == argument
