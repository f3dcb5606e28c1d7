"""The LLVM of numba-hip's bindings, as far as machine code is concerned: bitcode to an object, bytes to text.

Called through its C interface, with which calls run side by side in several threads. Nothing of numba is needed, and no
device. The bindings' own wrappers are not used: they know no diagnostic handler, and LLVM ends the process at an error
that nobody handles.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager

from rocmkern.runtime.errors import TargetError
from rocmkern.runtime.once import once

TRIPLE = b"amdgcn-amd-amdhsa"

_VERSION_FLAG = b"amdhsa_code_object_version"
_FLAG_OVERRIDES = 3
_OBJECT_FILE = 1
_AGGRESSIVE, _POSITION_INDEPENDENT, _DEFAULT_MODEL = 3, 2, 0
_SEVERITY_ERROR = 0
_LINE_BYTES = 512

_Pointer = ctypes.c_void_p
_Handler = ctypes.CFUNCTYPE(None, _Pointer, _Pointer)


def library_path(name: str) -> str:
    """Where the bindings find a library of ROCm (``"amd_comgr"``, ``"LLVM"``); they load the same file.

    Raises
    ------
    TargetError
        If the bindings are not installed.
    """
    try:
        # deferred: optional dependency
        from rocm.bindings.util import paths
    except ImportError as error:
        raise TargetError(f'the bindings of ROCm are not installed ({error}): pip install "rocmkern[hip]"') from None
    return os.fsdecode(paths.get_library_path(name))


def version() -> str:
    """The version of this LLVM, such as ``"23.0.0"``."""
    numbers = [ctypes.c_uint() for _ in range(3)]
    _llvm().LLVMGetVersion(*map(ctypes.byref, numbers))
    return ".".join(str(number.value) for number in numbers)


def emit_object(bitcode: bytes, arch: str, code_object_version: int) -> bytes:
    """Make a relocatable ELF object of bitcode. No pass over the code runs: what was optimised is what is compiled.

    Parameters
    ----------
    bitcode : bytes
        Of this LLVM or an older one.
    arch : str
        Such as ``"gfx1100"`` or ``"gfx942:sramecc+:xnack-"``.
    code_object_version : int
        Version of the container, which the runtime that loads it has to know.

    Raises
    ------
    TargetError
        If the bitcode cannot be compiled for the architecture.
    """
    llvm = _llvm()
    processor, *flags = arch.split(":")
    features = ",".join(flag[-1] + flag[:-1] for flag in flags)
    with _context(llvm) as (context, errors):
        target, machine, module, emitted, text = (_Pointer() for _ in range(5))

        def check(failed: int, what: str) -> None:
            if failed or errors:
                said = "; ".join(errors) or (
                    ctypes.string_at(text).decode(errors="replace") if text else "no reason given"
                )
                raise TargetError(f"LLVM {version()} for {arch}: {what}: {said}")

        try:
            buffer = _Pointer(
                llvm.LLVMCreateMemoryBufferWithMemoryRangeCopy(bitcode, ctypes.c_size_t(len(bitcode)), b"bitcode")
            )
            failed = llvm.LLVMParseBitcodeInContext2(context, buffer, ctypes.byref(module))
            llvm.LLVMDisposeMemoryBuffer(buffer)
            check(failed, "the bitcode cannot be read")
            check(_set_version(llvm, context, module, code_object_version), "the code object version cannot be set")
            failed = llvm.LLVMGetTargetFromTriple(TRIPLE, ctypes.byref(target), ctypes.byref(text))
            check(failed, "this LLVM was built without AMD GPUs")
            machine = _Pointer(
                llvm.LLVMCreateTargetMachine(
                    target, TRIPLE, processor.encode(), features.encode(),
                    _AGGRESSIVE, _POSITION_INDEPENDENT, _DEFAULT_MODEL,
                )
            )  # fmt: skip
            failed = llvm.LLVMTargetMachineEmitToMemoryBuffer(
                machine, module, _OBJECT_FILE, ctypes.byref(text), ctypes.byref(emitted)
            )
            check(failed, "no machine code")
            return ctypes.string_at(llvm.LLVMGetBufferStart(emitted), llvm.LLVMGetBufferSize(emitted))
        finally:
            for made, dispose in (
                (emitted, llvm.LLVMDisposeMemoryBuffer), (text, llvm.LLVMDisposeMessage),
                (machine, llvm.LLVMDisposeTargetMachine), (module, llvm.LLVMDisposeModule),
            ):  # fmt: skip
                if made:
                    dispose(made)


def disassemble(code: bytes, arch: str) -> Iterator[tuple[int, int, str]]:
    """The instructions of machine code: (offset, size in bytes, text) of each.

    Raises
    ------
    TargetError
        If bytes are no instruction of the architecture.
    """
    llvm = _llvm()
    reader = _Pointer(llvm.LLVMCreateDisasmCPU(TRIPLE, arch.split(":")[0].encode(), None, 0, None, None))
    if not reader:
        raise TargetError(f"LLVM {version()} has no disassembler for {arch}")
    try:
        memory = ctypes.create_string_buffer(code, len(code))
        start, line = ctypes.addressof(memory), ctypes.create_string_buffer(_LINE_BYTES)
        offset = 0
        while offset < len(code):
            size = llvm.LLVMDisasmInstruction(
                reader, _Pointer(start + offset), ctypes.c_uint64(len(code) - offset), ctypes.c_uint64(offset),
                line, ctypes.c_size_t(_LINE_BYTES),
            )  # fmt: skip
            if not size:
                raise TargetError(f"no instruction of {arch} at byte {offset}: {code[offset : offset + 8].hex()}")
            yield offset, size, " ".join(line.value.decode().split())
            offset += size
    finally:
        llvm.LLVMDisasmDispose(reader)


@once
def _llvm() -> ctypes.CDLL:
    path = library_path("LLVM")
    try:
        llvm = ctypes.CDLL(path)
    except OSError as error:
        raise TargetError(
            f'LLVM of the bindings cannot be loaded ({error}): pip install --force-reinstall "rocmkern[hip]"'
        ) from None
    for part in ("TargetInfo", "Target", "TargetMC", "AsmPrinter", "AsmParser", "Disassembler"):
        getattr(llvm, f"LLVMInitializeAMDGPU{part}")()
    for name in (
        "ContextCreate", "CreateMemoryBufferWithMemoryRangeCopy", "CreateTargetMachine", "GetBufferStart", "ConstInt",
        "ValueAsMetadata", "Int32TypeInContext", "ModuleCreateWithNameInContext", "GetDiagInfoDescription",
        "CreateDisasmCPU",
    ):  # fmt: skip
        getattr(llvm, f"LLVM{name}").restype = _Pointer
    for name in ("GetBufferSize", "DisasmInstruction"):
        getattr(llvm, f"LLVM{name}").restype = ctypes.c_size_t
    return llvm


@contextmanager
def _context(llvm: ctypes.CDLL) -> Iterator[tuple[_Pointer, list[str]]]:
    """A context of LLVM, and the list that its errors are appended to."""
    errors: list[str] = []

    def note(info: int, _: int) -> None:
        words = _Pointer(llvm.LLVMGetDiagInfoDescription(_Pointer(info)))
        if llvm.LLVMGetDiagInfoSeverity(_Pointer(info)) == _SEVERITY_ERROR:
            errors.append(ctypes.string_at(words).decode(errors="replace"))
        llvm.LLVMDisposeMessage(words)

    context, handler = _Pointer(llvm.LLVMContextCreate()), _Handler(note)
    llvm.LLVMContextSetDiagnosticHandler(context, handler, None)
    try:
        yield context, errors
    finally:
        llvm.LLVMContextDispose(context)


def _set_version(llvm: ctypes.CDLL, context: _Pointer, module: _Pointer, number: int) -> int:
    """Write the code object version into a module that may have one already: by linking one that overrides it."""
    carrier = _Pointer(llvm.LLVMModuleCreateWithNameInContext(b"version", context))
    kind = _Pointer(llvm.LLVMInt32TypeInContext(context))
    value = _Pointer(llvm.LLVMConstInt(kind, ctypes.c_ulonglong(100 * number), 0))
    metadata = _Pointer(llvm.LLVMValueAsMetadata(value))
    llvm.LLVMAddModuleFlag(carrier, _FLAG_OVERRIDES, _VERSION_FLAG, ctypes.c_size_t(len(_VERSION_FLAG)), metadata)
    return int(llvm.LLVMLinkModules2(module, carrier))
