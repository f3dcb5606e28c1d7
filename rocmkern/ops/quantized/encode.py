"""Encoders of the quantized formats, in NumPy on the host: float32 ``[n, elements]`` to uint8 ``[n, block_bytes]``.

MX formats as OCP MX v1.0, section 6.3, says; q4_0, q4_1, q5_0, q5_1 and q8_0 give ggml's bytes. q4_k, q5_k and q6_k
have no prescribed encoder: scales are fitted to each group of elements, and the best of the neighbouring 6-bit (8-bit)
scales is taken. A block with NaN or infinity gets a scale that is NaN.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from rocmkern.tile.codes import SMALL_FLOATS
from rocmkern.tile.formats import FORMATS

#: Elements that are encoded at a time, which bounds the intermediate arrays.
CHUNK = 1 << 18


def encode(x: np.ndarray, name: str, out: np.ndarray) -> None:
    """Encode rows ``[R, n]`` of any float dtype into ``out`` ``[R, n_blocks * block_bytes]``; n is whole blocks."""
    kind = FORMATS[name]
    blocks = out.reshape(-1, kind.nbytes)
    step = max(1, CHUNK // kind.elements)
    flat = x.reshape(-1, kind.elements)
    for start in range(0, len(flat), step):
        some = np.ascontiguousarray(flat[start : start + step]).astype(np.float32)
        with np.errstate(all="ignore"):
            blocks[start : start + step] = ENCODERS[name](some)


# ------------------------------------------------------------------------------------------------------------------- MX


def _element_codes(name: str, x: np.ndarray) -> np.ndarray:
    """Codes of the numbers of a small float nearest to x (ties to even); beyond the largest, the largest."""
    kind = SMALL_FLOATS[name]
    size = np.minimum(np.abs(x), np.float32(kind.largest))
    step = np.maximum(np.frexp(size)[1] - 1, 1 - kind.bias) - kind.mantissa
    size = np.minimum(np.ldexp(np.rint(np.ldexp(size, -step)), step), np.float32(kind.largest))
    # The codes of the positive numbers are in the order of their values; infinity and NaN come last.
    positive = kind.table()[: 1 << (kind.bits - 1)]
    codes = np.searchsorted(positive[np.isfinite(positive)], size).astype(np.uint8)
    signed: np.ndarray = codes | (np.signbit(x).astype(np.uint8) << (kind.bits - 1))
    return signed


def _mx(name: str, pack: Callable[[np.ndarray], np.ndarray]) -> Callable[[np.ndarray], np.ndarray]:
    emax = SMALL_FLOATS[name].largest_exponent

    def encode(x: np.ndarray) -> np.ndarray:
        peak = np.abs(x).max(axis=1, keepdims=True)
        special = ~np.isfinite(peak)
        exponent = np.clip(np.where(peak > 0, np.frexp(peak)[1] - 1, -1000) - emax, -127, 127)
        # In float64: 2 ** 127 divided by the smallest scale overflows float32.
        scaled = np.ldexp(np.where(special, 0, x).astype(np.float64), -exponent)
        scale = np.where(special, 255, exponent + 127).astype(np.uint8)
        return np.concatenate([scale, pack(_element_codes(name, scaled))], axis=1)

    return encode


def _low_then_high(codes: np.ndarray) -> np.ndarray:
    """Two halves of 4-bit codes in one byte: the first half in the low bits."""
    low, high = np.split(codes, 2, axis=-1)
    both: np.ndarray = low | high << 4
    return both


def _in_pairs(codes: np.ndarray) -> np.ndarray:
    both: np.ndarray = codes[:, 0::2] | codes[:, 1::2] << 4
    return both


def _six_bits(codes: np.ndarray) -> np.ndarray:
    """Every four 6-bit codes in three bytes, the first one lowest."""
    x = codes.reshape(len(codes), -1, 4).astype(np.uint32)
    word = x[..., 0] | x[..., 1] << 6 | x[..., 2] << 12 | x[..., 3] << 18
    return np.stack([word & 255, word >> 8 & 255, word >> 16], axis=-1).astype(np.uint8).reshape(len(codes), -1)


# ----------------------------------------------------------------------------------------------------------------- ggml


def _half_bytes(d: np.ndarray) -> np.ndarray:
    """Scales ``[n, 1]`` as float16; what is not finite becomes NaN."""
    return np.where(np.isfinite(d), d, np.nan).astype("<f2").view(np.uint8)


def _inverse(d: np.ndarray) -> np.ndarray:
    return np.where(d == 0, np.float32(0), np.float32(1) / d)


def _finite(q: np.ndarray) -> np.ndarray:
    return np.where(np.isfinite(q), q, 0)


def _around_zero(x: np.ndarray, middle: int) -> tuple[np.ndarray, np.ndarray]:
    """Scales, and codes of which ``middle`` is 0; the number of the largest size has the code 0."""
    largest = np.take_along_axis(x, np.abs(x).argmax(axis=1)[:, None], axis=1)
    d = largest / np.float32(-middle)
    q = np.clip(np.trunc(x * _inverse(d) + np.float32(middle + 0.5)), 0, 2 * middle - 1)
    return d, _finite(q).astype(np.uint8)


def _from_minimum(x: np.ndarray, most: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Scales, minima, and codes from 0, the smallest number, to ``most``, the largest one."""
    lowest, highest = x.min(axis=1, keepdims=True), x.max(axis=1, keepdims=True)
    d = (highest - lowest) / np.float32(most)
    q = np.clip(np.trunc((x - lowest) * _inverse(d) + np.float32(0.5)), 0, most)
    return d, lowest, _finite(q).astype(np.uint8)


