"""The float64 gradients of products and of the MLP against differences, and against PyTorch's."""

from __future__ import annotations

import finite_differences
import numpy as np
import pytest

from rocmkern import reference

ACTIVATIONS = [None, "silu", "gelu", "gelu_tanh", "relu"]


def normal(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_gradients_of_a_linear_layer(activation):
    inputs = normal(2, 3, 4), normal(5, 4, seed=1), normal(5, seed=2)
    dout = normal(2, 3, 5, seed=3)

    def function(x, weight, bias):
        return reference.linear(x, weight, bias, activation)

    gradients = reference.linear_backward(dout, *inputs, activation)
    finite_differences.agree(gradients, function, inputs, dout)
    assert np.array_equal(reference.linear_backward(dout, *inputs, activation, needs=("weight",)), gradients[1])


@pytest.mark.parametrize(
    ("a", "b", "transpose_b"),
    [((3, 4), (4, 2), False), ((4,), (2, 4, 3), False), ((2, 3, 4), (4,), False), ((4,), (4,), False),
     ((2, 1, 3, 4), (3, 2, 4), True), ((1, 3, 4), (2, 4, 2), False)],
)  # fmt: skip
def test_gradients_of_a_product(a, b, transpose_b):
    inputs = normal(*a), normal(*b, seed=1)
    options = {"transpose_b": transpose_b, "activation": "silu"}
    dout = normal(*reference.matmul(*inputs, **options).shape, seed=2)
    gradients = reference.matmul_backward(np.asarray(dout), *inputs, **options)
    finite_differences.agree(gradients, lambda a, b: reference.matmul(a, b, **options), inputs, dout)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_they_are_those_of_pytorch(activation):
    torch = pytest.importorskip("torch", reason="PyTorch is the oracle that is not ours (pip install torch)")
    functional = torch.nn.functional
    act = {
        None: lambda v: v,
        "silu": functional.silu,
        "gelu": functional.gelu,
        "gelu_tanh": lambda v: functional.gelu(v, approximate="tanh"),
        "relu": functional.relu,
    }[activation]
    inputs, dout = (normal(2, 3, 4), normal(5, 4, seed=1), normal(5, seed=2)), normal(2, 3, 5, seed=3)
    tensors = [torch.from_numpy(x).requires_grad_() for x in inputs]
    theirs = torch.autograd.grad(act(functional.linear(*tensors)), tensors, torch.from_numpy(dout))
    for mine, other in zip(reference.linear_backward(dout, *inputs, activation), theirs, strict=True):
        np.testing.assert_allclose(mine, other.numpy(), rtol=1e-12, atol=1e-12)
