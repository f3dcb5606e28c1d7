"""Fixtures of the runtime tests."""

from __future__ import annotations

import pytest
from fake_device import FakeClock, FakeDevice

from rocmkern.runtime.host import HostDevice
from rocmkern.runtime.manager import ResourceManager
from rocmkern.runtime.settings import MemorySettings


@pytest.fixture(autouse=True)
def _no_settings_from_outside(monkeypatch):
    for name in ("ROCMKERN_MEMORY", "ROCMKERN_DEVICE", "ROCMKERN_NO_GPU", "ROCMKERN_CACHE_DIR"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def fake():
    """A fake GPU of 1 GiB."""
    return FakeDevice()


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def fake_manager(fake, clock):
    """A manager on the fake GPU whose deadline runs on the fake clock."""
    return ResourceManager(fake, settings=MemorySettings(), clock=clock, sleep=clock.sleep)


@pytest.fixture(params=["host", "fake GPU"])
def manager(request):
    """A manager on host memory and one on a device whose memory the CPU may not touch."""
    device = HostDevice() if request.param == "host" else FakeDevice()
    with ResourceManager(device, settings=MemorySettings()) as manager:
        yield manager
