"""Arrays that lend their memory by DLPack: JAX, CuPy and others, in host or device memory."""

from __future__ import annotations

from typing import Any

from rocmkern.calls.adapters.foreign import DLPACK_HOST, ask, device_of, device_view, host_view, is_read_only
from rocmkern.calls.streams import Origin, origin_of
from rocmkern.calls.view import View
from rocmkern.runtime import dlpack
from rocmkern.runtime.device import Device
from rocmkern.runtime.interface import LEGACY_STREAM
from rocmkern.runtime.torch_tensors import check_marks


def view(name: str, x: Any) -> View:
    """View of the memory of an array."""
    check_marks(x, name)
    where = place_of(name, x)
    return view_on_host(name, x) if where is None else view_on_device(name, x, *where)


def place_of(name: str, x: Any) -> tuple[Device, Origin] | None:
    """The device that an array lies on, and where its library goes on with it; None for host memory."""
    device_type, index = ask(name, x, x.__dlpack_device__)
    if int(device_type) in DLPACK_HOST:
        return None
    kind = dlpack.check_device_type(int(device_type), name)
    return device_of(name, x, kind, int(index)), origin_of(x, int(index))


def view_on_host(name: str, x: Any) -> View:
    """View of host memory by a capsule."""
    there = ask(name, x, lambda: dlpack.read_dlpack(x, argument=name))
    return host_view(there, is_read_only(there, x))


def view_on_device(name: str, x: Any, device: Device, origin: Origin) -> View:
    """View of device memory by a capsule, on the current stream of the library."""
    # CUDA's default stream is 1 in the protocol, ROCm's is 0.
    stream = LEGACY_STREAM if device.kind == "cuda" and origin.stream == 0 else origin.stream
    there = ask(name, x, lambda: dlpack.read_dlpack(x, stream=stream, argument=name))
    return device_view(there, device, origin, is_read_only(there, x))
