"""Devices, memory and waiting. The names are loaded when they are first used, so that importing this costs nothing."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rocmkern.runtime.allocator import MemoryStats
    from rocmkern.runtime.choice import choose_device
    from rocmkern.runtime.device import Device, DeviceInfo
    from rocmkern.runtime.lock import device_lock
    from rocmkern.runtime.manager import DeviceTensor, ResourceManager, default_manager
    from rocmkern.runtime.probe.status import GpuStatus, gpu_available, gpu_status, require_gpu
    from rocmkern.runtime.settings import MemorySettings

_MODULES = {
    "Device": "device",
    "DeviceInfo": "device",
    "DeviceTensor": "manager",
    "GpuStatus": "probe.status",
    "MemorySettings": "settings",
    "MemoryStats": "allocator",
    "ResourceManager": "manager",
    "choose_device": "choice",
    "default_manager": "manager",
    "device_lock": "lock",
    "gpu_available": "probe.status",
    "gpu_status": "probe.status",
    "require_gpu": "probe.status",
}

__all__ = [
    "Device",
    "DeviceInfo",
    "DeviceTensor",
    "GpuStatus",
    "MemorySettings",
    "MemoryStats",
    "ResourceManager",
    "choose_device",
    "default_manager",
    "device_lock",
    "gpu_available",
    "gpu_status",
    "require_gpu",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(__all__))
