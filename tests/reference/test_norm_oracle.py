"""The float64 references of norms, gated activations, embedding and transpose against PyTorch's float64."""

from __future__ import annotations

import numpy as np
import pytest

from rocmkern import reference

torch = pytest.importorskip("torch", reason="PyTorch is the oracle that is not ours (pip install torch)")
functional = torch.nn.functional


@pytest.fixture
def normal():
    generator = np.random.default_rng(0)
    return lambda *shape: generator.standard_normal(shape)


def same(ours, theirs):
    np.testing.assert_allclose(ours, theirs.numpy(), rtol=1e-12, atol=1e-13)


def tensors(*arrays):
    return [torch.from_numpy(x) for x in arrays]


@pytest.mark.parametrize("eps", [1e-6, 0.5])
def test_rms_norm(normal, eps):
    x, residual, weight = normal(3, 65), normal(3, 65), normal(65)
    a, b, w = tensors(x, residual, weight)
    same(reference.rms_norm(x, weight, eps), functional.rms_norm(a, (65,), w, eps))
    same(reference.rms_norm(x, weight, eps, weight_offset=1.0), functional.rms_norm(a, (65,), w + 1, eps))
    result, total = reference.rms_norm(x, weight, eps, residual=residual)
    same(result, functional.rms_norm(a + b, (65,), w, eps))
    same(total, a + b)


def test_the_norm_of_a_sum_is_that_of_the_rounded_sum(normal):
    x, residual, weight = (normal(*shape).astype(np.float16) for shape in ((3, 65), (3, 65), (65,)))
    result, total = reference.rms_norm(x, weight, residual=residual)
    a, b, w = tensors(x, residual, weight)
    same(total, (a + b).double())
    same(result, functional.rms_norm((a + b).double(), (65,), w.double(), 1e-6))


@pytest.mark.parametrize("eps", [1e-5, 0.5])
def test_layer_norm(normal, eps):
    x, weight, bias = normal(3, 65), normal(65), normal(65)
    a, w, b = tensors(x, weight, bias)
    same(reference.layer_norm(x, weight, bias, eps), functional.layer_norm(a, (65,), w, b, eps))
    same(reference.layer_norm(x, None, bias, eps), functional.layer_norm(a, (65,), None, b, eps))
    same(reference.layer_norm(x, eps=eps), functional.layer_norm(a, (65,), eps=eps))


def test_gated_activations(normal):
    gate, up = 10 * normal(3, 65), normal(3, 65)
    a, b = tensors(gate, up)
    same(reference.swiglu(gate, up), functional.silu(a) * b)
    same(reference.swiglu(gate, up, order="up_gate"), functional.silu(b) * a)
    same(reference.swiglu(np.concatenate([gate, up], -1)), functional.silu(a) * b)
    same(reference.geglu(gate, up), functional.gelu(a) * b)
    same(reference.geglu(gate, up, approximate="tanh"), functional.gelu(a, approximate="tanh") * b)


def test_embedding_and_transpose(normal):
    table, indices, x = normal(7, 5), np.array([[6, 0], [3, 3]]), normal(2, 3, 4)
    same(reference.embedding(table, indices), functional.embedding(*tensors(indices, table)))
    same(reference.transpose(x, (2, 0, 1)), torch.from_numpy(x).permute(2, 0, 1))
    same(reference.add_residual(x, x), torch.from_numpy(x) * 2)
