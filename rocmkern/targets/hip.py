"""The hip target: kernels compiled by numba-hip for an AMD architecture, with or without a card of it, and launched.

Importing this module needs numba-hip and ROCm's libraries.
"""

from __future__ import annotations

import ctypes
import functools
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from numba import hip
from numba.core import types
from numba.core.compiler_lock import global_compiler_lock
from numba.core.errors import NumbaError
from numba.hip import compiler, dispatcher
from numba.hip.amdgcn import AMDGPUTargetMachine
from numba.hip.hipdrv import devices, driver
from numba.hip.util import comgrutils, llvmutils

from rocmkern.runtime.errors import TargetError, TileError
from rocmkern.targets import source
from rocmkern.tile import api
from rocmkern.tile.architectures import architecture
from rocmkern.tile.entry import config, float32, tensor, words_of
from rocmkern.tile.hip import bound_config, install

TEMPLATE = """\
def launch({words}):
    body(config(CFG, 0, 0, 0), {arguments})
"""


@dataclass(frozen=True)
class CompiledKernel:
    """One variant of a kernel for one architecture.

    Attributes
    ----------
    name : str
        Symbol of the kernel in the code object.
    arch : str
        Architecture, such as ``"gfx1100"``.
    threads : int
        Threads of a block.
    local_bytes : int
        Local memory of a block, in bytes.
    bitcode : bytes
        Linked and optimised LLVM bitcode.
    """

    name: str
    arch: str
    threads: int
    local_bytes: int
    bitcode: bytes

    @functools.cached_property
    def code(self) -> bytes:
        """The code object (ELF)."""
        return comgrutils.compile_bc(self.bitcode, isa_name=self._isa, logging=True)[0]

    @functools.cached_property
    def assembly(self) -> str:
        """Assembly text."""
        return comgrutils.compile_bc_to_hsa(self.bitcode, isa_name=self._isa, logging=False)[0].decode()

    @property
    def _isa(self) -> str:
        return f"amdgcn-amd-amdhsa--{self.arch}"

    def resources(self) -> dict[str, int]:
        """Registers, local memory and scratch (bytes), spilled registers and ``flat_*`` instructions."""
        keys = {
            "vgpr": "vgpr_count",
            "agpr": "agpr_count",
            "sgpr": "sgpr_count",
            "local_bytes": "group_segment_fixed_size",
            "scratch_bytes": "private_segment_fixed_size",
            "vgpr_spills": "vgpr_spill_count",
            "sgpr_spills": "sgpr_spill_count",
        }
        found = {name: re.search(rf"\.{key}:\s+(\d+)", self.assembly) for name, key in keys.items()}
        counts = {name: int(match.group(1)) if match else 0 for name, match in found.items()}
        return counts | {"flat": len(re.findall(r"^\s+flat_", self.assembly, re.MULTILINE))}

    @functools.cached_property
    def function(self) -> Any:
        """The loaded kernel, on the current device."""
        module = devices.get_context().create_module_image(self.code)
        return SimpleNamespace(module=module, handle=module.get_function(self.name).handle)

    def launch(self, grid: Sequence[int], words: Sequence[int], stream: Any = None) -> None:
        """Start all blocks of a launch; ``words`` are the launch words of the arguments (see `rocmkern.tile.entry`)."""
        handle = stream.handle if stream is not None else driver.binding.CUstream(0)
        args = [ctypes.c_int64(int(w)) for w in words]
        driver.launch_kernel(self.function.handle, *map(int, grid), self.threads, 1, 1, 0, handle, args)


@contextmanager
def _compiling_for(arch: str) -> Iterator[None]:
    """Let numba-hip compile device functions for ``arch``; it would ask the current device, which may not exist."""
    original = dispatcher.get_current_device
    dispatcher.get_current_device = lambda: SimpleNamespace(amdgpu_arch=arch)
    try:
        yield
    finally:
        dispatcher.get_current_device = original


