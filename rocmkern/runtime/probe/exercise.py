"""A device fills memory and copies it to the host: whether it answers. Run in a process of its own, which may hang."""

from __future__ import annotations

import json

import numpy as np

from rocmkern.runtime.device import DeviceInfo
from rocmkern.runtime.devices import make_device
from rocmkern.runtime.errors import DeviceUnavailableError
from rocmkern.runtime.waiting import poll

_BYTES = 1 << 20
_PATTERN = 0x5A


def fill_and_copy(info: DeviceInfo, deadline_s: float) -> None:
    """Fill memory of a device, copy it to the host and compare, with a deadline."""
    device = make_device(info)
    stream, address, found = device.create_stream(), device.allocate(_BYTES), np.zeros(_BYTES, np.uint8)
    device.fill(address, _BYTES, _PATTERN, stream)
    device.copy_to_host(found.ctypes.data, address, _BYTES, stream)
    event = device.record(stream)
    poll(lambda: device.query(event), lambda: "filling and copying memory", deadline_s)
    if not (found == _PATTERN).all():
        raise DeviceUnavailableError(f"{info} copied something else than it was filled with")
    device.free(address)


def main(device: str, deadline_s: str) -> None:
    """What the child process of `rocmkern.runtime.probe.suspect.exercise` runs: a `DeviceInfo` as JSON, and seconds."""
    fill_and_copy(DeviceInfo(**json.loads(device)), float(deadline_s))
