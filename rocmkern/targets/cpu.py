"""The cpu target: kernels compiled by numba for this host, blocks spread over a small pool of threads."""

from __future__ import annotations

import functools
import os
import platform
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from rocmkern.runtime.errors import TargetError, TileError
from rocmkern.targets import cache, launches, source
from rocmkern.targets.garbage import collected
from rocmkern.targets.messages import first_message
from rocmkern.targets.words import pack
from rocmkern.targets.workers import workers
from rocmkern.tile import api
from rocmkern.tile.check import check_consumed

TEMPLATE = """\
from numba import njit

{imports}
from rocmkern.tile.cpu import bound_config, install
from rocmkern.tile.entry import config, float32, tensor

install()
CFG = bound_config({config})
body = njit(inline="always", nogil=True, error_model="numpy", boundscheck=False)(kernel)


@njit("void(int64[::1], int64, int64, int64, int64)", nogil=True, error_model="numpy", boundscheck=False, cache=CACHED)
def launch(words, nx, ny, first, last):
    for block in range(first, last):
        body(
            config(CFG, block % nx, block // nx % ny, block // (nx * ny)),
            {arguments},
        )
"""

ARCHITECTURES = ("cpu-avx512", "cpu-avx2", "cpu-portable")


def host_architecture() -> str:
    """The widest of `ARCHITECTURES` that this host has; ``ROCMKERN_CPU_ARCH`` overrides it."""
    import llvmlite.binding as llvm

    features = llvm.get_host_cpu_features()
    has = {
        "cpu-avx512": bool(features.get("avx512f") and features.get("avx512dq") and features.get("avx512bw")),
        "cpu-avx2": bool(features.get("avx2") and features.get("fma") and features.get("f16c")),
        "cpu-portable": True,
    }
    wanted = os.environ.get("ROCMKERN_CPU_ARCH")
    if wanted:
        if not has.get(wanted):
            raise TargetError(
                f"ROCMKERN_CPU_ARCH={wanted}: not possible on this host; allowed: {', '.join(a for a in has if has[a])}"
            )
        return wanted
    return next(a for a in ARCHITECTURES if has[a])


def thread_count() -> int:
    """``ROCMKERN_NUM_THREADS``, else the cores that this process may use."""
    wanted = os.environ.get("ROCMKERN_NUM_THREADS")
    if wanted:
        if not wanted.isdigit() or int(wanted) < 1:
            raise TargetError(f"ROCMKERN_NUM_THREADS={wanted}: allowed: a number of threads, 1 or more")
        return int(wanted)
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class CpuTarget:
    """Compiles kernels with numba and runs them on this host's cores."""

    name = "cpu"
    device = None

    def __init__(self) -> None:
        self.arch = host_architecture()
        self.threads = thread_count()
        #: Blocks that run at the same time.
        self.parallelism = self.threads
        self._variants: dict[tuple, Callable] = {}
        self._compiling = threading.Lock()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._after_fork)

    def _after_fork(self) -> None:
        # It may have been held by a thread of the parent that a child does not have.
        self._compiling = threading.Lock()

    def variants(self) -> int:
        """Number of compiled kernels in this process."""
        return len(self._variants)

    def launch(self, kernel: Callable, cfg: api.Config, grid: Sequence[int], args: Sequence[Any]) -> None:
        """Run all blocks of a launch and wait for them."""
        run = self.compile(kernel, cfg, source.dtypes_of(kernel, args))
        words = np.array(pack(kernel, args), np.int64)
        if launches.watched():
            with launches.launching(kernel.__name__):
                self._run(run, grid, words)
        else:
            self._run(run, grid, words)

    def _run(self, run: Callable, grid: Sequence[int], words: np.ndarray) -> None:
        nx, ny, nz = grid
        workers.run(functools.partial(run, words, nx, ny), nx * ny * nz, self.threads)

    def compile(self, kernel: Callable, cfg: api.Config, dtypes: tuple[str, ...]) -> Callable:
        """The compiled launch function of one variant."""
        key = (kernel, cfg, dtypes)
        run = self._variants.get(key)
        if run is None:
            with self._compiling, collected():
                run = self._variants.get(key) or self._compile(kernel, cfg, dtypes)
                self._variants[key] = run
        return run

    def _compile(self, kernel: Callable, cfg: api.Config, dtypes: tuple[str, ...]) -> Callable:
        import numba
        from numba.core.errors import NumbaError

        if "float16" in dtypes and self.arch == "cpu-portable" and platform.machine() in ("x86_64", "AMD64"):
            import llvmlite.binding as llvm

            if not llvm.get_host_cpu_features().get("f16c"):
                raise TargetError("float16 on this processor: it has no F16C instructions; use float32 or bfloat16")
        check_consumed(kernel, cfg)
        versions = f"numba {numba.__version__}, numpy {np.__version__}, python {platform.python_version()}"
        try:
            if all(map(source.importable, (kernel, *source.config_expression(cfg)[1]))):
                text = source.render(self.name, kernel, cfg, TEMPLATE, dtypes, versions)
                return cache.load_module(kernel.__name__, text).launch
            return self._compile_in_memory(kernel, cfg, dtypes)
        except NumbaError as e:
            raise TileError(f"kernel {kernel.__name__} for {cfg}: {first_message(e)}") from e

    @staticmethod
    def _compile_in_memory(kernel: Callable, cfg: api.Config, dtypes: tuple[str, ...]) -> Callable:
        """A kernel or configuration that no module can import (a script's own): compiled each time, never cached."""
        text = TEMPLATE.format(
            imports="", config="config_value", arguments=", ".join(source.argument_expressions(kernel, dtypes))
        )
        space: dict[str, Any] = {"kernel": kernel, "config_value": cfg, "CACHED": False}
        exec(compile(text, f"<{kernel.__name__}>", "exec"), space)
        return space["launch"]
