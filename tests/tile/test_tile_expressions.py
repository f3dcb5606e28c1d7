"""Expressions as machine code: every primitive of a tile, of rows and of numbers, against its meaning in NumPy."""

from __future__ import annotations

import numpy as np
import pytest
from tile_kernels import Config

from rocmkern import tile as T
from rocmkern.tile._lowering.shared.expressions import RELATIONS, RENAMED, ExpressionEmitter
from rocmkern.tile.language.expression import PRIMITIVES

N = 16


def arithmetic(x, y, r, s):
    return T.multiply_add(x, y, r) - (x + s) * (y - r) / (2.0 + abs(r)) + T.minimum(x, y) - T.maximum(r, s)


def functions(x, y, r, s):
    return T.exp2(x) + T.log2(abs(y) + 1.0) * T.tanh(r) - T.sqrt(abs(x)) + T.reciprocal_or_zero(s - 0.5)


def activations(x, y, r, s):
    return T.silu(x) + T.gelu(y) - T.gelu_tanh(r) + T.relu(x)


def conditions(x, y, r, s):
    first = ((x < y) & (y <= r)) | (x > s)
    second = (x >= r) & ~((y != 0.0) | (r == s))
    return T.where(first, x, -y) + T.where(second, 8.0, 0.0)


FUNCTIONS = (arithmetic, functions, activations, conditions)


@T.kernel
def computed(cfg, x: T.Tensor[2], y: T.Tensor[2], r: T.Tensor[1], out: T.Out[3], rows: T.Out[2], s: T.Float):
    """Each function of tiles, rows and a number, and of rows and numbers."""
    i = T.row_index(cfg, cfg.m)
    exists = i < x.shape[0]
    a = T.load_tile(cfg, x, (i,), 0, cfg.n, exists)
    b = T.load_tile(cfg, y, (i,), 0, cfg.n, exists)
    numbers = T.load_rows(r, (i,), exists)
    T.store_rows(rows[0], (i,), T.map(arithmetic, numbers, s, numbers, 0.5), exists)
    T.store_rows(rows[1], (i,), T.map(functions, numbers, s, numbers, 2), exists)
    T.store_rows(rows[2], (i,), T.map(activations, numbers, s, numbers, 0.5), exists)
    T.store_rows(rows[3], (i,), T.map(conditions, numbers, s, numbers, 0.5), exists)
    T.store_tile(out[0], (i,), 0, T.map(arithmetic, T.copy(a), T.copy(b), numbers, s), exists)
    T.store_tile(out[1], (i,), 0, T.map(functions, T.copy(a), T.copy(b), numbers, s), exists)
    T.store_tile(out[2], (i,), 0, T.map(activations, T.copy(a), T.copy(b), numbers, s), exists)
    T.store_tile(out[3], (i,), 0, T.map(conditions, a, b, numbers, s), exists)


def run(launch, arch, m, x, y, r, s):
    out, rows = np.full((4, m, N), 99, np.float32), np.full((4, m), 99, np.float32)
    launch(computed, Config(arch=arch, m=m, n=N), (1, 1, 1), x, y, r, out, rows, s)
    return out, rows


@pytest.mark.parametrize("m", [2, 32])
def test_machine_code_computes_what_the_interpreter_does(launch, arch, m):
    normal = np.random.default_rng(m).standard_normal
    x, y, r = (3 * normal(shape).astype(np.float32) for shape in ((m, N), (m, N), m))
    x[0, :4], y[0, :4], r[0] = (0.0, -0.0, 1.5, r[0]), (r[0], 0.0, 1.5, -0.0), 1.5
    expected = run(launch, "python", m, x, y, r, 1.5)
    for got, exact in zip(run(launch, arch, m, x, y, r, 1.5), expected, strict=True):
        np.testing.assert_array_equal(got[3], exact[3])
        np.testing.assert_allclose(got[:3], exact[:3], rtol=3e-6, atol=3e-6)


@pytest.mark.parametrize("fn", (arithmetic, functions, conditions))
def test_expressions_mean_what_they_say(launch, fn):
    """In the order of `FUNCTIONS`, of numbers in float64."""
    normal = np.random.default_rng(5).standard_normal
    x, y, r = (normal(shape).astype(np.float32) for shape in ((2, N), (2, N), 2))
    out, _ = run(launch, "python", 2, x, y, r, 0.25)
    a, b, c, s = x.astype(np.float64), y.astype(np.float64), r.astype(np.float64)[:, None], 0.25
    if fn is arithmetic:
        exact = a * b + c - (a + s) * (b - c) / (2 + abs(c)) + np.minimum(a, b) - np.maximum(c, s)
    elif fn is functions:
        exact = 2**a + np.log2(abs(b) + 1) * np.tanh(c) - np.sqrt(abs(a)) + 1 / (s - 0.5)
    else:
        first = ((a < b) & (b <= c)) | (a > s)
        exact = np.where(first, a, -b) + np.where((a >= c) & ~((b != 0) | (c == s)), 8, 0)
    np.testing.assert_allclose(out[FUNCTIONS.index(fn)], exact, rtol=1e-5, atol=1e-5)


def test_a_nan_is_ignored_by_extremes_and_passed_by_relu(launch, arch):
    x = np.full((2, N), np.nan, np.float32)
    y = np.ones((2, N), np.float32)
    out = np.zeros((3, 2, N), np.float32)
    launch(extremes, Config(arch=arch, m=2, n=N), (1, 1, 1), x, y, out)
    assert (out[0] == 1).all() and (out[1] == 1).all() and np.isnan(out[2]).all()


def smallest(x, y):
    return T.minimum(T.minimum(x, y), T.minimum(y, x))


def largest(x, y):
    return T.maximum(T.maximum(x, y), T.maximum(y, x))


@T.kernel
def extremes(cfg, x: T.Tensor[2], y: T.Tensor[2], out: T.Out[3]):
    """Extremes of two tiles, and `relu` of the first."""
    i = T.row_index(cfg, cfg.m)
    a = T.load_tile(cfg, x, (i,), 0, cfg.n, i < x.shape[0])
    b = T.load_tile(cfg, y, (i,), 0, cfg.n, i < x.shape[0])
    T.store_tile(out[0], (i,), 0, T.map(smallest, T.copy(a), T.copy(b)), i < x.shape[0])
    T.store_tile(out[1], (i,), 0, T.map(largest, T.copy(a), b), i < x.shape[0])
    T.store_tile(out[2], (i,), 0, T.relu(a), i < x.shape[0])


def test_every_primitive_has_an_emitter():
    missing = [name for name in PRIMITIVES if name not in RELATIONS]
    missing = [name for name in missing if not callable(getattr(ExpressionEmitter, RENAMED.get(name, name), None))]
    assert not missing
