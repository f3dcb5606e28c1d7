"""AMD GPUs: numba-hip makes a code object of a kernel, and the HIP runtime loads and launches it.

Importing this module needs ROCm's libraries. `compile_kernel` needs numba-hip too, but no device; a process that finds
all its variants on disk does not load the compiler.
"""

from __future__ import annotations

import functools
import hashlib
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from rocm.bindings import hip
from rocm.bindings._hip_helpers import HipModuleLaunchKernel_extra

from rocmkern.architectures import architecture, compiled_as
from rocmkern.runtime.device import Device
from rocmkern.runtime.errors import TargetError, TileError
from rocmkern.targets import code_object, entries, source
from rocmkern.targets.entries import Entry, EntryError
from rocmkern.targets.gpu import CodeRefusedError, GpuTarget, LoadedVariant
from rocmkern.targets.messages import first_message
from rocmkern.targets.numba_hip import numba_hip
from rocmkern.targets.versions import compiler_versions
from rocmkern.targets.words import ParameterBuffer
from rocmkern.tile import entry
from rocmkern.tile.check import check_consumed
from rocmkern.tile.language.kernel import Config, Kernel

TEMPLATE = """\
def launch({words}):
    body(config(CFG, 0, 0, 0), {arguments})
"""

#: ``HIP_LAUNCH_PARAM_END``
PARAMETERS_END = 3
#: Of a block; and of a launch (a segment of kernel arguments is a page).
MOST_THREADS, MOST_WORDS = 1024, 512
#: What the runtime says of code that it does not take.
_REFUSALS = frozenset(
    ["hipErrorInvalidImage", "hipErrorInvalidKernelFile", "hipErrorNoBinaryForGpu", "hipErrorNotFound"]
)
#: Before anything is inlined, branches of a kernel that end in the same product come to share it (`_lowering.hip`). At
#: the end, launch words are loaded where they are needed: those of the results behind the loop (see `_load_words`).
PASSES = "function(sroa,early-cse,simplifycfg<sink-common-insts>),default<O3>,function(sink)"


@dataclass(frozen=True)
class Executable:
    """What a launch needs of a compiled kernel.

    Attributes
    ----------
    title : str
        The kernel's name, for people.
    name : str
        Symbol of the kernel in the code object.
    words : int
        Number of 64-bit words that a launch takes (see `rocmkern.tile.entry`).
    threads : int
        Threads of a block.
    code : bytes
        The code object (ELF).
    """

    title: str
    name: str
    words: int
    threads: int
    code: bytes

    @property
    def launch(self) -> dict[str, Any]:
        """Its launch fields in an entry of the cache."""
        return {"title": self.title, "name": self.name, "words": self.words, "threads": self.threads}

    @classmethod
    def of(cls, entry: Entry) -> Executable:
        """What an entry holds; `EntryError` where a field is not what it should be."""
        launch = entries.checked(
            entry.launch, title=entries.is_symbol, name=entries.is_symbol,
            words=entries.is_count(MOST_WORDS), threads=entries.is_count(MOST_THREADS, 1),
        )  # fmt: skip
        if not entry.code.startswith(b"\x7fELF"):
            raise EntryError("its code is no code object")
        return cls(**launch, code=entry.code)


