"""NVIDIA GPUs through the CUDA driver, in the primary context, which numba-cuda, PyTorch and CuPy use too.

Importing this module needs the ``cuda`` extra and the driver's library.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from itertools import chain, starmap
from types import TracebackType
from typing import Any

from cuda.bindings import driver

from rocmkern.runtime.cap import Reading
from rocmkern.runtime.device import DeviceInfo, MemoryInfo, Stream
from rocmkern.runtime.errors import DriverError, RocmkernError
from rocmkern.runtime.gpu import Answer, GpuDevice

_SUCCESS = driver.CUresult.CUDA_SUCCESS
_NOT_READY = driver.CUresult.CUDA_ERROR_NOT_READY
_OUT_OF_MEMORY = driver.CUresult.CUDA_ERROR_OUT_OF_MEMORY
_NOT_CAPTURING = driver.CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_NONE
_RELAXED = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED


class _Current:
    """Makes a device's primary context current in this thread, and the previous one afterwards."""

    __slots__ = ("_device", "_pushed")

    def __init__(self, device: CudaDevice):
        self._device = device

    def __enter__(self) -> None:
        device = self._device
        context = device.check("cuCtxGetCurrent", driver.cuCtxGetCurrent())
        self._pushed = int(context) != device.context_handle
        if self._pushed:
            device.check("cuCtxPushCurrent", driver.cuCtxPushCurrent(device.context))

    def __exit__(self, kind: type | None, value: BaseException | None, trace: TracebackType | None) -> None:
        if self._pushed:
            self._device.check("cuCtxPopCurrent", driver.cuCtxPopCurrent())


