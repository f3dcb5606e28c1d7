"""What the tests of the operations share."""

from __future__ import annotations

import sys

import canonical_launch
import ml_dtypes
import numpy as np
import pytest
from stand_in_gpu import FakeDevice, StandInTarget

from rocmkern import targets
from rocmkern.calls import launch as _launch
from rocmkern.calls import plan as _plan
from rocmkern.calls import results as _results
from rocmkern.ops import places
from rocmkern.runtime.manager import ResourceManager
from rocmkern.runtime.settings import MemorySettings

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)


@pytest.fixture(params=["reference", "kernels"])
def launch(request, monkeypatch):
    """Launches go to the reference, then to the kernels as plain Python."""
    if request.param == "reference":
        for name in places.modules("launch"):
            monkeypatch.setitem(sys.modules, name, canonical_launch)
        yield
    else:
        with targets.using("python"):
            yield


@pytest.fixture(autouse=True)
def poisoned():
    """New results are NaN until an operation writes them."""
    with _results.poison_outputs():
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


@pytest.fixture
def held(monkeypatch):
    """Bytes that a manager holds behind each of its allocations, from now on."""
    found, empty = [], ResourceManager.empty

    def counting(self, *args, **kwargs):
        made = empty(self, *args, **kwargs)
        found.append(self.memory_stats().held)
        return made

    monkeypatch.setattr(ResourceManager, "empty", counting)
    return found


@pytest.fixture
def no_plans():
    """No plans of other tests."""
    for plans in _plan._all_plans:
        plans.forget()


@pytest.fixture
def device():
    """A GPU of host memory; a module may have another one."""
    return FakeDevice()


@pytest.fixture
def gpu(device, monkeypatch):
    """The target of that GPU."""
    target = StandInTarget(device)
    monkeypatch.setattr(_launch, "target_of", lambda place: target)
    return target


@pytest.fixture
def manager(device):
    """A manager on that GPU; what the test leaves behind is an error."""
    with ResourceManager(device, settings=MemorySettings()) as manager:
        yield manager
        manager.assert_no_leak()
