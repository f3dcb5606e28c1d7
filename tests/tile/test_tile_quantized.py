"""Quantized sources as tiles and as stages, on every architecture that this host can run."""

from __future__ import annotations

import numpy as np
import pytest
from quantized_kernels import Config, decode, multiply

from rocmkern import tile as T
from rocmkern.runtime.errors import TileError
from rocmkern.tile.formats import FORMATS

pytestmark = pytest.mark.tiles(widest=(4,), others=(4,))

FLOAT16_SCALES = {
    "q4_0": (0,), "q4_1": (0, 2), "q5_0": (0,), "q5_1": (0, 2), "q8_0": (0,), "q4_k": (0, 2), "q5_k": (0, 2),
    "q6_k": (208,),
}  # fmt: skip


def blocks_of(name, rows=7, count=3):
    """Rows of random blocks with scales that are numbers, and without NaN and infinity."""
    kind, rng = FORMATS[name], np.random.default_rng(3)
    blocks = rng.integers(0, 256, (rows, count, kind.nbytes), dtype=np.uint8)
    if name.startswith("mxfp8"):
        blocks &= 0xBB
    if name.startswith("mx"):
        blocks[..., 0] = rng.integers(120, 135, (rows, count))
    for offset in FLOAT16_SCALES.get(name, ()):
        scales = rng.standard_normal((rows, count, 1)).astype("<f2")
        blocks[..., offset : offset + 2] = scales.view(np.uint8)
    return blocks.reshape(rows, -1), kind.decode(blocks).reshape(rows, -1)


@pytest.mark.parametrize("name", FORMATS)
def test_tiles_and_stages_decode(launch, arch, m, name):
    blocks, numbers = blocks_of(name)
    cfg = Config(arch=arch, m=m, format=name)
    out = np.full(numbers.shape, np.nan, np.float32)
    launch(decode, cfg, (-(-len(blocks) // m), 1, 1), blocks, out)
    np.testing.assert_array_equal(out, numbers)
    x = np.random.default_rng(4).standard_normal((3, numbers.shape[1])).astype(np.float32)
    product, exact = np.full((3, len(blocks)), np.nan, np.float32), x.astype(np.float64) @ numbers.T.astype(np.float64)
    launch(multiply, cfg, (1, 1, 1), x, blocks, product)
    np.testing.assert_allclose(product, exact, rtol=0, atol=1e-5 * np.abs(exact).max())


@pytest.mark.parametrize(("rows", "k"), [(16, 32), (16, 256), (4, 16)])
@pytest.mark.parametrize("name", ["mxfp4", "q4_k", "q5_0", "q5_k"])
def test_other_shapes(launch, arch, m, rows, k, name):
    blocks, numbers = blocks_of(name)
    cfg = Config(arch=arch, m=rows, k=k, format=name)
    out = np.full(numbers.shape, np.nan, np.float32)
    launch(decode, cfg, (-(-len(blocks) // rows), 1, 1), blocks, out)
    np.testing.assert_array_equal(out, numbers)
    x = np.random.default_rng(4).standard_normal((3, numbers.shape[1])).astype(np.float32)
    product, exact = np.full((3, len(blocks)), np.nan, np.float32), x.astype(np.float64) @ numbers.T.astype(np.float64)
    launch(multiply, cfg, (1, 1, 1), x, blocks, product)
    np.testing.assert_allclose(product, exact, rtol=0, atol=1e-5 * np.abs(exact).max())


def test_an_unknown_format_is_refused_by_name(launch, arch, m):
    blocks, _ = blocks_of("q4_0")
    with pytest.raises(TileError, match=r"mxfp4.*q6_k"):
        launch(decode, Config(arch=arch, m=m, format="q3_k"), (1, 1, 1), blocks, np.empty((7, 96), np.float32))


def test_only_bytes_can_be_blocks(launch, arch, m):
    with pytest.raises(TileError, match="blocks must be"):
        launch(decode, Config(arch=arch, m=m), (1, 1, 1), np.ones((7, 54), np.float32), np.empty((7, 96), np.float32))


def test_widths_are_whole_runs(launch, arch, m):
    blocks, _ = blocks_of("q4_0")
    with pytest.raises(TileError, match="16 columns at a time"):
        launch(decode, Config(arch=arch, m=m, k=24), (1, 1, 1), blocks, np.empty((7, 96), np.float32))


def test_no_format_is_the_tensor_itself(m, arch):
    x = np.ones((2, 3), np.float32)
    assert T.quantized(x, "", x).base is x