def _fifth_bits(q: np.ndarray) -> np.ndarray:
    """The fifth bits of 32 codes, side by side."""
    return np.packbits(q >> 4, axis=1, bitorder="little")


def _q4_0(x: np.ndarray) -> np.ndarray:
    d, q = _around_zero(x, 8)
    return np.concatenate([_half_bytes(d), _low_then_high(q)], axis=1)


def _q4_1(x: np.ndarray) -> np.ndarray:
    d, m, q = _from_minimum(x, 15)
    return np.concatenate([_half_bytes(d), _half_bytes(m), _low_then_high(q)], axis=1)


def _q5_0(x: np.ndarray) -> np.ndarray:
    d, q = _around_zero(x, 16)
    return np.concatenate([_half_bytes(d), _fifth_bits(q), _low_then_high(q & 15)], axis=1)


def _q5_1(x: np.ndarray) -> np.ndarray:
    d, m, q = _from_minimum(x, 31)
    return np.concatenate([_half_bytes(d), _half_bytes(m), _fifth_bits(q), _low_then_high(q & 15)], axis=1)


def _q8_0(x: np.ndarray) -> np.ndarray:
    d = np.abs(x).max(axis=1, keepdims=True) / np.float32(127)
    scaled = x * _inverse(d)
    size = np.abs(scaled)
    whole = np.floor(size)
    q = np.sign(scaled) * (whole + (size - whole >= 0.5))  # halves away from zero
    return np.concatenate([_half_bytes(d), _finite(q).astype(np.int8).view(np.uint8)], axis=1)


def _rounded_half(d: np.ndarray) -> np.ndarray:
    """d as the decoder will have it, in float32."""
    return d.astype(np.float16).astype(np.float32)


def _candidates(best: np.ndarray, low: int, high: int) -> Iterator[np.ndarray]:
    """An integer and its neighbours, within bounds."""
    for step in (0, -1, 1):
        yield np.clip(best + step, low, high)


