"""Stages that read through a page table, and stages that convert elements of 8 bits."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from tile_kernels import Config, through_pages

pytestmark = pytest.mark.tiles(widest=(1, 8, 32), others=(4, 16))

K, N = 24, 16


def run(launch, arch, m, left, cache, table, head, stop, width):
    out = np.full((len(left), width), 99, np.float32)
    cfg = Config(arch=arch, m=m, n=N, k=K)
    grid = (-(-len(left) // m), 1, 1)
    launch(through_pages, cfg, grid, left, cache, np.asarray(table, np.int32), out, head, stop)
    return out


@pytest.mark.parametrize("page_rows", [1, 3, 16, 40])
def test_rows_are_found_through_the_table(launch, arch, m, page_rows):
    rng = np.random.default_rng(0)
    stop = 37
    pages = -(-stop // page_rows)
    table = rng.permutation(pages + 2)[: pages + 1]
    cache = rng.standard_normal((pages + 2, 2, page_rows, K)).astype(np.float32)
    left = rng.standard_normal((m + 1, K)).astype(np.float32)
    got = run(launch, arch, m, left, cache, table, 1, stop, 48)
    row = np.arange(stop)
    rows = cache[table[row // page_rows], 1, row % page_rows].astype(np.float64)
    np.testing.assert_allclose(got[:, :stop], left @ rows.T, rtol=1e-5, atol=1e-5)
    assert (got[:, stop:] == 0).all(), "what does not exist reads as 0"


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_halves_in_pages_with_other_strides(launch, arch, m, dtype):
    rng = np.random.default_rng(1)
    whole = rng.standard_normal((5, 7, 3, 2 * K)).astype(dtype)
    cache = whole[:, :, :, ::2].transpose(0, 2, 1, 3)  # [pages, heads, rows, columns]
    left = rng.standard_normal((3, K)).astype(dtype)
    got = run(launch, arch, m, left, cache, [4, 0, 2], 2, 20, 20)
    row = np.arange(20)
    rows = cache[np.array([4, 0, 2])[row // 7], 2, row % 7].astype(np.float64)
    np.testing.assert_allclose(got, left.astype(np.float64) @ rows.T, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("table", [[1, 9], [1, -1], [1]], ids=str)
def test_a_page_that_does_not_exist_reads_as_zero_on_machine_targets(launch, arch, m, table):
    if arch == "python":
        pytest.skip("the interpreter raises")
    cache = np.ones((2, 1, 8, K), np.float32)
    got = run(launch, arch, m, np.ones((2, K), np.float32), cache, table, 0, 16, 16)
    np.testing.assert_array_equal(got, [[K] * 8 + [0] * 8] * 2)


@pytest.mark.tiles(widest=(8,), others=(8,))
@pytest.mark.parametrize("like", [np.float32, np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("name", ["int8", "float8_e4m3fn", "float8_e5m2"])
def test_every_code_of_8_bits_is_converted_exactly(launch, arch, m, name, like):
    dtype = np.dtype(getattr(ml_dtypes, name, np.int8))
    codes = np.arange(256, dtype=np.uint8).view(dtype)
    # One code a row, in its first column; the others count with 0.
    cache = np.zeros((16, 1, 16, K), dtype)
    cache[:, 0, :, 0] = codes.reshape(16, 16)
    left = np.zeros((2, K), like)
    left[:, 0] = 1
    got = run(launch, arch, m, left, cache, np.arange(16), 0, 256, 256)
    np.testing.assert_array_equal(got, np.tile(codes.astype(np.float32), (2, 1)))
