"""The online softmax over several steps: what does not depend on how lazily a target rescales."""

from __future__ import annotations

import numpy as np
import pytest
from tile_kernels import Config, online_softmax, sums_of_squares

pytestmark = pytest.mark.tiles(widest=(1, 4, 16, 64), others=(2, 32))

N, K = 32, 24
SCALE = 0.7


def run(launch, arch, m, x, v, scale=SCALE):
    """acc / l, and m * scale + log2(l)."""
    acc = np.full((len(x), v.shape[1]), 99, np.float32)
    stats = np.full((2, len(x)), 99, np.float32)
    launch(online_softmax, Config(arch=arch, m=m, n=N, k=K), (-(-len(x) // m), 1, 1), x, v, acc, stats, scale)
    with np.errstate(divide="ignore", invalid="ignore"):
        return acc / stats[1][:, None], stats[0].astype(np.float64) * scale + np.log2(stats[1])


def exact(x, v, scale=SCALE):
    z = x.astype(np.float64) * scale
    top = z.max(1, keepdims=True)
    p = np.exp2(z - top)
    return p @ v.astype(np.float64) / p.sum(1, keepdims=True), (top + np.log2(p.sum(1, keepdims=True)))[:, 0]


def values(n):
    return np.random.default_rng(7).standard_normal((n, K)).astype(np.float32)


SCORES = {
    "normal": lambda r, c: np.random.default_rng(8).standard_normal((r, c)),
    "maxima that grow slowly": lambda r, c: np.arange(c)[None] * 0.1 + np.arange(r)[:, None],
    "maxima that grow fast": lambda r, c: np.arange(c)[None] * 3.0 - 500,
    "maxima that fall": lambda r, c: np.arange(c)[None, ::-1] * 2.0 + np.zeros((r, 1)),
    "large": lambda r, c: np.random.default_rng(9).standard_normal((r, c)) * 1e4,
    "equal": lambda r, c: np.full((r, c), -3.0),
    "only some rows grow": lambda r, c: np.where(np.arange(r)[:, None] % 3 == 0, np.arange(c)[None] * 2.0, -1.0),
}


@pytest.mark.parametrize("columns", [1, 31, 32, 100])
@pytest.mark.parametrize("scores", SCORES)
def test_quotient_and_log_sum_agree_with_the_definition(launch, arch, m, scores, columns):
    n_rows = m + m // 2 + 1
    x = (SCORES[scores](n_rows, columns) + np.zeros((n_rows, 1))).astype(np.float32)
    v = values(columns)
    out, log_sum = run(launch, arch, m, x, v)
    want, want_sum = exact(x, v)
    bound = 2e-6 * max(1, abs(x).max() / 50)
    np.testing.assert_allclose(out, want, rtol=0, atol=max(4e-6, bound))
    np.testing.assert_allclose(log_sum, want_sum, rtol=3e-7, atol=2e-6)


@pytest.mark.tiles(widest=(3, 24), others=())
def test_row_counts_that_are_no_power_of_two(launch, arch, m):
    x, v = SCORES["normal"](m + 2, 70).astype(np.float32), values(70)
    out, log_sum = run(launch, arch, m, x, v)
    want, want_sum = exact(x, v)
    np.testing.assert_allclose(out, want, rtol=0, atol=4e-6)
    np.testing.assert_allclose(log_sum, want_sum, atol=2e-6)


def test_masked_scores_and_rows(launch, arch, m):
    n_rows, columns = 2 * m + 1, 100
    x = SCORES["normal"](n_rows, columns).astype(np.float32)
    x[:, 32:64] = -np.inf  # a whole step
    x[:, :7] = -np.inf
    x[::3] = -np.inf  # whole rows
    x[1::3, :64] = -np.inf  # rows that see something in the last steps only
    out, log_sum = run(launch, arch, m, x, values(columns))
    empty = np.isneginf(x).all(1)
    want, want_sum = exact(x[~empty], values(columns))
    np.testing.assert_allclose(out[~empty], want, rtol=0, atol=4e-6)
    np.testing.assert_allclose(log_sum[~empty], want_sum, atol=2e-6)
    assert np.isneginf(log_sum[empty]).all()
    assert np.isnan(out[empty]).all()  # 0 / 0: acc and l of a row that sees nothing are 0


def test_nan_and_positive_infinity_stay_in_their_rows(launch, arch, m):
    n_rows, columns = m + 3, 70
    x = SCORES["normal"](n_rows, columns).astype(np.float32)
    x[0, 40] = np.nan
    x[1, 3] = np.inf
    x[2] = np.nan
    out, log_sum = run(launch, arch, m, x, values(columns))
    want, want_sum = exact(x[3:], values(columns))
    assert np.isnan(out[:3]).all() and np.isnan(log_sum[:3]).all()
    np.testing.assert_allclose(out[3:], want, rtol=0, atol=4e-6)
    np.testing.assert_allclose(log_sum[3:], want_sum, atol=2e-6)


def test_values_that_are_not_finite_do_not_reach_rows_that_do_not_see_them(launch, arch, m):
    n_rows, columns = m + 1, 70
    x = SCORES["normal"](n_rows, columns).astype(np.float32)
    x[1:, [5, 66]] = -np.inf
    v = values(columns)
    v[5], v[66, 0] = np.nan, np.inf
    out, _ = run(launch, arch, m, x, v)
    want, _ = exact(x[1:], np.where(np.isfinite(v), v, 0))
    assert np.isnan(out[0]).all()
    np.testing.assert_allclose(out[1:], want, rtol=0, atol=4e-6)


def squares(launch, arch, m, x, first=2.0**100):
    """The scale and the sum of the scaled squares of each row."""
    stats = np.full((2, len(x)), 99, np.float32)
    launch(sums_of_squares, Config(arch=arch, m=m, n=16), (-(-len(x) // m), 1, 1), x, stats, first)
    return stats.astype(np.float64)


@pytest.mark.parametrize("size", [1e-42, 1e-30, 1.0, 1e25, 3e38])
@pytest.mark.parametrize("order", ["mixed", "rising", "falling"])
def test_sums_of_squares_of_any_size(launch, arch, m, size, order):
    x = np.random.default_rng(7).uniform(-size, size, (m + 1, 75)).astype(np.float32)
    if order != "mixed":
        # Each tile has another largest value.
        x *= np.geomspace(*((1e-3, 1) if order == "rising" else (1, 1e-3)), 75).astype(np.float32)
    scale, total = squares(launch, arch, m, x)
    assert (np.frexp(scale)[0] == 0.5).all() and (scale <= 2.0**100).all()
    np.testing.assert_allclose(total, ((x * scale[:, None]) ** 2).sum(1), rtol=5e-6)


def test_sums_of_squares_of_special_values(launch, arch, m):
    x = np.ones((5, 40), np.float32)
    x[0], x[1, 7], x[2, 3], x[3, 39] = 0, np.inf, np.nan, -np.inf
    for first in (2.0**100, 2.0**-2):
        scale, total = squares(launch, arch, m, x, first)
        last = min(first, 1.0)
        np.testing.assert_array_equal(scale[1:], last)
        np.testing.assert_allclose(total, [0, np.inf, np.nan, np.inf, 40 * last**2], rtol=1e-6)


def test_what_is_small_beside_the_first_scale_need_not_count(launch, arch, m):
    x = np.full((m, 40), 1e-30, np.float32)
    for first in (1.0, 512.0):
        _, total = squares(launch, arch, m, x, first)
        assert (total < 1e-40).all()


def test_a_scale_falls_and_never_rises(launch, arch, m):
    x = np.full((3, 48), 1e-30, np.float32)
    x[0, 16:32], x[1, 16:32], x[2, :16] = 1.0, 1e30, 1e30
    scale, total = squares(launch, arch, m, x)
    np.testing.assert_allclose(total / scale**2, [16, 16e60, 16e60], rtol=1e-6)
