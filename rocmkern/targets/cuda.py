"""NVIDIA GPUs: numba-cuda makes PTX of a kernel, and the CUDA driver loads and launches it.

`compile_kernel` needs no device: it runs wherever numba-cuda and the CUDA compiler's libraries are installed.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from rocmkern.runtime.errors import TargetError, TileError
from rocmkern.targets import source
from rocmkern.tile import api, entry
from rocmkern.tile.architectures import architecture
from rocmkern.tile.check import check_consumed

TEMPLATE = """\
def launch({words}):
    body(
        config(CFG, 0, 0, 0),
        {arguments},
    )
"""

#: A block gets this much dynamic shared memory without asking for more (CUDA programming guide, function attributes).
DEFAULT_LOCAL_BYTES = 48 * 1024


@dataclass(frozen=True)
class CompiledKernel:
    """PTX of one variant of a kernel.

    Attributes
    ----------
    name : str
        Entry point in the PTX.
    ptx : str
        Code for one architecture.
    words : int
        Number of 64-bit words that a launch takes (see `rocmkern.tile.entry`).
    threads : int
        Threads of a block.
    local_bytes : int
        Dynamic shared memory of a block, in bytes.
    """

    name: str
    ptx: str
    words: int
    threads: int
    local_bytes: int


def compile_kernel(kernel: Callable, cfg: api.Config, dtypes: Sequence[str]) -> CompiledKernel:
    """Compile one variant for ``cfg.arch`` (``sm_80`` and later).

    Parameters
    ----------
    kernel, cfg
        A function marked with `api.kernel`, and its configuration.
    dtypes : sequence of str
        Element type of each tensor argument.

    Raises
    ------
    TileError
        The kernel misuses the tile language, or its windows do not fit into local memory.
    TargetError
        The architecture is not an NVIDIA one with matrix instructions.
    """
    from numba.core.errors import NumbaError
    from numba.cuda import types
    from numba.cuda.compiler import compile as compile_ptx
    from numba.cuda.core.errors import NumbaError as NumbaCudaError

    from rocmkern.tile import cuda as lowering

    if architecture(cfg.arch).matrix != "mma.sync":
        raise TargetError(f"arch {cfg.arch!r} cannot be compiled by the CUDA target; allowed: sm_80 and later")
    check_consumed(kernel, cfg)
    lowering.install()
    n_words = sum(entry.words_of(p) for _, p in kernel.parameters)
    text = TEMPLATE.format(
        words=", ".join(f"w{i}" for i in range(n_words)),
        arguments=",\n        ".join(source.argument_expressions(kernel, dtypes, "w{}")),
    )
    space: dict[str, Any] = {
        "CFG": lowering.bound_config(cfg),
        "body": lowering.device_function(kernel),
        "config": entry.config,
        "float32": entry.float32,
        "tensor": entry.tensor,
    }
    exec(compile(text, f"<{kernel.__name__}>", "exec"), space)
    threads = lowering.LANES * cfg.waves
    capability = compute_capability(cfg.arch)
    token = lowering.COMPUTE_CAPABILITY.set(capability)
    try:
        ptx, _ = compile_ptx(
            space["launch"],
            types.void(*[types.int64] * n_words),
            device=False,
            abi="numba",
            cc=capability,
            launch_bounds=threads,
        )
    except (NumbaError, NumbaCudaError) as e:
        raise TileError(f"kernel {kernel.__name__} for {cfg}: {_reason(e)}") from e
    finally:
        lowering.COMPUTE_CAPABILITY.reset(token)
    name = re.search(r"\.entry\s+([\w$]+)", ptx).group(1)  # type: ignore[union-attr]
    ends = [int(n) for n in re.findall(rf"{lowering.LOCAL_MEMORY_SYMBOL}(\d+)", ptx)]
    return CompiledKernel(name, ptx, n_words, threads, max(ends, default=0))


def _reason(error: Exception) -> str:
    """What a report of numba's says is wrong: the tile language's own words where it spoke."""
    text = str(error)
    found = re.search(r"TypingError: (?!Failed in)(.+)", text) or re.search(r"native lowering\)\s*(.+)", text)
    return found.group(1) if found else text


def compute_capability(arch: str) -> tuple[int, int]:
    """``sm_90`` as (9, 0)."""
    number = int(arch.removeprefix("sm_"))
    return number // 10, number % 10


class LoadedKernel:
    """A compiled kernel on the current device, ready to be launched.

    The launch parameters live in one array of words that is prepared here and filled by each launch.
    """

    def __init__(self, kernel: CompiledKernel):
        from cuda.bindings import driver

        self.kernel, self._driver = kernel, driver
        self._module = _check(driver, driver.cuModuleLoadData(kernel.ptx.encode() + b"\0"))
        self._function = _check(driver, driver.cuModuleGetFunction(self._module, kernel.name.encode()))
        if kernel.local_bytes > DEFAULT_LOCAL_BYTES:
            attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            _check(driver, driver.cuFuncSetAttribute(self._function, attribute, kernel.local_bytes))
        self._words = (ctypes.c_int64 * kernel.words)()
        start = ctypes.addressof(self._words)
        self._pointers = (ctypes.c_void_p * kernel.words)(*(start + 8 * i for i in range(kernel.words)))

    def launch(self, grid: Sequence[int], words: Sequence[int], stream: int = 0) -> None:
        """Start all blocks of a grid (x, y, z) on a stream; returns at once."""
        if len(words) != self.kernel.words:
            raise TargetError(f"kernel {self.kernel.name} takes {self.kernel.words} launch words, got {len(words)}")
        self._words[:] = [int(w) for w in words]
        driver = self._driver
        _check(
            driver,
            driver.cuLaunchKernel(
                self._function,
                *grid,
                self.kernel.threads,
                1,
                1,
                self.kernel.local_bytes,
                driver.CUstream(stream),
                ctypes.addressof(self._pointers),
                0,
            ),
        )


def _check(driver: Any, result: tuple) -> Any:
    """The value of a driver call, or an error that names what went wrong."""
    status, *values = result
    if status != driver.CUresult.CUDA_SUCCESS:
        raise TargetError(f"the CUDA driver reports {status.name}")
    return values[0] if values else None
