"""The reference of the quantized formats against code that is not ours: `gguf` for ggml, `ml_dtypes` for MX blocks."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from rocmkern import reference
from rocmkern.ops.quantized.reference import BLOCKS

GGML = {
    "mxfp4": (0, 1), "q4_0": (0, 2), "q4_1": (0, 4), "q5_0": (0, 2), "q5_1": (0, 4), "q8_0": (0, 2), "q4_k": (0, 4),
    "q5_k": (0, 4), "q6_k": (208, 210),
}  # fmt: skip


def random_blocks(format, count=200):
    """Any bytes, with scales that are numbers."""
    rng = np.random.default_rng(1)
    blocks = rng.integers(0, 256, (count, BLOCKS[format][1]), dtype=np.uint8)
    start, stop = GGML.get(format, (0, 1))
    if format.startswith("mx"):
        blocks[:, 0] = rng.integers(0, 250, count)
    else:
        halves = rng.standard_normal((count, (stop - start) // 2)).astype("<f2")
        blocks[:, start:stop] = halves.view(np.uint8)
    return blocks


@pytest.mark.parametrize("format", GGML)
def test_blocks_as_gguf_decodes_them(format):
    gguf = pytest.importorskip("gguf", reason="gguf is not installed: pip install gguf")
    blocks = random_blocks(format)
    theirs = gguf.quants.dequantize(blocks, getattr(gguf.GGMLQuantizationType, format.upper()))
    np.testing.assert_array_equal(reference.dequantize(blocks, format), theirs)


@pytest.mark.parametrize("format", ["q4_0", "q4_1", "q5_0", "q5_1", "q8_0"])
def test_bytes_as_gguf_encodes_them(format):
    gguf = pytest.importorskip("gguf", reason="gguf is not installed: pip install gguf")
    rng = np.random.default_rng(2)
    x = (rng.standard_normal((300, 64)) * np.exp2(rng.integers(-12, 12, (300, 1)))).astype(np.float32)
    x[0], x[1], x[2] = 0, np.linspace(-8, 8, 64), -1.5
    theirs = gguf.quants.quantize(x, getattr(gguf.GGMLQuantizationType, format.upper()))
    np.testing.assert_array_equal(reference.quantize(x, format), theirs)


@pytest.mark.parametrize(
    ("format", "element"),
    [("mxfp8_e4m3", ml_dtypes.float8_e4m3fn), ("mxfp8_e5m2", ml_dtypes.float8_e5m2)],
)
def test_bytes_of_mxfp8_are_elements(format, element):
    blocks = random_blocks(format)
    scale = blocks[:, :1].view(ml_dtypes.float8_e8m0fnu).astype(np.float64)
    with np.errstate(all="ignore"):
        expected = (blocks[:, 1:].view(element).astype(np.float64) * scale).astype(np.float32)
    np.testing.assert_array_equal(reference.dequantize(blocks, format), expected)


def test_six_bit_elements_follow_each_other_from_the_lowest_bit():
    block = np.zeros((1, 25), np.uint8)
    block[0, 0] = 127
    block[0, 1:4] = (1, 2, 3)  # 0b000011_000000_100000_000001: codes 1, 32, 32 + 0, ... from the low end
    word = 1 | 2 << 8 | 3 << 16
    codes = np.array([word >> shift & 63 for shift in (0, 6, 12, 18)], np.uint8)
    expected = codes.view(ml_dtypes.float6_e2m3fn).astype(np.float64)
    np.testing.assert_array_equal(reference.dequantize(block, "mxfp6_e2m3")[0, :4], expected)


def test_a_maximum_beyond_the_largest_element_saturates():
    x = np.zeros((1, 32))
    x[0, :4] = 6.1, -7.9, 4.9, 5.1
    blocks = reference.quantize(x, "mxfp4")
    assert blocks[0, 0] == 127
    np.testing.assert_array_equal(reference.dequantize(blocks, "mxfp4")[0, :5], [6, -6, 4, 6, 0])


def test_scales_at_the_ends_of_their_range():
    zeros = reference.quantize(np.zeros((1, 32)), "mxfp4")
    assert zeros[0, 0] == 0, "a block of zeros has the smallest scale"
    tiny = reference.quantize(np.full((1, 32), 2.0**-149), "mxfp8_e5m2")
    assert tiny[0, 0] == 0
    block = zeros.copy()
    block[0, 1:] = 0x11
    assert reference.dequantize(block, "mxfp4")[0, 0] == 2.0**-128, "a subnormal float32"
    block[0, 0] = 255
    assert np.isnan(reference.dequantize(block, "mxfp4")).all()
