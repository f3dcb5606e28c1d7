"""The float64 gradients of the gated activations against differences, and against PyTorch's."""

from __future__ import annotations

import finite_differences
import numpy as np
import pytest

from rocmkern import reference

CALLS = [
    ("swiglu", {}),
    ("swiglu", {"order": "up_gate"}),
    ("geglu", {}),
    ("geglu", {"approximate": "tanh"}),
]


@pytest.mark.parametrize(("name", "options"), CALLS)
def test_they_are_the_slopes_of_the_operations(name, options):
    dout, gate, up = 3 * np.random.default_rng(0).standard_normal((3, 2, 5))
    forward, backward = (getattr(reference, each) for each in (name, name + "_backward"))

    def function(*inputs):
        return forward(*inputs, **options)

    gradients = backward(dout, gate, up, **options)
    finite_differences.agree(gradients, function, (gate, up), dout)
    packed = np.concatenate([gate, up], axis=-1)
    np.testing.assert_array_equal(backward(dout, packed, **options), np.concatenate(gradients, axis=-1))


@pytest.mark.parametrize(("name", "options"), CALLS)
def test_slopes_at_infinity_are_limits(name, options):
    gate, ones = np.array([np.inf, -np.inf, 1e300, -1e300, 0.0]), np.ones(5)
    arrays = (ones, gate) if options.get("order") == "up_gate" else (gate, ones)
    gradients = getattr(reference, name + "_backward")(ones, *arrays, **options)
    slope = gradients[1] if options.get("order") == "up_gate" else gradients[0]
    np.testing.assert_allclose(slope, [1, 0, 1, 0, 0.5], atol=1e-250)


@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_they_are_those_of_pytorch(approximate):
    torch = pytest.importorskip("torch", reason="PyTorch is the oracle that is not ours (pip install torch)")
    dout, gate, up = torch.from_numpy(5 * np.random.default_rng(1).standard_normal((3, 4, 33)))
    gate.requires_grad_(), up.requires_grad_()
    for result, ours in (
        (torch.nn.functional.silu(gate) * up, reference.swiglu_backward),
        (
            torch.nn.functional.gelu(gate, approximate=approximate) * up,
            lambda *inputs: reference.geglu_backward(*inputs, approximate=approximate),
        ),
    ):
        theirs = torch.autograd.grad(result, (gate, up), dout)
        for mine, other in zip(ours(*(x.detach().numpy() for x in (dout, gate, up))), theirs, strict=True):
            np.testing.assert_allclose(mine, other.numpy(), rtol=1e-12, atol=1e-12)
