"""Machine code of an object file in this process, without a linker or compiler: x86-64 ELF, by ctypes and mmap.

Objects as `native` makes them: relocatable, static, large code model, so that all addresses in the code are 64 bits
wide and nothing has to lie near anything else. They are

    .text, .ltext             code
    .rodata*, .lrodata*       constants
    .eh_frame                 not loaded: nothing is thrown through a kernel

One piece of memory holds the code, and from the next page on the constants. It is written first; then the code becomes
executable and the constants readable, and nothing is ever writable and executable at once. Names that an object does
not define are those of `EXTERNAL`, or the object is refused: libm and libc, and nothing of Python's or a compiler's.

Every offset is checked, although an object only gets here with its checksum: whatever is wrong raises `ElfError`. What
is only unknown here (another machine, a relocation that our objects do not have) raises `UnsupportedElf`; LLVM loads
it.
"""

from __future__ import annotations

import ctypes
import functools
import mmap
import struct
import sys
from dataclasses import dataclass
from typing import Any, NamedTuple

#: What machine code may call: C's memory functions, and mathematics (the float forms have an f behind).
_MATHEMATICS = (
    "exp", "exp2", "exp10", "expm1", "log", "log2", "log10", "log1p", "pow", "sqrt", "cbrt", "sin", "cos", "tan",
    "asin", "acos", "atan", "atan2", "sinh", "cosh", "tanh", "fma", "fmod", "floor", "ceil", "trunc", "rint",
    "nearbyint", "round", "roundeven", "fmin", "fmax", "copysign", "fabs", "ldexp", "erf", "erfc",
)  # fmt: skip
EXTERNAL = frozenset(
    ["memcpy", "memmove", "memset", "malloc", "free", *_MATHEMATICS, *(f"{name}f" for name in _MATHEMATICS)]
)

_PAGE = mmap.PAGESIZE
_LARGEST = 64 * 2**20
_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_RELOCATION = struct.Struct("<QQq")
_IDENTITY = b"\x7fELF\x02\x01\x01"  # 64 bits, little-endian, version 1
_RELOCATABLE, _X86_64 = 1, 62
_PROGBITS, _SYMTAB, _RELA, _NOBITS, _REL, _UNWIND = 1, 2, 4, 8, 9, 0x70000001
_WRITE, _ALLOC, _EXECUTE, _THREADS = 1, 2, 4, 0x400
_UNDEFINED, _ABSOLUTE, _RESERVED = 0, 0xFFF1, 0xFF00
_R_64, _R_PC32, _R_PLT32, _R_PC64 = 1, 2, 4, 24
_MASK = 2**64 - 1
_READ_ONLY, _READ_EXECUTE = 1, 5  # PROT_READ, PROT_READ | PROT_EXEC


class ElfError(Exception):
    """An object file is damaged, or asks for something that it must not have."""


class UnsupportedElf(ElfError):
    """An object file, or this machine, that is not handled here."""


class Section(NamedTuple):
    """A section header: the fields of ``Elf64_Shdr`` by their names without ``sh_``."""

    name: int
    type: int
    flags: int
    addr: int
    offset: int
    size: int
    link: int
    info: int
    addralign: int
    entsize: int


class Symbol(NamedTuple):
    """A symbol: its name, the section that holds it, and where in that."""

    name: str
    section: int
    value: int


@dataclass
class Code:
    """Machine code in memory, for as long as this object lives.

    Attributes
    ----------
    address : int
        Of the function that was asked for.
    memory : object
        What must be kept.
    """

    address: int
    memory: Any


def load(data: bytes, symbol: str) -> Code:
    """Bring an object file into memory.

    Parameters
    ----------
    data : bytes
        The file.
    symbol : str
        Name of the function to find.

    Raises
    ------
    UnsupportedElf
        If this object or this machine is not handled here.
    ElfError
        If the object is damaged, refers to anything but `EXTERNAL`, or lacks the symbol.
    """
    if not sys.platform.startswith("linux") or struct.calcsize("P") != 8:
        raise UnsupportedElf("only Linux on x86-64 is handled")
    return _Object(data).loaded(symbol)


def is_elf(data: bytes) -> bool:
    """Whether these are the contents of an ELF file of 64 bits."""
    return data.startswith(_IDENTITY)


def undefined(data: bytes) -> set[str]:
    """Names that an object file expects from elsewhere."""
    return {symbol.name for symbol in _Object(data).symbols[1:] if symbol.section == _UNDEFINED}


