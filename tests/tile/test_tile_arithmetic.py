"""Operators, elementwise operations, masks and row statistics of tiles against NumPy."""

from __future__ import annotations

import numpy as np
import pytest
from tile_kernels import ARITHMETIC, Config, arithmetic

pytestmark = pytest.mark.tiles(widest=(1, 4, 16), others=(2, 64))

N = 48


def run(launch, arch, m, x, y, r, factor=0.75, col0=0):
    out = np.full((len(ARITHMETIC), len(x), N), 99, np.float32)
    stats = np.full((2, len(x)), 99, np.float32)
    cfg = Config(arch=arch, m=m, n=N)
    launch(arithmetic, cfg, (-(-len(x) // m), 1, 1), x, y, r, out, stats, factor, col0)
    return dict(zip(ARITHMETIC, out, strict=True)), stats


@pytest.fixture
def normal():
    return np.random.default_rng(1).standard_normal


def padded(x, col0):
    """Columns col0 .. col0 + N of x in float64, zeros where there are none."""
    part = x[:, col0 : col0 + N].astype(np.float64)
    return np.pad(part, ((0, 0), (0, N - part.shape[1])))


@pytest.mark.parametrize("col0", [0, 5, 200])
def test_operators_and_elementwise_operations(launch, arch, m, normal, col0):
    n_rows = m + m // 2 + 1
    x, y = (normal((n_rows, 50)).astype(np.float32) for _ in range(2))
    y[::2, ::3] = 0
    r = normal(n_rows).astype(np.float32)
    got, stats = run(launch, arch, m, x, y, r, col0=col0)
    a, b, rows = padded(x, col0), padded(y, col0), r.astype(np.float64)[:, None]
    i, column = np.arange(n_rows)[:, None], col0 + np.arange(N)[None]
    expected = {
        "tile + tile": a + b,
        "tile - tile": a - b,
        "tile * tile": a * b,
        "tile + rows": a + rows,
        "tile - rows": a - rows,
        "tile * rows": a * rows,
        "tile + scalar": a + 0.75,
        "tile - scalar": a - 0.75,
        "tile * scalar": a * 0.75,
        "exp2": 2.0**a,
        "tanh": np.tanh(a),
        "absolute": abs(a),
        "distance": 3.0 * i - column,
        "mask_outside": np.where((column >= i - 1) & (column <= 2 * i + 3), a, -np.inf),
        "mask_where": np.where(b == 0, -np.inf, a),
        "device": a * 0.75 + rows,
        "copy": abs(a) + a,
    }
    for name, value in expected.items():
        np.testing.assert_allclose(got[name], value, rtol=1e-6, atol=1e-6, err_msg=name)
    np.testing.assert_array_equal(stats[0], a.max(1).astype(np.float32))
    np.testing.assert_allclose(stats[1], a.sum(1), rtol=1e-5, atol=1e-5)


def column(values):
    """The values as one line of N columns, repeated in 3 rows."""
    return np.tile(np.resize(np.asarray(values, np.float32), N), (3, 1))


def test_exp2_is_accurate_to_two_units_in_the_last_place(launch, arch, m):
    values = np.concatenate([np.linspace(-126, 8, 3 * N - 8), [-126, -125.5, -0.5, 0.5, 0, 7.5, 8, 1e-30]])
    x = values.reshape(3, N).astype(np.float32)
    got = run(launch, arch, m, x, x, x[:, 0])[0]["exp2"]
    exact = np.exp2(x.astype(np.float64))
    assert (abs(got - exact) <= 2 * np.spacing(exact.astype(np.float32))).all()


def test_exp2_at_the_ends_of_its_range(launch, arch, m):
    x = column([-np.inf, np.inf, np.nan, 127.75, 127.25, 128, 1000, -200, 0])
    got = run(launch, arch, m, x, x, x[:, 0])[0]["exp2"][0, :9]
    assert got[0] == 0 and got[1] == np.inf and np.isnan(got[2])
    np.testing.assert_allclose(got[3:5].astype(np.float64), np.exp2([127.75, 127.25]), rtol=3e-7)
    assert (got[5:] == [np.inf, np.inf, 0, 1]).all()


def test_tanh_is_accurate_relatively(launch, arch, m):
    x = column([1e-6, -1e-6, 1e-30, 0, 0.1, 0.3, 0.6249, 0.625, -0.7, 1, 2, 5, 9.9, 10.1, 50, -50, np.inf, -np.inf])
    got = run(launch, arch, m, x, x, x[:, 0])[0]["tanh"]
    np.testing.assert_allclose(got, np.tanh(x.astype(np.float64)), rtol=1e-6)
    assert np.array_equal(np.signbit(got), np.signbit(x))
    assert np.isnan(run(launch, arch, m, column([np.nan]), x, x[:, 0])[0]["tanh"]).all()


def test_masks_hide_what_is_there_and_show_the_rest_unchanged(launch, arch, m):
    x = column([np.nan, np.inf, -np.inf, 3.0])
    y = column([0, 1, 1, np.nan, -0.0, 1e-40])
    got, _ = run(launch, arch, m, x, y, x[:, 3])
    np.testing.assert_array_equal(got["mask_where"], np.where(y == 0, np.float32(-np.inf), x))
    row, at = np.arange(3)[:, None], np.arange(N)[None]
    np.testing.assert_array_equal(got["mask_outside"], np.where((at >= row - 1) & (at <= 2 * row + 3), x, -np.inf))


def test_row_maximum_ignores_nan_and_row_sum_does_not(launch, arch, m):
    x = np.random.default_rng(2).standard_normal((3, N)).astype(np.float32)
    x[0, 7] = np.nan
    x[1] = -np.inf
    x[2, [0, -1]] = np.inf
    stats = run(launch, arch, m, x, x, x[:, 0])[1]
    np.testing.assert_array_equal(stats[0], [np.nanmax(x[0]), -np.inf, np.inf])
    np.testing.assert_array_equal(stats[1], np.float32([np.nan, -np.inf, np.inf]))
