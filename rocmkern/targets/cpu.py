"""The cpu target: kernels compiled by numba for this host, blocks spread over a small pool of threads."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any, ClassVar

from rocmkern.runtime import fork
from rocmkern.runtime.errors import TargetError
from rocmkern.runtime.mutex import Mutex
from rocmkern.targets import cache, entries, host_cpu, launches, objects, source
from rocmkern.targets.elf import ElfError
from rocmkern.targets.entries import Entry, EntryError
from rocmkern.targets.garbage import collected
from rocmkern.targets.host_cpu import ARCHITECTURES, host_architecture
from rocmkern.targets.interface import refuse_stream
from rocmkern.targets.versions import compiler_versions
from rocmkern.targets.words import pack
from rocmkern.targets.workers import workers
from rocmkern.tile.language.kernel import Config, Kernel

__all__ = ["ARCHITECTURES", "CpuTarget", "compile_entry", "host_architecture", "thread_count"]


def thread_count() -> int:
    """``ROCMKERN_NUM_THREADS``, else the cores that this process may use."""
    wanted = os.environ.get("ROCMKERN_NUM_THREADS")
    if wanted:
        if not wanted.isdigit() or int(wanted) < 1:
            raise TargetError(f"ROCMKERN_NUM_THREADS={wanted}: allowed: a number of threads, 1 or more")
        return int(wanted)
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


#: A launch that took less the last time is made by its caller alone, in one call: sharing it out takes some 20 us. So
#: is one of a single block, which cannot be shared out.
_SHORT_S = 50e-6


class PreparedLaunch:
    """One launch, ready to be made again, also by several threads at once: kernel and grid are fixed.

    Attributes
    ----------
    words : list of int
        Launch words that it was made with.
    """

    __slots__ = ("_grid", "_name", "_pack", "_run", "_short", "_threads", "words")

    words: list[int]

    def __init__(self, name: str, run: Callable[..., None], grid: Sequence[int], threads: int, words: list[int]):
        self._name, self._run, self._grid, self._threads, self.words = name, run, tuple(grid), threads, words
        self._pack = objects.words_layout(len(words)).pack
        self._short = False

    def __call__(self, words: Sequence[int]) -> None:
        """Run all blocks with these launch words, and wait for them."""
        if launches.watchers:
            with launches.launching(self._name):
                self._work(words)
        else:
            self._work(words)

    def _work(self, words: Sequence[int]) -> None:
        nx, ny, nz = self._grid
        total = nx * ny * nz
        begin = perf_counter()
        if self._short or total == 1:
            self._run(self._pack(*words), nx, ny, 0, total)
        else:
            workers.run(functools.partial(self._run, self._pack(*words), nx, ny), total, self._threads)
        self._short = perf_counter() - begin < _SHORT_S


class CpuTarget:
    """Compiles kernels with numba and runs them on this host's cores."""

    name: ClassVar[str] = "cpu"
    device: ClassVar[None] = None

    def __init__(self) -> None:
        self.arch: str = host_architecture()
        self.threads: int = thread_count()
        #: Blocks that run at the same time.
        self.parallelism: int = self.threads
        self._variants: dict[tuple[Any, ...], Callable[..., None]] = {}
        self._compiling = Mutex()
        fork.renew_locks(self, "_compiling")

    def variants(self) -> int:
        """Number of compiled kernels in this process."""
        return len(self._variants)

    def launch(self, kernel: Kernel, cfg: Config, grid: Sequence[int], args: Sequence[Any], stream: Any = None) -> None:
        """Run all blocks of a launch and wait for them."""
        refuse_stream(stream)
        run = self.compile(kernel, cfg, source.dtypes_of(kernel, args))
        prepared = PreparedLaunch(kernel.__name__, run, grid, self.threads, pack(kernel, args))
        prepared(prepared.words)
        observer = launches.thread.observer
        if observer is not None:
            observer(self, kernel, args, 0, prepared)

    def compile(self, kernel: Kernel, cfg: Config, dtypes: tuple[str, ...]) -> Callable[..., None]:
        """The launch function of one variant: ``run(words, nx, ny, first, last)``, of words as `words_layout` packs."""
        key = (kernel, cfg, dtypes)
        run = self._variants.get(key)
        if run is None:
            cache.refuse_within()
            with self._compiling, collected():
                run = self._variants.get(key) or self._obtained(kernel, cfg, dtypes)
        return run

    def _obtained(self, kernel: Kernel, cfg: Config, dtypes: tuple[str, ...]) -> Callable[..., None]:
        def use(entry: Entry) -> Callable[..., None]:
            return self._variants.setdefault(variant, launch_function(entry))

        variant = kernel, cfg, dtypes
        key = variant_key(*variant)
        return cache.obtain(key, versions, lambda: compile_entry(*variant), use, lambda: self._variants.get(variant))


_compiled: list[str] = []


def compiled() -> int:
    """Number of variants that this process compiled itself; those that it found are not counted."""
    return len(_compiled)


def variant_key(kernel: Kernel, cfg: Config, dtypes: tuple[str, ...]) -> source.Key:
    """The key of a variant for ``cfg.arch``."""
    machine = host_cpu.machine(cfg.arch)
    return source.variant_key("cpu", kernel, cfg, dtypes, (machine.kind, machine.cpu, machine.features))


def compile_entry(kernel: Kernel, cfg: Config, dtypes: tuple[str, ...]) -> Entry:
    """Compile one variant for ``cfg.arch``, which need not be this host's; errors as of `native.compile_kernel`."""
    # deferred: start-up
    from rocmkern.targets import native

    machine, key = host_cpu.machine(cfg.arch), variant_key(kernel, cfg, dtypes)
    code = native.compile_kernel(kernel, cfg, dtypes, machine)
    _compiled.append(key.digest)
    return source.entry_of(key, versions() or "", {"symbol": native.SYMBOL}, code, machine.needs)


def launch_function(entry: Entry) -> Callable[..., None]:
    """The launch function of an entry (see `objects.launch_function`); `EntryError` where it cannot be loaded."""
    launch = entries.checked(entry.launch, symbol=entries.is_symbol)
    if not host_cpu.host_features().issuperset(entry.machine):
        raise EntryError("it is for another processor")
    try:
        return objects.launch_function(entry.code, launch["symbol"], entry.kernel.rpartition(".")[2])
    except ElfError as e:
        raise EntryError(str(e)) from None


def versions() -> str | None:
    """Versions and settings of the compiler; None where it is not installed."""
    return compiler_versions("numba", "llvmlite")
