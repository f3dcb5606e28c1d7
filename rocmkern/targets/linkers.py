"""What links a relocatable AMD object into the code object that a runtime loads: ROCm's comgr, or an LLD.

Neither compiles anything, so their age matters little: a linker only has to know the version of the container (see
`rocmkern.targets.code_object`). Looked for in this order, the first that links is taken:

    1. comgr, which every ROCm brings: version 2 (ROCm 5 and 6) or 3 (7 and later), whose numbers differ
    2. LLD: ``ROCMKERN_LLD``, ROCm's own, the PATH's, the one beside this Python, the one of the wheel ``ziglang``
"""

from __future__ import annotations

import ctypes
import functools
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rocmkern.runtime.errors import TargetError
from rocmkern.targets import amd_llvm

VARIABLE = "ROCMKERN_LLD"
#: The first LLD that knows a version of the container; a comgr links with the LLD of its own LLVM.
FIRST_LLD = {4: 13, 5: 15, 6: 19}

# amd_comgr_data_kind_t, the same in comgr 2 and 3.
_RELOCATABLE, _EXECUTABLE, _LOG = 7, 8, 5
#: ``AMD_COMGR_ACTION_LINK_RELOCATABLE_TO_EXECUTABLE`` by comgr's major version.
_LINK = {2: 9, 3: 7}
_LOG_CHARACTERS = 2000
_LINK_TIMEOUT_S = 120.0


@dataclass(frozen=True)
class Comgr:
    """ROCm's code object manager.

    Attributes
    ----------
    library : ctypes.CDLL
        The library.
    version : tuple of int
        Its version: (major, minor).
    """

    library: ctypes.CDLL
    version: tuple[int, int]

    def __str__(self) -> str:
        return "comgr {}.{}".format(*self.version)


@dataclass(frozen=True)
class Lld:
    """An LLD.

    Attributes
    ----------
    command : tuple of str
        How it is started.
    version : int
        Its major version.
    """

    command: tuple[str, ...]
    version: int

    def __str__(self) -> str:
        return f"LLD {self.version} ({self.command[0]})"


def remedy(container: int) -> str:
    """What to install where nothing links a version of the container."""
    return (
        f"install ROCm's comgr (Debian: libamd-comgr-dev) or an LLD of LLVM {FIRST_LLD[container]} or newer "
        f'(Debian 12: lld-19; later: lld), or pip install "rocmkern[lld]", or name an ld.lld: export {VARIABLE}=FILE'
    )


def link(obj: bytes, arch: str, container: int) -> bytes:
    """Link one object by the first linker of this machine that does it.

    Parameters
    ----------
    obj : bytes
        Relocatable ELF object.
    arch : str
        Its architecture.
    container : int
        Its code object version.

    Raises
    ------
    TargetError
        If there is no linker, or none of them links it; the message gives every reason, and what to install.
    """
    reasons = []
    try:
        return link_by_comgr(obj, arch, comgr())
    except TargetError as error:
        reasons.append(str(error))
    try:
        return link_by_lld(obj, lld(container))
    except TargetError as error:
        reasons.append(str(error))
    raise TargetError(f"the code for {arch} cannot be linked: {'; '.join(reasons)}. Remedy: {remedy(container)}")


def found(container: int) -> list[Comgr | Lld | str]:
    """What there is to link with, in the order in which it is tried; a reason in place of one that cannot be used."""
    answers: list[Comgr | Lld | str] = []
    for look in (comgr, functools.partial(lld, container)):
        try:
            answers.append(look())
        except TargetError as error:
            answers.append(str(error))
    return answers


@functools.cache
def open_comgr(path: str) -> Comgr:
    """Load a comgr.

    Raises
    ------
    TargetError
        If it cannot be loaded, or is of a generation whose numbers are not known.
    """
    try:
        library = ctypes.CDLL(path)
        numbers = ctypes.c_size_t(), ctypes.c_size_t()
        library.amd_comgr_get_version(*map(ctypes.byref, numbers))
    except (OSError, AttributeError) as error:
        raise TargetError(f"comgr cannot be loaded: {error}") from None
    major, minor = (number.value for number in numbers)
    if major not in _LINK:
        known = " and ".join(map(str, _LINK))
        raise TargetError(f"{path} calls itself comgr {major}.{minor}; known are the versions {known}")
    return Comgr(library, (major, minor))


def comgr() -> Comgr:
    """The comgr that the bindings load; errors as for `open_comgr`."""
    return open_comgr(amd_llvm.library_path("amd_comgr"))


def lld(container: int) -> Lld:
    """The first LLD of this machine that knows a version of the container.

    Raises
    ------
    TargetError
        If there is none; the message names those that are too old.
    """
    old = []
    for command in _commands():
        version = _lld_version(command)
        if version >= FIRST_LLD[container]:
            return Lld(command, version)
        old.append(f"{command[0]} is of version {version}" if version else f"{' '.join(command)} does not run")
    needed = f"code object version {container} needs LLD {FIRST_LLD[container]} or newer"
    raise TargetError(f"{needed}; {', '.join(old)}" if old else f"no ld.lld was found; {needed}")


