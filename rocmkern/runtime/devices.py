"""From what a user writes as ``device=`` to the device object of this process."""

from __future__ import annotations

import functools

from rocmkern.runtime.device import Device
from rocmkern.runtime.errors import ArgumentError
from rocmkern.runtime.host import HostDevice


@functools.cache
def host_device() -> HostDevice:
    """Return the host's memory; one object per process."""
    return HostDevice()


def open_device(device: Device | str | None = None) -> Device:
    """Return the device object for a ``device=`` argument.

    Parameters
    ----------
    device : Device, "host" or None
        A device, which is returned as it is, or the host's memory (also for None).

    Raises
    ------
    ArgumentError
        For anything else.
    """
    if isinstance(device, Device):
        return device
    if device is None or device == "host":
        return host_device()
    raise ArgumentError("device", repr(device), "a Device, 'host' or None (host memory)")
