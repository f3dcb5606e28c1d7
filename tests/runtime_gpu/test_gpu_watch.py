"""What a case does to a GPU past its lock or its ledger is seen at a real driver's binding."""

from __future__ import annotations

import numpy as np
import pytest

from rocmkern.matrix import CaseFailure
from rocmkern.runtime.lock import device_lock
from rocmkern.testing.watch import DeviceWatch


@pytest.fixture
def turn():
    """These tests take the lock themselves, or see what is done without it."""


@pytest.fixture
def locked(device, tmp_path):
    with device_lock(device.info, directory=tmp_path):
        yield


def test_the_runtime_under_the_lock_is_sound(manager, device, locked):
    with DeviceWatch(device), manager.from_numpy(np.arange(1000.0)) as tensor:
        assert tensor.to_numpy()[7] == 7


def test_a_use_without_the_lock_is_found(manager, device):
    words = r"a GPU was used without its lock:\n.*MainThread.*test_gpu_watch"
    with pytest.raises(CaseFailure, match=words), DeviceWatch(device):
        manager.zeros(10)


def test_an_allocation_by_numba_is_found(manager, device, locked, numba_gpu):
    numba_gpu.current_context()
    with pytest.raises(CaseFailure, match="device memory that no ledger knows") as caught, DeviceWatch(device):
        numba_gpu.to_device(np.zeros(1000))  # device call: what a case must not do
    assert caught.value.check == "ledger" and "memalloc at " in str(caught.value)
    assert "test_gpu_watch.py:" in str(caught.value)


def test_an_allocation_by_the_binding_is_found(vgpu, device, locked):
    from rocm.bindings import hip

    words = r"no ledger knows:\n  hipMalloc at .*test_gpu_watch"
    with device.current():
        with pytest.raises(CaseFailure, match=words), DeviceWatch(device):
            _, address = hip.hipMalloc(1000)  # device call: what a case must not do
        hip.hipFree(address)  # device call: what a case must not do


def test_memory_that_only_the_driver_knows_of_is_missed(vgpu, manager, device, locked):
    total = manager.memory_stats().total
    with DeviceWatch(device):
        vgpu.config(OTHER_BYTES=total // 100)
    vgpu.config(OTHER_BYTES=0)
    with pytest.raises(CaseFailure, match="are missing that no ledger knows"), DeviceWatch(device):
        vgpu.config(OTHER_BYTES=total // 10)
    vgpu.config(OTHER_BYTES=0)
