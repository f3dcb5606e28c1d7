"""Products, stages and windows against NumPy."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from tile_kernels import Config, products

N, K = 32, 40
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)


def run(launch, arch, m, a, b, p, d, first=0, last=None):
    last = len(b) if last is None else last
    n_rows, count = len(a), last - first
    nt = np.full((2, n_rows, -(-count // N) * N), 99, np.float32)
    nn = np.full((4, n_rows, K), 99, np.float32)
    tn = np.full((n_rows, K), 99, np.float32)
    launch(products, Config(arch=arch, m=m, n=N, k=K), (-(-n_rows // m), 1, 1), a, b, p, d, nt, nn, tn, first, last)
    return nt, nn, tn


def operands(m, n_rows, count, k, dtype=np.float32):
    rng = np.random.default_rng(6)
    shapes = ((n_rows, k), (count, k), (n_rows, -(-count // N) * N), (count, m))
    return [rng.standard_normal(s).astype(dtype) for s in shapes]


def pad(x, rows, columns):
    """x in float64, padded or cut to a shape."""
    x = x.astype(np.float64)[:rows, :columns]
    return np.pad(x, ((0, rows - x.shape[0]), (0, columns - x.shape[1])))


def check(got, a, b, p, d, n_rows, m, tolerance=1e-5):
    nt, nn, tn = got
    width = nt.shape[2]
    a, b, p = pad(a, n_rows, K), pad(b, width, K), p.astype(np.float64)
    d = pad(d, width, m)
    close = {"rtol": tolerance, "atol": tolerance * 10}
    np.testing.assert_allclose(nt[0], a @ b.T, **close)
    np.testing.assert_allclose(nt[1], a @ b.T + p, **close)
    np.testing.assert_allclose(nn[0], p @ b, **close)
    np.testing.assert_allclose(nn[1], p @ b, **close)
    np.testing.assert_allclose(nn[2], p[:, :N] @ b[:N], **close)
    # Every block has the same stage on the left of d.T @ b.
    transposed = np.resize(d.T @ b, (-(-n_rows // m) * m, K))[:n_rows]
    np.testing.assert_allclose(tn, transposed, **close)
    np.testing.assert_allclose(nn[3], np.resize(d[:N].T @ b[:N], (-(-n_rows // m) * m, K))[:n_rows], **close)


@pytest.mark.tiles(widest=(1, 2, 8, 64), others=(4, 32))
@pytest.mark.parametrize(("count", "k"), [(32, 40), (70, 40), (1, 40), (33, 17), (50, 1), (64, 33)])
def test_all_orientations_with_ragged_windows(launch, arch, m, count, k):
    n_rows = m + (m + 1) // 2
    a, b, p, d = operands(m, n_rows, count, k)
    check(run(launch, arch, m, a, b, p, d), a, b, p, d, n_rows, m)


def at_odd_addresses(x):
    """The same values; neither the address nor the row stride is a multiple of the element size."""
    stride = x.shape[1] * 4 + 2
    moved = np.ndarray(x.shape, np.float32, bytearray(x.shape[0] * stride + 1), 1, (stride, 4))
    moved[...] = x
    return moved


@pytest.mark.tiles(widest=(1, 8, 64), others=(4, 32))
def test_windows_of_sources_with_any_strides(launch, arch, m):
    a, b, p, d = operands(m, m + 1, 50, 33)
    for source in (
        b[::-1].copy()[::-1],
        np.repeat(b, 2, 0)[::2],
        np.repeat(b, 2, 1)[:, ::2],
        b[:, ::-1].copy()[:, ::-1],
        b.T.copy().T,
        np.broadcast_to(b[:1], b.shape),
        np.pad(b, ((0, 0), (3, 2)))[:, 3:-2],
        at_odd_addresses(b),
    ):
        check(run(launch, arch, m, a, source, p, d), a, source, p, d, m + 1, m)


@pytest.mark.tiles(widest=(1, 8, 64), others=(4, 32))
def test_rows_of_a_tensor_are_a_tensor_of_their_own(launch, arch, m):
    a, b, p, d = operands(m, m, 60, K)
    got = run(launch, arch, m, a, b, p[:, :32], d, 13, 40)
    # What lies behind the last row must not be read: it would not be 0.
    check(got, a, b[13:40], p[:, :32], d[13:40], m, m)


@pytest.mark.tiles(widest=(8,), others=())
@pytest.mark.parametrize("dtype", [np.float16, BFLOAT16])
def test_half_sources(launch, arch, m, dtype):
    a, b, p, d = operands(m, m, 45, 33, dtype)
    exact = p.astype(np.float32)
    check(run(launch, arch, m, a, b, exact, d), a, b, exact, d, m, m, 2e-3)


@pytest.mark.tiles(widest=(1, 8, 64), others=(4, 32))
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_has_no_weight_does_not_reach_a_product_even_if_it_is_not_finite(launch, arch, m, bad):
    n_rows = m
    a, b, p, d = operands(m, n_rows, 45, K)
    b[[3, 33, 44], [0, 7, K - 1]] = bad
    p[:, [3, 44]] = 0
    p[:, 33] = 0
    p[0, 33] = 0.5
    _, nn, _ = run(launch, arch, m, a, b, p, d)
    safe = np.where(np.isfinite(b), b, 0).astype(np.float64)
    want = pad(p, n_rows, 45) @ safe
    want[0, 7] = bad
    np.testing.assert_allclose(nn[1], want, rtol=1e-5, atol=1e-4)
    p[0, 0] = np.nan
    _, nn, _ = run(launch, arch, m, a, b, p, d)
    assert np.isnan(nn[1][0]).all()
    np.testing.assert_allclose(nn[1][1:], want[1:], rtol=1e-5, atol=1e-4)


@pytest.mark.tiles(widest=(1, 8, 64), others=(4, 32))
def test_rows_past_the_end_of_a_tensor_read_as_zero(launch, arch, m):
    a, b, p, d = operands(m, m, 70, K)
    b[45:], d[45:] = np.nan, np.nan  # behind the tensors' ends
    check(run(launch, arch, m, a, b[:45], p, d[:45], 0, 70), a, b[:45], p, d[:45], m, m)
