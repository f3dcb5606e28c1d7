"""Windows that move along both axes, and products of two stages."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from tile_kernels import Config, windows

from rocmkern import TileError
from rocmkern import tile as T
from rocmkern.ops.activations.kernels import activations
from rocmkern.ops.linear.kernels import matmul
from rocmkern.ops.mlp.kernels import gated_mlp
from rocmkern.targets.cpu import host_architecture

N, K = 24, 16


def check(launch, arch, m, a, b, c, row0, col0, tolerance=1e-5):
    """a, b are [rows, depth], c is [depth, rows]."""
    rows = max(0, min(m, len(a) - row0))
    nt, nn = np.full((rows, N), 99, np.float32), np.full((2, rows, N), 99, np.float32)
    launch(windows, Config(arch=arch, m=m, n=N, k=K), (1, 1, 1), a, b, c, nt, nn, row0, col0)
    left = a.astype(np.float64)[row0 : row0 + m, col0:]
    right = np.zeros((2, left.shape[1], N))
    for into, source in zip(right, (b.T, c), strict=True):
        part = source.astype(np.float64)[col0 : col0 + left.shape[1], row0 : row0 + N]
        into[: part.shape[0], : part.shape[1]] = part
    close = {"rtol": tolerance, "atol": 10 * tolerance}
    np.testing.assert_allclose(nt, left @ right[0], **close)
    np.testing.assert_allclose(nn[0], left @ right[1], **close)
    np.testing.assert_allclose(nn[1], left @ (right[0] + right[1]), **close)


def sources(rows, depth, dtype=np.float32):
    rng = np.random.default_rng(3)
    return [rng.standard_normal(s).astype(dtype) for s in ((rows, depth), (rows, depth), (depth, rows))]


@pytest.mark.tiles(widest=(1, 4, 16, 64), others=(4, 32))
@pytest.mark.parametrize(
    ("rows", "depth", "row0", "col0"), [(64, 64, 0, 0), (70, 50, 3, 5), (9, 33, 7, 16), (40, 3, 2, 1), (30, 1, 0, 0)]
)
def test_windows_along_both_axes(launch, arch, m, rows, depth, row0, col0):
    check(launch, arch, m, *sources(rows, depth), row0, col0)


@pytest.mark.tiles(widest=(4, 16, 64), others=(4, 32))
@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_half_sources(launch, arch, m, dtype):
    check(launch, arch, m, *sources(37, 45, dtype), 2, 3, 1e-3)


@pytest.mark.tiles(widest=(4, 64), others=(4, 32))
def test_sources_with_any_strides(launch, arch, m):
    a, b, c = sources(40, 50)
    check(launch, arch, m, a[::-1], b[:, ::-1], c[::-1, ::-1], 1, 2)
    check(launch, arch, m, np.repeat(a, 2, 1)[:, ::2], b.T.copy().T, c.T.copy().T, 1, 2)
    check(launch, arch, m, np.broadcast_to(a[:1], a.shape), np.broadcast_to(b[:, :1], b.shape), c, 1, 2)


def test_a_window_starts_at_integers():
    st = T.stage(Config(), np.ones((4, 40), np.float32), 4, 8)
    window = T.acquire(T.fetch(st, 1, 35))
    assert window.data.sum() == 3 * 5 and window.data[3].sum() == 0


def test_the_orientation_must_be_known_when_a_kernel_is_compiled(launch, arch):
    if arch == "python":
        pytest.skip("the interpreter takes any value")

    @T.kernel
    def undecided(cfg, a: T.Tensor[2], turned: T.Int):
        st = T.acquire(T.fetch(T.stage(cfg, a, 16, 16), 0))
        T.store_tile(a, (T.row_index(cfg, 16),), 0, T.dot(st, st, turned > 0), T.row_index(cfg, 16) < 16)
        T.release(st)

    with pytest.raises(TileError, match="transposed must be known"):
        launch(undecided, Config(arch=arch), (1, 1, 1), np.ones((16, 16), np.float32), 1)


def multiply(launch, cfg, a, b, splits=1):
    """a @ b by the kernel; b is stored as the configuration says. In so many parts of the depth, which are added up."""
    out = np.full((splits, 1, 1, len(a), b.shape[1]), 99, np.float32)
    left = a.T if cfg.left_transposed else a
    right = b.T if cfg.transposed else b
    blocks = -(-len(a) // cfg.block_m) * -(-b.shape[1] // cfg.block_n)
    arguments = left[None, None], right[None, None], np.zeros((0, 0), np.float32), out, 0, splits
    launch(matmul.matmul, cfg, (blocks, 1, splits), *arguments)
    return out[:, 0, 0].sum(0)


@pytest.mark.parametrize("group", [0, 1, 2])
@pytest.mark.parametrize("transposed", [False, True])
def test_a_product_of_a_transposed_left_side_in_any_order_of_blocks(launch, arch, transposed, group):
    a, b, _ = sources(70, 50)
    cfg = matmul.Config(arch=arch, transposed=transposed, left_transposed=True, group_m=group)
    np.testing.assert_allclose(multiply(launch, cfg, a, b.T), a.astype(np.float64) @ b.T, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("depth", [2, 3])
def test_windows_are_acquired_in_the_order_in_which_they_were_fetched(launch, depth):
    a, b, _ = sources(40, 70)
    cfg = matmul.Config(num_stages=depth)
    np.testing.assert_allclose(multiply(launch, cfg, a, b.T), a.astype(np.float64) @ b.T, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("splits", [1, 2, 3, 5])
def test_parts_of_the_depth_add_up_to_the_product_however_far_one_looks_ahead(launch, splits, transposed, depth):
    a, b, _ = sources(40, 150)
    cfg = matmul.Config(num_stages=depth, transposed=transposed)
    assert 5 * cfg.block_k < 150, "parts of more than one step"
    np.testing.assert_allclose(multiply(launch, cfg, a, b.T, splits), a.astype(np.float64) @ b.T, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("rows", [32, 33])
@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("group", [0, 1, 2])
def test_two_products_of_one_left_side_in_any_order_of_blocks(launch, rows, depth, group):
    """Whole blocks and a rest, along both axes."""
    a, gate, _ = sources(rows, 50)
    up = gate[::-1].copy()
    cfg = gated_mlp.Config(num_stages=depth, group_m=group)
    none, out = np.zeros((0, 0), np.float32), np.full((1, 1, rows, rows), 99, np.float32)
    blocks = -(-rows // cfg.block_m) * -(-rows // cfg.block_n)
    arguments = a[None, None], gate, up, none, none, out, activations.RELU
    launch(gated_mlp.gated_mlp, cfg, (blocks, 1, 1), *arguments)
    first, second = a.astype(np.float64) @ gate.T, a.astype(np.float64) @ up.T
    np.testing.assert_allclose(out[0, 0], np.maximum(first, 0) * second, rtol=1e-4, atol=1e-4)


def test_a_target_that_takes_one_window_at_a_time_says_so(launch):
    host_cpu = host_architecture()
    with pytest.raises(
        TileError, match=f"stage: num_stages=2; on {host_cpu} one window may be on its way, num_stages=1"
    ):
        multiply(launch, matmul.Config(arch=host_cpu, num_stages=2), *sources(16, 16)[:2])
