"""From what a user writes as ``device=`` to the device object of this process."""

from __future__ import annotations

import os
import sys

from rocmkern.runtime import fork
from rocmkern.runtime.choice import VARIABLE, choose_device
from rocmkern.runtime.device import Device, DeviceInfo, DeviceLike
from rocmkern.runtime.errors import ArgumentError, DeviceUnavailableError, TargetError
from rocmkern.runtime.host import HostDevice
from rocmkern.runtime.mutex import Mutex, alone
from rocmkern.runtime.once import once
from rocmkern.runtime.probe import child, suspect
from rocmkern.runtime.probe.driver import check_driver
from rocmkern.runtime.target_choice import chosen

KINDS = ("hip", "cuda")
_opened: dict[tuple[str, str | int], Device] = {}
_opening = Mutex()

fork.renew_locks(sys.modules[__name__], "_opening")


@once
def host_device() -> HostDevice:
    """Return the host's memory; one object per process."""
    return HostDevice()


def open_device(device: DeviceLike | None = None) -> Device:
    """Return the device object for a ``device=`` argument; one object per physical device and process.

    Parameters
    ----------
    device : Device, DeviceInfo, str, int or None
        A device, which is returned as it is; ``"host"`` or None for the host's memory; ``"hip"`` or ``"cuda"`` for the
        best card of that kind, or the one that ``ROCMKERN_DEVICE`` names; a card's index, PCI id or a part of its
        name.

    Raises
    ------
    ArgumentError
        If that names no device, or several.
    DeviceUnavailableError
        If the driver of that kind cannot be used; the message says why and what to check.
    """
    if isinstance(device, Device):
        return device
    if device is None or device == "host":
        return host_device()
    if isinstance(device, DeviceInfo):
        return host_device() if device.kind == "host" else _open(device)
    if device in KINDS:
        wanted, devices = os.environ.get(VARIABLE) or None, gpu_devices(str(device))
        return _open(choose_device(devices, wanted, VARIABLE))
    if isinstance(device, (str, int)):
        return _open(choose_device(_all_devices(device), device))
    raise ArgumentError("device", repr(device), "a Device, 'host', 'hip', 'cuda', an index, a PCI id, a name, or None")


def default_device() -> Device:
    """The device whose memory is meant where nobody says which: that of the target which operations use, else the host.

    Raises
    ------
    DeviceUnavailableError
        If that target is a GPU which cannot be used.
    """
    name, _ = chosen()
    return open_device(name) if name in KINDS else host_device()


def device_of(kind: str | None, index: int | None, address: int = 0) -> Device:
    """Return the device that an array of another library lies on.

    Parameters
    ----------
    kind : "host", "hip", "cuda" or None
        None: a GPU of the kind that can be used here.
    index : int or None
        The driver's number of the device; None: the driver is asked where `address` lies.
    address : int
        Address of an element.

    Raises
    ------
    DeviceUnavailableError
        If the driver of that kind cannot be used.
    TargetError
        If the driver does not know the device or the address, or if two copies of the HIP runtime are loaded: then
        the addresses of one mean nothing to the other.
    """
    if kind == "host":
        return host_device()
    if kind is None:
        kind = _usable_kind()
    if index is None:
        devices = gpu_devices(kind)
        index = _index_at(kind, address) if address else choose_device(devices).index
        if index is None:
            listed = "; ".join(map(str, devices))
            raise TargetError(f"the {kind} driver does not know address {address:#x}; it has {listed}")
    return _foreign_device(kind, index)


@once
def _foreign_device(kind: str, index: int) -> Device:
    devices = gpu_devices(kind)
    if kind == "hip":
        _check_one_runtime()
    for info in devices:
        if info.index == index:
            return _open(info)
    listed = "; ".join(map(str, devices))
    raise TargetError(f"the {kind} driver does not know {kind} device {index}; it has {listed}")


@once
def gpu_devices(kind: str) -> tuple[DeviceInfo, ...]:
    """Return the devices that the driver of a kind (``"hip"`` or ``"cuda"``) sees, asking it once in this process.

    Raises
    ------
    DeviceUnavailableError
        If that driver cannot be used.
    """
    check_driver(kind)
    found = {"hip": child.hip_devices, "cuda": child.cuda_devices}[kind]()
    return tuple(DeviceInfo(**entry) for entry in found)


def _all_devices(wanted: str | int) -> list[DeviceInfo]:
    devices: list[DeviceInfo] = []
    reasons = []
    for kind in KINDS:
        try:
            devices += gpu_devices(kind)
        except DeviceUnavailableError as error:
            reasons.append(str(error))
    if not devices:
        allowed = "a Device, 'host' or None (host memory), as there is no GPU: "
        raise ArgumentError("device", repr(wanted), allowed + "; ".join(reasons))
    return devices


def _usable_kind() -> str:
    reasons = []
    for kind in KINDS:
        try:
            gpu_devices(kind)
            return kind
        except DeviceUnavailableError as error:
            reasons.append(str(error))
    raise DeviceUnavailableError("no GPU can be used: " + "; ".join(reasons))


def _open(info: DeviceInfo) -> Device:
    key = info.kind, info.pci_id or info.index
    with alone(_opening):
        if key not in _opened:
            suspect.check(info)
            _opened[key] = make_device(info)
        return _opened[key]


def make_device(info: DeviceInfo) -> Device:
    """Make the object of a GPU anew; everybody but a process that only looks at it wants `open_device`."""
    if info.kind == "hip":
        # deferred: optional dependency
        from rocmkern.runtime.hip import HipDevice

        return HipDevice(info)
    # deferred: optional dependency
    from rocmkern.runtime.cuda import CudaDevice

    return CudaDevice(info)


def _index_at(kind: str, address: int) -> int | None:
    if kind == "hip":
        # deferred: optional dependency
        from rocmkern.runtime.hip import device_index_at
    else:
        # deferred: optional dependency
        from rocmkern.runtime.cuda import device_index_at
    return device_index_at(address)


def loaded_runtimes(maps: str) -> list[str]:
    """Return the files of the HIP runtime in the text of ``/proc/self/maps``: more than one means two worlds."""
    fields = (line.split(None, 5) for line in maps.splitlines())
    return sorted({entry[5] for entry in fields if len(entry) == 6 and "libamdhip64" in entry[5]})


def _check_one_runtime() -> None:
    try:
        with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
            files = loaded_runtimes(maps.read())
    except OSError:
        return
    if len(files) > 1:
        raise TargetError(
            f"two copies of the HIP runtime are loaded ({', '.join(files)}): an address of one means nothing to the "
            "other. Set ROCM_PATH to the directory above the copy that the other library brings, before Python starts"
        )
