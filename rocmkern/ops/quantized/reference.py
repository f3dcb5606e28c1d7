"""Quantized formats in plain NumPy: the OCP MX formats and eight of ggml, element by element from their definitions.

Element codes are those of `ml_dtypes`. Every number of a block is computed exactly, in float64; float32 holds all of
them but some of q4_1, q5_1, q4_k, q5_k and q6_k, which it rounds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import ml_dtypes
import numpy as np

from rocmkern.ops.linear.reference import linear

__all__ = ["dequantize", "dequantize_rms_norm", "quantize", "quantized_linear"]

#: From blocks to their numbers, or back.
_Codec: TypeAlias = Callable[[np.ndarray], np.ndarray]

#: Elements and bytes of a block.
BLOCKS = {
    "mxfp4": (32, 17),
    "mxfp6_e2m3": (32, 25),
    "mxfp6_e3m2": (32, 25),
    "mxfp8_e4m3": (32, 33),
    "mxfp8_e5m2": (32, 33),
    "q4_0": (32, 18),
    "q4_1": (32, 20),
    "q5_0": (32, 22),
    "q5_1": (32, 24),
    "q8_0": (32, 34),
    "q4_k": (256, 144),
    "q5_k": (256, 176),
    "q6_k": (256, 210),
}
_ELEMENTS: dict[str, tuple[type[np.generic], int]] = {
    "mxfp4": (ml_dtypes.float4_e2m1fn, 4),
    "mxfp6_e2m3": (ml_dtypes.float6_e2m3fn, 6),
    "mxfp6_e3m2": (ml_dtypes.float6_e3m2fn, 6),
    "mxfp8_e4m3": (ml_dtypes.float8_e4m3fn, 8),
    "mxfp8_e5m2": (ml_dtypes.float8_e5m2, 8),
}


def dequantize(blocks: np.ndarray, format: str = "q4_0", dtype: Any = np.float32, *, order: str = "ggml") -> np.ndarray:
    """Elements of blocks ``[..., n]`` as float32 holds them, rounded to `dtype` where that is another; float64.

    Parameters
    ----------
    blocks : uint8, ``[..., n_blocks * block_bytes]``
    format : str
        A key of `BLOCKS`.
    order : {"ggml", "ocp"}
        Which nibble of an mxfp4 block holds which element: byte j has the elements j and j + 16, or 2j and 2j + 1.
    """
    with np.errstate(all="ignore"):
        return _decoded(blocks, format, order).astype(np.float32).astype(dtype).astype(np.float64)


def _decoded(blocks: np.ndarray, format: str, order: str) -> np.ndarray:
    """The exact value of every element, in float64."""
    elements, nbytes = BLOCKS[format]
    split = blocks.reshape(*blocks.shape[:-1], blocks.shape[-1] // nbytes, nbytes)
    with np.errstate(all="ignore"):
        if format in _ELEMENTS:
            values = _mx(split, format, order)
        else:
            values = _GGML[format](split)
    return values.reshape(*blocks.shape[:-1], split.shape[-2] * elements)


def quantize(x: np.ndarray, format: str = "q4_0", *, order: str = "ggml", nan: str = "error") -> np.ndarray:
    """Blocks of the numbers ``[..., n]``, uint8: the MX formats, and those of ggml with blocks of 32.

    MX (OCP MX v1.0, section 6.3): the scale is ``2 ** (floor(log2(max|x|)) - emax)`` within the range of E8M0, elements
    are rounded to nearest even and saturate; a block of zeros has the smallest scale. Those of ggml: as it does it, in
    float32. A block with NaN or infinity becomes NaN (which `rocmkern.quantize` refuses unless told otherwise).
    q4_k, q5_k and q6_k have no reference: their encoders are free to search.
    """
    elements, _ = BLOCKS[format]
    x = np.asarray(x, np.float64)
    split = x.reshape(*x.shape[:-1], x.shape[-1] // elements, elements)
    with np.errstate(all="ignore"):
        blocks = _to_mx(split, format, order) if format in _ELEMENTS else _TO_GGML[format](split)
    return blocks.reshape(*x.shape[:-1], blocks.shape[-2] * blocks.shape[-1])


def quantized_linear(
    x: np.ndarray,
    blocks: np.ndarray,
    format: str = "q4_0",
    bias: np.ndarray | None = None,
    activation: str | None = None,
    *,
    order: str = "ggml",
) -> np.ndarray:
    """``activation(x @ dequantize(blocks).T + bias)`` in float64."""
    return decoded_linear(x, blocks, format, bias, activation, order, np.float64, np.float64)


def dequantize_rms_norm(
    blocks: np.ndarray,
    weight: np.ndarray,
    format: str = "q4_0",
    eps: float = 1e-6,
    *,
    weight_offset: float = 0.0,
    order: str = "ggml",
) -> np.ndarray:
    """``x * (weight + weight_offset) / sqrt(mean(x ** 2) + eps)`` over the last axis of ``x = dequantize(blocks)``."""
    return decoded_rms_norm(blocks, weight, format, eps, weight_offset, order, np.float64)


# ------------------------------------------------------------------------------------------------------------- decoding


def _bits(packed: np.ndarray, width: int) -> np.ndarray:
    """Fields of `width` bits, the lowest bits of the first byte first: uint8."""
    bits = np.unpackbits(packed, axis=-1, bitorder="little")
    fields = bits.reshape(*packed.shape[:-1], bits.shape[-1] // width, width)
    values: np.ndarray = (fields << np.arange(width, dtype=np.uint8)).sum(axis=-1, dtype=np.uint8)
    return values


def _mx(blocks: np.ndarray, format: str, order: str) -> np.ndarray:
    element, width = _ELEMENTS[format]
    scale = blocks[..., :1].view(ml_dtypes.float8_e8m0fnu).astype(np.float64)
    codes = _bits(blocks[..., 1:], width)
    if format == "mxfp4" and order == "ggml":
        codes = np.concatenate([codes[..., 0::2], codes[..., 1::2]], axis=-1)
    values: np.ndarray = codes.view(element).astype(np.float64) * scale
    return values


def _half(blocks: np.ndarray, offset: int) -> np.ndarray:
    low, high = blocks[..., offset].astype(np.uint16), blocks[..., offset + 1].astype(np.uint16)
    return (low + 256 * high).view(np.float16).astype(np.float64)


def _q4_0(blocks: np.ndarray) -> np.ndarray:
    values = np.empty((*blocks.shape[:-1], 32))
    for j in range(16):
        values[..., j] = _half(blocks, 0) * ((blocks[..., 2 + j] % 16).astype(int) - 8)
        values[..., j + 16] = _half(blocks, 0) * ((blocks[..., 2 + j] // 16).astype(int) - 8)
    return values


def _q4_1(blocks: np.ndarray) -> np.ndarray:
    values = np.empty((*blocks.shape[:-1], 32))
    for j in range(16):
        values[..., j] = _half(blocks, 0) * (blocks[..., 4 + j] % 16) + _half(blocks, 2)
        values[..., j + 16] = _half(blocks, 0) * (blocks[..., 4 + j] // 16) + _half(blocks, 2)
    return values


def _five_bits(blocks: np.ndarray, start: int) -> np.ndarray:
    """Numbers of five bits, of which the fifth ones are in the four bytes from `start` on, the others behind them."""
    q = np.empty((*blocks.shape[:-1], 32), int)
    for j in range(32):
        fifth = blocks[..., start + j // 8] // 2 ** (j % 8) % 2
        q[..., j] = blocks[..., start + 4 + j % 16] // (16 if j >= 16 else 1) % 16 + 16 * fifth
    return q


def _q5_0(blocks: np.ndarray) -> np.ndarray:
    values: np.ndarray = _half(blocks, 0)[..., None] * (_five_bits(blocks, 2) - 16)
    return values


def _q5_1(blocks: np.ndarray) -> np.ndarray:
    values: np.ndarray = _half(blocks, 0)[..., None] * _five_bits(blocks, 4) + _half(blocks, 2)[..., None]
    return values


def _q8_0(blocks: np.ndarray) -> np.ndarray:
    return _half(blocks, 0)[..., None] * blocks[..., 2:].view(np.int8).astype(np.float64)


def _q4_k(blocks: np.ndarray) -> np.ndarray:
    return _groups(blocks, 16, lambda group: 0)


def _q5_k(blocks: np.ndarray) -> np.ndarray:
    return _groups(blocks, 48, lambda group: 16 * (blocks[..., 16:48].astype(int) // 2**group % 2))


def _groups(blocks: np.ndarray, start_of_nibbles: int, fifth_bits: Callable[[int], Any]) -> np.ndarray:
    """Elements of q4_k and q5_k: `fifth_bits` of a group is what they add to the numbers of its low four bits."""
    values = np.empty((*blocks.shape[:-1], 256))
    packed = blocks[..., 4:16].astype(int)
    for group in range(8):
        if group < 4:
            scale, minimum = packed[..., group] % 64, packed[..., group + 4] % 64
        else:
            scale = packed[..., group + 4] % 16 + packed[..., group - 4] // 64 * 16
            minimum = packed[..., group + 4] // 16 + packed[..., group] // 64 * 16
        start = start_of_nibbles + group // 2 * 32
        q = blocks[..., start : start + 32].astype(int) // (16 if group % 2 else 1) % 16
        q = q + fifth_bits(group)
        first, second = _half(blocks, 0) * scale, _half(blocks, 2) * minimum
        values[..., 32 * group : 32 * group + 32] = first[..., None] * q - second[..., None]
    return values


def _q6_k(blocks: np.ndarray) -> np.ndarray:
    values = np.empty((*blocks.shape[:-1], 256))
    scales = blocks[..., 192:208].view(np.int8).astype(np.float64)
    for i in range(256):
        half, quarter, column = i // 128, i // 32 % 4, i % 32
        low = blocks[..., 64 * half + 32 * (quarter % 2) + column].astype(int) // (1 if quarter < 2 else 16) % 16
        high = blocks[..., 128 + 32 * half + column].astype(int) // 4**quarter % 4
        values[..., i] = _half(blocks, 208) * scales[..., i // 16] * (low + 16 * high - 32)
    return values


_GGML: dict[str, _Codec] = {
    "q4_0": _q4_0,
    "q4_1": _q4_1,
    "q5_0": _q5_0,
    "q5_1": _q5_1,
    "q8_0": _q8_0,
    "q4_k": _q4_k,
    "q5_k": _q5_k,
    "q6_k": _q6_k,
}


# ------------------------------------------------------------------------------------------------------------- encoding


def _to_mx(x: np.ndarray, format: str, order: str) -> np.ndarray:
    element, width = _ELEMENTS[format]
    largest = float(ml_dtypes.finfo(element).max)
    emax = int(np.floor(np.log2(largest)))
    peak = np.abs(x).max(axis=-1, keepdims=True)
    exponent = np.where(peak > 0, np.frexp(peak)[1] - 1, -200) - emax
    exponent = np.clip(exponent, -127, 127)
    special = ~np.isfinite(peak)
    scaled = np.where(special, 0.0, np.ldexp(x, -exponent))
    codes = np.clip(scaled, -largest, largest).astype(element).view(np.uint8)
    if format == "mxfp4" and order == "ggml":
        codes = np.stack([codes[..., :16], codes[..., 16:]], axis=-1).reshape(codes.shape)
    bits = codes[..., None] >> np.arange(width, dtype=np.uint8) & 1
    packed = np.packbits(bits.reshape(*codes.shape[:-1], codes.shape[-1] * width), axis=-1, bitorder="little")
    scale = np.where(special, 255, exponent + 127).astype(np.uint8)
    return np.concatenate([scale, packed], axis=-1)


def _half_bytes(d: np.ndarray) -> np.ndarray:
    return np.where(np.isfinite(d), d, np.nan).astype("<f2")[..., None].view(np.uint8)


def _codes(shifted: np.ndarray, d: np.ndarray, half: float, most: int) -> np.ndarray:
    inverse = np.where(d == 0, np.float32(0), 1 / d)[..., None]
    q = np.clip(np.floor(shifted * inverse + np.float32(half)), 0, most)
    return np.where(np.isfinite(q), q, 0).astype(np.uint8)


def _symmetric(x: np.ndarray, middle: int) -> tuple[np.ndarray, np.ndarray]:
    """Scales, and codes of which `middle` is 0."""
    x = x.astype(np.float32)
    place = np.abs(x).argmax(axis=-1)[..., None]
    d = np.take_along_axis(x, place, axis=-1)[..., 0] / np.float32(-middle)
    return d, _codes(x, d, middle + 0.5, 2 * middle - 1)


def _affine(x: np.ndarray, most: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Scales, minima, and codes from 0 to `most`."""
    x = x.astype(np.float32)
    lowest = x.min(axis=-1)
    d = (x.max(axis=-1) - lowest) / np.float32(most)
    return d, lowest, _codes(x - lowest[..., None], d, 0.5, most)


