"""The float64 gradients of softmax and rope against differences, and against PyTorch's."""

from __future__ import annotations

import finite_differences
import numpy as np
import pytest

from rocmkern import reference

YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4096}


@pytest.fixture
def normal():
    generator = np.random.default_rng(0)
    return lambda *shape: generator.standard_normal(shape)


@pytest.mark.parametrize("scale", [1.0, 0.125])
def test_softmax(normal, scale):
    dout, x = normal(2, 3, 5), normal(2, 3, 5)
    gradient = reference.softmax_backward(dout, reference.softmax(scale * x), scale=scale)
    finite_differences.agree(gradient, lambda x: reference.softmax(scale * x), (x,), dout)


def test_softmax_of_pytorch(normal):
    torch = pytest.importorskip("torch", reason="PyTorch is the oracle that is not ours (pip install torch)")
    dout, x = normal(3, 65), torch.from_numpy(normal(3, 65)).requires_grad_()
    y = torch.softmax(x, -1)
    (theirs,) = torch.autograd.grad(y, x, torch.from_numpy(dout))
    np.testing.assert_allclose(reference.softmax_backward(dout, y.detach().numpy()), theirs.numpy(), atol=1e-13)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"variant": "interleaved"},
        {"rotary_dim": 4},
        {"scaling": YARN},
        {"scaling": YARN, "inverse": True, "rotary_dim": 4},
        {"freq_factors": np.array([1.0, 2.0, 3.0, 4.0])},
        {"block_positions": np.array([7, 0, 3]), "scaling": YARN},
        {"layout": "hsd"},
    ],
    ids=str,
)
def test_rope(normal, options):
    dout, x, positions = normal(3, 3, 8), normal(3, 3, 8), np.array([5, 0, 4095])
    gradient = reference.rope_backward(dout, positions, **options)
    finite_differences.agree(gradient, lambda x: reference.rope(x, positions, **options), (x,), dout)
