"""Tiles stored in dtypes of 8 bits: to nearest even, and what is too large as the largest number."""

from __future__ import annotations

from dataclasses import dataclass

import ml_dtypes
import numpy as np
import pytest

from rocmkern import tile as T

pytestmark = pytest.mark.tiles(widest=(1, 4, 32), others=(16,))

DTYPES = {"int8": np.int8, "float8_e4m3fn": ml_dtypes.float8_e4m3fn, "float8_e5m2": ml_dtypes.float8_e5m2}
COLUMNS = 96


@dataclass(frozen=True)
class Config(T.Config):
    """Compile-time configuration: ``m`` rows by ``n`` columns."""

    m: int = 16
    n: int = COLUMNS


@T.kernel
def stored(cfg, x: T.Tensor[2], out: T.Out[2]):
    row = T.row_index(cfg, cfg.m) + T.block_id(cfg, 0) * cfg.m
    valid = row < x.shape[0]
    for n0 in range(0, x.shape[1], cfg.n):
        T.store_tile(out, (row,), n0, T.load_tile(cfg, x, (row,), n0, cfg.n, valid), valid)


def every_number(dtype):
    """float32 values of all codes, and whether each is a finite number."""
    values = np.arange(256, dtype=np.uint8).view(dtype).astype(np.float32)
    return values, np.isfinite(values)


def around_every_code(dtype):
    """float32 ``[rows, columns]``: all numbers, what lies in the middle of two of them and next to that, and beyond."""
    values, finite = every_number(dtype)
    numbers = np.unique(values[finite])
    middles = (numbers[1:] + numbers[:-1]) / 2
    beyond = np.float32(np.abs(numbers).max()) * np.array([1.01, 1.05, 2, 1e30, np.inf], np.float32)
    tiny = np.array([0.0, 1e-45, 1e-30], np.float32)
    near = [np.nextafter(middles, np.float32(side)) for side in (-np.inf, np.inf)]
    x = np.concatenate([numbers, middles, *near, beyond, tiny]).astype(np.float32)
    x = np.concatenate([x, -x, [np.nan]]).astype(np.float32)
    return np.resize(x, (-(-x.size // (COLUMNS + 5)), COLUMNS + 5))


def expected(x, dtype):
    """By the other library's rounding, of what is within the range."""
    if dtype == np.int8:
        return np.where(np.isnan(x), 0, np.clip(np.rint(x), -128, 127)).astype(np.int8)
    largest = np.float32(ml_dtypes.finfo(dtype).max)
    return np.clip(x, -largest, largest).astype(dtype)


def launched(launch, arch, m, x, out):
    launch(stored, Config(arch=arch, m=m), (-(-len(x) // m), 1, 1), x, out)
    return out


@pytest.mark.parametrize("name", DTYPES)
def test_every_code_and_what_lies_between_them(launch, arch, m, name):
    dtype = np.dtype(DTYPES[name])
    x = around_every_code(dtype)
    got = launched(launch, arch, m, x, np.full(x.shape, 99, dtype))
    want = expected(x, dtype)
    numbers = ~np.isnan(x)
    np.testing.assert_array_equal(got.view(np.uint8)[numbers], want.view(np.uint8)[numbers])
    np.testing.assert_array_equal(got.astype(np.float32), want.astype(np.float32))
    found = set(got.view(np.uint8).ravel().tolist())
    assert found >= set(np.flatnonzero(every_number(dtype)[1]).tolist()), "every finite number comes up"


@pytest.mark.parametrize("name", DTYPES)
def test_nothing_else_is_written(launch, arch, m, name):
    dtype = np.dtype(DTYPES[name])
    x = np.random.default_rng(0).standard_normal((m + 1, 21)).astype(np.float32) * 50
    whole = np.full((m + 3, 64), 99, dtype)
    launched(launch, arch, m, x, whole[1 : m + 2, 3:45:2])
    want = np.full((m + 3, 64), 99, dtype)
    want[1 : m + 2, 3:45:2] = expected(x, dtype)
    np.testing.assert_array_equal(whole.view(np.uint8), want.view(np.uint8))