def _packed(q: np.ndarray) -> np.ndarray:
    """Low four bits of 32 codes."""
    low = q % 16
    packed: np.ndarray = low[..., :16] + 16 * low[..., 16:]
    return packed


def _fifth(q: np.ndarray) -> Any:
    """Their fifth bits, side by side."""
    bits = q // 16
    return sum(bits[..., i::8] * np.uint8(1 << i) for i in range(8))


def _to_q4_0(x: np.ndarray) -> np.ndarray:
    d, q = _symmetric(x, 8)
    return np.concatenate([_half_bytes(d), _packed(q)], axis=-1)


def _to_q4_1(x: np.ndarray) -> np.ndarray:
    d, m, q = _affine(x, 15)
    return np.concatenate([_half_bytes(d), _half_bytes(m), _packed(q)], axis=-1)


def _to_q5_0(x: np.ndarray) -> np.ndarray:
    d, q = _symmetric(x, 16)
    return np.concatenate([_half_bytes(d), _fifth(q), _packed(q)], axis=-1)


def _to_q5_1(x: np.ndarray) -> np.ndarray:
    d, m, q = _affine(x, 31)
    return np.concatenate([_half_bytes(d), _half_bytes(m), _fifth(q), _packed(q)], axis=-1)


def _to_q8_0(x: np.ndarray) -> np.ndarray:
    x = x.astype(np.float32)
    d = np.abs(x).max(axis=-1) / np.float32(127)
    inverse = np.where(d == 0, np.float32(0), 1 / d)[..., None]
    scaled = x * inverse
    whole = np.trunc(scaled)
    q = whole + np.where(np.abs(scaled - whole) >= 0.5, np.sign(scaled), 0)  # halves away from zero
    q = np.where(np.isfinite(q), q, 0).astype(np.int8).view(np.uint8)
    return np.concatenate([_half_bytes(d), q], axis=-1)


