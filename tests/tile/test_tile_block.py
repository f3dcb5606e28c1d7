"""What a block finds out about all of its rows, comparisons of tiles, int32 results, and the order of float32."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from rocmkern import tile as T
from rocmkern.runtime.errors import TileError

pytestmark = pytest.mark.tiles(widest=(1, 4, 16, 32), others=(4,))


@dataclass(frozen=True)
class Config(T.Config):
    """Tiles of ``m`` rows and ``n`` columns."""

    m: int = 4
    n: int = 32


@T.kernel
def whole_block(
    cfg, x: T.Tensor[2], r: T.Tensor[1], out: T.Tensor[3], stats: T.Tensor[2], integers: T.Tensor[2], least: T.Float,
    order: T.Int,
):  # fmt: skip
    row = T.row_index(cfg, cfg.m)
    valid = row < x.shape[0]
    bounds = T.load_rows(r, (row,), valid)
    T.store_tile(out[0], (row,), 0, T.at_least(T.load_tile(cfg, x, (row,), 0, cfg.n, valid), least), valid)
    T.store_tile(out[1], (row,), 0, T.at_least(T.load_tile(cfg, x, (row,), 0, cfg.n, valid), bounds), valid)
    at = T.at_least(T.load_tile(cfg, x, (row,), 0, cfg.n, valid), T.ordered_float(order))
    T.store_tile(out[2], (row,), 0, at, valid)
    total, largest = T.total(bounds), T.largest(bounds)
    T.store_rows(stats[0], (row,), T.where(valid, total, 0.0), valid)
    T.store_rows(stats[1], (row,), T.where(valid, largest, 0.0), valid)
    # The number is the same everywhere, so it may decide.
    i = 0
    while T.total(T.where(row <= i, 1.0, 0.0)) < cfg.m:
        i = i + 1
    T.store_rows(integers[0], (row,), row * 3 - 7, valid)
    T.store_rows(integers[1], (row,), row * 0 + i, row == 0)


def run(launch, arch, m, x, r, least=0.25, order=0):
    out = np.full((3, *x.shape), 9, np.float32)
    stats = np.full((2, len(x)), 9, np.float32)
    integers = np.full((3, len(x)), 99, np.int32)[1:]
    launch(whole_block, Config(arch=arch, m=m), (1, 1, 1), x, r, out, stats, integers, least, order)
    return out, stats, integers


def test_the_block_decides_by_its_rows(launch, arch, m):
    rng = np.random.default_rng(6)
    x, r = rng.standard_normal((m, 29)).astype(np.float32), rng.standard_normal(m).astype(np.float32)
    x[0, :4], r[0] = (0.25, np.nan, np.inf, -np.inf), x[0, 5]
    out, stats, integers = run(launch, arch, m, x, r)
    np.testing.assert_array_equal(out[0], x >= np.float32(0.25))
    np.testing.assert_array_equal(out[1], x >= r[:, None])
    np.testing.assert_array_equal(out[2], x >= 0)
    np.testing.assert_allclose(stats[0], np.full(m, r.astype(np.float64).sum()), rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(stats[1], np.full(m, r.max()))
    np.testing.assert_array_equal(integers[0], np.arange(m) * 3 - 7)
    np.testing.assert_array_equal(integers[1], [m - 1] + [99] * (m - 1))


def test_nan_is_ignored_by_the_largest_and_not_by_the_total(launch, arch, m):
    r = np.full(m, np.nan, np.float32)
    r[m // 2] = -3
    _, stats, _ = run(launch, arch, m, np.zeros((m, 4), np.float32), r)
    np.testing.assert_array_equal(stats[1], np.full(m, -3, np.float32))
    assert m == 1 or np.isnan(stats[0]).all()


ORDERED = [-np.inf, -3e38, -1.0, -1e-38, -1e-45, -0.0, 0.0, 1e-45, 1e-38, 1.0, 1.0000001, 3e38, np.inf]


def order_of(value):
    bits = int(np.float32(value).view(np.int32))
    return bits if bits >= 0 else bits ^ 0x7FFFFFFF


def test_places_of_float32_numbers_are_in_order(launch, arch, m):
    values = np.array(ORDERED, np.float32)
    orders = [order_of(value) for value in values]
    assert orders == sorted(orders) and orders[0] == -2139095041 and orders[-1] == 2139095040
    x = np.broadcast_to(values, (m, len(values)))
    for value, order in zip(values, orders, strict=True):
        bits = np.float32(T.ordered_float(order)).view(np.int32)
        assert bits == value.view(np.int32)
        out, _, _ = run(launch, arch, m, x, np.zeros(m, np.float32), order=order)
        np.testing.assert_array_equal(out[2], x >= value, err_msg=str(value))


def test_misuse_is_named(arch, m):
    if arch != "python":
        pytest.skip("the meaning is checked")
    cfg = Config(m=m)
    integers = np.zeros(m, np.int32)
    with pytest.raises(TileError, match="total: needs rows of f32"):
        T.total(integers)
    with pytest.raises(TileError, match="largest: needs rows of f32"):
        T.largest(1.0)
    with pytest.raises(TileError, match="store_rows"):
        T.store_rows(np.zeros(4, np.float32), (0,), integers, integers == 0)
    with pytest.raises(TileError, match="store_rows"):
        T.store_rows(np.zeros(4, np.int32), (0,), np.zeros(m, np.float32), integers == 0)
    with pytest.raises(TileError, match="at_least: the bound"):
        T.at_least(T.zeros(cfg, m, 8), T.zeros(cfg, m, 8))
