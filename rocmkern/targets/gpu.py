"""What the hip and the cuda target share: variants compiled once, kept on disk, loaded, and launched on a stream."""

from __future__ import annotations

import contextlib
import gc
import hashlib
import pickle
import platform
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

from rocmkern.targets import cache, source
from rocmkern.targets.words import pack
from rocmkern.tile import api


class GpuTarget(ABC):
    """Runs kernels on one device.

    Parameters
    ----------
    device : Device
        The GPU; its architecture is what kernels are compiled for.
    """

    #: Small blocks that run at the same time; a target that can ask its device says more.
    parallelism: int = 1

    def __init__(self, device: Any):
        self.device, self.name, self.arch = device, device.kind, device.info.arch
        self._variants: dict[tuple, Callable] = {}
        self._compiling = threading.Lock()

    @abstractmethod
    def compile_kernel(self, kernel: Callable, cfg: api.Config, dtypes: Sequence[str]) -> Any:
        """Compile one variant: an object that can be pickled, without reference to the device."""

    @abstractmethod
    def load(self, compiled: Any) -> Callable[[Sequence[int], Sequence[int], int], None]:
        """Load a variant on the device, which is current; returns ``launch(grid, words, stream)``."""

    @abstractmethod
    def versions(self) -> str:
        """Versions of the compiler, part of the name of what is kept on disk."""

    def variants(self) -> int:
        """Number of compiled kernels in this process."""
        return len(self._variants)

    def launch(
        self, kernel: Callable, cfg: api.Config, grid: Sequence[int], args: Sequence[Any], stream: Any = None
    ) -> None:
        """Start all blocks of a launch on ``stream`` (default: the manager's); does not wait for them."""
        from rocmkern.runtime.manager import default_manager

        manager = default_manager(self.device)
        handle = manager.stream if stream is None else getattr(stream, "handle", stream)
        dtypes = source.dtypes_of(kernel, args)
        words = pack(kernel, args)
        with self.device.current():
            run = self._variants.get((kernel, cfg, dtypes)) or self._variant(kernel, cfg, dtypes)
            run(grid, words, int(handle))
        manager.track(kernel.__name__, handle)

    def _variant(self, kernel: Callable, cfg: api.Config, dtypes: tuple[str, ...]) -> Callable:
        key = (kernel, cfg, dtypes)
        with self._compiling:
            if key not in self._variants:
                self._variants[key] = self.load(self._compiled(kernel, cfg, dtypes))
                gc.collect()  # as on the cpu target: numba's reference cycles keep the callers' arrays alive
            return self._variants[key]

    def _compiled(self, kernel: Callable, cfg: api.Config, dtypes: tuple[str, ...]) -> Any:
        """The compiled variant, from disk if it was compiled before."""
        parts = [
            f"{kernel.__module__}.{kernel.__qualname__}", repr(cfg), repr(dtypes), self.versions(),
            source.library_fingerprint(self.name), source.kernel_fingerprint(kernel), platform.python_version(),
        ]  # fmt: skip
        digest = hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]
        path = cache.cache_directory() / f"{self.name}-{kernel.__name__}-{digest}.pickle"
        try:
            return pickle.loads(path.read_bytes())
        except (OSError, pickle.UnpicklingError, EOFError, AttributeError):
            compiled = self.compile_kernel(kernel, cfg, dtypes)
        with contextlib.suppress(OSError):  # a cache that cannot be written only costs time
            cache.write_atomically(path, pickle.dumps(compiled))
        return compiled
