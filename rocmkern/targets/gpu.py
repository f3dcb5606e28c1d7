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

import numpy as np

from rocmkern.targets import cache, source
from rocmkern.tile import api, entry


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
        key = (kernel, cfg, tuple([a.dtype for a in args if isinstance(a, np.ndarray)]))
        words = pack(kernel, args)
        with self.device.current():
            run = self._variants.get(key) or self._variant(key, source.dtypes_of(kernel, args))
            run(grid, words, int(handle))
        manager.track(kernel.__name__, handle)

    def _variant(self, key: tuple, dtypes: tuple[str, ...]) -> Callable:
        # The key has dtypes and not their names, because NumPy takes longer to make a name than a launch takes.
        kernel, cfg, _ = key
        with self._compiling:
            if key not in self._variants:
                self._variants[key] = self.load(self._compiled(kernel, cfg, dtypes))
                gc.collect()  # as on the cpu target: numba's reference cycles keep the callers' arrays alive
            return self._variants[key]

    def _compiled(self, kernel: Callable, cfg: api.Config, dtypes: tuple[str, ...]) -> Any:
        """The compiled variant, from disk if it was compiled before."""
        parts = [
            f"{kernel.__module__}.{kernel.__qualname__}", repr(cfg), repr(dtypes), source.library_fingerprint(),
            source.kernel_fingerprint(kernel), self.versions(), platform.python_version(),
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


def pack(kernel: Callable, args: Sequence[Any]) -> list[int]:
    """Launch words of a kernel's arguments (see `entry`)."""
    words: list[int] = []
    for (_, parameter), value in zip(kernel.parameters, args, strict=True):
        kind = parameter.kind
        if kind == "tensor":
            words.append(value.__array_interface__["data"][0] if value.size else 0)
            words += value.shape
            words += value.strides
        elif kind == "int":
            words.append(int(value))
        else:
            words.append(entry.float32_bits(value))
    return words