def _in_groups(x: np.ndarray, most: int) -> tuple[np.ndarray, np.ndarray]:
    """The first 16 bytes of q4_k and q5_k, and codes ``[n, 8, 32]`` from 0 to ``most``."""
    special = ~np.isfinite(x).all(axis=1)[:, None]
    groups = np.where(special, 0, x).reshape(-1, 8, 32)
    lowest = np.minimum(groups.min(axis=2), 0)
    highest = np.maximum(groups.max(axis=2), 0)
    ideal, minimum = (highest - lowest) / np.float32(most), -lowest
    d, dmin = (_rounded_half(v.max(axis=1, keepdims=True) / np.float32(63)) for v in (ideal, minimum))
    least = np.full(ideal.shape, np.inf, np.float32)
    scale, offset, q = (np.zeros(shape, np.float32) for shape in (ideal.shape, ideal.shape, groups.shape))
    for some_scale in _candidates(np.rint(ideal * _inverse(d)), 0, 63):
        for some_offset in _candidates(np.rint(minimum * _inverse(dmin)), 0, 63):
            step, start = (d * some_scale)[..., None], (dmin * some_offset)[..., None]
            some_q = np.clip(np.rint((groups + start) * _inverse(step)), 0, most)
            error = ((step * some_q - start - groups) ** 2).sum(axis=2)
            better = error < least
            least = np.where(better, error, least)
            scale, offset = np.where(better, some_scale, scale), np.where(better, some_offset, offset)
            q = np.where(better[..., None], some_q, q)
    s, m = scale.astype(np.uint8), offset.astype(np.uint8)
    packed = np.concatenate(
        [s[:, :4] | s[:, 4:] >> 4 << 6, m[:, :4] | m[:, 4:] >> 4 << 6, s[:, 4:] & 15 | m[:, 4:] << 4], axis=1
    )
    d = np.where(special, np.nan, d)
    return np.concatenate([_half_bytes(d), _half_bytes(dmin), packed], axis=1), q.astype(np.uint8)


def _nibbles_of_groups(q: np.ndarray) -> np.ndarray:
    return _low_then_high(q.reshape(-1, 4, 64)).reshape(-1, 128)


def _q4_k(x: np.ndarray) -> np.ndarray:
    head, q = _in_groups(x, 15)
    return np.concatenate([head, _nibbles_of_groups(q)], axis=1)


def _q5_k(x: np.ndarray) -> np.ndarray:
    head, q = _in_groups(x, 31)
    fifth = np.packbits(q >> 4, axis=1, bitorder="little").reshape(-1, 32)
    return np.concatenate([head, fifth, _nibbles_of_groups(q & 15)], axis=1)


def _q6_k(x: np.ndarray) -> np.ndarray:
    special = ~np.isfinite(x).all(axis=1)[:, None]
    groups = np.where(special, 0, x).reshape(-1, 16, 16)
    place = np.abs(groups).argmax(axis=2)[..., None]
    ideal = np.take_along_axis(groups, place, axis=2)[..., 0] / np.float32(-32)
    place = np.abs(ideal).argmax(axis=1)[:, None]
    d = _rounded_half(np.take_along_axis(ideal, place, axis=1) / np.float32(-128))
    least = np.full(ideal.shape, np.inf, np.float32)
    scale, q = np.zeros(ideal.shape, np.float32), np.zeros(groups.shape, np.float32)
    for some_scale in _candidates(np.rint(ideal * _inverse(d)), -128, 127):
        step = (d * some_scale)[..., None]
        some_q = np.clip(np.rint(groups * _inverse(step)), -32, 31)
        error = ((step * some_q - groups) ** 2).sum(axis=2)
        better = error < least
        least, scale = np.where(better, error, least), np.where(better, some_scale, scale)
        q = np.where(better[..., None], some_q, q)
    codes = (q + 32).astype(np.uint8).reshape(-1, 2, 4, 32)
    low = _low_then_high((codes & 15).reshape(-1, 2, 128)).reshape(-1, 128)
    high = codes >> 4
    high = (high[:, :, 0] | high[:, :, 1] << 2 | high[:, :, 2] << 4 | high[:, :, 3] << 6).reshape(-1, 64)
    d = np.where(special, np.nan, d)
    return np.concatenate([low, high, scale.astype(np.int8).view(np.uint8), _half_bytes(d)], axis=1)


ENCODERS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "mxfp4": _mx("e2m1", _low_then_high),
    "mxfp4_ocp": _mx("e2m1", _in_pairs),
    "mxfp6_e2m3": _mx("e2m3", _six_bits),
    "mxfp6_e3m2": _mx("e3m2", _six_bits),
    "mxfp8_e4m3": _mx("e4m3", lambda codes: codes),
    "mxfp8_e5m2": _mx("e5m2", lambda codes: codes),
    "q4_0": _q4_0,
    "q4_1": _q4_1,
    "q5_0": _q5_0,
    "q5_1": _q5_1,
    "q8_0": _q8_0,
    "q4_k": _q4_k,
    "q5_k": _q5_k,
    "q6_k": _q6_k,
}
