"""Arrays of the libraries that flash-attn's functions are tried with."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)


class NumPyArrays:
    """Arrays as they are."""

    @staticmethod
    def bring(x):
        return x

    @staticmethod
    def numbers(x):
        assert isinstance(x, np.ndarray)
        return x.astype(np.float64)


class TorchTensors:
    """CPU tensors over the same memory."""

    def __init__(self):
        self.torch = pytest.importorskip("torch", reason="tensors of PyTorch")

    def bring(self, x):
        if not isinstance(x, np.ndarray):
            return x
        if x.dtype == BFLOAT16:
            return self.torch.from_numpy(x.view(np.int16)).view(self.torch.bfloat16)
        return self.torch.from_numpy(x)

    def numbers(self, x):
        assert isinstance(x, self.torch.Tensor)
        return x.double().numpy()


@pytest.fixture(params=["numpy", "torch"])
def library(request):
    return NumPyArrays() if request.param == "numpy" else TorchTensors()


@pytest.fixture
def normal():
    rng = np.random.default_rng(0)
    return lambda *shape: rng.standard_normal(shape, dtype=np.float32)
