"""Columns that a block of attention visits, beside the rule, row by row; and scales that its fast path takes."""

from __future__ import annotations

import numpy as np
import pytest

import rocmkern
from rocmkern import targets
from rocmkern.ops.attention import launch
from rocmkern.ops.attention.kernels import flash_attention
from rocmkern.ops.attention.kernels.visibility import columns_of_block


def test_a_block_visits_the_steps_with_a_column_that_some_row_sees():
    """Each in one of the parts, and nothing behind the last such column; then those that all rows see."""
    rng, seen_by_some, seen_by_all = np.random.default_rng(0), 0, 0
    for _ in range(2000):
        first, shift, left, right = (int(n) for n in rng.integers((0, -20, 0, 0), (40, 20, 30, 30)))
        last, begin = first + int(rng.integers(0, 8)), int(rng.integers(0, 10))
        end, origin = begin + int(rng.integers(0, 60)), int(rng.integers(0, begin + 1))
        splits, cfg = int(rng.integers(1, 4)), flash_attention.Config(block_n=int(rng.choice([1, 4, 16])))
        rows = np.arange(first, last + 1)[:, None] + shift
        columns = np.arange(begin, end)
        visible = (rows - left <= columns) & (columns <= rows + right)
        some, all_rows = columns[visible.any(axis=0)], columns[visible.all(axis=0)]
        parts = [
            columns_of_block(cfg, first, last, shift, left, right, begin, end, origin, split, splits)
            for split in range(splits)
        ]
        visited = [column for start, stop, _, _ in parts for column in range(start, stop)]
        assert len(visited) == len(set(visited)), "a column is visited twice"
        if len(some):
            assert {(column - origin) // cfg.block_n for column in visited} == {*((some - origin) // cfg.block_n)}
            assert max(visited) == some[-1]
        else:
            assert len(visited) < cfg.block_n, "a step that all rows end before, of which none sees anything"
        assert all((start - origin) % cfg.block_n == 0 for start, stop, _, _ in parts if start < stop)
        for _, _, all_begin, all_end in parts:
            assert [*range(all_begin, all_end)] == [*all_rows], "where no row needs a mask"
        seen_by_some, seen_by_all = seen_by_some + bool(len(some)), seen_by_all + bool(len(all_rows))
    assert seen_by_some > 1000 and seen_by_all > 500


LEAST, MOST = np.float32(2.0**-100), np.float32(2.0**100)


@pytest.mark.parametrize(
    ("scale", "plain"),
    [
        (0.5, True), (np.nextafter(LEAST, MOST), True), (np.nextafter(MOST, LEAST), True),
        (LEAST, False), (MOST, False), (0.0, False), (-0.5, False),
    ],
)  # fmt: skip
def test_scales_that_float32_cannot_turn_into_exponents_go_the_general_way(monkeypatch, scale, plain):
    chosen, choose = [], launch.tuning.attention

    def attention(*args, **kwargs):
        chosen.append(choose(*args, **kwargs))
        return chosen[-1]

    monkeypatch.setattr(launch.tuning, "attention", attention)
    q, k = np.zeros((1, 1, 1, 4), np.float32), np.ones((1, 1, 3, 4), np.float32)
    with targets.using("python"):
        np.testing.assert_array_equal(rocmkern.flash_attention(q, k, k, scale=float(scale)), [[[[1, 1, 1, 1]]]])
    assert [cfg.score_mods for cfg in chosen] == [not plain]
