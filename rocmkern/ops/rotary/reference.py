"""Rotary position embedding in plain NumPy,"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np

__all__ = ["rope", "rope_append_kv"]


def rope(
    x: np.ndarray,
    positions: np.ndarray,
    *,
    block_positions: np.ndarray | None = None,
    variant: str = "half",
    base: float | None = None,
    rotary_dim: int | None = None,
    scaling: Any = None,
    freq_factors: np.ndarray | None = None,
    inverse: bool = False,
    layout: str = "shd",
    compute: type[np.floating[Any]] = np.float64,
) -> np.ndarray:
    """Each pair of a head turned by an angle of its position.

    Parameters
    ----------
    x : numpy.ndarray
        ``[..., S, H, D]``, or ``[..., H, S, D]`` with ``layout="hsd"``.
    positions : numpy.ndarray
        ``[S]`` or ``[..., S]``.
    block_positions : numpy.ndarray, optional
        Positions of the second half of what is rotated (GLM); `positions` are then those of the first half.
    variant : {"half", "interleaved"}
    base : float, optional
        10000, or the ``rope_theta`` of `scaling`, by default.
    rotary_dim : int, optional
        Leading elements of a head that are rotated; all by default.
    scaling : dict or object, optional
        ``rope_type`` "linear", "yarn" or "llama3" with its parameters, or an object with these as attributes.
    freq_factors : numpy.ndarray, optional
        ``[rotary_dim // 2]``: what the frequency of each pair is divided by, before scaling.
    inverse : bool
    layout : {"shd", "hsd"}

    Returns
    -------
    numpy.ndarray
        Of the shape of x, in the precision `compute`.
    """
    dim = x.shape[-1] if rotary_dim is None else rotary_dim
    out = x.astype(compute)
    rows = out if layout == "hsd" else np.swapaxes(out, -2, -3)  # a view: [..., H, S, D]
    parts = (positions,) if block_positions is None else (positions, block_positions)
    width = dim // len(parts)
    radians, factor = frequencies(width, base, scaling, freq_factors)
    for part, p in enumerate(parts):
        # Angles are exact to float64 in every precision: what is measured is the arithmetic on x.
        angle = np.asarray(p, np.float64)[..., None, :, None] * radians
        cos, sin = np.cos(angle) * factor, np.sin(angle) * factor
        if inverse:
            cos, sin = np.cos(angle) / factor, -np.sin(angle) / factor
        cos, sin = cos.astype(compute), sin.astype(compute)
        turned = rows[..., part * width : (part + 1) * width]
        half = width // 2
        if variant == "half":
            first, second = slice(0, half), slice(half, width)
        else:
            first, second = slice(0, None, 2), slice(1, None, 2)
        a, b = turned[..., first].copy(), turned[..., second].copy()
        with np.errstate(all="ignore"):
            # A pair that does not turn keeps to itself: a NaN in one element does not reach the other.
            turned[..., first] = np.where(sin == 0, a * cos, a * cos - b * sin)
            turned[..., second] = np.where(sin == 0, b * cos, b * cos + a * sin)
    return out


def rope_append_kv(
    k: np.ndarray,
    v: np.ndarray,
    positions: np.ndarray | None,
    key_cache: np.ndarray,
    value_cache: np.ndarray,
    slots: np.ndarray,
    *,
    variant: str = "half",
    base: float | None = None,
    rotary_dim: int | None = None,
    scaling: Any = None,
    freq_factors: np.ndarray | None = None,
    key_scale: np.ndarray | None = None,
    value_scale: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Both caches with the rotated keys and the values in their slots; float64, the arguments are left alone.

    Of caches of 8 bits, what their codes stand for, without the scale.

    Parameters
    ----------
    k, v : numpy.ndarray
        ``[T, Hkv, D]`` and ``[T, Hkv, Dv]``.
    positions, slots : numpy.ndarray
        ``[T]``; without positions keys are not rotated; slot s is row ``s % L`` of block ``s // L``, -1 is none.
    key_cache, value_cache : numpy.ndarray
        ``[n_blocks, L, Hkv, D]`` and ``[n_blocks, L, Hkv, Dv]``.
    variant, base, rotary_dim, scaling, freq_factors
        As in `rope`.
    key_scale, value_scale : numpy.ndarray, optional
        ``[Hkv]``, of caches of 8 bits: what keys and values are divided by; 1 by default. The quotient becomes the
        nearest number of the caches' dtype, or the largest one if it is larger; NaN becomes 0 in int8.
    """
    scaled = dict(base=base, rotary_dim=rotary_dim, scaling=scaling, freq_factors=freq_factors)
    rotated = k if positions is None else rope(k, positions, variant=variant, **scaled)
    if key_cache.dtype.itemsize == 1:
        rotated, v = (_quantized(x, scale, key_cache.dtype) for x, scale in ((rotated, key_scale), (v, value_scale)))
    return put(rotated, key_cache, slots, np.float64), put(v, value_cache, slots, np.float64)


def _quantized(x: np.ndarray, scale: np.ndarray | None, dtype: np.dtype) -> np.ndarray:
    quotient = x.astype(np.float64) / (1.0 if scale is None else scale.astype(np.float64)[:, None])
    if dtype == np.int8:
        codes: np.ndarray = np.nan_to_num(np.clip(np.rint(quotient), -128, 127), nan=0.0)
        return codes
    largest = float(ml_dtypes.finfo(dtype).max)
    codes = np.clip(quotient, -largest, largest).astype(dtype)
    return codes.astype(np.float64)


def put(rows: np.ndarray, cache: np.ndarray, slots: np.ndarray, dtype: Any) -> np.ndarray:
    """The cache with rows in its slots."""
    result = cache.astype(dtype)
    for row, slot in zip(rows, slots, strict=True):
        if slot >= 0:
            result[slot // cache.shape[1], slot % cache.shape[1]] = row.astype(dtype)
    return result


def frequencies(
    dim: int, base: float | None = None, scaling: Any = None, freq_factors: np.ndarray | None = None
) -> tuple[np.ndarray, float]:
    """Radians per position of the ``dim // 2`` pairs, and the factor of cosine and sine."""
    kind, p = _parameters(scaling)
    if base is None:
        base = p.get("rope_theta", 10000.0)
    radians = np.array([float(base) ** (-2.0 * i / dim) for i in range(dim // 2)])
    if freq_factors is not None:
        radians = radians / np.asarray(freq_factors, np.float64)
    if kind == "linear":
        return radians / p["factor"], 1.0
    if kind == "llama3":
        return np.array([_llama3(f, p) for f in radians]), 1.0
    if kind == "yarn":
        return _yarn(radians, dim, base, p), _yarn_factor(p)
    return radians, 1.0


def _parameters(scaling: Any) -> tuple[str | None, Mapping[str, Any]]:
    if scaling is None:
        return None, {}
    if not isinstance(scaling, dict):
        name = {"LinearScaling": "linear", "YarnScaling": "yarn", "Llama3Scaling": "llama3"}[type(scaling).__name__]
        return name, vars(scaling)
    return scaling.get("rope_type", scaling.get("type")), scaling


def _llama3(f: float, p: Mapping[str, Any]) -> Any:
    wavelength = 2 * math.pi / f
    length = p["original_max_position_embeddings"]
    if wavelength > length / p["low_freq_factor"]:
        return f / p["factor"]
    if wavelength < length / p["high_freq_factor"]:
        return f
    smooth = (length / wavelength - p["low_freq_factor"]) / (p["high_freq_factor"] - p["low_freq_factor"])
    return (1 - smooth) * f / p["factor"] + smooth * f


def _yarn(radians: np.ndarray, dim: int, base: float, p: Mapping[str, Any]) -> np.ndarray:
    """Equations 23 and following of the paper, with the correction range of its code."""
    length = p["original_max_position_embeddings"]

    def correction(turns: float) -> float:
        return dim * math.log(length / (turns * 2 * math.pi)) / (2 * math.log(base))

    low, high = correction(p.get("beta_fast", 32.0)), correction(p.get("beta_slow", 1.0))
    if p.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    if low == high:
        high += 0.001
    ramp = np.array([min(max((i - low) / (high - low), 0.0), 1.0) for i in range(len(radians))])
    blended: np.ndarray = radians / p["factor"] * ramp + radians * (1 - ramp)
    return blended


def _yarn_factor(p: Mapping[str, Any]) -> Any:
    if p.get("attention_factor") is not None:
        return p["attention_factor"]

    def mscale(m: float) -> float:
        return 0.1 * m * math.log(p["factor"]) + 1.0 if p["factor"] > 1 else 1.0

    if p.get("mscale") is not None and p.get("mscale_all_dim") is not None:
        return mscale(p["mscale"]) / mscale(p["mscale_all_dim"])
    return mscale(1.0)