def link_by_comgr(obj: bytes, arch: str, comgr: Comgr) -> bytes:
    """Link an object with comgr.

    Raises
    ------
    TargetError
        With comgr's own words.
    """
    library, handles = comgr.library, _Handles(comgr)
    try:
        data = handles.new("create_data", "release_data", _RELOCATABLE)
        handles.check(library.amd_comgr_set_data(data, ctypes.c_size_t(len(obj)), obj))
        handles.check(library.amd_comgr_set_data_name(data, b"kernel.o"))
        inputs, outputs = (handles.new("create_data_set", "destroy_data_set") for _ in range(2))
        handles.check(library.amd_comgr_data_set_add(inputs, data))
        info = handles.new("create_action_info", "destroy_action_info")
        handles.check(library.amd_comgr_action_info_set_logging(info, True))
        name = amd_llvm.TRIPLE + b"--"
        if library.amd_comgr_action_info_set_isa_name(info, name + arch.encode()):
            # A comgr older than the card does not know its name. Linking does not depend on it, but wants some name.
            handles.check(library.amd_comgr_action_info_set_isa_name(info, name + b"gfx900"))
        status = library.amd_comgr_do_action(_LINK[comgr.version[0]], info, inputs, outputs)
        if status:
            handles.check(status, handles.log(outputs))
        return handles.read(outputs, _EXECUTABLE)
    finally:
        handles.close()


def link_by_lld(obj: bytes, lld: Lld) -> bytes:
    """Link an object with LLD.

    Raises
    ------
    TargetError
        With the words of LLD.
    """
    with tempfile.TemporaryDirectory(prefix="rocmkern-") as directory:
        source, result = Path(directory, "kernel.o"), Path(directory, "kernel.co")
        source.write_bytes(obj)
        command = [*lld.command, "-shared", "-o", str(result), str(source)]
        try:
            done = subprocess.run(
                command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace",
                timeout=_LINK_TIMEOUT_S,
            )  # fmt: skip
        except (OSError, subprocess.TimeoutExpired) as error:
            raise TargetError(f"{lld} cannot be run: {error}") from None
        if done.returncode or not result.exists():
            raise TargetError(f"{lld} does not link it: {done.stderr.strip()[:_LOG_CHARACTERS] or 'it says no more'}")
        return result.read_bytes()


class _Handles:
    """The objects of comgr that one link makes; `close` gives them back."""

    def __init__(self, comgr: Comgr):
        self._comgr = comgr
        self._made: list[tuple[str, ctypes.c_uint64]] = []

    def new(self, create: str, destroy: str, *arguments: object) -> ctypes.c_uint64:
        handle = ctypes.c_uint64()
        self.check(getattr(self._comgr.library, f"amd_comgr_{create}")(*arguments, ctypes.byref(handle)))
        self._made.append((destroy, handle))
        return handle

    def check(self, status: int, log: str = "") -> None:
        if status:
            words = ctypes.c_char_p()
            self._comgr.library.amd_comgr_status_string(status, ctypes.byref(words))
            said = (words.value or b"?").decode(errors="replace")
            raise TargetError(f"{self._comgr} does not link it: {said} {log}".rstrip())

    def read(self, outputs: ctypes.c_uint64, kind: int) -> bytes:
        data = self.new("action_data_get_data", "release_data", outputs, kind, ctypes.c_size_t(0))
        size = ctypes.c_size_t()
        self.check(self._comgr.library.amd_comgr_get_data(data, ctypes.byref(size), None))
        content = ctypes.create_string_buffer(size.value)
        self.check(self._comgr.library.amd_comgr_get_data(data, ctypes.byref(size), content))
        return content.raw

    def log(self, outputs: ctypes.c_uint64) -> str:
        try:
            return self.read(outputs, _LOG).decode(errors="replace")[:_LOG_CHARACTERS].strip()
        except TargetError:
            return ""

    def close(self) -> None:
        for destroy, handle in reversed(self._made):
            getattr(self._comgr.library, f"amd_comgr_{destroy}")(handle)


def _commands() -> Iterator[tuple[str, ...]]:
    """Every LLD of this machine, in the order in which they are tried."""
    named = os.environ.get(VARIABLE)
    if named:
        yield (named,)
        return
    rocm = os.environ.get("ROCM_PATH", "/opt/rocm")
    names = ["ld.lld", *(f"ld.lld-{version}" for version in range(40, 14, -1))]
    places = [
        f"{rocm}/llvm/bin/ld.lld",
        f"{rocm}/lib/llvm/bin/ld.lld",
        *names,
        str(Path(sys.executable).parent / "ld.lld"),
    ]
    yield from dict.fromkeys((path,) for place in places if (path := shutil.which(place)))
    for directory in sys.path:
        # Found without importing it: that would cost more than linking.
        program = Path(directory, "ziglang", "zig")
        if program.is_file():
            yield (str(program), "ld.lld")


@functools.cache
def _lld_version(command: tuple[str, ...]) -> int:
    """The major version of an LLD; 0 if the command is none."""
    try:
        done = subprocess.run(
            [*command, "--version"], stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace",
            timeout=_LINK_TIMEOUT_S,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return 0
    match = re.search(r"LLD (\d+)", done.stdout)
    return int(match[1]) if match else 0
