"""Object files of the cpu target become functions: by `elf`, or by LLVM where that cannot (another processor, say).

Nothing here needs numba, and nothing LLVM where `elf` will do.
"""

from __future__ import annotations

import ctypes
import functools
import struct
from collections.abc import Callable

from rocmkern.runtime.errors import RocmkernError
from rocmkern.targets import elf
from rocmkern.targets.elf import Code, ElfError, UnsupportedElf

_launch_type = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, *[ctypes.c_int64] * 4)


def launch_function(code: bytes, symbol: str, title: str) -> Callable[..., None]:
    """The launch function of an object: ``run(words, nx, ny, first, last)``, which lets other threads run meanwhile.

    Parameters
    ----------
    code : bytes
        The object file.
    symbol : str
        Name of the function.
    title : str
        The kernel's name, for people.

    Raises
    ------
    ElfError
        If it cannot be loaded, or calls anything but `elf.EXTERNAL`.
    """
    try:
        loaded = elf.load(code, symbol)
    except UnsupportedElf:
        foreign = foreign_names(code)
        if foreign:
            raise ElfError(f"it calls {', '.join(foreign)}") from None
        loaded = _load_by_llvm(code, symbol)
    run = _launch_type(loaded.address)

    def check(status: int) -> None:
        if status:
            raise RocmkernError(
                f"kernel {title} ended with status {status}: no memory for its tiles, or it raised an error"
            )

    run.restype = check  # called with what C returns
    run.loaded = loaded  # type: ignore[attr-defined]  # the memory lives as long as the function
    return run


@functools.cache
def words_layout(count: int) -> struct.Struct:
    """Packs launch words as the launch function takes them; the bytes must be kept until it returns."""
    return struct.Struct(f"={count}q")  # the quickest way to an address that ctypes takes


def foreign_names(code: bytes) -> list[str]:
    """What an object calls beside `elf.EXTERNAL`, where it is of a kind that can be asked."""
    return sorted(elf.undefined(code) - elf.EXTERNAL) if elf.is_elf(code) else []


def _load_by_llvm(code: bytes, symbol: str) -> Code:
    try:
        # deferred: start-up
        import llvmlite.binding as llvm
    except ImportError:
        raise ElfError("LLVM loads it, and llvmlite is not installed") from None
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    # An engine for each, since all objects call their function by the same name.
    machine = llvm.Target.from_default_triple().create_target_machine()
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine)
    engine.add_object_file(llvm.ObjectFileRef.from_data(code))
    engine.finalize_object()
    address = engine.get_function_address(symbol)
    if not address:
        raise ElfError(f"it does not define {symbol!r}")
    return Code(address, engine)
