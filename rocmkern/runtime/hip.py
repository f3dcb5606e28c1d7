"""AMD GPUs through the HIP runtime, by the same binding (and so the same context and addresses) as numba-hip.

Importing this module needs the ``hip`` extra and ROCm's libraries.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from itertools import chain, starmap
from pathlib import Path
from types import TracebackType
from typing import Any

from rocm.bindings import hip

from rocmkern.runtime.cap import Reading, smaller
from rocmkern.runtime.device import DeviceInfo, MemoryInfo, Stream
from rocmkern.runtime.errors import DriverError, RocmkernError
from rocmkern.runtime.gpu import Answer, GpuDevice
from rocmkern.runtime.sysfs import vram_info

_SUCCESS = hip.hipError_t.hipSuccess
_NOT_READY = hip.hipError_t.hipErrorNotReady
_OUT_OF_MEMORY = hip.hipError_t.hipErrorOutOfMemory
_TO_DEVICE = hip.hipMemcpyKind.hipMemcpyHostToDevice
_TO_HOST = hip.hipMemcpyKind.hipMemcpyDeviceToHost
_WITHIN = hip.hipMemcpyKind.hipMemcpyDeviceToDevice


def _handle(stream: Stream) -> int:
    # 1 is the legacy default stream in the array interfaces; not every HIP runtime knows it by that number.
    return 0 if stream == 1 else stream


class _Current:
    """Makes a device current in this thread, and the previous one afterwards."""

    __slots__ = ("_before", "_device")

    def __init__(self, device: HipDevice):
        self._device = device

    def __enter__(self) -> None:
        self._before = self._device.check("hipGetDevice", hip.hipGetDevice())
        if self._before != self._device.info.index:
            self._device.check("hipSetDevice", hip.hipSetDevice(self._device.info.index))

    def __exit__(self, kind: type | None, value: BaseException | None, trace: TracebackType | None) -> None:
        if self._before != self._device.info.index:
            self._device.check("hipSetDevice", hip.hipSetDevice(self._before))


class HipDevice(GpuDevice):
    """An AMD GPU.

    Parameters
    ----------
    info : DeviceInfo
        What the driver says about it.
    filesystem_root : path
        Directory that stands for ``/`` where the kernel's numbers are read; another one is given by tests.
    """

    _numba_devices = "numba.hip.hipdrv.devices"

    def __init__(self, info: DeviceInfo, filesystem_root: Path | str = "/"):
        super().__init__(info)
        self._root = filesystem_root

    def check(self, call: str, result: Answer) -> Any:
        """Return the value of a call, or raise `DriverError`."""
        if result[0] != _SUCCESS:
            # HIP remembers the error for hipGetLastError, where another library would take it for its own.
            hip.hipGetLastError()
            raise DriverError(call, result[0].name, str(self.info))
        return result[1] if len(result) == 2 else result[1:]

    def current(self) -> AbstractContextManager[None]:
        for watcher in self.on_use:
            watcher(self)
        return _Current(self)

    def call_current(self, function: Callable[[Any], Any], argument: Any) -> Any:
        for watcher in self.on_use:
            watcher(self)
        status, before = hip.hipGetDevice()
        if not status and before == self.info.index:  # without a context manager, which takes longer than the question
            return function(argument)
        with _Current(self):
            return function(argument)

    # Memory

    def memory_info(self) -> MemoryInfo:
        try:
            with self.current():
                free, total = self.check("hipMemGetInfo", hip.hipMemGetInfo())
        except RocmkernError:
            free = total = None
        kernel = vram_info(self.info.pci_id, self._root)
        return MemoryInfo(
            smaller([Reading(free, "hipMemGetInfo"), kernel.free]),
            smaller([Reading(total, "hipMemGetInfo"), kernel.total]),
        )

    def _fresh(self, call: str, result: Answer) -> int:
        if result[0] == _OUT_OF_MEMORY:
            hip.hipGetLastError()
            raise MemoryError(f"{call}: {result[0].name}")
        return int(self.check(call, result))

    def _malloc(self, nbytes: int, note: list[tuple[Answer, int]]) -> None:
        with self.current():
            note.extend(zip(map(hip.hipMalloc, (nbytes,)), (nbytes,), strict=True))

    def _read_malloc(self, answer: Answer) -> int:
        return self._fresh("hipMalloc", answer)

    def _free(self, address: int, note: list[tuple[Answer, int]]) -> None:
        # hipFree waits for the whole device; the pool calls it rarely, and only for memory that nothing works with.
        with self.current():
            note.extend(zip(map(hip.hipFree, (address,)), (address,), strict=True))

    def _read_free(self, answer: Answer) -> None:
        self.check("hipFree", answer)

    def allocate_pinned(self, nbytes: int) -> int:
        with self.current():
            return self._fresh("hipHostMalloc", hip.hipHostMalloc(nbytes, hip.hipHostMallocDefault))

    # Copies

    def fill(self, address: int, nbytes: int, byte: int, stream: Stream) -> None:
        with self.current():
            self.check("hipMemsetAsync", hip.hipMemsetAsync(address, byte, nbytes, _handle(stream)))

    def _copy(self, destination: int, source: int, nbytes: int, kind: Any, stream: Stream) -> None:
        with self.current():
            result = hip.hipMemcpyAsync(destination, source, nbytes, kind, _handle(stream))
            self.check("hipMemcpyAsync", result)

    def copy_to_device(self, destination: int, source: int, nbytes: int, stream: Stream) -> None:
        self._copy(destination, source, nbytes, _TO_DEVICE, stream)

    def copy_to_host(self, destination: int, source: int, nbytes: int, stream: Stream) -> None:
        self._copy(destination, source, nbytes, _TO_HOST, stream)

    def copy_device(self, destination: int, source: int, nbytes: int, stream: Stream) -> None:
        self._copy(destination, source, nbytes, _WITHIN, stream)

    # Streams and events

    def create_stream(self) -> Stream:
        with self.current():
            created = hip.hipStreamCreateWithFlags(hip.hipStreamNonBlocking)
            return int(self.check("hipStreamCreateWithFlags", created))

    def capture(self, stream: Stream) -> int | None:
        try:
            with self.current():
                info = self.check("hipStreamGetCaptureInfo", hip.hipStreamGetCaptureInfo(_handle(stream)))
        except RuntimeError as error:
            if isinstance(error, DriverError):
                raise
            # The binding found no such function: a runtime without graphs.
            return None
        status, number = info
        return None if status == hip.hipStreamCaptureStatus.hipStreamCaptureStatusNone else int(number)

    def _create_event(self) -> int:
        created = hip.hipEventCreateWithFlags(hip.hipEventDisableTiming)
        return int(self.check("hipEventCreateWithFlags", created))

    def _record(self, event: int, stream: Stream) -> None:
        self.check("hipEventRecord", hip.hipEventRecord(event, _handle(stream)))

    def _following(self, event: int, streams: Iterable[Stream], other: Stream) -> Iterator[Answer]:
        waits = [(_handle(stream), event, 0) for stream in streams]
        return chain(starmap(hip.hipEventRecord, [(event, _handle(other))]), starmap(hip.hipStreamWaitEvent, waits))

    def _read_following(self, answers: list[Answer]) -> None:
        for answer in answers:
            self.check("hipEventRecord, hipStreamWaitEvent", answer)

    def _create_timed_event(self) -> int:
        return int(self.check("hipEventCreateWithFlags", hip.hipEventCreateWithFlags(hip.hipEventDefault)))

    def _elapsed_ms(self, start: int, stop: int) -> float:
        return float(self.check("hipEventElapsedTime", hip.hipEventElapsedTime(start, stop)))

    def query(self, event: int) -> bool:
        status = hip.hipEventQuery(event)
        if status[0] == _NOT_READY:
            # Some HIP runtimes remember even this as an error.
            hip.hipGetLastError()
            return False
        self.check("hipEventQuery", status)
        return True

    def stream_wait(self, stream: Stream, event: int) -> None:
        with self.current():
            self.check("hipStreamWaitEvent", hip.hipStreamWaitEvent(_handle(stream), event, 0))


def device_index_at(address: int) -> int | None:
    """Return the number of the device that an address belongs to; None if HIP does not know the address."""
    status, *attributes = hip.hipPointerGetAttributes(address)
    if status != _SUCCESS:
        hip.hipGetLastError()
        return None
    on_device = attributes[0].type in (hip.hipMemoryType.hipMemoryTypeDevice, hip.hipMemoryType.hipMemoryTypeManaged)
    return int(attributes[0].device) if on_device else None
