"""What the hip and the cuda target share: variants compiled once, kept on disk, loaded, and launched on a stream."""

from __future__ import annotations

import ctypes
import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

from rocmkern.runtime.device import Device
from rocmkern.runtime.errors import TargetError
from rocmkern.runtime.manager import default_manager
from rocmkern.runtime.mutex import Mutex
from rocmkern.targets import cache, launches, source
from rocmkern.targets.entries import Entry, EntryError
from rocmkern.targets.garbage import collected
from rocmkern.targets.words import ParameterBuffer, ThreadParameters, pack
from rocmkern.tile.language.kernel import Config, Kernel


class CodeRefusedError(TargetError):
    """A driver does not take a kernel's machine code."""


class PreparedLaunch:
    """One launch, ready to be made again: kernel, grid and stream are fixed, `words` may be changed in between.

    Attributes
    ----------
    words : mutable sequence of int
        Launch words of the next call. They are read during a call, so that calls must not run at the same time.
    """

    __slots__ = ("_fail", "_parameters", "_start", "words")

    words: ctypes.Array[ctypes.c_int64]

    def __init__(self, parameters: ParameterBuffer, start: Callable[[], tuple[Any, ...]], fail: Callable[[Any], None]):
        self.words, self._parameters = parameters.words, parameters  # the driver reads more of it than the words
        self._start, self._fail = start, fail

    def __call__(self) -> None:
        """Start all blocks; the device is current. Does not wait for them."""
        status = self._start()[0]
        if status:
            self._fail(status)


class LoadedVariant(ABC):
    """A compiled kernel on the current device, ready to be launched from any thread.

    Parameters
    ----------
    title : str
        The kernel's name, for people.
    count : int
        Number of launch words.
    end, more, nbytes : int
        See `ParameterBuffer`.

    Attributes
    ----------
    kernel_name : str
        The kernel function's name, without what the compiler makes of it.
    code_sha256 : str
        Of the bytes that the driver was given; empty where the target does not say.
    """

    code_sha256 = ""

    def __init__(self, title: str, count: int, end: int, more: int = 0, nbytes: int = 0):
        self._title, self._count, self._layout = title, count, (count, end, more, nbytes)
        self.kernel_name = title
        self._parameters = ThreadParameters(*self._layout)

    def takes(self, words: Sequence[int]) -> bool:
        """Whether the variant can be launched with these words. One with ``cfg.num_stages`` 1 can be with any."""
        return True

    def launch(self, grid: Sequence[int], words: Sequence[int], stream: int = 0) -> None:
        """Start all blocks of a grid (x, y, z) on a stream; returns at once."""
        held = self._parameters
        # Not there meanwhile: a signal's handler that launches within this needs one of its own.
        buffer, held.buffer = held.buffer or ParameterBuffer(*self._layout), None
        self._prepared(buffer, grid, words, stream)()
        held.buffer = buffer

    def prepare(self, grid: Sequence[int], words: Sequence[int], stream: int) -> PreparedLaunch:
        """The same launch, to be made later and more than once."""
        return self._prepared(ParameterBuffer(*self._layout), grid, words, stream)

    def _prepared(
        self, parameters: ParameterBuffer, grid: Sequence[int], words: Sequence[int], stream: int
    ) -> PreparedLaunch:
        if len(words) != self._count:
            raise TargetError(f"kernel {self._title} takes {self._count} launch words, got {len(words)}")
        parameters.fill(*words)
        start = launches.announced(self.kernel_name, self._call(grid, stream, parameters), self.code_sha256)
        return PreparedLaunch(parameters, start, self._fail)

    @abstractmethod
    def _call(self, grid: Sequence[int], stream: int, parameters: ParameterBuffer) -> Callable[[], tuple[Any, ...]]:
        """The driver's launch call with everything given; it returns ``(status,)``."""

    @abstractmethod
    def _fail(self, status: Any) -> None:
        """Raise the error of a launch that did not succeed."""


class GpuTarget(ABC):
    """Runs kernels on one device.

    Parameters
    ----------
    device : Device
        The GPU; its architecture is what kernels are compiled for.
    """

    #: Blocks of one wave that share a multiprocessor: shared memory for a few windows each.
    BLOCKS_PER_MULTIPROCESSOR = 2

    #: Small blocks that run at the same time; a target that can ask its device says more.
    parallelism: int = 1

    device: Device
    name: str
    arch: str

    def __init__(self, device: Device):
        self.device, self.name, self.arch = device, device.kind, device.info.arch
        self._variants: dict[tuple[Any, ...], LoadedVariant] = {}
        self._compiling = Mutex()

    @abstractmethod
    def compile_entry(self, kernel: Kernel, cfg: Config, dtypes: tuple[str, ...]) -> Entry:
        """Compile one variant."""

    @abstractmethod
    def load(self, entry: Entry) -> LoadedVariant:
        """Load a variant on the device, which is current.

        Raises
        ------
        EntryError
            If its launch fields make no sense.
        CodeRefusedError
            If the driver does not take its code.
        """

    @abstractmethod
    def versions(self) -> str | None:
        """Versions of the compiler, part of the name of what is kept on disk; None where it is not installed."""

    def variants(self) -> int:
        """Number of compiled kernels in this process."""
        return len(self._variants)

    def launch(self, kernel: Kernel, cfg: Config, grid: Sequence[int], args: Sequence[Any], stream: Any = None) -> None:
        """Start all blocks of a launch on ``stream`` (default: the manager's); does not wait for them."""
        manager = default_manager(self.device)
        handle = int(manager.stream if stream is None else getattr(stream, "handle", stream))
        dtypes = source.dtypes_of(kernel, args)
        words = pack(kernel, args)
        with self.device.current():
            variant = self._variants.get((kernel, cfg, dtypes)) or self._variant(kernel, cfg, dtypes)
            if not variant.takes(words):
                variant = self._variant(kernel, dataclasses.replace(cfg, num_stages=1), dtypes)
            variant.launch(grid, words, handle)
        manager.track(kernel.__name__, handle)
        observer = launches.thread.observer
        if observer is not None:
            observer(self, kernel, args, handle, variant.prepare(grid, words, handle))

    def _variant(self, kernel: Kernel, cfg: Config, dtypes: tuple[str, ...]) -> LoadedVariant:
        key = (kernel, cfg, dtypes)
        cache.refuse_within()
        with self._compiling:
            if key not in self._variants:
                with collected():
                    return self._obtained(kernel, cfg, dtypes)
            return self._variants[key]

    def _obtained(self, kernel: Kernel, cfg: Config, dtypes: tuple[str, ...]) -> LoadedVariant:
        """The loaded variant, from disk if it was compiled before."""

        def use(entry: Entry) -> LoadedVariant:
            loaded = self._loaded(entry)
            loaded.kernel_name = kernel.__name__
            return self._variants.setdefault(variant, loaded)

        variant = kernel, cfg, dtypes
        key = source.variant_key(self.name, *variant)
        return cache.obtain(
            key, self.versions, lambda: self.compile_entry(*variant), use, lambda: self._variants.get(variant)
        )

    def _loaded(self, entry: Entry) -> LoadedVariant:
        try:
            with self.device.current():  # in the thread of a compilation too
                return self.load(entry)
        except CodeRefusedError as error:
            raise EntryError(str(error)) from None