class _Object:
    """An object file: its sections and symbols, checked."""

    def __init__(self, data: bytes):
        self.data = data
        if len(data) < _HEADER.size or not is_elf(data):
            raise ElfError("it is not an ELF file of 64 bits")
        fields = _HEADER.unpack_from(data)
        kind, self.machine, start = fields[1], fields[2], fields[6]
        entry_size, count, names = fields[11:14]
        if kind != _RELOCATABLE or entry_size != _SECTION.size:
            raise ElfError("it is not relocatable")
        self.sections = [Section(*row) for row in self._rows(_SECTION, start, count * entry_size)]
        if names >= len(self.sections):
            raise ElfError("there are no names of sections")
        for section in self.sections:
            if section.type != _NOBITS:
                self._part(section.offset, section.size)
        tables = [section for section in self.sections if section.type == _SYMTAB]
        if len(tables) != 1 or tables[0].link >= len(self.sections):
            raise ElfError("it has not one table of symbols")
        self.symbols = self._symbols(tables[0], self.sections[tables[0].link])

    def _part(self, start: int, size: int) -> bytes:
        if start + size > len(self.data):
            raise ElfError("a part of it lies behind its end")
        return self.data[start : start + size]

    def _rows(self, row: struct.Struct, start: int, size: int) -> list[tuple[Any, ...]]:
        if size % row.size:
            raise ElfError("a table of it ends within a row")
        return list(row.iter_unpack(self._part(start, size)))

    def _symbols(self, table: Section, strings: Section) -> list[Symbol]:
        names, symbols = self._part(strings.offset, strings.size), []
        for name, _, _, section, value, _ in self._rows(_SYMBOL, table.offset, table.size):
            end = names.find(b"\0", name)
            if name >= len(names) or end < 0:
                raise ElfError("a symbol has no name")
            symbols.append(Symbol(names[name:end].decode("latin-1"), section, value))
        return symbols

    def loaded(self, symbol: str) -> Code:
        """The object in memory."""
        if self.machine != _X86_64:
            raise UnsupportedElf(f"it is for machine {self.machine}")
        places, code_size, size = self._places()
        memory = mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, mmap.PROT_READ | mmap.PROT_WRITE)
        base = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        for index, place in places.items():
            section = self.sections[index]
            memory[place : place + section.size] = self._part(section.offset, section.size)
        for section in self.sections:
            if section.type in (_RELA, _REL) and section.info in places:
                self._relocate(memory, base, places, section)
        found = [s for s in self.symbols if s.name == symbol and s.section in places]
        if len(found) != 1:
            raise ElfError(f"it does not define {symbol!r} once")
        offset = places[found[0].section] + found[0].value
        if offset >= code_size or found[0].value >= self.sections[found[0].section].size:
            raise ElfError(f"{symbol!r} is not code")
        _protect(base, code_size, _READ_EXECUTE)
        if size > code_size:
            _protect(base + code_size, size - code_size, _READ_ONLY)
        return Code(base + offset, memory)

    def _places(self) -> tuple[dict[int, int], int, int]:
        """Where each section goes, where the code ends, and the size of all; ends are those of pages."""
        wanted = [(i, s) for i, s in enumerate(self.sections) if s.flags & _ALLOC and s.type != _UNWIND and s.size]
        for _, section in wanted:
            if section.flags & (_WRITE | _THREADS) or section.type != _PROGBITS:
                raise UnsupportedElf("it has data that can be written")
            if section.addralign > _PAGE or section.addralign & (section.addralign - 1):
                raise ElfError("a section has a wrong alignment")
        places: dict[int, int] = {}
        end = code_end = 0
        for executable in (True, False):
            for index, section in wanted:
                if bool(section.flags & _EXECUTE) == executable:
                    places[index] = _up(end, section.addralign or 1)
                    end = places[index] + section.size
            end = _up(end, _PAGE)
            code_end = code_end or end
            if executable and not end:
                raise ElfError("it has no code")
        if end > _LARGEST:
            raise ElfError("it is too large")
        return places, code_end, end

    def _relocate(self, memory: mmap.mmap, base: int, places: dict[int, int], section: Section) -> None:
        """Write addresses into a section, as its table says."""
        if section.type == _REL:
            raise UnsupportedElf("it has relocations without an addend")
        target = self.sections[section.info]
        for offset, info, addend in self._rows(_RELOCATION, section.offset, section.size):
            kind, number = info & 0xFFFFFFFF, info >> 32
            width = 4 if kind in (_R_PC32, _R_PLT32) else 8
            if offset + width > target.size or number >= len(self.symbols):
                raise ElfError("a relocation lies outside its section")
            at = places[section.info] + offset
            value = self._address(self.symbols[number], base, places) + addend
            if kind == _R_64:
                struct.pack_into("<Q", memory, at, value & _MASK)
            elif kind == _R_PC64:
                struct.pack_into("<Q", memory, at, (value - base - at) & _MASK)
            elif kind in (_R_PC32, _R_PLT32):
                distance = value - base - at
                if not -(2**31) <= distance < 2**31:
                    raise UnsupportedElf("an address is too far away for 32 bits")
                struct.pack_into("<i", memory, at, distance)
            else:
                raise UnsupportedElf(f"it has relocations of type {kind}")

    def _address(self, symbol: Symbol, base: int, places: dict[int, int]) -> int:
        if symbol.section == _UNDEFINED:
            return external(symbol.name)
        if symbol.section not in places:
            raise UnsupportedElf(f"{symbol.name!r} lies in a section that is not loaded")
        if symbol.value > self.sections[symbol.section].size:
            raise ElfError(f"{symbol.name!r} lies outside its section")
        return base + places[symbol.section] + symbol.value


@functools.cache
def external(name: str) -> int:
    """Address of a function of libm or libc, one of `EXTERNAL`."""
    if name not in EXTERNAL:
        raise ElfError(f"it calls {name!r}, which is not of libm or libc")
    for library in (None, "libm.so.6"):
        try:
            function = getattr(ctypes.CDLL(library), name)
        except (OSError, AttributeError):
            continue
        address = ctypes.cast(function, ctypes.c_void_p).value
        if address:
            return address
    raise UnsupportedElf(f"this system has no {name!r}")


def _up(n: int, multiple: int) -> int:
    return -(-n // multiple) * multiple


def _protect(address: int, size: int, how: int) -> None:
    protect = ctypes.CDLL(None, use_errno=True).mprotect
    if protect(ctypes.c_void_p(address), ctypes.c_size_t(size), how):
        raise UnsupportedElf(f"this system does not let memory become executable (error {ctypes.get_errno()})")
