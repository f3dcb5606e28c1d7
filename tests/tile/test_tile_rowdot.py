"""Rows of a source that are multiplied while they are loaded; activation functions of rows."""

from __future__ import annotations

import math

import numpy as np
import pytest
from rowdot_kernels import Config, no_vector, products, rowdots, too_many, unaligned
from test_tile_quantized import blocks_of

from rocmkern.runtime.errors import TileError

pytestmark = pytest.mark.tiles(widest=(4, 32), others=(4,))


def arrays(m, k, few):
    rng = np.random.default_rng(5)
    return rng.standard_normal((few, k)).astype(np.float32), rng.standard_normal((m - 1, k)).astype(np.float32)


@pytest.mark.parametrize("k", [1, 64, 150])
@pytest.mark.parametrize("share", [1, 2, 4])
def test_each_row_of_the_tile_stands_for_as_many_of_the_source(launch, arch, m, k, share):
    x, source = arrays(m, k, m // share)
    out = np.full(m - 1, np.nan, np.float32)
    launch(rowdots, Config(arch=arch, m=m, few=m // share), (1, 1, 1), x, source, out, 0)
    exact = (np.tile(x, (share, 1))[: m - 1].astype(np.float64) * source).sum(axis=1)
    np.testing.assert_allclose(out, exact, rtol=0, atol=1e-5 * max(1, np.abs(exact).max()))


@pytest.mark.parametrize("name", ["mxfp4", "q4_0", "q4_1", "q5_0", "q5_1", "q4_k", "q5_k", "q6_k", "mxfp6_e2m3"])
@pytest.mark.parametrize("share", [1, 4])
def test_a_quantized_source_is_decoded(launch, arch, m, name, share):
    blocks, numbers = blocks_of(name, rows=m - 1)
    x, _ = arrays(m, numbers.shape[1], m // share)
    out = np.full(m - 1, np.nan, np.float32)
    launch(rowdots, Config(arch=arch, m=m, few=m // share, format=name), (1, 1, 1), x, blocks, out, 0)
    exact = (np.tile(x, (share, 1))[: m - 1].astype(np.float64) * numbers).sum(axis=1)
    np.testing.assert_allclose(out, exact, rtol=0, atol=1e-5 * np.abs(exact).max())


@pytest.mark.parametrize("k", [1, 64, 150])
def test_rows_are_multiplied_with_a_vector(launch, arch, m, k):
    x, source = arrays(m, k, 3)
    out = np.full(m - 1, np.nan, np.float32)
    launch(products, Config(arch=arch, m=m, waves=2), (1, 1, 1), x[:, ::-1], source, out)
    exact = source.astype(np.float64) @ x[1, ::-1]
    np.testing.assert_allclose(out, exact, rtol=0, atol=1e-5 * max(1, np.abs(exact).max()))


@pytest.mark.parametrize("name", ["mxfp8_e4m3", "q4_0", "q4_1", "q5_0", "q5_1", "q4_k", "q5_k"])
def test_quantized_rows_are_multiplied_with_a_vector(launch, arch, m, name):
    blocks, numbers = blocks_of(name, rows=m - 1)
    x, _ = arrays(m, numbers.shape[1], 2)
    out = np.full(m - 1, np.nan, np.float32)
    launch(products, Config(arch=arch, m=m, format=name), (1, 1, 1), x, blocks, out)
    exact = numbers.astype(np.float64) @ x[1]
    np.testing.assert_allclose(out, exact, rtol=0, atol=1e-5 * np.abs(exact).max())


def test_rows_may_lie_along_all_waves(launch, arch, m):
    """Then the block holds a row at a time, and any number of rows will do."""
    x, source = arrays(4, 150, 3)
    out = np.full(3, np.nan, np.float32)
    launch(products, Config(arch=arch, m=3, waves=2, threads_per_row=2), (1, 1, 1), x, source, out)
    exact = source.astype(np.float64) @ x[1]
    np.testing.assert_allclose(out, exact, rtol=0, atol=1e-5 * max(1, np.abs(exact).max()))


def test_a_product_with_something_else_than_a_vector_is_refused(launch, arch, m):
    x, source = arrays(m, 64, 3)
    with pytest.raises(TileError, match=r"matvec: .*vector"):
        launch(no_vector, Config(arch=arch, m=m), (1, 1, 1), x, source, np.zeros(m - 1, np.float32))


def test_a_product_needs_rows_for_each_wave(launch, arch, m):
    x, source = arrays(m, 64, 3)
    with pytest.raises(TileError, match=r"matvec: .* 3 waves"):
        launch(products, Config(arch=arch, m=m, waves=3), (1, 1, 1), x, source, np.zeros(m - 1, np.float32))


ACTIVATIONS = (
    lambda x: x / (1 + math.exp(-x)),
    lambda x: x / 2 * math.erfc(-x / math.sqrt(2)),
    lambda x: x / (1 + math.exp(-math.sqrt(8 / math.pi) * (x + 0.044715 * x**3))),
    lambda x: max(x, 0.0),
)


@pytest.mark.parametrize("number", range(4))
def test_activation_functions_take_rows(launch, arch, m, number):
    x, source = arrays(m, 8, m)
    out = np.full(m - 1, np.nan, np.float32)
    launch(rowdots, Config(arch=arch, m=m, few=m), (1, 1, 1), x, source, out, number + 1)
    sums = (x[: m - 1].astype(np.float64) * source).sum(axis=1)
    exact = [ACTIVATIONS[number](float(s)) for s in sums]
    np.testing.assert_allclose(out, exact, rtol=1e-5, atol=1e-5)


def test_a_tile_that_does_not_divide_the_rows_is_refused(launch, arch, m):
    x, source = arrays(m, 64, 3)
    with pytest.raises(TileError, match="does not divide"):
        launch(too_many, Config(arch=arch, m=m, few=3), (1, 1, 1), x, source, np.zeros(m - 1, np.float32))


def test_an_alignment_that_is_none_is_refused(launch, arch, m):
    blocks, numbers = blocks_of("q4_0", rows=m - 1)
    x, _ = arrays(m, numbers.shape[1], m)
    with pytest.raises(TileError, match="alignment must be 1, 2, 4, 8 or 16, got 3"):
        launch(unaligned, Config(arch=arch, m=m, format="q4_0"), (1, 1, 1), x, blocks, np.zeros(m - 1, np.float32))