@dataclass(frozen=True)
class CompiledKernel:
    """One variant of a kernel for one architecture, before machine code is made of it.

    Attributes
    ----------
    title : str
        The kernel's name, for people.
    name : str
        Symbol of the kernel in the code object.
    arch : str
        Architecture, such as ``"gfx1100"``.
    words : int
        Number of 64-bit words that a launch takes (see `rocmkern.tile.entry`).
    threads : int
        Threads of a block.
    shared_bytes : int
        Shared memory of a block, in bytes.
    bitcode : bytes
        Linked and optimised LLVM bitcode.
    """

    title: str
    name: str
    arch: str
    words: int
    threads: int
    shared_bytes: int
    bitcode: bytes

    @functools.cached_property
    def code(self) -> bytes:
        """The code object (ELF): exactly what the runtime is given."""
        return code_object.build(self.bitcode, self.arch)

    @property
    def assembly(self) -> str:
        """`code`, disassembled."""
        return code_object.assembly(self.code)

    def resources(self) -> dict[str, int]:
        """Registers, shared memory and scratch (bytes), spilled registers and ``flat_*`` instructions."""
        keys = {
            "vgpr": ".vgpr_count",
            "agpr": ".agpr_count",
            "sgpr": ".sgpr_count",
            "shared_bytes": ".group_segment_fixed_size",
            "scratch_bytes": ".private_segment_fixed_size",
            "vgpr_spills": ".vgpr_spill_count",
            "sgpr_spills": ".sgpr_spill_count",
        }
        metadata = code_object.read(self.code).kernels[0]
        flat = len(re.findall(r"^\s+flat_", self.assembly, re.MULTILINE))
        return {name: metadata.get(key, 0) for name, key in keys.items()} | {"flat": flat}

    @functools.cached_property
    def executable(self) -> Executable:
        """The kernel as it is loaded on a device."""
        return Executable(self.title, self.name, self.words, self.threads, self.code)


class LoadedKernel(LoadedVariant):
    """A compiled kernel on the current device, ready to be launched from any thread."""

    kernel: Executable
    code_sha256: str

    def __init__(self, kernel: Executable):
        super().__init__(kernel.title, kernel.words, PARAMETERS_END)
        self.kernel, self.code_sha256 = kernel, hashlib.sha256(kernel.code).hexdigest()
        # The runtime may read the code object later than this call, so it is kept alive.
        self._module = _check("hipModuleLoadData", hip.hipModuleLoadData(kernel.code))
        found = hip.hipModuleGetFunction(self._module, kernel.name.encode())
        self._function = _check("hipModuleGetFunction", found)
        self._streams: dict[int, Any] = {}

    def _call(self, grid: Sequence[int], stream: int, parameters: ParameterBuffer) -> Callable[[], tuple[Any, ...]]:
        handle = self._streams.get(stream)
        if handle is None:
            handle = self._streams[stream] = hip.ihipStream_t(stream)
        extra = HipModuleLaunchKernel_extra(parameters.address)
        return functools.partial(
            hip.hipModuleLaunchKernel, self._function, *grid, self.kernel.threads, 1, 1, 0, handle, None, extra
        )

    def _fail(self, status: Any) -> None:
        # HIP remembers the error for hipGetLastError, where another library would take it for its own.
        hip.hipGetLastError()
        raise TargetError(f"kernel {self.kernel.title}: the HIP runtime reports {status.name}")


def versions() -> str | None:
    """Versions and settings of numba-hip and of the bindings, whose LLVM makes the code; None where there are none.

    The linker is not among them: the code is the same whichever it is, and a process that finds all its variants on
    disk needs none.
    """
    return compiler_versions("numba-hip", "numba", "llvmlite", "rocm-bindings-compiler")


def variant_key(kernel: Kernel, cfg: Config, dtypes: tuple[str, ...]) -> source.Key:
    """The key of a variant for ``cfg.arch``."""
    return source.variant_key("hip", kernel, cfg, dtypes)


def compile_entry(kernel: Kernel, cfg: Config, dtypes: tuple[str, ...]) -> Entry:
    """What is kept of one variant for ``cfg.arch``; needs and errors as of `compile_kernel`."""
    made = compile_kernel(kernel, cfg, dtypes).executable
    return source.entry_of(variant_key(kernel, cfg, dtypes), versions() or "", made.launch, made.code)


