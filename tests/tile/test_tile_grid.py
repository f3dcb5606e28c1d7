"""Blocks and grids."""

from __future__ import annotations

import numpy as np
from tile_kernels import Config, grid_indices


def test_every_block_of_the_grid_runs_once_and_knows_its_index(launch, arch):
    out = np.zeros((3, 5, 37, 1), np.float32)
    launch(grid_indices, Config(arch=arch, m=4), (37, 5, 3), out)
    np.testing.assert_array_equal(out.ravel(), 1 + np.arange(out.size, dtype=np.float32))
