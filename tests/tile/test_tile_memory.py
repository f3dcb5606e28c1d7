"""Loads and stores of tiles: element types, rounding, raggedness, strides."""

from __future__ import annotations

from types import SimpleNamespace

import ml_dtypes
import numpy as np
import pytest
from tile_kernels import Config, convert

from rocmkern import tile as T

pytestmark = pytest.mark.tiles(widest=(1, 4, 32), others=(2, 16))

N = 48
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
DTYPES = {"floats": np.float32, "halves": np.float16, "brains": BFLOAT16, "flags": np.bool_, "integers": np.int32}
KEPT = 99


def run(launch, arch, m, source, col0=0, out_col0=0, out_width=N, outputs=None):
    """Launch `convert` on arrays [R, H, C] by name; row 0 is not valid."""
    n_rows, heads, _ = source["floats"].shape
    o = outputs or SimpleNamespace(
        floats=np.full((8, n_rows, heads, out_width), KEPT, np.float32),
        halves=np.full((n_rows, heads, out_width), KEPT, np.float16),
        brains=np.full((n_rows, heads, out_width), KEPT, BFLOAT16),
    )
    cfg = Config(arch=arch, m=m, n=N)
    grid = (-(-n_rows // m), heads, 1)
    launch(convert, cfg, grid, *(source[name] for name in DTYPES), o.floats, o.halves, o.brains, col0, out_col0)
    return o


def random_source(n_rows, heads=2, columns=60):
    rng = np.random.default_rng(5)
    values = rng.standard_normal((n_rows, heads, columns)) * np.exp2(rng.integers(-20, 12, (n_rows, heads, columns)))
    return {name: (values > 0 if dtype is np.bool_ else values).astype(dtype) for name, dtype in DTYPES.items()}


def expected_tile(x, col0):
    """float32 [R, H, N] of what a tile of x holds, zeros past the end."""
    part = x[..., col0 : col0 + N].astype(np.float32)
    return np.pad(part, ((0, 0), (0, 0), (0, N - part.shape[-1])))


def check(got, source, col0=0, out_col0=0):
    """All outputs: converted values in the columns that exist, everything else untouched."""
    width = max(0, min(N, got.halves.shape[-1] - out_col0))
    for i, name in enumerate(DTYPES):
        want = np.full(got.floats[i].shape, KEPT, np.float32)
        want[1:, :, out_col0 : out_col0 + width] = expected_tile(source[name], col0)[1:, :, :width]
        np.testing.assert_array_equal(got.floats[i], want, err_msg=name)
    values = expected_tile(source["floats"], col0)[1:, :, :width]
    for out in (got.halves, got.brains):
        want = np.full(out.shape, KEPT, out.dtype)
        want[1:, :, out_col0 : out_col0 + width] = values.astype(out.dtype)
        np.testing.assert_array_equal(out.view(np.uint16), want.view(np.uint16), err_msg=out.dtype.name)
    for i, dtype in enumerate((np.float16, BFLOAT16, np.float32)):
        back = got.floats[5 + i][1:, :, out_col0 : out_col0 + width]
        np.testing.assert_array_equal(back, values.astype(dtype).astype(np.float32), err_msg="rounded")


@pytest.mark.parametrize("n_rows", ["less", "equal", "more"])
def test_every_element_type_is_converted_exactly_or_to_nearest_even(launch, arch, m, n_rows):
    source = random_source({"less": max(2, m - 1), "equal": max(2, m), "more": 2 * m + 1}[n_rows])
    check(run(launch, arch, m, source), source)


@pytest.mark.parametrize("col0", [1, 16, 31, 59, 60, 61, 1000])
def test_columns_past_the_end_read_as_zero(launch, arch, m, col0):
    source = random_source(m + 3)
    check(run(launch, arch, m, source, col0), source, col0)


@pytest.mark.parametrize(("out_col0", "out_width"), [(0, 1), (0, 17), (5, 50), (48, 48), (70, 60)])
def test_columns_past_the_end_are_not_written(launch, arch, m, out_col0, out_width):
    source = random_source(m + 3)
    check(run(launch, arch, m, source, 0, out_col0, out_width), source, 0, out_col0)


STRIDES = {
    "offset by one element": lambda x: np.concatenate([x[..., :1], x], -1)[..., 1:],
    "every third column": lambda x: np.repeat(x, 3, -1)[..., ::3],
    "columns backwards": lambda x: x[..., ::-1].copy()[..., ::-1],
    "rows backwards": lambda x: np.flip(np.flip(x, -3).copy(), -3),
    "transposed": lambda x: x.swapaxes(-1, -3).copy().swapaxes(-1, -3),
    "one column for all": lambda x: np.broadcast_to(x[..., :1], x.shape),
    "one row for all": lambda x: np.broadcast_to(x[:1], x.shape),
    "column stride that is no multiple of the element": lambda x: in_records(x),
    "offset by one byte": lambda x: in_bytes(x),
}


def in_records(x):
    """The same values as a field of packed records: the stride is the element size plus 3 bytes."""
    records = np.zeros(x.shape, np.dtype([("pad", "u1", 3), ("x", x.dtype)]))
    records["x"] = x
    return records["x"]


def in_bytes(x):
    """The same values at an odd address."""
    raw = np.zeros(x.nbytes + 1, np.uint8)
    moved = raw[1:].view(x.dtype).reshape(x.shape)
    moved[...] = x
    return moved


@pytest.mark.parametrize("how", STRIDES)
def test_sources_may_have_any_strides(launch, arch, m, how):
    source = {name: STRIDES[how](x) for name, x in random_source(m + 3).items()}
    check(run(launch, arch, m, source, 2), source, 2)


@pytest.mark.parametrize("how", [h for h in STRIDES if "for all" not in h])
def test_outputs_may_have_any_strides(launch, arch, m, how):
    source = random_source(m + 3)
    shape = source["floats"].shape[:2] + (N,)
    outputs = SimpleNamespace(
        floats=STRIDES[how](np.full((8, *shape), KEPT, np.float32)),
        halves=STRIDES[how](np.full(shape, KEPT, np.float16)),
        brains=STRIDES[how](np.full(shape, KEPT, BFLOAT16)),
    )
    check(run(launch, arch, m, source, outputs=outputs), source)


def test_rounding_of_ties_subnormals_overflow_and_nan(launch, arch, m):
    values = [
        0.0, -0.0, 1 + 2.0**-11, 1 + 3 * 2.0**-11, 1 + 2.0**-11 + 2.0**-23, 1 + 2.0**-8, 1 + 3 * 2.0**-8,
        1 + 2.0**-8 + 2.0**-23, 65504.0, 65519.99, 65520.0, -65520.0, 1e38, 3.3895314e38, 3.4e38, -3.4e38,
        2.0**-24, 2.0**-25, 2.0**-25 * 1.5, 2.0**-24 * 1.5, 2.0**-14, 2.0**-14 * 0.99, -(2.0**-26),
        1e-40, -1e-45, 2.0**-126, 2.0**-133, 2.0**-134, 2.0**-134 * 1.5, np.inf, -np.inf, np.nan, -np.nan,
    ]  # fmt: skip
    source = random_source(m + 1)
    x = source["floats"]
    x[...] = np.resize(np.float32(values), x.shape)
    # A NaN whose payload lies in the low bits only must not become an infinity.
    x.view(np.uint32)[:, :, 40] = 0x7F800001
    got = run(launch, arch, m, source)
    for out in (got.halves, got.brains):
        with np.errstate(over="ignore", invalid="ignore"):
            want = expected_tile(x, 0)[1:].astype(out.dtype)
        isnan = np.isnan(want.astype(np.float32))
        assert np.isnan(out[1:].astype(np.float32)[isnan]).all()
        np.testing.assert_array_equal(out[1:].view(np.uint16)[~isnan], want.view(np.uint16)[~isnan])


def test_every_half_and_bfloat16_is_read_exactly(launch, arch, m):
    codes = np.arange(1 << 16, dtype=np.uint16)
    n_rows = -(-len(codes) // N) + 1
    padded = np.zeros((n_rows, 1, N), np.uint16)
    padded[1:].ravel()[: len(codes)] = codes
    source = {name: np.zeros((n_rows, 1, N), dtype) for name, dtype in DTYPES.items()}
    source["halves"], source["brains"] = padded.view(np.float16), padded.view(BFLOAT16)
    got = run(launch, arch, m, source)
    for i, name in ((1, "halves"), (2, "brains")):
        np.testing.assert_array_equal(got.floats[i][1:], source[name][1:].astype(np.float32))


def test_any_nonzero_byte_is_true(launch, arch, m):
    source = random_source(m + 2)
    source["flags"] = (
        (np.arange(source["flags"].size, dtype=np.uint8) % 3 * 100).reshape(source["flags"].shape).view(np.bool_)
    )
    got = run(launch, arch, m, source)
    np.testing.assert_array_equal(got.floats[3][1:], expected_tile(source["flags"].view(np.uint8) != 0, 0)[1:])


def test_empty_tensors_read_as_zero(launch, arch, m):
    full = random_source(m + 1)
    source = {name: x[..., :0] for name, x in full.items()}
    check(run(launch, arch, m, source), source)


@T.kernel
def alike(cfg, x: T.Tensor[2], out: T.Out[2], which: T.Int, col0: T.Int):
    row = T.row_index(cfg, cfg.m)
    T.store_tile(out, (row,), 0, T.load_columns(cfg, cfg.m, x[which], col0, cfg.n), row < out.shape[0])


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize(("step", "col0"), [(1, 0), (1, 3), (2, 1), (-1, 5)])
def test_rows_that_are_alike(launch, arch, m, dtype, step, col0):
    x = np.random.default_rng(3).standard_normal((3, 120), dtype=np.float32).astype(dtype)[:, ::step][:, :50]
    out = np.full((m, N), KEPT, np.float32)
    launch(alike, Config(arch=arch, m=m, n=N), (1, 1, 1), x, out, 1, col0)
    columns = x[1, col0 : col0 + N].astype(np.float32)
    np.testing.assert_array_equal(out, np.tile(np.pad(columns, (0, N - len(columns))), (m, 1)))


@T.kernel
def sum_of_planes(cfg, x: T.Tensor[3], missing: T.Tensor[3], out: T.Out[2]):
    row = T.row_index(cfg, cfg.m) + T.block_id(cfg, 0) * cfg.m
    valid, total = row < T.reread(x).shape[1], T.zeros(cfg, cfg.m, cfg.n)
    for plane in range(x.shape[0]):
        total = total + T.load_tile(cfg, T.reread(x)[plane], (row,), 0, cfg.n, valid)
        total = total + T.load_tile(cfg, T.reread(x[plane]), (row,), 1, cfg.n, valid)
        if T.reread(missing)[plane].shape[0] > 0:
            total = total + 1.0
    T.store_tile(T.reread(out), (row,), 0, total, valid)


def test_a_tensor_that_is_read_again_is_the_same(launch, arch, m):
    x = np.arange(2.0 * 11 * 40, dtype=np.float32).reshape(2, 40, 11).swapaxes(1, 2)
    out = np.full((11, 2 * N), KEPT, np.float32)[:, ::2]
    launch(sum_of_planes, Config(arch=arch, m=m, n=N), (-(-11 // m), 1, 1), x, np.empty((0, 0, 0), np.float32), out)
    np.testing.assert_array_equal(out[:, :40], (x + np.pad(x, ((0, 0), (0, 0), (0, 1)))[..., 1:]).sum(0))
    np.testing.assert_array_equal(out[:, 40:], 0.0)
