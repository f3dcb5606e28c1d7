"""The float64 cross-entropy of a linear layer by hand, its gradients against differences, and PyTorch's of both."""

from __future__ import annotations

import finite_differences
import numpy as np
import pytest

from rocmkern import reference

OPTIONS = [
    {},
    {"reduction": "sum", "label_smoothing": 0.3},
    {"reduction": "none", "z_loss": 0.1},
    {"softcap": 0.7, "label_smoothing": 0.1, "z_loss": 0.2},
]


def arrays(seed=0):
    rng = np.random.default_rng(seed)
    target = np.array([[4, -100, 0], [6, 2, 2]])
    return rng.standard_normal((2, 3, 4)), rng.standard_normal((7, 4)), rng.standard_normal(7), target


def test_by_hand():
    x, weight = np.array([[1.0]]), np.log(np.array([[1.0], [2.0], [5.0]]))
    loss, lse = reference.linear_cross_entropy(x, weight, np.array([1]))
    assert np.isclose(loss, np.log(8 / 2)) and np.isclose(lse, np.log(8))
    smooth, _ = reference.linear_cross_entropy(x, weight, np.array([1]), label_smoothing=0.3)
    assert np.isclose(smooth, np.log(8) - 0.7 * np.log(2) - 0.1 * np.log(10))
    squared, _ = reference.linear_cross_entropy(x, weight, np.array([1]), z_loss=0.5)
    assert np.isclose(squared, np.log(4) + 0.5 * np.log(8) ** 2)
    assert np.isnan(reference.linear_cross_entropy(x, weight, np.array([-100]))[0])


@pytest.mark.parametrize("options", OPTIONS)
def test_gradients_are_differences(options):
    *inputs, target = arrays()

    def function(x, weight, bias):
        return reference.linear_cross_entropy(x, weight, target, bias=bias, **options)[0]

    loss, lse = reference.linear_cross_entropy(*inputs[:2], target, bias=inputs[2], **options)
    dloss = np.asarray(np.random.default_rng(1).standard_normal(loss.shape))
    gradients = reference.linear_cross_entropy_backward(dloss, *inputs[:2], target, lse, bias=inputs[2], **options)
    finite_differences.agree(gradients, function, inputs, dloss)


@pytest.mark.parametrize("options", OPTIONS[:2])
def test_they_are_those_of_pytorch(options):
    torch = pytest.importorskip("torch", reason="PyTorch is the oracle that is not ours (pip install torch)")
    functional = torch.nn.functional
    *inputs, target = arrays()
    tensors = [torch.from_numpy(x).requires_grad_() for x in inputs]
    theirs = functional.cross_entropy(
        functional.linear(*tensors).flatten(0, 1), torch.from_numpy(target).flatten(), **options
    )
    loss, lse = reference.linear_cross_entropy(*inputs[:2], target, bias=inputs[2], **options)
    np.testing.assert_allclose(loss, theirs.item(), rtol=1e-12)
    gradients = reference.linear_cross_entropy_backward(
        np.ones(()), *inputs[:2], target, lse, bias=inputs[2], **options
    )
    for mine, other in zip(gradients, torch.autograd.grad(theirs, tensors), strict=True):
        np.testing.assert_allclose(mine, other.numpy(), rtol=1e-11, atol=1e-13)
