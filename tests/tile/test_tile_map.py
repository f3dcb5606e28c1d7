"""`map`: functions of numbers that a kernel names, traced to expressions."""

from __future__ import annotations

import importlib.util
import math

import numpy as np
import pytest
from tile_kernels import Config

from rocmkern import TileError
from rocmkern import tile as T
from rocmkern.targets.source import variant_key
from rocmkern.tile.check import check_consumed
from rocmkern.tile.language.expression import COMPARISONS, CONDITIONS, NUMBERS, PRIMITIVES, Expression, Step, trace


def soft_cap(score, cap):
    return cap * T.tanh(score / cap)


def clipped(x):
    return T.where((x > -1.0) & ~(x >= 2.0), x, 0.0)


# ------------------------------------------------------------------------------------------------------------- tracing


def test_an_expression_prints_its_steps():
    assert str(trace(soft_cap)) == "soft_cap(score, cap): %2 = div(score, cap); %3 = tanh(%2); %4 = mul(cap, %3)"
    assert str(trace(clipped)) == (
        "clipped(x): %1 = -1.0; %2 = gt(x, %1); %3 = 2.0; %4 = ge(x, %3); %5 = not(%4); %6 = and(%2, %5); "
        "%7 = 0.0; %8 = select(%6, x, %7)"
    )


def test_expressions_of_equal_functions_are_equal():
    def first(x, y):
        return x * 2.0 + y

    def second(x, y):
        doubled = x * 2
        return doubled + y

    def third(x, y):
        return y + x * 2.0

    assert trace(first).steps == trace(second).steps != trace(third).steps
    assert len({trace(first).steps, trace(second).steps}) == 1


def test_each_value_is_computed_once_and_what_is_not_needed_never():
    def wasteful(x):
        T.exp2(x)
        return (x + 1.0) * (x + 1.0)

    assert [step.operation for step in trace(wasteful).steps] == ["argument", "constant", "add", "mul"]

    def squared_often(x):
        for _ in range(200):
            x = x * x
        return x

    assert len(trace(squared_often).steps) == 201


def test_constants_are_float32_and_zeros_keep_their_signs():
    def zeros(x):
        return T.where(x < 0.1, -0.0, 0.0)

    constants = [step.value for step in trace(zeros).steps if step.operation == "constant"]
    assert constants == [float(np.float32(0.1)), 0.0, 0.0]
    assert [math.copysign(1, c) for c in constants] == [1, -1, 1]


def test_an_expression_is_walked_by_whoever_brings_the_primitives():
    text = trace(soft_cap).evaluate(["s", "c"], lambda name, *operands: f"{name}({','.join(operands)})", str)
    assert text == "mul(c,tanh(div(s,c)))"
    identity = Expression("identity", ("x",), (Step("argument"),))
    assert identity.evaluate([7], None, None) == 7


def test_primitives_are_what_numpy_says():
    assert set(PRIMITIVES) == {*NUMBERS, *COMPARISONS, *CONDITIONS, "select"}
    x = np.array([-2, -0.5, 0, 3], np.float32)
    for fn, exact in (
        (lambda x: 1.0 - x, 1 - x),
        (lambda x: 1.0 / (x + 4.0), 1 / (x + 4)),
        (lambda x: -x, -x),
        (lambda x: +x * 2, x * 2),
        (lambda x: T.minimum(x, 1.0) + T.maximum(0.0, x), np.minimum(x, 1) + np.maximum(0, x)),
        (lambda x: T.multiply_add(x, x, 1.0), x * x + 1),
        (lambda x: T.sqrt(T.absolute(x)), np.sqrt(abs(x))),
        (lambda x: T.where((x == 0.0) | (x != 3.0), 1.0, x), [1, 1, 1, 3]),
        (lambda x: np.float32(2) * x - np.float64(1), 2 * x - 1),
        (lambda x: T.where(np.float32(0) < x, 1.0, 0.0), x > 0),
        (lambda x: 5.0, [5, 5, 5, 5]),
    ):
        got = trace(fn).numbers(x)
        assert got.dtype == np.float32
        np.testing.assert_allclose(got, exact, rtol=1e-6)


# ------------------------------------------------------------------------------------------------- what is not traced


def decides(x):
    if x > 0.0:
        return x
    return -x


def both(x):
    return T.where(x > 0.0 and x < 1.0, x, 0.0)


def by_math(x):
    return math.exp(x)


def by_numpy(x):
    return np.exp(x)


def powers(x):
    return x**2


def of_a_condition(x):
    return (x > 0.0) + x


def chooses_by_a_number(x):
    return T.where(x, 1.0, 0.0)


def is_a_condition(x):
    return x > 0.0


def returns_nothing(x):
    x + 1.0


def with_a_text(x):
    return x + "1"


def smallest(x):
    return min(x, 0.0)


