"""Operators, elementwise operations, masks and row statistics of tiles against NumPy."""

from __future__ import annotations

import math

import numpy as np
import pytest
from tile_kernels import ARITHMETIC, Config, arithmetic

pytestmark = pytest.mark.tiles(widest=(1, 4, 16), others=(2, 64))

N = 48


def run(launch, arch, m, x, y, r, factor=0.75, col0=0):
    out = np.full((len(ARITHMETIC), len(x), N), 99, np.float32)
    stats = np.full((4, len(x)), 99, np.float32)
    cfg = Config(arch=arch, m=m, n=N)
    launch(arithmetic, cfg, (-(-len(x) // m), 1, 1), x, y, r, out, stats, factor, col0)
    return dict(zip(ARITHMETIC, out, strict=True)), stats


@pytest.fixture
def normal():
    return np.random.default_rng(1).standard_normal


ACTIVATIONS = ("silu", "gelu", "gelu_tanh", "relu")


def activation(name, x):
    """The activation functions in float64, written so that nothing cancels."""
    if name == "relu":
        return np.maximum(x, 0.0)
    if name == "gelu":
        return x * np.vectorize(math.erfc)(-x / math.sqrt(2.0)) / 2
    z = x if name == "silu" else 2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)
    with np.errstate(over="ignore"):
        return np.where(z < 0, x * np.exp(np.minimum(z, 0)), x) / (1 + np.exp(-abs(z)))


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
        "pad_columns": np.where(column >= 17, 0.75, a),
        "multiply_add": (a * b + abs(a)) * b + abs(a),
        "multiply_rows": a * rows * rows,
        "multiply_rows in order": a * 2.0**80,
        **{name: activation(name, a) for name in ACTIVATIONS},
    }
    for name, value in expected.items():
        np.testing.assert_allclose(got[name], value, rtol=1e-6, atol=1e-6, err_msg=name)
    np.testing.assert_array_equal(stats[0], a.max(1).astype(np.float32))
    for got, value in zip(stats[1:], (a.sum(1), (a * b).sum(1), (a * a).sum(1)), strict=True):
        np.testing.assert_allclose(got, value, rtol=1e-5, atol=1e-5)


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


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations_are_accurate_relatively_over_their_whole_range(launch, arch, m, name):
    sizes = np.concatenate([2.0 ** np.arange(-100, 7, 4), np.linspace(0.01, 14, 3 * N - 27)]).astype(np.float32)
    x = (sizes * np.where(np.arange(sizes.size) % 2, 1, -1).astype(np.float32)).reshape(3, N)
    for sign in (1, -1):
        values = sign * x
        got = run(launch, arch, m, values, x, x[:, 0])[0][name].astype(np.float64)
        exact = activation(name, values.astype(np.float64))
        # Below 2 ** -126 numbers have fewer digits, but there are some.
        assert (abs(got - exact) <= 8e-7 * abs(exact) + 2.0**-148).all()


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations_at_zero_infinity_and_nan(launch, arch, m, name):
    x = column([np.inf, -np.inf, np.nan, 0.0, -0.0, 1e4, -1e4, 3e38, -3e38])
    got = run(launch, arch, m, x, x, x[:, 0])[0][name][0, :9]
    np.testing.assert_array_equal(got, np.float32([np.inf, 0, np.nan, 0, 0, 1e4, 0, 3e38, 0]))
    if name != "relu":
        assert np.signbit(got[[1, 4, 6, 8]]).all()


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
