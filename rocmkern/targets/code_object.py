"""One way from LLVM bitcode to the code object that an AMD GPU runs, and what stands in such a code object.

    bitcode --(LLVM of the bindings)--> relocatable object --(comgr or LLD)--> code object --(hipModuleLoadData)--> GPU

The bitcode is of the LLVM that comes with numba-hip's bindings. The comgr of a ROCm installation may have an older one,
which cannot read it, so comgr is given nothing that needs an LLVM: it links, or an LLD does (see `linkers`). The code
that runs is therefore the same with every ROCm: `Contents.code_sha256` tells.

A code object is an ELF file (LLVM's "User Guide for AMDGPU Backend": code object):

    .text                machine code; a kernel's begins at a multiple of 256
    NAME.kd in .rodata   kernel descriptor, 64 bytes: shared memory, scratch, registers; at byte 16 the way to its code
    note 32 (AMDGPU)     metadata as MessagePack: ``amdhsa.kernels``, with arguments, register counts and spills of each

Version 5 of it is what every ROCm since 5.5 loads. Generic targets exist from version 6 on (ROCm 6.3).
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from rocmkern.architectures import architecture
from rocmkern.runtime.errors import TargetError
from rocmkern.targets import amd_llvm, linkers, msgpack

CONCRETE_VERSION, GENERIC_VERSION = 5, 6

_ELF_64_LITTLE = b"\x7fELF\x02\x01"
_OSABI_HSA, _SHARED, _MACHINE_AMDGPU = 64, 3, 224
_PROGRAM, _SYMBOLS, _NOTE, _DYNAMIC_SYMBOLS = 1, 2, 7, 11
_EXECUTABLE = 4
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_METADATA_NOTE = 32
_DESCRIPTOR_BYTES, _ENTRY_AT = 64, 16


def build(bitcode: bytes, arch: str) -> bytes:
    """The code object (ELF) of optimised, linked bitcode.

    Parameters
    ----------
    bitcode : bytes
    arch : str
        Such as ``"gfx1100"``, ``"gfx942:xnack-"`` or ``"gfx11-generic"``.

    Raises
    ------
    TargetError
        If it cannot be compiled, or there is nothing to link it with.
    """
    container = container_version(arch)
    return linkers.link(amd_llvm.emit_object(bitcode, arch, container), arch, container)


def container_version(arch: str) -> int:
    """The code object version for an architecture: the oldest that has it."""
    return GENERIC_VERSION if architecture(arch).runs_on else CONCRETE_VERSION


@dataclass(frozen=True)
class Contents:
    """What stands in a code object.

    Attributes
    ----------
    sha256 : str
        Of all bytes: these are what the runtime is given.
    code_sha256 : str
        Of machine code, kernel descriptors (entry points counted from the first byte of code) and metadata, wherever
        they stand in the file: equal, whichever linker was used.
    target : str
        Architecture, such as ``"gfx1100"``.
    version : int
        Code object version.
    text : bytes
        Machine code.
    kernels : tuple of dict
        Metadata of each kernel, keys as LLVM's user guide has them (``".vgpr_count"``).
    symbols : dict
        Start in ``text`` and size of each kernel's code, by name.
    """

    sha256: str
    code_sha256: str
    target: str
    version: int
    text: bytes
    kernels: tuple[dict[str, Any], ...]
    symbols: dict[str, tuple[int, int]]


def read(code: bytes) -> Contents:
    """Look into a code object.

    Raises
    ------
    TargetError
        If the bytes are no linked AMD code object.
    """
    try:
        return _read(code)
    except (struct.error, ValueError, KeyError, IndexError, StopIteration, AttributeError) as error:
        raise TargetError(f"these {len(code)} bytes are no code object of an AMD GPU: {error}") from None


def assembly(code: bytes) -> str:
    """The first kernel of a code object as text: its instructions with labels, then its metadata.

    Labels and numbers are written as LLVM's assembler would, so that one reader serves both.
    """
    contents = read(code)
    kernel = contents.kernels[0]
    start, size = contents.symbols[kernel[".name"]]
    lines = list(amd_llvm.disassemble(contents.text[start : start + size], contents.target))
    labels = sorted({target for offset, _, text in lines if (target := _branch_target(offset, text)) is not None})
    names = {offset: f".LBB0_{number}" for number, offset in enumerate(labels, 1)}
    written = [f"{kernel['.name']}:"]
    for offset, _, text in lines:
        if offset in names:
            written.append(f"{names[offset]}:")
        target = _branch_target(offset, text)
        written.append(f"\t{text}" if target is None else f"\t{text.split()[0]} {names[target]}")
    written.append(".Lfunc_end0:")
    written += [f"    {key}: {value}" for key, value in sorted(kernel.items()) if isinstance(value, int | str)]
    return "\n".join(written) + "\n"


def _branch_target(offset: int, text: str) -> int | None:
    """Where a branch goes, in bytes; None for another instruction. Its operand counts words from its end."""
    words = text.split()
    if not words[0].startswith(("s_cbranch", "s_branch")) or not words[-1].lstrip("-").isdigit():
        return None
    distance = int(words[-1])
    return offset + 4 + 4 * (distance - 65536 if distance > 32767 else distance)


def _read(code: bytes) -> Contents:
    kind, machine = struct.unpack_from("<HH", code, 16)
    if not code.startswith(_ELF_64_LITTLE) or (code[7], kind, machine) != (_OSABI_HSA, _SHARED, _MACHINE_AMDGPU):
        raise ValueError("not an ELF file for HSA that is linked")
    sections = list(_sections(code))
    note = next(found for s in sections if s.kind == _NOTE for found in _notes(code, s))
    metadata = msgpack.unpack(note)
    kernels = tuple(metadata["amdhsa.kernels"])
    # A stripped file has the dynamic table only.
    tables = sorted((s for s in sections if s.kind in (_SYMBOLS, _DYNAMIC_SYMBOLS)), key=lambda s: s.kind)
    symbols = dict(_symbols(code, sections, tables[0]))
    text = next(s for s in sections if s.kind == _PROGRAM and s.flags & _EXECUTABLE)
    digest = hashlib.sha256(code[text.offset : text.offset + text.size])
    for address, _ in sorted(symbols[kernel[".symbol"]] for kernel in kernels):
        holder = next(s for s in sections if s.kind == _PROGRAM and s.address <= address < s.address + s.size)
        at = holder.offset + address - holder.address
        descriptor = bytearray(code[at : at + _DESCRIPTOR_BYTES])
        (distance,) = struct.unpack_from("<q", descriptor, _ENTRY_AT)
        struct.pack_into("<q", descriptor, _ENTRY_AT, address + distance - text.address)
        digest.update(descriptor)
    digest.update(note)
    return Contents(
        sha256=hashlib.sha256(code).hexdigest(),
        code_sha256=digest.hexdigest(),
        target=metadata["amdhsa.target"].removeprefix(amd_llvm.TRIPLE.decode()).lstrip("-"),
        version=code[8] + 2,
        text=code[text.offset : text.offset + text.size],
        kernels=kernels,
        symbols={
            kernel[".name"]: (symbols[kernel[".name"]][0] - text.address, symbols[kernel[".name"]][1])
            for kernel in kernels
        },
    )


@dataclass(frozen=True)
class _Section:
    kind: int
    flags: int
    address: int
    offset: int
    size: int
    link: int


def _sections(code: bytes) -> Iterator[_Section]:
    (start,) = struct.unpack_from("<Q", code, 0x28)
    size, count = struct.unpack_from("<HH", code, 0x3A)
    for number in range(count):
        _, kind, flags, address, offset, nbytes, link, *_ = _SECTION.unpack_from(code, start + number * size)
        yield _Section(kind, flags, address, offset, nbytes, link)


def _notes(code: bytes, section: _Section) -> Iterator[bytes]:
    """The metadata among the notes of a section."""
    at, end = section.offset, section.offset + section.size
    while at + 12 <= end:
        name_bytes, nbytes, kind = struct.unpack_from("<III", code, at)
        content = at + 12 + (name_bytes + 3 & ~3)
        if kind == _METADATA_NOTE:
            yield code[content : content + nbytes]
        at = content + (nbytes + 3 & ~3)


def _symbols(code: bytes, sections: list[_Section], table: _Section) -> Iterator[tuple[str, tuple[int, int]]]:
    """Name, address and size of every symbol that a table defines."""
    names = sections[table.link].offset
    for at in range(table.offset, table.offset + table.size, _SYMBOL.size):
        name, _, _, section, address, nbytes = _SYMBOL.unpack_from(code, at)
        if section:
            yield code[names + name : code.index(b"\0", names + name)].decode(), (address, nbytes)
