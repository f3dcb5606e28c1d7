"""Fixtures of the tests on a GPU: an AMD or NVIDIA card, or a virtual one that is loaded into this process."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

from rocmkern.runtime.choice import choose_device
from rocmkern.runtime.devices import gpu_devices, open_device
from rocmkern.runtime.errors import RocmkernError
from rocmkern.runtime.lock import device_lock
from rocmkern.runtime.manager import ResourceManager
from rocmkern.runtime.memory import DeviceMemory
from rocmkern.runtime.settings import MemorySettings

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session", autouse=True)
def _answers_of_this_run(tmp_path_factory):
    """Probe answers of these tests do not stay on the machine: a virtual card may be another one next time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ROCMKERN_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        for name in ("ROCMKERN_MEMORY", "ROCMKERN_DEVICE", "ROCMKERN_NO_GPU"):
            patch.delenv(name, raising=False)
        yield


@pytest.fixture(scope="session")
def device(_answers_of_this_run):
    """The GPU of these tests."""
    reasons = []
    for kind in ("hip", "cuda"):
        try:
            info = choose_device(gpu_devices(kind))
            # A context takes memory, which a test in another process would miss.
            with device_lock(info):
                return open_device(info)
        except RocmkernError as error:
            reasons.append(f"{kind}: {str(error).splitlines()[0]}")
    pytest.skip("no GPU: " + "; ".join(reasons))


@pytest.fixture(autouse=True)
def turn(device):
    """One test at a time on the GPU, whichever process it is in: they share what the driver says is free."""
    with device_lock(device.info):
        memory, free = DeviceMemory.of(device), device.memory_info().free.value
        # What other processes have taken since the device was opened is no leak of this one.
        memory.baseline = None if free is None else free + memory.reserved
        yield


def _virtual():
    module = sys.modules.get("vgpu")
    return module if module is not None and module.lib is not None else None


@pytest.fixture
def vgpu(device):
    """The virtual AMD GPU of this process: failures on demand, a list of what lives, counts of driver calls."""
    module = _virtual()
    if module is None:
        pytest.skip("driver failures on demand need the virtual AMD GPU (module vgpu)")
    yield module
    module.clear_failures()
    module.config(ASYNC=0, OTHER_BYTES=0)
    assert module.problems() == []


@pytest.fixture(autouse=True)
def _never_the_whole_device():
    """No test makes the runtime wait for a whole device or reset it."""
    module = _virtual()
    if module is None:
        yield
        return
    with module.expect(hipDeviceSynchronize=0, hipDeviceReset=0, hipDevicePrimaryCtxReset=0, hipCtxSynchronize=0):
        yield


@pytest.fixture
def manager(device):
    """A manager on the GPU; what the test leaves behind is an error."""
    with ResourceManager(device, settings=MemorySettings()) as manager:
        yield manager
        manager.assert_no_leak()


@pytest.fixture(scope="session")
def numba_gpu(device):
    """numba.hip or numba.cuda."""
    if device.kind == "hip":
        from numba import hip

        return hip
    from numba import cuda

    return cuda


@pytest.fixture(scope="session")
def add_one(numba_gpu):
    """A kernel of numba's own: adds 1 to every element."""

    @numba_gpu.jit
    def add_one(x):
        i = numba_gpu.grid(1)
        if i < x.size:
            x[i] += 1

    try:
        add_one[1, 32](numba_gpu.to_device(np.zeros(1, np.float32)))  # device call: an array of Numba's own
    except RuntimeError as error:
        if "no compiler for HIP" not in str(error):
            raise
        pytest.skip(str(error))  # the virtual GPU as pip sets it up
    return add_one


@pytest.fixture
def fresh_process(device, tmp_path):
    """Run Python code in a process of its own with further environment variables; returns its output."""

    def run(code: str, **environment: str) -> str:
        paths = os.pathsep.join(
            filter(None, [environment.pop("PYTHONPATH", ""), str(ROOT), os.environ.get("PYTHONPATH")])
        )
        everything = {**os.environ, "ROCMKERN_CACHE_DIR": str(tmp_path / "cache"), **environment, "PYTHONPATH": paths}
        done = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, env=everything, timeout=120
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


@pytest.fixture
def patched(monkeypatch):
    """Set attributes for a block."""

    @contextlib.contextmanager
    def patch(target, **values):
        with monkeypatch.context() as here:
            for name, value in values.items():
                here.setattr(target, name, value)
            yield

    return patch
