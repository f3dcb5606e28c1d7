"""Kernels without products with rows along lanes: what the gates of both kinds of GPU run, against NumPy."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from rocmkern import reference
from rocmkern import tile as T
from rocmkern.architectures import architecture
from rocmkern.ops.activations.kernels import gated
from rocmkern.ops.norm.kernels import layer_norm, rms_norm
from rocmkern.ops.rotary.kernels import rope
from rocmkern.ops.rotary.scaling import frequencies
from rocmkern.ops.rotary.tuning import heads_as_rows
from rocmkern.ops.rows.kernels import embedding
from rocmkern.ops.steps.kernels import softmax
from rocmkern.runtime.errors import TileError
from rocmkern.tile.language.block import running
from rocmkern.tile.language.kernel import VECTOR_WIDTH

sys.path.append(str(Path(__file__).parents[1] / "tile"))
import fold_kernels


@dataclass(frozen=True)
class Lines(T.Config):
    """Rows along lanes."""

    m: int = 8
    n: int = 512


@T.kernel
def everything(
    cfg, x: T.Tensor[2], y: T.Tensor[2], seen: T.Tensor[2], number: T.Tensor[1], index: T.Tensor[1],
    turns: T.Tensor[1], out: T.Out[3], stats: T.Out[2], col0: T.Int,
):  # fmt: skip
    row = T.row_index(cfg, cfg.m) + T.block_id(cfg, 0) * cfg.m
    valid = row < x.shape[0]
    numbers = T.load_rows(number, (row,), valid)
    numbered = T.load_integers(index, (row,), valid)
    a = T.load_tile(cfg, x, (row,), col0, cfg.n, valid)
    b = T.load_tile(cfg, y, (0,), col0, cfg.n, valid)
    hidden = T.load_tile(cfg, seen, (row,), col0, cfg.n, valid)
    T.store_tile(out[0], (row,), 0, T.copy(a) + b * numbers - numbers, valid)
    T.store_tile(out[1], (row,), 0, T.mask_outside(T.copy(a), col0, numbered, numbered * 3), valid)
    T.store_tile(out[2], (row,), 0, T.mask_where(T.copy(a), hidden), valid)
    T.store_tile(out[3], (row,), 0, T.distance(cfg, numbered, col0, cfg.n), valid)
    T.store_tile(out[4], (row,), 0, T.pad_columns(T.absolute(T.copy(a)), col0, 40, 7.0), valid)
    T.store_tile(out[5], (row,), 0, T.zeros(cfg, cfg.m, cfg.n) + numbers, valid)
    cos, sin = T.rotations(cfg, numbered, turns, col0, cfg.n)
    cosines, sines = T.rotations(cfg, T.full_rows(cfg, cfg.m, col0 + 7), turns, col0, cfg.n)
    left, right = T.rotate(T.copy(a), T.load_tile(cfg, y, (0,), col0, cfg.n, valid), cos, sin)
    T.store_tile(out[6], (row,), 0, left, valid)
    T.store_tile(out[7], (row,), 0, right, valid)
    T.store_tile(out[8], (row,), 0, cosines + sines, valid)
    T.store_rows(stats[0], (row,), T.rowmax(a), valid)
    T.store_rows(stats[1], (row,), T.rowsum(a), valid)
    T.store_rows(stats[2], (row,), T.rowdot(a, T.exp2(T.copy(a))), valid)
    T.store_rows(stats[3], (row,), numbers + T.total(T.rowmax(a)), valid)
    T.store_rows(stats[4], (row,), numbers + T.largest(numbers), valid)


def lanes_of_a_row(arch: str, part: float) -> int:
    """Lanes of so many waves."""
    return int(architecture(arch).wave * part)


def check_everything(run, arch: str, dtype, col0: int, waves: float = 1) -> None:
    """Every operation that a kernel without products may use, with rows along so many waves of two."""
    generator = np.random.default_rng(3)
    rows, columns = 11, 603
    x = generator.standard_normal((rows, columns)).astype(dtype)
    y = generator.standard_normal((1, columns)).astype(dtype)
    seen = generator.random((rows, columns)) < 0.5
    number = generator.standard_normal(rows).astype(np.float32)
    index = generator.integers(0, 300, rows)
    turns = generator.integers(-(2**63), 2**63, columns - 3)
    lanes = lanes_of_a_row(arch, waves)
    results = []
    for where in ("python", arch):
        out, stats = np.full((9, rows, columns), np.nan, np.float32), np.full((5, rows), np.nan, np.float32)
        cfg = Lines(arch=where, waves=2, threads_per_row=lanes, n=max(512, VECTOR_WIDTH * lanes))
        arguments = [x, y, seen, number, index, turns, out, stats, col0]
        if where == "python":
            for block in range(2):
                with running((block, 0, 0)):
                    everything(cfg, *arguments)
        else:
            run(everything, cfg, (2, 1, 1), arguments)
        results.append((out, stats))
    (exact, exact_stats), (out, stats) = results
    np.testing.assert_allclose(out, exact, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(stats, exact_stats, rtol=1e-4, atol=1e-4)


def check_joins(run, arch: str, waves: float) -> None:
    """Repeated and folded rows, several of them in each lane, the last block to arrive, rows of flat memory."""
    lanes = lanes_of_a_row(arch, waves)
    m, n = 2 * lanes_of_a_row(arch, 2) // lanes, VECTOR_WIDTH * lanes
    cfg = fold_kernels.Config(arch=arch, waves=2, threads_per_row=lanes, m=m, n=n, times=3)
    fold_kernels.check_folds(run, cfg, 3)
    fold_kernels.check_arrivals(run, cfg, 5, 3)
    fold_kernels.check_scratch(run, cfg, 3)


def check_that_only_lines_are_folded(compile_kernel, arch: str) -> None:
    """Rows that lie as products need them are refused."""
    cfg, dtypes = fold_kernels.Config(arch=arch, m=16, n=32), ["float32"] * 3 + ["int32"] + ["float32"] * 2
    with pytest.raises(TileError, match=rf"{arch}: only rows along lanes can be repeated, got .*\(line"):
        compile_kernel(fold_kernels.folds, cfg, tuple(dtypes))
    with pytest.raises(TileError, match=rf"{arch}: only rows along lanes can be folded, got .*\(line"):
        compile_kernel(fold_kernels.sums_of_rows, cfg, ("float32",) * 2)


def check_kernels(run, arch: str, dtype, columns: int, strided: bool = False, waves: float = 1) -> None:
    """The norms, a gated activation, softmax and embedding, with rows along so many waves of two."""
    generator = np.random.default_rng(columns)
    shape, dtype = (1, 2, 5, columns), np.dtype(dtype)

    def normal(*shape: int) -> np.ndarray:
        values = generator.standard_normal((*shape[:-1], 2 * shape[-1])).astype(dtype)
        return values[..., ::2] if strided else np.ascontiguousarray(values[..., ::2])

    def check(kernel, config, before: list, expected: list, after: list, **features) -> None:
        outs = [np.full(e.shape, np.nan, dtype) for e in expected]
        lanes = lanes_of_a_row(arch, waves)
        widths = {"block_m": max(2, int(2 / waves)), "block_n": max(512, VECTOR_WIDTH * lanes)}
        cfg = config(arch=arch, waves=2, threads_per_row=lanes, **widths, **features)
        run(kernel, cfg, (-(-expected[0].shape[-2] // cfg.block_m), 2, 1), [*before, *outs, *after])
        for out, e in zip(outs, expected, strict=True):
            bound = 8 * float(ml_dtypes.finfo(dtype).eps)
            np.testing.assert_allclose(out.astype(np.float64), e, rtol=bound, atol=bound)

    x, residual, weight, bias = normal(*shape), normal(*shape), normal(1, columns), normal(1, columns)
    norms = reference.rms_norm(x, weight[0], residual=residual, weight_offset=1.0)
    check(
        rms_norm.rms_norm, rms_norm.Config, [x, residual, weight], list(norms), [1e-3, 512.0, 1 / columns, 1.0],
        with_residual=True,
    )  # fmt: skip
    normed = reference.layer_norm(x, weight[0], bias[0])
    check(layer_norm.layer_norm, layer_norm.Config, [x, weight, bias], [normed], [1e-5**0.5, 256.0, 1 / columns, 1])
    check(gated.gated, gated.Config, [x, residual], [reference.swiglu(x, residual)], [])
    check(gated.gated, gated.Config, [x, residual], [reference.geglu(x, residual)], [], gelu=True)
    check(softmax.softmax, softmax.Config, [x], [reference.softmax(x)], [])
    table, error = x[0, 0], np.zeros(1, np.float32)
    for last, wrong in ((4, 0.0), (5, 1.0), (-1, 1.0)):
        indices = np.array([3, 0, 4, last, 1, 1, 2])
        got = table[indices % 5] * (np.arange(7) != (3 if wrong else 7))[:, None]
        check(embedding.embedding, embedding.Config, [table, indices], [got.astype(np.float64)], [error])
        assert error[0] == wrong


def check_rotations(run, arch: str, dtype, pairs: int, interleaved: bool) -> None:
    """Heads as rows, whose pairs are halves of a head or neighbours."""
    generator = np.random.default_rng(pairs)
    dtype, (batch, positions, heads) = np.dtype(dtype), (2, 3, 11)
    x = generator.standard_normal((batch, positions, heads, 2 * pairs)).astype(dtype)
    out = np.full(x.shape, np.nan, dtype)
    where = np.array([[0, 1, 131071], [5, 0, 77]], np.int32)
    variant = "interleaved" if interleaved else "half"

    def view(a: np.ndarray) -> np.ndarray:
        split = a.reshape(*a.shape[:-1], pairs, 2) if interleaved else a.reshape(*a.shape[:-1], 2, pairs)
        return np.moveaxis(split, -1 if interleaved else -2, 0)

    cfg = heads_as_rows(arch, heads, pairs, interleaved, (2,))
    grid = (-(-heads // cfg.block_m), positions, batch)
    run(rope.rope, cfg, grid, [view(x), view(out), where, frequencies(2 * pairs, 10000.0, None), 1.0, 1.0, 1])
    exact = reference.rope(x, where, variant=variant)
    bound = 4 * float(ml_dtypes.finfo(dtype).eps)
    np.testing.assert_allclose(out.astype(np.float64), exact, rtol=bound, atol=bound)
    np.testing.assert_array_equal(out[0, 0], x[0, 0])
