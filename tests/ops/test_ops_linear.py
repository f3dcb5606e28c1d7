"""Products, linear layers and the MLP as operations, against the float64 reference."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from rocmkern import reference, targets
from rocmkern.calls.view import view_of
from rocmkern.ops.linear import api as linear
from rocmkern.ops.linear.kernels.matmul import matmul
from rocmkern.ops.linear.launch import launch_matmul
from rocmkern.ops.mlp import api as mlp
from rocmkern.ops.quantized import api as quantized

DTYPES = [np.float32, np.float16, ml_dtypes.bfloat16]
ACTIVATIONS = [None, "silu", "gelu", "gelu_tanh", "relu"]
pytestmark = pytest.mark.usefixtures("launch")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("a", "b"),
    [
        ((3, 5), (5, 4)),
        ((5,), (5, 4)),
        ((3, 5), (5,)),
        ((5,), (5,)),
        ((5,), (2, 5, 4)),
        ((2, 3, 5), (5,)),
        ((2, 1, 3, 5), (4, 5, 6)),
        ((2, 1, 2, 2, 3, 5), (4, 1, 1, 5, 2)),
        ((2, 3, 5), (5, 4)),
    ],
    ids=str,
)
def test_shapes_are_those_of_numpy(normal, close, dtype, a, b):
    a, b = normal(*a, dtype=dtype), normal(*b, dtype=dtype)
    exact = np.matmul(a.astype(np.float64), b.astype(np.float64))
    result = linear.matmul(a, b)
    assert result.dtype == dtype and result.shape == exact.shape
    assert np.allclose(result.astype(np.float64), exact, rtol=0.02, atol=0.1 if dtype != np.float32 else 1e-5)
    close(result, reference.matmul(a, b))
    out = np.empty(exact.shape, dtype)
    assert linear.matmul(a, b, out=out) is out
    close(out, exact)


def test_a_transposed_b_is_the_same_product(normal, close):
    a, b = normal(2, 3, 5), normal(2, 4, 5)
    exact = reference.matmul(a, b.swapaxes(1, 2))
    close(linear.matmul(a, b, transpose_b=True), exact)
    close(linear.matmul(a, b.swapaxes(1, 2)), exact)
    close(linear.matmul(a, b.swapaxes(1, 2).copy()), exact)
    close(linear.matmul(a, np.repeat(b, 2, axis=2)[:, :, ::2], transpose_b=True), exact)
    close(linear.matmul(a[0], b[0, 0], transpose_b=True), exact[0, :, 0])


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_endings(normal, close, activation):
    x, weight, bias = normal(2, 3, 5), normal(4, 5), normal(4)
    exact = reference.linear(x, weight, bias, activation)
    close(linear.linear(x, weight, bias, activation), exact)
    close(linear.matmul(x, weight, transpose_b=True, bias=bias, activation=activation), exact)
    close(linear.linear(x, weight, activation=activation), reference.linear(x, weight, None, activation))


def test_rows_of_x_in_any_layout(normal, close):
    weight = normal(4, 5)
    for x in (
        normal(5),
        normal(2, 3, 7, 5)[:, ::2],
        normal(7, 3, 2, 5).transpose(2, 1, 0, 3),
        normal(2, 5, 3).swapaxes(1, 2),
        np.broadcast_to(normal(5), (2, 3, 5)),
        normal(2, 1, 3, 1, 2, 5)[:, :, ::-1],
    ):
        result = linear.linear(x, weight)
        assert result.shape == (*x.shape[:-1], 4)
        close(result, reference.linear(x, weight))
    out = np.empty((3, 2, 4), np.float32).transpose(1, 0, 2)
    x = normal(2, 3, 5)
    assert linear.linear(x, weight, out=out) is out
    close(out, reference.linear(x, weight))


def test_without_a_sum_the_bias_is_left(normal):
    bias = normal(4)
    a, b = np.zeros((3, 0), np.float32), np.zeros((0, 4), np.float32)
    assert np.array_equal(linear.matmul(a, b), np.zeros((3, 4), np.float32))
    assert np.array_equal(linear.matmul(a, b, bias=bias), np.broadcast_to(bias, (3, 4)))
    assert linear.matmul(np.zeros((0, 2), np.float32), normal(2, 4)).shape == (0, 4)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_mlp(normal, close, dtype, activation):
    x = normal(2, 3, 5, dtype=dtype)
    gate, up = (normal(6, 5, dtype=dtype) for _ in range(2))
    down, b_gate, b_up, b_down = (normal(*s, dtype=dtype) for s in ((4, 6), (6,), (6,), (4,)))
    # What lies between the two products is rounded to the dtype, in the reference it is not.
    share = 0.25 if dtype != np.float32 else 1.0
    down = (down * dtype(share)).astype(dtype)
    for biases in ({}, {"b_gate": b_gate, "b_up": b_up, "b_down": b_down}):
        exact = reference.mlp(x, gate, up, down, activation=activation, **biases)
        result = mlp.mlp(x, gate, up, down, activation=activation, **biases)
        assert result.dtype == dtype
        scale = np.abs(exact).max()
        close((result / scale).astype(dtype), exact / scale)
    biases = {"b_up": b_up, "b_down": b_down}
    exact = reference.mlp(x, None, up, down, activation=activation, **biases)
    scale = np.abs(exact).max()
    out = np.empty(exact.shape, dtype)
    assert mlp.mlp(x, None, up, down, activation=activation, out=out, **biases) is out
    close((out / scale).astype(dtype), exact / scale)


@pytest.mark.parametrize("depth", [65, 128, 260, 1000])
def test_a_sum_may_be_split_over_blocks(normal, close, depth, monkeypatch):
    a, b, bias = normal(2, 1, 3, depth), normal(2, 1, depth, 20) * np.float32(depth**-0.5), normal(1, 20)
    launches = []
    with targets.using("python"):
        target = targets.current_target()
        monkeypatch.setattr(target, "parallelism", 8)
        monkeypatch.setattr(
            target, "launch", lambda kernel, *args, run=target.launch: launches.append(kernel) or run(kernel, *args)
        )
        out = np.full((2, 1, 3, 20), np.nan, np.float32)
        launch_matmul(*map(view_of, (a, b, bias, out)), "relu", None, a.shape[2])
    assert [kernel.__name__ for kernel in launches] == (["matmul", "sum_splits"] if depth >= 128 else ["matmul"])
    close(out, reference.matmul(a, b, bias=bias[0], activation="relu"))


@pytest.mark.parametrize("shape", [(2, 3, 512), (4, 1, 512), (2, 2, 1, 2, 512)])
@pytest.mark.parametrize("name", ["matmul", "linear", "mlp", "quantized_linear"])
def test_a_product_is_the_same_wherever_it_is_written(name, shape, normal, monkeypatch):
    x, matrices, weights, hidden = normal(*shape), normal(*shape[:-2], 512, 20), normal(20, 512), normal(600, 512)
    blocks, down = quantized.quantize(weights, "q8_0"), normal(20, 600)
    call = {
        "matmul": lambda out: linear.matmul(x, matrices, out=out),
        "linear": lambda out: linear.linear(x, weights, out=out),
        "mlp": lambda out: mlp.mlp(x, hidden, hidden, down, out=out),
        "quantized_linear": lambda out: quantized.quantized_linear(x, blocks, "q8_0", out=out),
    }[name]
    variants, results = [], []
    with targets.using("python"):
        target = targets.current_target()
        run = target.launch

        def launch(kernel, cfg, grid, args):
            variants[-1].add((kernel.__name__, cfg, args[-1] if kernel is matmul else None))
            run(kernel, cfg, grid, args)

        monkeypatch.setattr(target, "parallelism", 8)
        monkeypatch.setattr(target, "launch", launch)
        for axis in (None, *range(len(shape))):
            out = np.full((*shape[:-1], 20), np.nan, np.float32)
            variants.append(set())
            results.append(call(out if axis is None else np.flip(out, axis)))
    for variant, result in zip(variants, results, strict=True):
        assert variant == variants[0], "the same kernels, blocks and parts of K"
        assert result.tobytes() == results[0].tobytes()