class HipTarget(GpuTarget):
    """Runs kernels on one AMD GPU."""

    def __init__(self, device: Device):
        super().__init__(device)
        self.arch: str = compiled_as(device.info.arch)

    @functools.cached_property
    def parallelism(self) -> int:  # type: ignore[override]
        """Small blocks that run at the same time."""
        attribute = hip.hipDeviceAttribute_t.hipDeviceAttributeMultiprocessorCount
        result = hip.hipDeviceGetAttribute(attribute, self.device.info.index)
        return self.BLOCKS_PER_MULTIPROCESSOR * int(_check("hipDeviceGetAttribute", result))

    def compile_entry(self, kernel: Kernel, cfg: Config, dtypes: tuple[str, ...]) -> Entry:
        """Compile one variant; see `compile_kernel` of this module."""
        return compile_entry(kernel, cfg, dtypes)

    def load(self, entry: Entry) -> LoadedKernel:
        """Load a variant on the current device."""
        return LoadedKernel(Executable.of(entry))

    def versions(self) -> str | None:
        """Versions of the compiler; see `versions` of this module."""
        return versions()


def _check(call: str, result: tuple[Any, ...]) -> Any:
    """The value of a call of the HIP runtime, or an error that names what went wrong."""
    status, value = result
    if status:
        hip.hipGetLastError()
        kind = CodeRefusedError if status.name in _REFUSALS else TargetError
        raise kind(f"{call}: the HIP runtime reports {status.name}")
    return value


@contextmanager
def _compiling_for(arch: str) -> Iterator[None]:
    """Let numba-hip compile device functions for ``arch``.

    It would ask the current device, which may not exist, and ROCm's clang for the attributes of a function, which
    depend on that clang: then the code would be another one with each ROCm. The processor implies its features; only
    the mode is to be chosen.
    """
    # deferred: optional dependency
    from numba.hip import dispatcher
    from numba.hip.util import comgrutils

    device, attributes = dispatcher.get_current_device, comgrutils.get_target_specific_attributes
    hardware = architecture(arch)
    features = f"+wavefrontsize{hardware.wave}" + (",+cumode" if hardware.compute_unit_mode else "")
    ours = [f'"target-cpu"="{hardware.processor}"', f'"target-features"="{features}"']
    dispatcher.get_current_device = lambda: SimpleNamespace(amdgpu_arch=arch)
    comgrutils.get_target_specific_attributes = lambda _: ours
    try:
        yield
    finally:
        dispatcher.get_current_device, comgrutils.get_target_specific_attributes = device, attributes