_TO_GGML: dict[str, _Codec] = {"q4_0": _to_q4_0, "q4_1": _to_q4_1, "q5_0": _to_q5_0, "q5_1": _to_q5_1, "q8_0": _to_q8_0}


# ------------------------------------------------------------------------------------------------------------- products


def decoded_linear(
    x: np.ndarray,
    blocks: np.ndarray,
    format: str,
    bias: np.ndarray | None,
    activation: str | None,
    order: str,
    compute: type[np.floating[Any]],
    weights: Any,
) -> np.ndarray:
    """`quantized_linear` in a precision, of weights that are decoded to another one."""
    with np.errstate(over="ignore"):
        decoded = _decoded(blocks, format, order).astype(weights)
    result: np.ndarray = linear(x, decoded, bias, activation, compute=compute)
    return result


def decoded_rms_norm(
    blocks: np.ndarray,
    weight: np.ndarray,
    format: str,
    eps: float,
    weight_offset: float,
    order: str,
    compute: type[np.floating[Any]],
) -> np.ndarray:
    """`dequantize_rms_norm` in a precision."""
    x = _decoded(blocks, format, order).astype(compute)
    root = compute(np.sqrt(eps))
    with np.errstate(all="ignore"):
        # Scaled by the largest number, so that no square overflows or vanishes.
        peak = np.maximum(np.abs(x).max(axis=-1, keepdims=True, initial=0), root)
        peak = np.where(peak == 0, compute(1), peak)
        mean = np.sum((x / peak) ** 2, axis=-1, keepdims=True) / compute(max(x.shape[-1], 1)) + (root / peak) ** 2
        mean = np.where(mean == 0, compute(1), mean)  # a row of zeros
        result: np.ndarray = x / peak / np.sqrt(mean) * (weight.astype(compute) + compute(weight_offset))
    return result
