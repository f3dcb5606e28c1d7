"""What is done to GPUs during a case outside the rules: without the device's lock, or outside the ledger of buffers.

The device layer tells of every use of a GPU, whichever thread it comes from; the lock knows whether this process holds
it. Allocations are seen at the driver's binding, which numba, and whoever calls the driver by hand, goes through too:
those that do not come from the device layer are in no ledger. What passes by the binding as well is missing in the end
from the driver's free memory.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from types import ModuleType
from typing import Any

from rocmkern.matrix import CaseFailure
from rocmkern.runtime.device import Device
from rocmkern.runtime.lock import holds_lock
from rocmkern.runtime.memory import DeviceMemory

#: Functions and methods that give device memory, by the module of a driver's binding or of a library.
ALLOCATORS: dict[str, tuple[str, ...]] = {
    "rocm.bindings.hip": ("hipMalloc", "hipMallocAsync", "hipMallocManaged", "hipMallocPitch", "hipExtMallocWithFlags"),
    "cuda.bindings.driver": ("cuMemAlloc", "cuMemAllocAsync", "cuMemAllocManaged", "cuMemAllocPitch"),
    "cuda.bindings.runtime": ("cudaMalloc", "cudaMallocAsync", "cudaMallocManaged", "cudaMallocPitch"),
    # It keeps the binding's functions for itself.
    "numba.hip.hipdrv.driver": ("NumbaHIPMemoryManager.memalloc", "HostOnlyHIPMemoryManager.memallocmanaged"),
    "numba.cuda.cudadrv.driver": ("NumbaCUDAMemoryManager.memalloc", "HostOnlyCUDAMemoryManager.memallocmanaged"),
}
_DEVICE_LAYER = ("rocmkern.runtime.hip", "rocmkern.runtime.cuda")
# A smaller part of the memory that was free may be missing: drivers take some for code and for themselves.
MISSING_PERCENT = 5
_LISTED = 5


class DeviceWatch:
    """Looks at the GPUs of this process within a ``with`` block, at the end of which it raises `CaseFailure`.

    Parameters
    ----------
    device : Device
        Whose free memory is compared.
    allocators : dict, optional
        Modules of driver bindings and their functions that allocate; default: `ALLOCATORS`.
    """

    def __init__(self, device: Device, allocators: dict[str, tuple[str, ...]] | None = None):
        self._memory = DeviceMemory.of(device)
        self._allocators = ALLOCATORS if allocators is None else allocators
        self._restore: list[tuple[Any, str, Any]] = []
        self._without_lock: list[str] = []
        self._without_ledger: list[str] = []

    def __enter__(self) -> DeviceWatch:
        self._before = self._free_and_reserved()
        Device.on_use.append(self._used)
        for name, functions in self._allocators.items():
            for function in functions if name in sys.modules else ():
                self._replace(sys.modules[name], function)
        return self

    def __exit__(self, kind: type | None, *rest: object) -> None:
        Device.on_use.remove(self._used)
        for owner, name, function in self._restore:
            setattr(owner, name, function)
        if kind is None:
            self.check()

    def check(self) -> None:
        """Raise `CaseFailure` for what was seen so far."""
        if self._without_lock:
            raise CaseFailure("lock", f"a GPU was used without its lock:\n{_list(self._without_lock)}")
        if self._without_ledger:
            raise CaseFailure("ledger", f"device memory that no ledger knows:\n{_list(self._without_ledger)}")
        before, after = self._before, self._free_and_reserved()
        if before is None or after is None or not self._memory.device.free_memory_is_ours:
            return
        missing = before - after
        if missing > before * MISSING_PERCENT / 100:
            raise CaseFailure(
                "ledger",
                f"{missing} bytes of {self._memory.device.info} are missing that no ledger knows: the driver had "
                f"{before} bytes for us before, and {after} after; {MISSING_PERCENT} % may be missing",
            )

    def _free_and_reserved(self) -> int | None:
        free = self._memory.device.memory_info().free.value
        return None if free is None else free + self._memory.reserved

    def _used(self, device: Device) -> None:
        if not holds_lock(device.info):
            self._without_lock.append(f"{device.info} by thread {threading.current_thread().name}, {_caller(2)}")

    def _replace(self, module: ModuleType, path: str) -> None:
        *classes, name = path.split(".")
        owner: Any = module
        for each in classes:
            owner = getattr(owner, each, None)
        function: Callable[..., Any] | None = getattr(owner, name, None)
        if function is None:
            return

        def noted(*args: Any, **kwargs: Any) -> Any:
            if sys._getframe(1).f_globals.get("__name__") not in _DEVICE_LAYER:
                self._without_ledger.append(f"{path} {_caller(2)}")
            return function(*args, **kwargs)

        self._restore.append((owner, name, function))
        setattr(owner, name, noted)


def _caller(depth: int) -> str:
    """Where a call came from, past this library's device layer and the frames of a driver's binding."""
    frame: Any = sys._getframe(depth)
    first = frame
    while frame is not None and str(frame.f_globals.get("__name__", "")).startswith(("rocmkern.", "numba.")):
        frame = frame.f_back
    frame = frame or first
    return f"at {frame.f_code.co_filename}:{frame.f_lineno}"


def _list(seen: list[str]) -> str:
    lines = list(dict.fromkeys(seen))
    more = [f"  and {len(lines) - _LISTED} more"] if len(lines) > _LISTED else []
    return "\n".join([f"  {line}" for line in lines[:_LISTED]] + more)
