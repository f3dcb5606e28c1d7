"""What the adapters of other libraries share: who may write, which device it is, errors that name the argument."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rocmkern.calls.streams import Origin, library_of
from rocmkern.calls.view import View, describe, view_of
from rocmkern.runtime.device import Device
from rocmkern.runtime.errors import ArgumentError, RocmkernError, TargetError
from rocmkern.runtime.foreign import ForeignArray
from rocmkern.runtime.manager import DeviceTensor

#: DLPack device types whose memory this process can read: kDLCPU, kDLCUDAHost, kDLROCMHost.
DLPACK_HOST = (1, 3, 11)
# Libraries whose arrays may be written, though their DLPack capsules from before version 1.0 do not say so.
_WRITABLE_LIBRARIES = ("torch", "cupy")


def is_read_only(there: ForeignArray, x: Any) -> bool:
    """Whether writing is forbidden; so it is where nothing says that it is allowed: JAX's arrays never change."""
    if there.read_only is not None:
        return there.read_only
    library = library_of(x)
    return library is None or library.__name__ not in _WRITABLE_LIBRARIES


def device_of(name: str, x: Any, kind: str | None, index: int | None, address: int = 0) -> Device:
    """The device that an array lies on."""
    # The drivers of graphics cards are looked for when the first array in device memory comes.
    # deferred: start-up
    from rocmkern.runtime import devices

    try:
        return devices.device_of(kind, index, address)
    except TargetError as error:
        raise TargetError(
            f"{name}: {describe(x)} lies in device memory that cannot be reached here: copy it to host memory. {error}"
        ) from error


def device_view(there: ForeignArray, device: Device, origin: Origin, read_only: bool) -> View:
    """View of device memory of another library."""
    tensor = DeviceTensor.from_foreign(
        there.owner, there.address, there.shape, there.dtype, there.strides, device, read_only=read_only
    )
    return view_of(tensor, origin)


def host_view(there: ForeignArray, read_only: bool) -> View:
    """View of host memory of another library."""
    address = there.address if 0 not in there.shape else 0
    return View(address, there.shape, there.strides, there.dtype, there.owner, read_only=read_only)


def ask(name: str, x: Any, question: Callable[[], Any]) -> Any:
    """The answer of another library; where it refuses, an error that names the argument."""
    try:
        return question()
    except RocmkernError:
        raise
    except Exception as error:  # other libraries raise what they like
        raise ArgumentError(
            name, f"{describe(x)} that refuses to share its memory ({error})", "a plain array"
        ) from error
