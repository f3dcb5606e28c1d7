"""The float64 gradient of embedding against differences, and against PyTorch's."""

from __future__ import annotations

import finite_differences
import numpy as np
import pytest

from rocmkern import reference

INDICES = np.array([[4, 0, 4], [1, 4, 0]])


def arrays():
    generator = np.random.default_rng(0)
    return generator.standard_normal((2, 3, 5)), generator.standard_normal((6, 5))


def test_embedding():
    dout, table = arrays()
    gradient = reference.embedding_backward(dout, table, INDICES)
    finite_differences.agree(gradient, lambda table: reference.embedding(table, INDICES), (table,), dout)


def test_embedding_of_pytorch():
    torch = pytest.importorskip("torch", reason="PyTorch is the oracle that is not ours (pip install torch)")
    dout, table = arrays()
    leaf = torch.from_numpy(table).requires_grad_()
    result = torch.nn.functional.embedding(torch.from_numpy(INDICES), leaf)
    (theirs,) = torch.autograd.grad(result, leaf, torch.from_numpy(dout))
    np.testing.assert_allclose(reference.embedding_backward(dout, table, INDICES), theirs.numpy(), rtol=1e-14)