def compile_kernel(kernel: Kernel, cfg: Config, dtypes: Sequence[str]) -> CompiledKernel:
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
        If ``cfg.arch`` is not known, or not AMD's; or if numba-hip does not start.
    TileError
        If the kernel misuses the tile language, or its stages need more shared memory than the architecture has.
    """
    hip_python = numba_hip()
    # deferred: start-up
    from numba.core import types
    from numba.core.compiler_lock import global_compiler_lock
    from numba.core.errors import NumbaError

    # deferred: optional dependency
    from numba.hip import compiler

    # deferred: start-up
    from rocmkern.tile._lowering import hip as lowering

    hardware = architecture(cfg.arch)
    if hardware.target != "hip":
        raise TargetError(f"{cfg.arch!r} cannot be compiled by the HIP target; allowed: AMD's, such as 'gfx1100'")
    check_consumed(kernel, cfg)
    lowering.install(kernel)
    n_words = sum(entry.words_of(p) for _, p in kernel.parameters)
    names = [f"w{i}" for i in range(n_words)]
    space: dict[str, Any] = {
        "body": hip_python.jit(device=True)(kernel),
        "CFG": lowering.bound_config(cfg),
        "config": entry.config,
        "tensor": entry.tensor,
        "argument": entry.argument,
        "float32": entry.float32,
    }
    arguments = ", ".join(_argument_expressions(kernel, dtypes))
    text = TEMPLATE.format(words=", ".join(names), arguments=arguments)
    exec(compile(text, f"<{kernel.__name__}>", "exec"), space)

    options = {"fastmath": False, "opt": 3}
    threads = cfg.waves * hardware.wave
    with global_compiler_lock, _compiling_for(cfg.arch):
        try:
            result = compiler.compile_hip(
                space["launch"], types.void, (types.int64,) * n_words, options=options, amdgpu_arch=cfg.arch
            )
        except NumbaError as e:
            raise TileError(f"kernel {kernel.__name__} for {cfg}: {first_message(e)}") from None
        library, wrapper = result.target_context.prepare_hip_kernel(
            result.library, result.fndesc, False, False, options, kernel.__code__.co_filename, 1
        )
        _set_attributes(library, wrapper.name, threads)
        bitcode = bytes(library.get_linked_llvm_ir(cfg.arch, to_bc=True, link_in_hipdevicelib=False))
    bitcode, text = _optimized(bitcode, cfg.arch, wrapper.name, kernel.__name__)
    shared_bytes = sum(int(n) for n in re.findall(r"addrspace\(3\) global \[(\d+) x i8\]", text))
    if shared_bytes > hardware.shared_bytes:
        raise TileError(
            f"kernel {kernel.__name__} for {cfg}: its stages take {shared_bytes} bytes of shared memory; "
            f"{cfg.arch} has {hardware.shared_bytes}: smaller blocks"
        )
    return CompiledKernel(kernel.__name__, kernel.__name__, cfg.arch, n_words, threads, shared_bytes, bitcode)


def _argument_expressions(kernel: Kernel, dtypes: Sequence[str]) -> list[str]:
    """As `source.argument_expressions`; of a tensor it is known where its words are."""
    expressions, at = source.argument_expressions(kernel, dtypes, "w{}"), 0
    for i, (_, parameter) in enumerate(kernel.parameters):
        if parameter.kind == "tensor":
            expressions[i] = f"argument({expressions[i]}, {at})"
        at += entry.words_of(parameter)
    return expressions


def _optimized(bitcode: bytes, arch: str, name: str, stable: str) -> tuple[bytes, str]:
    """Run LLVM's optimiser: (bitcode, text). Only then is it known which copies of a stage remain.

    numba's names count what the process has compiled before; with them the same kernel would be other bytes in each
    process. So the kernel gets a stable one, and what numba keeps for its dispatchers on a CPU goes: no GPU reads it.
    """
    # deferred: optional dependency
    from numba.hip.amdgcn import AMDGPUTargetMachine
    from numba.hip.util import llvmutils

    text = bytes(AMDGPUTargetMachine(arch).optimize_module(bitcode, passes=PASSES)).decode()
    text = re.sub(r'^@"?_ZN08NumbaEnv.*\n', "", text, flags=re.MULTILINE)
    text = text.replace(f'@"{name}"', f"@{stable}").replace(f"@{name}", f"@{stable}")
    return bytes(llvmutils.to_bc_fast(text.encode())), text


def _set_attributes(library: Any, kernel_name: str, threads: int) -> None:
    """Inline everything, so that no tile goes through memory, and tell LLVM the block size: it sets the registers."""
    for module in library.modules:
        for fn in module.functions:
            if not fn.is_declaration:
                # Otherwise LLVM makes quiet NaNs of all operands of a maximum first.
                set.add(fn.attributes, '"amdgpu-ieee"="false"')
            if fn.name == kernel_name:
                _load_words(fn)
                # llvmlite knows no string attributes; numba-hip adds its own in the same way.
                set.add(fn.attributes, f'"amdgpu-flat-work-group-size"="{threads},{threads}"')
            elif not fn.is_declaration:
                fn.attributes.discard("noinline")
                fn.attributes.add("alwaysinline")


def _load_words(kernel: Any) -> None:
    """Let a kernel load its arguments from where they lie, instead of having them.

    LLVM would load arguments at the start, all at once, and would keep them in scalar registers until they are used.
    """
    # deferred: start-up
    from llvmlite import ir

    # deferred: optional dependency
    from rocmkern.tile._lowering.hip import emit

    call = next(i for i in kernel.entry_basic_block.instructions if isinstance(i, ir.CallInstr))
    first = len(call.operands) - len(kernel.args)
    b = ir.IRBuilder(kernel.entry_basic_block)
    b.position_before(call)
    words = emit.launch_words(b)
    for i in range(len(kernel.args)):
        call.operands[first + i] = emit.word_at(b, words, ir.Constant(ir.IntType(64), i))
