"""The float64 gradients of the norms against differences, and against PyTorch's."""

from __future__ import annotations

import finite_differences
import numpy as np
import pytest

from rocmkern import reference


@pytest.fixture
def normal():
    generator = np.random.default_rng(0)
    return lambda *shape: generator.standard_normal(shape)


@pytest.mark.parametrize("eps", [1e-6, 0.5])
def test_rms_norm(normal, eps):
    dout, x, added, weight = normal(2, 3, 5), normal(2, 3, 5), normal(2, 3, 5), normal(5)
    gradients = reference.rms_norm_backward(dout, x, weight, eps, weight_offset=1.0)
    finite_differences.agree(
        gradients, lambda x, weight: reference.rms_norm(x, weight, eps, weight_offset=1.0), (x, weight), dout
    )
    with_sum = reference.rms_norm_backward(dout, x, weight, eps, weight_offset=1.0, dresidual=added)
    np.testing.assert_allclose(with_sum[0], gradients[0] + added)


@pytest.mark.parametrize("eps", [1e-5, 0.5])
def test_layer_norm(normal, eps):
    dout, x, weight, bias = normal(2, 3, 5), normal(2, 3, 5), normal(5), normal(5)
    finite_differences.agree(
        reference.layer_norm_backward(dout, x, weight, bias, eps),
        lambda *inputs: reference.layer_norm(*inputs, eps),
        (x, weight, bias),
        dout,
    )
    finite_differences.agree(
        reference.layer_norm_backward(dout, x, eps=eps), lambda x: reference.layer_norm(x, eps=eps), (x,), dout
    )
    finite_differences.agree(
        reference.layer_norm_backward(dout, x, None, bias, eps),
        lambda x, bias: reference.layer_norm(x, None, bias, eps),
        (x, bias),
        dout,
    )


def test_a_row_without_a_slope_has_a_gradient_of_zeros():
    dout, weight = np.ones((2, 4)), np.ones(4)
    assert (reference.rms_norm_backward(dout, np.zeros((2, 4)), weight, 0.0)[0] == 0).all()
    assert (reference.layer_norm_backward(dout, np.full((2, 4), 3.0), weight, eps=0.0)[0] == 0).all()


def test_they_are_those_of_pytorch(normal):
    torch = pytest.importorskip("torch", reason="PyTorch is the oracle that is not ours (pip install torch)")
    arrays = normal(3, 65), normal(3, 65), normal(65), normal(65)
    dout, *inputs = (torch.from_numpy(x).requires_grad_() for x in arrays)
    x, weight, bias = inputs
    for result, wanted, ours in (
        (torch.nn.functional.rms_norm(x, (65,), weight, 1e-6), (x, weight), reference.rms_norm_backward(*arrays[:3])),
        (torch.nn.functional.layer_norm(x, (65,), weight, bias), inputs, reference.layer_norm_backward(*arrays)),
    ):
        for mine, other in zip(ours, torch.autograd.grad(result, wanted, dout), strict=True):
            np.testing.assert_allclose(mine, other.detach().numpy(), rtol=1e-12, atol=1e-12)
