"""`erf`: an elementwise operation that is nothing but its expression."""

from __future__ import annotations

import math

import numpy as np
import pytest
from tile_kernels import Config

from rocmkern import tile as T

N = 64


@T.kernel
def erf_of_all(cfg, x: T.Tensor[2], r: T.Tensor[1], out: T.Out[2], rows: T.Out[1]):
    row = T.row_index(cfg, cfg.m)
    valid = row < x.shape[0]
    for n0 in range(0, x.shape[1], cfg.n):
        T.store_tile(out, (row,), n0, T.erf(T.load_tile(cfg, x, (row,), n0, cfg.n, valid)), valid)
    T.store_rows(rows, (row,), T.erf(T.load_rows(r, (row,), valid)), valid)


@pytest.mark.parametrize("m", [4, 32])
def test_erf_is_within_two_units_in_the_last_place(launch, arch, m):
    tiny = 10.0 ** np.linspace(-37, 0, 8 * N)
    x = np.stack([np.linspace(-5, 5, 8 * N), np.linspace(0.8, 1.1, 8 * N), tiny, -tiny]).astype(np.float32)
    r, out, rows = x[:, 70].copy(), np.full_like(x, 99), np.full(4, 99, np.float32)
    launch(erf_of_all, Config(arch=arch, m=m, n=N), (1, 1, 1), x, r, out, rows)
    exact = np.vectorize(math.erf)(x.astype(np.float64))
    units = np.spacing(np.abs(exact).astype(np.float32)).astype(np.float64)
    assert np.max(np.abs(out - exact) / units) < 2
    np.testing.assert_array_equal(rows, out[:, 70])


def test_erf_of_numbers_that_are_none(launch, arch):
    x = np.array([[np.nan, np.inf, -np.inf, -0.0, 0.0, 3e38, -3e38, 4.5]], np.float32)
    out, rows = np.full_like(x, 99), np.zeros(1, np.float32)
    launch(erf_of_all, Config(arch=arch, m=4, n=16), (1, 1, 1), x, x[0, :1], out, rows)
    assert np.isnan(out[0, 0]) and out[0, 1:].tolist() == [1, -1, 0, 0, 1, -1, 1] and np.isnan(rows[0])
    assert np.signbit(out[0, 3]) and not np.signbit(out[0, 4])
