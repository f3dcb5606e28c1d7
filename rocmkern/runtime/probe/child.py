"""The first look at a driver, run as a program in a child process: prints the devices as one line of JSON.

A driver that aborts or hangs takes only this process. It is run by its path, and imports nothing of this package.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any


def _check(result: tuple[Any, ...]) -> Any:
    """Return what a driver binding returned besides its status; raise if the status is an error."""
    status, *values = result
    if int(status) != 0:
        raise RuntimeError(str(status))
    return values[0] if len(values) == 1 else values


def _text(value: Any) -> str:
    raw = value if isinstance(value, bytes) else str(value).encode()
    return raw.partition(b"\0")[0].decode(errors="replace")


def hip_devices() -> list[dict[str, Any]]:
    """Return the properties of the devices that the HIP runtime sees."""
    # deferred: optional dependency
    from rocm.bindings import hip

    devices = []
    for index in range(_check(hip.hipGetDeviceCount())):
        properties = _check(hip.hipGetDeviceProperties(index))
        location = (properties.pciDomainID, properties.pciBusID, properties.pciDeviceID)
        devices.append(
            {
                "kind": "hip",
                "index": index,
                "name": _text(properties.name),
                "pci_id": "{:04x}:{:02x}:{:02x}.0".format(*location),
                "integrated": bool(properties.integrated),
                "total": int(properties.totalGlobalMem),
                # Without the features, as in "gfx90a:sramecc+:xnack-".
                "arch": _text(properties.gcnArchName).partition(":")[0],
            }
        )
    return devices


def cuda_devices() -> list[dict[str, Any]]:
    """Return the properties of the devices that the CUDA driver sees."""
    # deferred: optional dependency
    from cuda.bindings import driver

    _check(driver.cuInit(0))
    names = driver.CUdevice_attribute
    prefix = "CU_DEVICE_ATTRIBUTE_"
    devices = []
    for index in range(_check(driver.cuDeviceGetCount())):
        device = _check(driver.cuDeviceGet(index))
        attribute = {
            key: _check(driver.cuDeviceGetAttribute(getattr(names, prefix + key), device))
            for key in (
                "PCI_DOMAIN_ID",
                "PCI_BUS_ID",
                "PCI_DEVICE_ID",
                "INTEGRATED",
                "COMPUTE_CAPABILITY_MAJOR",
                "COMPUTE_CAPABILITY_MINOR",
            )
        }
        location = (attribute["PCI_DOMAIN_ID"], attribute["PCI_BUS_ID"], attribute["PCI_DEVICE_ID"])
        devices.append(
            {
                "kind": "cuda",
                "index": index,
                "name": _text(_check(driver.cuDeviceGetName(128, device))),
                "pci_id": "{:04x}:{:02x}:{:02x}.0".format(*location),
                "integrated": bool(attribute["INTEGRATED"]),
                "total": int(_check(driver.cuDeviceTotalMem(device))),
                "arch": "sm_{COMPUTE_CAPABILITY_MAJOR}{COMPUTE_CAPABILITY_MINOR}".format(**attribute),
            }
        )
    return devices


if __name__ == "__main__":
    # Python put this file's directory first: its module names must not shadow anybody's.
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry) != os.path.dirname(os.path.abspath(__file__))]
    print(json.dumps({"hip": hip_devices, "cuda": cuda_devices}[sys.argv[1]]()))
