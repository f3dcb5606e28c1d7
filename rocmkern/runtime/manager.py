"""`ResourceManager`: memory and waiting on one device; `DeviceTensor`: what it hands out.

They are one file because each makes the other: a manager makes tensors, and a tensor that is made without one belongs
to the default manager of its device. What a manager does, others do for it: `rocmkern.runtime.queue` waits with a
deadline, `allocator` grants buffers, `kept` holds constants and counters, `leaks` looks for what is still alive.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from rocmkern.runtime import fork, transfer
from rocmkern.runtime.base_manager import BaseManager
from rocmkern.runtime.cap import DEFAULT_CAP
from rocmkern.runtime.device import Device, DeviceLike, Stream
from rocmkern.runtime.devices import default_device, open_device
from rocmkern.runtime.errors import ArgumentError, ArgumentTypeError, masked_array_error
from rocmkern.runtime.geometry import check_shape, contiguous_strides, dtype_name
from rocmkern.runtime.handle import check_dtype
from rocmkern.runtime.kept import Constants, Counters
from rocmkern.runtime.lazy import TensorSource, upload
from rocmkern.runtime.ledger import LedgerEntry, caller_location
from rocmkern.runtime.memory import POISON_BYTE
from rocmkern.runtime.mutex import Mutex
from rocmkern.runtime.scratch import Scratch
from rocmkern.runtime.settings import MemorySettings
from rocmkern.runtime.storage import LazyStorage, Storage
from rocmkern.runtime.tensor import Tensor


class DeviceTensor(Tensor):
    """An array in the memory of a device. Made by a `ResourceManager`, by `from_foreign` or by `lazy`.

    Clones and views share the buffer; it is returned once, when the last of them is closed or collected. Use after
    `close` is a `ClosedError`. NumPy arrays and DLPack consumers that look at host memory keep it alive too.

    Attributes
    ----------
    shape : tuple of int
        Shape; dimensions of 0 are legal.
    dtype : numpy.dtype
        Element type, ``ml_dtypes.bfloat16`` included.
    strides : tuple of int
        Strides in bytes; negative and 0 are legal.
    manager : ResourceManager
        Whose stream and deadline copies use.
    read_only : bool
        Whether the owner forbids writing (foreign memory only).
    """

    __slots__ = ()

    manager: ResourceManager

    @classmethod
    def from_foreign(
        cls,
        owner: Any,
        address: int,
        shape: int | tuple[int, ...],
        dtype: DTypeLike,
        strides: tuple[int, ...] | None = None,
        device: DeviceLike | None = None,
        *,
        read_only: bool = False,
        stream: Stream | None = None,
    ) -> DeviceTensor:
        """Wrap memory that somebody else owns; it is not in the ledger and never freed by us.

        Parameters
        ----------
        owner : object
            Kept alive until the last handle goes.
        address : int
            Address of element 0.
        shape, dtype
            As in `ResourceManager.empty`.
        strides : tuple of int, optional
            Strides in bytes; default: C-contiguous.
        device : Device, "host" or None
            Where the memory is; None is the host.
        read_only : bool
            Refuse writing through the handle.
        stream : int, optional
            Stream that the data is ready on; our stream waits for it.
        """
        manager = default_manager("host" if device is None else device)
        shape, dtype = check_shape(shape), check_dtype(dtype)
        if strides is None:
            strides = contiguous_strides(shape, dtype.itemsize)
        elif len(strides) != len(shape):
            raise ArgumentError("strides", repr(strides), f"one stride for each of the {len(shape)} dimensions")
        if stream is not None:
            manager.device.follow(manager.stream, stream)
        return cls(manager, Storage(owner), address, shape, dtype, tuple(strides), read_only)

    @classmethod
    def lazy(cls, source: TensorSource, device: DeviceLike | None = None) -> DeviceTensor:
        """Return a tensor that takes memory, and reads its data, when it is first used.

        Shape, dtype, strides and nbytes are known before; views and clones do not count as use, and share the memory
        once one of them is used. If there is no room then, that use raises `DeviceMemoryError`, nothing is changed, and
        a later use tries again.

        Parameters
        ----------
        source : TensorSource
            A tensor of a file that `rocmkern.open_checkpoint` opened, or any object with ``shape``, ``dtype`` and
            ``pieces()``.
        device : Device, "host" or None
            Where the memory will be taken, from the default manager of the device; None is the host. See also
            `ResourceManager.lazy`.

        Raises
        ------
        ArgumentTypeError
            If `source` is something else, or has a dtype that a tensor cannot have.

        Examples
        --------
        >>> with open_checkpoint("model.safetensors") as checkpoint:  # doctest: +SKIP
        ...     weight = DeviceTensor.lazy(checkpoint["model.norm.weight"])
        """
        return default_manager("host" if device is None else device).lazy(source)

    def copy(self) -> DeviceTensor:
        """Return a C-contiguous copy in a buffer of its own."""
        self.keep_alive()
        new = self.manager.empty(self.shape, self.dtype, uninitialized=True)
        transfer.between(new, self)
        return new


class ResourceManager(BaseManager):
    """Memory and waiting on one device. Several managers on one device share cap and ledger; threads may share one.

    Parameters
    ----------
    device : Device, str, int or None
        Where: see `open_device`; None is the GPU where operations on NumPy arrays run on one (`rocmkern.target`), else
        host memory.
    cap : float
        Fraction of the memory that is free or held by this process which this process may hold at most,
        ``0 < cap <= 0.90``, default 0.70.
    deadline_s : float
        Seconds after which a wait gives up with `DeadlineError`, default 60.
    settings : MemorySettings, optional
        Pool, poison and guard bands; default: what ``ROCMKERN_MEMORY`` says. May be set later for new buffers.
    clock, sleep : callable
        Seconds now and a pause, for tests of the deadline.

    Raises
    ------
    ArgumentError
        For a cap or a deadline out of range.

    Examples
    --------
    >>> with ResourceManager("host") as manager:
    ...     x = manager.from_numpy(np.arange(6, dtype=np.float32).reshape(2, 3))
    ...     x.T.to_numpy().shape
    (3, 2)
    """

    def __init__(
        self,
        device: DeviceLike | None = None,
        *,
        cap: float = DEFAULT_CAP,
        deadline_s: float = 60.0,
        settings: MemorySettings | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ):
        super().__init__(device, cap=cap, deadline_s=deadline_s, settings=settings, clock=clock, sleep=sleep)
        self._constants: Constants[DeviceTensor] = Constants()
        self._counters: Counters[DeviceTensor] = Counters()

    def __enter__(self) -> ResourceManager:
        self._check_open()
        return self

    def close(self) -> None:
        """Return everything that this manager holds; its tensors become unusable. A second call does nothing.

        Memory that NumPy or a DLPack consumer still looks at is returned when they let go of it.

        Raises
        ------
        DeadlineError
            If the device still works with the memory; then nothing is returned.
        """
        super().close()
        self._constants.clear()
        self._counters.clear()

    def from_numpy(self, a: np.ndarray) -> DeviceTensor:
        """Return a C-contiguous copy of a NumPy array of any strides on the device.

        Raises
        ------
        ArgumentTypeError
            If `a` is not a NumPy array, or one with a mask, or of a dtype without a fixed binary layout.
        DeviceMemoryError
            If there is no room for it.
        """
        if not isinstance(a, np.ndarray):
            raise ArgumentTypeError("a", type(a).__name__, "a numpy.ndarray")
        if isinstance(a, np.ma.MaskedArray):
            raise masked_array_error("a")
        return self._copied(a)

    def _copied(self, a: np.ndarray, kept: bool = False) -> DeviceTensor:
        tensor = self._allocate(a.shape, check_dtype(a.dtype, "a"), fill=None, kept=kept)
        transfer.from_host(tensor, a)
        return tensor

    def constant(self, a: np.ndarray) -> DeviceTensor:
        """Return a copy of a small array that many calls read, made when its content is first asked for.

        The manager keeps the last few until it is closed. They count as held, but not as leaks. Nobody may write them.
        """
        self._check_open()
        return self._constants.get(a, lambda: self._copied(a, kept=True))

    def counters(self, count: int, stream: Stream) -> DeviceTensor:
        """Return int32 zeros with which kernels on a stream count, and which each of them leaves as zeros.

        The manager keeps them until it is closed, those of each stream and of each graph that a stream records, which
        may be started on any stream. They count as held, but not as leaks.

        Parameters
        ----------
        count : int
            How many, at least.
        stream : int
            The stream of all that uses them.
        """
        self._check_open()
        recording = self._memory.recording(stream)
        return self._counters.get(
            count, (stream, recording), lambda size: self._new_counters(size, stream, recording is not None)
        )

    def _new_counters(self, size: int, stream: Stream, in_graph: bool) -> DeviceTensor:
        fill = None if in_graph else 0  # a fill would become a part of the graph
        tensor = self._allocate((size,), np.dtype(np.int32), fill=fill, stream=stream, kept=True)
        if in_graph:
            with self.device.beside_capture():
                self.device.fill(tensor.data_ptr, tensor.nbytes, 0, self.stream)
                self.queue.wait("the zeros of a graph's counters", self.stream)
        return tensor

    def zeros(self, shape: int | tuple[int, ...], dtype: DTypeLike = np.float32) -> DeviceTensor:
        """Return a tensor of zeros (also under test, where `empty` gives NaN)."""
        return self._allocate(shape, dtype, fill=0)

    def empty(
        self,
        shape: int | tuple[int, ...],
        dtype: DTypeLike = np.float32,
        uninitialized: bool = False,
        *,
        stream: Stream | None = None,
    ) -> DeviceTensor:
        """Return a new tensor: zeros, or whatever was in memory if `uninitialized`.

        Parameters
        ----------
        shape : int or tuple of int
            Shape; a dimension of 0 is legal and needs no memory.
        dtype : dtype
            Bool, integer, float, complex or one of ml_dtypes; default float32.
        uninitialized : bool
            Leave the content undefined, for an output that is written everywhere. With the setting ``poison`` the
            content is NaN either way.
        stream : int, optional
            Stream that writes it first; default: `stream`. It must outlive the tensor, so it cannot be the default
            stream of a thread, but while that records a graph.

        Raises
        ------
        DeviceMemoryError
            If there is no room for it; nothing is changed.
        """
        fill = None if uninitialized else 0
        return self._allocate(shape, dtype, fill=POISON_BYTE if self.settings.poison else fill, stream=stream)

    def scratch(self, nbytes: int, stream: Stream) -> Scratch:
        """Memory of undefined content for kernels that one call submits to `stream`: see `Scratch.lend`.

        Where the pool has idle memory for that stream, it is used as it lies there: no buffer is made and none enters
        the ledger.

        Parameters
        ----------
        nbytes : int
            How much, at least 1.
        stream : int
            The stream of all that uses it.

        Returns
        -------
        Scratch
            To be lent again and again.
        """
        self._check_open()
        return Scratch(self, self._memory, nbytes, stream, self.empty)

    def lazy(self, source: TensorSource) -> DeviceTensor:
        """Return a tensor that takes memory, and reads its data, when it is first used; see `DeviceTensor.lazy`."""
        self._check_open()
        if not isinstance(source, TensorSource):
            raise ArgumentTypeError("source", type(source).__name__, "an object with shape, dtype and pieces()")
        shape, dtype = check_shape(source.shape), check_dtype(source.dtype, "source")
        where = caller_location()

        def take() -> tuple[Storage, int]:
            tensor = self._allocate(source.shape, source.dtype, fill=None, where=where)
            upload(tensor, source)
            return tensor.taken()

        storage = LazyStorage(take, lambda: self.closed)
        return DeviceTensor(self, storage, 0, shape, dtype, contiguous_strides(shape, dtype.itemsize))

    def _allocate(
        self,
        shape: Any,
        dtype: Any,
        *,
        fill: int | None,
        stream: Stream | None = None,
        where: str | None = None,
        kept: bool = False,
    ) -> DeviceTensor:
        self._check_open()
        shape, dtype = check_shape(shape), check_dtype(dtype)
        nbytes = math.prod(shape) * dtype.itemsize
        entry = LedgerEntry(nbytes, shape, dtype_name(dtype), where or caller_location(), self._number, kept)
        buffer = self._allocator.allocate(entry, self.stream if stream is None else stream, fill, self.settings)
        storage = Storage(buffer)
        buffer.shared_by(storage)
        strides = contiguous_strides(shape, dtype.itemsize)
        return DeviceTensor(self, storage, buffer.address, shape, dtype, strides)


_defaults: dict[Device, ResourceManager] = {}
_defaults_lock = Mutex()


def default_manager(device: DeviceLike | None = None) -> ResourceManager:
    """Return this process's manager of a device; made on the first call and after a close.

    None is the device of the target that operations use: the GPU where they run on one, else host memory.
    """
    opened = default_device() if device is None else open_device(device)
    manager = _defaults.get(opened)
    if manager is None or manager.closed:
        with _defaults_lock:
            manager = _defaults.get(opened)
            if manager is None or manager.closed:
                made = ResourceManager(opened)
                manager = _defaults.get(opened)  # where a signal's handler has asked meanwhile
                if manager is None or manager.closed:
                    manager = _defaults[opened] = made
    return manager


fork.renew_locks(sys.modules[__name__], "_defaults_lock")
