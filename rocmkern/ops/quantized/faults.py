"""Faults of quantized formats: blocks that are decoded in a wrong way."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from rocmkern.matrix.faults.engine import Edit, Fault

DECODING = ("dequantize", "quantized_linear", "dequantize_rms_norm")


def _decoding(name: str, description: str, formats: tuple[str, ...], wrong: Callable[[Any, Any], Any]) -> Fault:
    """``wrong(decode, blocks)`` in place of ``decode(blocks)`` of some formats."""

    def make(right: Callable[..., Any]) -> Callable[..., Any]:
        def quantized(x: Any, format: str, like: Any) -> Any:
            source = right(x, format, like)
            if format in formats:
                decode = source.format.decode
                source.format = dataclasses.replace(source.format, decode=lambda blocks: wrong(decode, blocks))
            return source

        return quantized

    return Fault(name, description, DECODING, replace={"quantized": make})


def _swapped(decode: Callable[[Any], Any], blocks: Any) -> Any:
    start = {17: 1, 18: 2, 20: 4, 22: 6, 24: 8, 144: 16, 176: 48}[blocks.shape[-1]]
    packed = blocks[..., start:]
    return decode(np.concatenate([blocks[..., :start], packed >> 4 | packed << 4], axis=-1))


def _neighbours_scale(decode: Callable[[Any], Any], blocks: Any) -> Any:
    length = 1 if blocks.shape[-1] % 2 else 2
    scales = np.roll(blocks[..., :length], 1, axis=-2)
    return decode(np.concatenate([scales, blocks[..., length:]], axis=-1))


def _without(start: int, stop: int) -> Callable[[Any, Any], Any]:
    """Some bytes of every block read as 0."""

    def wrong(decode: Callable[[Any], Any], blocks: Any) -> Any:
        blocks = blocks.copy()
        blocks[..., start:stop] = 0
        return decode(blocks)

    return wrong


def _no_offset(decode: Callable[[Any], Any], blocks: Any) -> Any:
    d = np.ascontiguousarray(blocks[..., :2]).view(np.float16).astype(np.float32)
    return decode(blocks) + {18: 8, 22: 16}[blocks.shape[-1]] * d


def _halves_of_fifth_bits(decode: Callable[[Any], Any], blocks: Any) -> Any:
    """Those of the first 16 elements serve the last 16, and the other way round."""
    start = {22: 2, 24: 4}[blocks.shape[-1]]
    fifth = np.roll(blocks[..., start : start + 4], 2, axis=-1)
    return decode(np.concatenate([blocks[..., :start], fifth, blocks[..., start + 4 :]], axis=-1))


def _neighbours_fifth_bits(decode: Callable[[Any], Any], blocks: Any) -> Any:
    """Every group of 32 elements takes those of the one before."""
    planes = np.roll(np.unpackbits(blocks[..., 16:48, None], axis=-1), 1, axis=-1)
    fifth = np.packbits(planes, axis=-1)[..., 0]
    return decode(np.concatenate([blocks[..., :16], fifth, blocks[..., 48:]], axis=-1))


def _unsigned(decode: Callable[[Any], Any], blocks: Any) -> Any:
    d = np.ascontiguousarray(blocks[..., :2]).view(np.float16).astype(np.float32)
    return d * blocks[..., 2:]


def _flushed(decode: Callable[[Any], Any], blocks: Any) -> Any:
    values = decode(blocks)
    return np.where(np.abs(values) < 2.0**-126, np.float32(0), values)


def _scale_of_infinity(decode: Callable[[Any], Any], blocks: Any) -> Any:
    values = decode(blocks)
    return np.where(blocks[..., :1] == 255, np.float32(np.inf), values)


def _first_scales(decode: Callable[[Any], Any], blocks: Any) -> Any:
    """Scales and minima of the first four groups serve the last four."""
    blocks = blocks.copy()
    low = blocks[..., 4:8] & 63, blocks[..., 8:12] & 63
    blocks[..., 4:8] = low[0] | low[0] >> 4 << 6
    blocks[..., 8:12] = low[1] | low[1] >> 4 << 6
    blocks[..., 12:16] = low[0] & 15 | low[1] << 4
    return decode(blocks)


MX = ("mxfp4", "mxfp4_ocp", "mxfp6_e2m3", "mxfp6_e3m2", "mxfp8_e4m3", "mxfp8_e5m2")

FAULTS = (
    _decoding(
        "nibbles_swapped",
        "high four bits come first",
        ("q4_0", "q4_1", "q5_0", "q5_1", "mxfp4", "q4_k", "q5_k"),
        _swapped,
    ),
    _decoding(
        "scale_of_the_neighbour",
        "a block takes the scale of the one before",
        ("q4_0", "q4_1", "q5_0", "q5_1", "q8_0", *MX),
        _neighbours_scale,
    ),
    _decoding(
        "minimum_not_subtracted", "formats without their minima", ("q4_1", "q5_1", "q4_k", "q5_k"), _without(2, 4)
    ),
    _decoding("fifth_bits_lost", "q5_0 without the fifth bits of its elements", ("q5_0",), _without(2, 6)),
    _decoding("fifth_bits_of_q5_1_lost", "the same of q5_1", ("q5_1",), _without(4, 8)),
    _decoding("fifth_bits_of_q5_k_lost", "the same of q5_k", ("q5_k",), _without(16, 48)),
    _decoding(
        "fifth_bits_of_the_other_half",
        "q5_0 and q5_1 with the fifth bits of the other 16 elements",
        ("q5_0", "q5_1"),
        _halves_of_fifth_bits,
    ),
    _decoding(
        "fifth_bits_of_the_neighbour",
        "q5_k with the fifth bits of the group before",
        ("q5_k",),
        _neighbours_fifth_bits,
    ),
    _decoding("high_bits_lost", "q6_k without the high two bits of its elements", ("q6_k",), _without(128, 192)),
    _decoding(
        "late_scales_wrong", "q4_k with six-bit scales of the first groups only", ("q4_k", "q5_k"), _first_scales
    ),
    _decoding("offset_missing", "q4_0 and q5_0 without their offset", ("q4_0", "q5_0"), _no_offset),
    _decoding("bytes_unsigned", "q8_0 with unsigned bytes", ("q8_0",), _unsigned),
    _decoding("subnormal_numbers_flushed", "what float32 holds as a subnormal number becomes 0", MX, _flushed),
    _decoding("nan_scale_is_infinite", "a scale of 255 makes infinity instead of NaN", MX, _scale_of_infinity),
    Fault(
        "orders_of_nibbles_mixed_up",
        "the OCP order of mxfp4 is read as ggml's",
        DECODING,
        replace={"quantized": lambda right: lambda x, format, like: right(x, format.removesuffix("_ocp"), like)},
    ),
    Fault(
        "eps_outside_the_root",
        "eps is added to the root instead of the mean",
        ("dequantize_rms_norm",),
        edits=(
            Edit(
                "dequantize_rms_norm",
                "T.sqrt(squares * inverse_length + eps * eps)",
                "T.sqrt(squares * inverse_length) + eps * eps",
            ),
        ),
    ),
    Fault(
        "weight_offset_missing",
        "the weights are taken without their offset",
        ("dequantize_rms_norm",),
        edits=(Edit("dequantize_rms_norm", "T.load_tile(...) + offset", "T.load_tile(...) + 0.0"),),
    ),
)