@global_compiler_lock
def compile_kernel(kernel: Callable, cfg: api.Config, dtypes: Sequence[str]) -> CompiledKernel:
    """Compile one variant of a kernel for ``cfg.arch``; no device is needed.

    Parameters
    ----------
    kernel : callable
        A function marked by `rocmkern.tile.kernel`.
    cfg : Config
        Its configuration; ``arch`` and ``waves`` say what to compile for.
    dtypes : sequence of str
        Element type of each tensor argument.

    Raises
    ------
    TargetError
        If ``cfg.arch`` is not known, or not AMD's.
    TileError
        If the kernel misuses the tile language, or its stages need more local memory than the architecture has.
    """
    hardware = architecture(cfg.arch)
    if not cfg.arch.startswith("gfx"):
        raise TargetError(f"{cfg.arch!r} cannot be compiled by the HIP target; allowed: AMD's, such as 'gfx1100'")
    install()
    n_words = sum(words_of(p) for _, p in kernel.parameters)
    names = [f"w{i}" for i in range(n_words)]
    space: dict[str, Any] = {
        "body": hip.jit(device=True)(kernel),
        "CFG": bound_config(cfg),
        "config": config,
        "tensor": tensor,
        "float32": float32,
    }
    arguments = ", ".join(source.argument_expressions(kernel, dtypes, "w{}"))
    text = TEMPLATE.format(words=", ".join(names), arguments=arguments)
    exec(compile(text, f"<{kernel.__name__}>", "exec"), space)

    options = {"fastmath": False, "opt": 3}
    threads = cfg.waves * hardware.wave
    with _compiling_for(cfg.arch):
        try:
            result = compiler.compile_hip(
                space["launch"], types.void, (types.int64,) * n_words, options=options, amdgpu_arch=cfg.arch
            )
        except NumbaError as e:
            raise TileError(f"kernel {kernel.__name__} for {cfg}: {_first_message(e)}") from e
        library, wrapper = result.target_context.prepare_hip_kernel(
            result.library, result.fndesc, False, False, options, kernel.__code__.co_filename, 1
        )
        _set_attributes(library, wrapper.name, threads)
        bitcode = bytes(library.get_linked_llvm_ir(cfg.arch, to_bc=True, link_in_hipdevicelib=False))
    bitcode, text = _optimized(bitcode, cfg.arch)
    local_bytes = sum(int(n) for n in re.findall(r"addrspace\(3\) global \[(\d+) x i8\]", text))
    if local_bytes > hardware.local_bytes:
        raise TileError(
            f"kernel {kernel.__name__} for {cfg}: its stages take {local_bytes} bytes of local memory; "
            f"{cfg.arch} has {hardware.local_bytes}: smaller blocks"
        )
    return CompiledKernel(wrapper.name, cfg.arch, threads, local_bytes, bitcode)


def _optimized(bitcode: bytes, arch: str) -> tuple[bytes, str]:
    """Run LLVM's optimiser: (bitcode, text). Only then is it known which copies of a stage remain."""
    text = AMDGPUTargetMachine(arch).optimize_module(bitcode)
    return bytes(llvmutils.to_bc_fast(text)), bytes(text).decode()


def _set_attributes(library: Any, kernel_name: str, threads: int) -> None:
    """Inline everything, so that no tile goes through memory, and tell LLVM the block size: it sets the registers."""
    for module in library.modules:
        for fn in module.functions:
            if fn.name == kernel_name:
                # llvmlite knows no string attributes; numba-hip adds its own in the same way.
                set.add(fn.attributes, f'"amdgpu-flat-work-group-size"="{threads},{threads}"')
            elif not fn.is_declaration:
                fn.attributes.discard("noinline")
                fn.attributes.add("alwaysinline")


def _first_message(error: Exception) -> str:
    """The line of numba's report that says what is wrong."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    typed = [line.split("TypingError: ", 1)[1] for line in lines if "TypingError: " in line]
    return (typed or lines or [repr(error)])[0]
