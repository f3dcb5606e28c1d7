"""Rows that are repeated, rows and tiles that are folded, and rows of flat memory, against NumPy."""

from __future__ import annotations

import pytest
from fold_kernels import Config, check_folds, check_scratch

pytestmark = pytest.mark.tiles(widest=(1, 4, 8, 16), others=(8, 16))


@pytest.mark.parametrize("times", [2, 3])
def test_repeated_and_folded_rows_equal_numpy(launch, arch, m, times):
    # On the cpu a tile lies by columns from 16 rows on, where they are a power of 2: what is folded, the result, both.
    check_folds(lambda *launched: launch(*launched[:3], *launched[3]), Config(arch=arch, m=m, n=33, times=times), 3)


@pytest.mark.parametrize("columns", [32, 36])
def test_rows_of_flat_memory_equal_numpy(launch, arch, m, columns):
    check_scratch(lambda *launched: launch(*launched[:3], *launched[3]), Config(arch=arch, m=m, n=columns), 3)
