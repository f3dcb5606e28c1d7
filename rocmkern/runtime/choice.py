"""Which of several devices to use: by what they are, never by their number."""

from __future__ import annotations

from collections.abc import Sequence

from rocmkern.runtime.device import DeviceInfo
from rocmkern.runtime.errors import ArgumentError, ArgumentTypeError, DeviceUnavailableError

VARIABLE = "ROCMKERN_DEVICE"


def _pci_matches(pci_id: str | None, wanted: str) -> bool:
    if pci_id is None:
        return False
    # "03:00.0" is how lspci writes a device of domain 0.
    return wanted in {pci_id.lower(), pci_id.lower().removeprefix("0000:")}


def choose_device(
    devices: Sequence[DeviceInfo], wanted: int | str | None = None, argument: str = "device"
) -> DeviceInfo:
    """Return the device to use.

    Parameters
    ----------
    devices : sequence of DeviceInfo
        What there is, in any order.
    wanted : int, str or None
        None takes a discrete card before an integrated one, then the one with more memory, then the lower number.
        Otherwise the index, the PCI id (``"0000:03:00.0"`` or ``"03:00.0"``) or a part of the name in any case.
    argument : str
        What to call `wanted` in an error (``"ROCMKERN_DEVICE"``, say).

    Raises
    ------
    DeviceUnavailableError
        If there is no device at all.
    ArgumentError
        If `wanted` matches none or several; the message lists what exists.
    """
    if not devices:
        raise DeviceUnavailableError("there is no GPU to choose from; gpu_status() says why")
    if wanted is None:
        return min(devices, key=lambda device: (device.integrated, -device.total, device.index))
    if isinstance(wanted, bool) or not isinstance(wanted, (int, str)):
        raise ArgumentTypeError(argument, repr(wanted), "an index, a PCI id or a part of a name")
    text = str(wanted).strip().lower()
    found = [device for device in devices if text == str(device.index)]
    if not found and isinstance(wanted, str) and text:
        found = [device for device in devices if _pci_matches(device.pci_id, text)]
        found = found or [device for device in devices if text in device.name.lower()]
    if len(found) != 1:
        problem = f"{wanted!r}, which matches {len(found) or 'no'} device{'s' if len(found) != 1 else ''}"
        listed = "; ".join(str(device) for device in devices)
        raise ArgumentError(argument, problem, f"index, PCI id or part of the name of exactly one of: {listed}")
    return found[0]