@pytest.mark.parametrize(
    ("fn", "remedy"),
    [
        (decides, r"decides nothing: for `if`, `and`, .* use T.where\(condition, a, b\), `&`, `|`, `~`, T.minimum"),
        (both, "decides nothing"),
        (smallest, "decides nothing"),
        (by_math, r"functions of `math` and NumPy do not take it; use arithmetic, abs\(\), T.exp2"),
        (by_numpy, "functions of `math` and NumPy do not take it"),
        (powers, r"there is no `\*\*`: multiply, or use T.exp2"),
        (of_a_condition, "add: argument 1 must be a number"),
        (chooses_by_a_number, "select: argument 1 must be a condition, such as x > 0"),
        (is_a_condition, r"it returns a condition: T.where\(condition, 1.0, 0.0\) is a number"),
        (returns_nothing, "the result: cannot combine a traced number with NoneType None"),
        (with_a_text, "add: cannot combine a traced number with str '1'"),
        (lambda: 1.0, "a function of numbers has one positional parameter or more, and no others"),
        (lambda *x: x[0], "a function of numbers has one positional parameter or more, and no others"),
    ],
)
def test_what_cannot_be_traced_is_refused_with_the_remedy(fn, remedy):
    with pytest.raises(TileError, match=remedy):
        trace(fn)


# ------------------------------------------------------------------------------------------------------- in a kernel


@T.device
def capped(t, cap):
    return T.map(soft_cap, t, cap)


@T.kernel
def mapped(cfg, x: T.Tensor[2], out: T.Out[2], cap: T.Float):
    row = T.row_index(cfg, cfg.m)
    valid = row < x.shape[0]
    t = capped(T.load_tile(cfg, x, (row,), 0, cfg.n, valid), cap)
    T.store_tile(out, (row,), 0, T.map(clipped, t), valid)


@pytest.mark.parametrize("m", [4, 32])
def test_functions_are_called_from_kernels_and_from_device_functions(launch, arch, m):
    x = np.random.default_rng(m).standard_normal((m, 16)).astype(np.float32) * 4
    out = np.full_like(x, 99)
    launch(mapped, Config(arch=arch, m=m, n=16), (1, 1, 1), x, out, 3.0)
    expected = 3 * np.tanh(x.astype(np.float64) / 3)
    near = np.abs(expected - 2) < 1e-5  # which side of the bound they are on is not known
    np.testing.assert_allclose(out[~near], np.where((expected > -1) & (expected < 2), expected, 0)[~near], atol=1e-6)


@T.kernel
def used_after_map(cfg, x: T.Tensor[2]):
    t = T.zeros(cfg, 4, 8)
    T.rowmax(T.map(clipped, t))
    T.rowmax(t)


@T.kernel
def second_value_used_after_map(cfg, x: T.Tensor[2]):
    cap = T.zeros(cfg, 4, 8)
    T.rowmax(T.map(soft_cap, T.zeros(cfg, 4, 8), cap))
    T.rowmax(cap)


@T.kernel
def rows_used_after_map(cfg, x: T.Tensor[2]):
    rows = T.full_rows(cfg, 4, 2.0)
    T.rowmax(T.map(soft_cap, T.zeros(cfg, 4, 8), rows))
    T.store_rows(x[0], (T.row_index(cfg, 4),), rows, rows > 0.0)


@pytest.mark.parametrize("kernel", [used_after_map, second_value_used_after_map])
def test_tiles_are_consumed(launch, kernel):
    with pytest.raises(TileError, match=r"was consumed by map in line \d+ and cannot be used again by rowmax"):
        check_consumed(kernel, Config())
    with pytest.raises(TileError, match="this tile was consumed by map and cannot be used again"):
        launch(kernel, Config(), (1, 1, 1), np.zeros((4, 8), np.float32))


def test_rows_are_not_consumed(launch, arch):
    x = np.zeros((4, 8), np.float32)
    launch(rows_used_after_map, Config(arch=arch), (1, 1, 1), x)
    assert (x[0, :4] == 2).all()


MODULE = """\
from rocmkern import tile as T

FACTOR = {factor}

{numbers}

@T.kernel
def scaled(cfg, x: T.Tensor[1], out: T.Out[1]):
    row = T.row_index(cfg, 4)
    T.store_rows(out, (row,), T.map(times, T.load_rows(x, (row,), row < 4)), row < 4)
"""


def key_of(path, name, factor, elsewhere):
    numbers = "def times(x):\n    return x * FACTOR\n"
    if elsewhere is not None:
        (path / f"{name}_numbers.py").write_text(f"def times(x):\n    return x * {elsewhere}\n")
        numbers = f"from {name}_numbers import times\n"
    (path / f"{name}.py").write_text(MODULE.format(factor=factor, numbers=numbers))
    spec = importlib.util.spec_from_file_location("scaling", path / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    key = variant_key("cpu", module.scaled, Config(arch="cpu-avx2"), ("float32", "float32"))
    assert key.kept
    return key.digest


def test_a_function_and_what_it_names_are_part_of_the_key_of_what_is_compiled(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    same, again, other = (key_of(tmp_path, f"k{i}", f, None) for i, f in enumerate((2.0, 2.0, 3.0)))
    assert same == again != other
    elsewhere = [key_of(tmp_path, f"e{i}", 2.0, f) for i, f in enumerate((2.0, 5.0))]
    assert elsewhere[0] != elsewhere[1]
