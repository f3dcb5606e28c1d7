"""What the tests of the operations share."""

from __future__ import annotations

import sys

import canonical_launch
import ml_dtypes
import numpy as np
import pytest

from rocmkern import targets
from rocmkern.ops import _arrays

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)


@pytest.fixture(params=["reference", "kernels"])
def launch(request, monkeypatch):
    """Launches go to the reference, then to the kernels as plain Python."""
    if request.param == "reference":
        for family in ("attention", "steps", "norm", "activations", "gather", "linear", "rotary", "quantized"):
            monkeypatch.setitem(sys.modules, f"rocmkern.ops._launch_{family}", canonical_launch)
        yield
    else:
        with targets.using("python"):
            yield


@pytest.fixture(autouse=True)
def poisoned():
    """New results are NaN until an operation writes them."""
    with _arrays.poison_outputs():
        yield


@pytest.fixture
def normal():
    """Normal deviates: ``normal(2, 3, dtype=np.float16)``, different at every call."""
    generator = np.random.default_rng(0)
    return lambda *shape, dtype=np.float32: generator.standard_normal(shape).astype(dtype)


@pytest.fixture
def close():
    """Assert that a result is the exact one up to some rounding errors of its dtype."""

    def check(result, exact, dtype=None):
        dtype = np.dtype(dtype or result.dtype)
        result = np.asarray(result, np.float64)
        assert result.shape == exact.shape
        bound = 8 * float(ml_dtypes.finfo(dtype).eps)
        assert np.array_equal(np.isfinite(result), np.isfinite(exact))
        assert np.allclose(result, exact, rtol=bound, atol=bound, equal_nan=True)

    return check
