"""Kernels that join what several rows, or several blocks, have, and what comes out; for the gates of GPUs too."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rocmkern import tile as T


@dataclass(frozen=True)
class Config(T.Config):
    """``m`` rows of ``n`` columns, which are there so many ``times``."""

    m: int = 4
    n: int = 32
    times: int = 2

    @property
    def many(self) -> int:
        """Rows one after the other."""
        return self.m * self.times

    @property
    def pitch(self) -> int:
        """Elements of a row of flat memory."""
        return self.n + 4


@T.kernel
def sums_of_rows(cfg, r: T.Tensor[1], sums: T.Out[1]):
    few, many = T.row_index(cfg, cfg.m), T.row_index(cfg, cfg.many)
    T.store_rows(sums, (few,), T.fold_sum(T.load_rows(r, (many,), many < r.shape[0]), cfg.m), few < sums.shape[0])


@T.kernel
def folds(
    cfg, x: T.Tensor[2], r: T.Tensor[1], repeated: T.Out[2], integers: T.Out[1], sums: T.Out[2], stats: T.Out[2],
):  # fmt: skip
    few = T.row_index(cfg, cfg.m) + T.block_id(cfg, 0) * cfg.m
    many = T.row_index(cfg, cfg.many) + T.block_id(cfg, 0) * cfg.many
    there, valid = few < sums.shape[0], many < x.shape[0]
    once = T.load_rows(r, (few,), there)
    T.store_rows(repeated[0], (many,), T.repeat_rows(once, cfg.times), valid)
    T.store_rows(repeated[1], (many,), T.where(T.repeat_rows(once > 0.0, cfg.times), 1.0, 0.0), valid)
    T.store_rows(integers, (many,), T.repeat_rows(few * 3 - 7, cfg.times), valid)
    t = T.load_tile(cfg, x, (many,), 0, cfg.n, valid)
    T.store_tile(sums, (few,), 0, T.fold_sum(t, cfg.m), there)
    rows = T.load_rows(r, (many,), valid)
    T.store_rows(stats[0], (few,), T.fold_sum(rows, cfg.m), there)
    T.store_rows(stats[1], (few,), T.fold_max(rows, cfg.m), there)


@T.kernel
def scratch(cfg, x: T.Tensor[2], memory: T.InOut[1], sums: T.Out[2], stats: T.Out[1]):
    """Rows of x to flat memory, with a number behind each, and sums of what was there."""
    many = T.row_index(cfg, cfg.many) + T.block_id(cfg, 0) * cfg.many
    valid, flat = many < x.shape[0], T.scratch_rows(memory, cfg.pitch)
    total = T.load_tile(cfg, flat, (many,), 0, cfg.n, valid) + T.load_tile(cfg, x, (many,), 0, cfg.n, valid)
    T.store_tile(sums, (many,), 0, total, valid)
    T.store_rows(stats, (many,), T.load_rows(flat, (many, cfg.n + 3), valid), valid)
    T.store_tile(flat, (many,), 0, T.load_tile(cfg, x, (many,), 0, cfg.n, valid), valid)
    T.store_rows(flat, (many, cfg.n + 1), T.rowmax(T.load_tile(cfg, x, (many,), 0, cfg.n, valid)), valid)


@T.kernel
def arrivals(cfg, counters: T.InOut[2], parts: T.InOut[4], lasts: T.InOut[3], result: T.Out[3]):
    """In each turn the blocks of a group write a part each, and the last one of a group adds up all parts."""
    group, block = T.block_id(cfg, 0) // parts.shape[2], T.block_id(cfg, 0) % parts.shape[2]
    row = T.row_index(cfg, cfg.m)
    valid = row < parts.shape[3]
    for turn in range(parts.shape[0]):
        T.store_rows(parts[turn, group, block], (row,), row + (1000 * turn + 100 * group + block), valid)
        if T.last_to_arrive(cfg, counters[turn], group, parts.shape[2]):
            total = row * 0
            for other in range(parts.shape[2]):
                total = total + T.load_integers(parts[turn, group, other], (row,), valid)
            T.store_rows(result[turn, group], (row,), total, valid)
            T.store_rows(lasts[turn, group], (row * 0 + block,), row + 1, row == 0)


def check_arrivals(run, cfg: Config, blocks: int, groups: int, launches: int = 2) -> None:
    """Launches with the same counters, each of which has one last block for each of them, that sees all parts."""
    turns, rows = 2, cfg.m
    # Every second counter is another's.
    whole = np.zeros((turns, 2 * groups), np.int32)
    whole[:, 1::2] = 77
    number = np.arange(turns)[:, None, None] * 1000 + np.arange(groups)[:, None] * 100
    expected = (number[..., None] + np.arange(blocks)[:, None] + np.arange(rows)).sum(2, dtype=np.int32)
    for _ in range(launches):
        parts = np.full((turns, groups, blocks, rows), -(2**20), np.int32)
        lasts, result = np.zeros((turns, groups, blocks), np.int32), np.full((turns, groups, rows), -1, np.int32)
        run(arrivals, cfg, (blocks * groups, 1, 1), [whole[:, ::2], parts, lasts, result])
        np.testing.assert_array_equal(lasts.sum(2), np.ones((turns, groups)))
        np.testing.assert_array_equal(result, expected)
        np.testing.assert_array_equal(whole, np.tile(np.int32([0, 77]), (turns, groups)))


def check_folds(run, cfg: Config, blocks: int) -> None:
    """Every result against NumPy; the numbers are whole and small, so that sums do not depend on their order."""
    rng = np.random.default_rng(7)
    shape = blocks, cfg.times, cfg.m
    x = rng.integers(-9, 10, (*shape, cfg.n)).astype(np.float32)
    r = rng.integers(-9, 10, shape).astype(np.float32)
    r[0, :, 0], r[-1, :, -1], x[0, 0, 0, :2] = -np.inf, np.nan, (np.nan, np.inf)
    if cfg.m > 2:
        r[0, 0, 1], r[0, -1, 1], r[0, -1, 2] = np.nan, -np.inf, np.nan
    few, many = blocks * cfg.m, blocks * cfg.many
    repeated, integers = np.full((2, many), 99, np.float32), np.full(many, 99, np.int32)
    sums, stats = np.full((few, cfg.n), 99, np.float32), np.full((2, few), 99, np.float32)
    run(folds, cfg, (blocks, 1, 1), [x.reshape(many, -1), r.ravel(), repeated, integers, sums, stats])

    def again(rows):
        return np.tile(rows.reshape(blocks, 1, cfg.m), (1, cfg.times, 1)).ravel()

    once = r.ravel()[:few]
    np.testing.assert_array_equal(repeated, [again(once), again(once > 0)])
    np.testing.assert_array_equal(integers, again(np.arange(few) * 3 - 7))
    np.testing.assert_array_equal(sums, x.sum(1).reshape(few, -1))
    np.testing.assert_array_equal(stats, [r.sum(1).ravel(), np.fmax.reduce(r, 1).ravel()])


def check_scratch(run, cfg: Config, blocks: int) -> None:
    """Rows of flat memory, of which the last ones are not touched, against NumPy."""
    rng = np.random.default_rng(8)
    rows = blocks * cfg.many - 1
    x, before = (rng.integers(-9, 10, shape).astype(np.float32) for shape in ((rows, cfg.n), (rows + 2, cfg.pitch)))
    memory = before.flatten()
    sums, stats = np.full((rows, cfg.n), 99, np.float32), np.full(rows, 99, np.float32)
    run(scratch, cfg, (blocks, 1, 1), [x, memory, sums, stats])
    np.testing.assert_array_equal(sums, before[:rows, : cfg.n] + x)
    np.testing.assert_array_equal(stats, before[:rows, cfg.n + 3])
    before[:rows, : cfg.n], before[:rows, cfg.n + 1] = x, x.max(1)
    np.testing.assert_array_equal(memory.reshape(before.shape), before)