class CudaDevice(GpuDevice):
    """An NVIDIA GPU.

    Parameters
    ----------
    info : DeviceInfo
        What the driver says about it.

    Attributes
    ----------
    context, context_handle : CUcontext, int
        The primary context, kept for the life of the process.
    """

    _numba_devices = "numba.cuda.cudadrv.devices"

    def __init__(self, info: DeviceInfo):
        super().__init__(info)
        self.check("cuInit", driver.cuInit(0))
        ordinal = self.check("cuDeviceGet", driver.cuDeviceGet(info.index))
        self.context: Any = self.check("cuDevicePrimaryCtxRetain", driver.cuDevicePrimaryCtxRetain(ordinal))
        self.context_handle: int = int(self.context)

    def check(self, call: str, result: Answer) -> Any:
        """Return the value of a call, or raise `DriverError`."""
        if result[0] != _SUCCESS:
            raise DriverError(call, result[0].name, str(self.info))
        return result[1] if len(result) == 2 else result[1:]

    def current(self) -> AbstractContextManager[None]:
        for watcher in self.on_use:
            watcher(self)
        return _Current(self)

    def call_current(self, function: Callable[[Any], Any], argument: Any) -> Any:
        for watcher in self.on_use:
            watcher(self)
        # Without a context manager: it would take longer than the calls of the driver.
        status, context = driver.cuCtxGetCurrent()
        if not status and int(context) == self.context_handle:
            return function(argument)
        if not status and not int(context) and self.info.index == 0:
            # To CUDA's runtime a thread without a context is on device 0, as it is with this one: no need to go back.
            self.check("cuCtxSetCurrent", driver.cuCtxSetCurrent(self.context))
            return function(argument)
        self.check("cuCtxPushCurrent", driver.cuCtxPushCurrent(self.context))
        try:
            return function(argument)
        finally:
            self.check("cuCtxPopCurrent", driver.cuCtxPopCurrent())

    # Memory

    def memory_info(self) -> MemoryInfo:
        try:
            with self.current():
                free, total = self.check("cuMemGetInfo", driver.cuMemGetInfo())
        except RocmkernError:
            free = total = None
        return MemoryInfo(Reading(free, "cuMemGetInfo"), Reading(total, "cuMemGetInfo"))

    def _fresh(self, call: str, result: Answer) -> int:
        if result[0] == _OUT_OF_MEMORY:
            raise MemoryError(f"{call}: {result[0].name}")
        return int(self.check(call, result))

    def _malloc(self, nbytes: int, note: list[tuple[Answer, int]]) -> None:
        with self.current():
            note.extend(zip(map(driver.cuMemAlloc, (nbytes,)), (nbytes,), strict=True))

    def _read_malloc(self, answer: Answer) -> int:
        return self._fresh("cuMemAlloc", answer)

    def _free(self, address: int, note: list[tuple[Answer, int]]) -> None:
        # cuMemFree waits for the whole device; the pool calls it rarely, and only for memory that nothing works with.
        with self.current():
            note.extend(zip(map(driver.cuMemFree, (address,)), (address,), strict=True))

    def _read_free(self, answer: Answer) -> None:
        self.check("cuMemFree", answer)

    def allocate_pinned(self, nbytes: int) -> int:
        with self.current():
            return self._fresh("cuMemHostAlloc", driver.cuMemHostAlloc(nbytes, driver.CU_MEMHOSTALLOC_PORTABLE))

    # Copies

    def fill(self, address: int, nbytes: int, byte: int, stream: Stream) -> None:
        with self.current():
            self.check("cuMemsetD8Async", driver.cuMemsetD8Async(address, byte, nbytes, stream))

    def copy_to_device(self, destination: int, source: int, nbytes: int, stream: Stream) -> None:
        with self.current():
            self.check("cuMemcpyHtoDAsync", driver.cuMemcpyHtoDAsync(destination, source, nbytes, stream))

    def copy_to_host(self, destination: int, source: int, nbytes: int, stream: Stream) -> None:
        with self.current():
            self.check("cuMemcpyDtoHAsync", driver.cuMemcpyDtoHAsync(destination, source, nbytes, stream))

    def copy_device(self, destination: int, source: int, nbytes: int, stream: Stream) -> None:
        with self.current():
            self.check("cuMemcpyDtoDAsync", driver.cuMemcpyDtoDAsync(destination, source, nbytes, stream))

    # Streams and events

    def create_stream(self) -> Stream:
        with self.current():
            flag = driver.CUstream_flags.CU_STREAM_NON_BLOCKING
            return int(self.check("cuStreamCreate", driver.cuStreamCreate(flag)))

    def capture(self, stream: Stream) -> int | None:
        with self.current():
            status, number, *_ = self.check("cuStreamGetCaptureInfo", driver.cuStreamGetCaptureInfo(stream))
        return None if status == _NOT_CAPTURING else int(number)

    def is_capturing(self, stream: Stream) -> bool:
        with self.current():
            status = self.check("cuStreamIsCapturing", driver.cuStreamIsCapturing(stream))
        return bool(status != _NOT_CAPTURING)

    @contextmanager
    def beside_capture(self) -> Iterator[None]:
        name, exchange = "cuThreadExchangeStreamCaptureMode", driver.cuThreadExchangeStreamCaptureMode
        before = self.check(name, exchange(_RELAXED))
        try:
            yield
        finally:
            self.check(name, exchange(before))

    def _create_event(self) -> Any:
        flag = driver.CUevent_flags.CU_EVENT_DISABLE_TIMING
        return self.check("cuEventCreate", driver.cuEventCreate(flag))

    def _record(self, event: Any, stream: Stream) -> None:
        self.check("cuEventRecord", driver.cuEventRecord(event, stream))

    def _following(self, event: Any, streams: Iterable[Stream], other: Stream) -> Iterator[Answer]:
        waits = [(stream, event, 0) for stream in streams]
        return chain(starmap(driver.cuEventRecord, [(event, other)]), starmap(driver.cuStreamWaitEvent, waits))

    def _read_following(self, answers: list[Answer]) -> None:
        for answer in answers:
            self.check("cuEventRecord, cuStreamWaitEvent", answer)

    def _create_timed_event(self) -> Any:
        return self.check("cuEventCreate", driver.cuEventCreate(driver.CUevent_flags.CU_EVENT_DEFAULT))

    def _elapsed_ms(self, start: Any, stop: Any) -> float:
        return float(self.check("cuEventElapsedTime", driver.cuEventElapsedTime(start, stop)))

    def query(self, event: Any) -> bool:
        status = driver.cuEventQuery(event)
        if status[0] == _NOT_READY:
            return False
        self.check("cuEventQuery", status)
        return True

    def stream_wait(self, stream: Stream, event: Any) -> None:
        with self.current():
            self.check("cuStreamWaitEvent", driver.cuStreamWaitEvent(stream, event, 0))


def device_index_at(address: int) -> int | None:
    """Return the number of the device that an address belongs to; None if the driver does not know the address."""
    attribute = driver.CUpointer_attribute.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
    status, index = driver.cuPointerGetAttribute(attribute, address)
    return int(index) if status == _SUCCESS else None
