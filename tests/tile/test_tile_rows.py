"""Rows: operators, selections, functions, loads and stores against NumPy."""

from __future__ import annotations

import numpy as np
import pytest
from tile_kernels import ROWS, Config, row_arithmetic

pytestmark = pytest.mark.tiles(widest=(1, 8, 16), others=(4,))


def run(launch, arch, m, x, y, shift=7, divisor=3, c=(41,)):
    out = np.full((len(ROWS), len(x)), 99, np.float32)
    grid = (-(-len(x) // m), 1, 1)
    launch(row_arithmetic, Config(arch=arch, m=m), grid, x, y, np.array(c, np.int32), out, shift, divisor)
    return dict(zip(ROWS, out, strict=True))


def test_rows_follow_numpy_and_integers_follow_python(launch, arch, m):
    n_rows = 2 * m + 3
    rng = np.random.default_rng(3)
    x, y = (rng.standard_normal(n_rows).astype(np.float32) for _ in range(2))
    x[0], y[1] = y[0], 0.0
    got = run(launch, arch, m, x, y)
    a, b = x.astype(np.float64), y.astype(np.float64)
    row = [*range(n_rows)]
    i, j = [r - 7 for r in row], [r % 5 + 1 for r in row]
    pairs = [*zip(i, j, strict=True)]
    expected = {
        "x + y": a + b,
        "x - y": a - b,
        "x * y": a * b,
        "2 - x": 2 - a,
        "minimum": np.minimum(a, b),
        "maximum": np.maximum(a, b),
        "minimum(x, 0.5)": np.minimum(a, 0.5),
        "maximum(x, 0.5)": np.maximum(a, 0.5),
        "where(x < y)": np.where(a < b, a, 7),
        "where scalars": np.where(a < b, 1.5, 0.25),
        "reciprocal_or_zero": 1 / a,
        "log2": [np.log2(v) if v > 0 else -np.inf for v in a],
        "exp2": 2**a,
        "full_rows": [-1.25] * n_rows,
        "x <= y": a <= b,
        "x > y": a > b,
        "x >= y": a >= b,
        "x == y": a == b,
        "x != y": a != b,
        "&": [v > 0 and k > 0 for v, k in zip(a, i, strict=True)],
        "i + j": [p + q for p, q in pairs],
        "i - j": [p - q for p, q in pairs],
        "i * 3": [3 * p for p in i],
        "i // 3": [p // 3 for p in i],
        "i % 3": [p % 3 for p in i],
        "i // -3": [p // -3 for p in i],
        "i % -3": [p % -3 for p in i],
        "i // j": [p // q for p, q in pairs],
        "i % j": [p % q for p, q in pairs],
        "minimum(i, j)": [min(p, q) for p, q in pairs],
        "maximum(i, 2)": [max(p, 2) for p in i],
        "7 - i": [7 - p for p in i],
        "block_id": [r // m for r in row],
        "x[i]": [a[1]] * n_rows,
        "int(c[i])": [41] * n_rows,
        "load_integers": [41] * n_rows,
        "sqrt": [np.sqrt(v) if v >= 0 else np.nan for v in a],
        "where integers": [p if u < v else 3 for p, u, v in zip(i, a, b, strict=True)],
    }
    assert set(expected) == set(ROWS)
    for name, value in expected.items():
        np.testing.assert_allclose(got[name], np.asarray(value, np.float64), rtol=1e-6, atol=1e-6, err_msg=name)


def test_rows_of_zero_infinity_and_nan(launch, arch, m):
    nan, inf = np.nan, np.inf
    x = np.array([0, -0.0, inf, -inf, nan, nan, 1, 2.0**-120, 3], np.float32)
    y = np.array([0, 0, inf, inf, 1, nan, nan, 1, -inf], np.float32)
    got = run(launch, arch, m, x, y)
    np.testing.assert_array_equal(got["reciprocal_or_zero"], np.float32([0, 0, 0, 0, nan, nan, 1, 2.0**120, 1 / 3]))
    np.testing.assert_array_equal(got["log2"][[0, 1, 2, 6, 7]], np.float32([-inf, -inf, inf, 0, -120]))
    np.testing.assert_array_equal(got["minimum"], np.fmin(x, y))
    np.testing.assert_array_equal(got["maximum"], np.fmax(x, y))
    np.testing.assert_array_equal(got["exp2"][:6], np.float32([1, 1, inf, 0, nan, nan]))
    with np.errstate(invalid="ignore"):
        np.testing.assert_array_equal(got["sqrt"], np.sqrt(x))
        np.testing.assert_array_equal(got["x - y"], x - y)
    for name, value in {
        "x <= y": x <= y, "x > y": x > y, "x >= y": x >= y, "x == y": x == y, "x != y": x != y
    }.items():  # fmt: skip
        np.testing.assert_array_equal(got[name], value.astype(np.float32), err_msg=name)


def test_rows_read_and_write_any_stride(launch, arch, m):
    n_rows = m + 2
    rng = np.random.default_rng(4)
    plain = rng.standard_normal((2, n_rows)).astype(np.float32)
    backwards, wide = plain[0][::-1].copy()[::-1], np.repeat(plain[1], 3)[::3]
    expected = run(launch, arch, m, plain[0], plain[1])
    got = run(launch, arch, m, backwards, wide)
    for name in ROWS:
        np.testing.assert_array_equal(got[name], expected[name], err_msg=name)
    constant = np.broadcast_to(np.float32(1.5), n_rows)
    np.testing.assert_array_equal(run(launch, arch, m, constant, constant)["x + y"], np.full(n_rows, 3, np.float32))
