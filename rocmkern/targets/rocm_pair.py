"""Which ROCm runtime, bindings, LLVM and linker of this machine go together, and what mends it where they do not.

    python -m rocmkern.targets.rocm_pair        as text; the exit status is 0 where kernels can be compiled and loaded

Nothing is opened on a device: libraries are found, loaded and asked for their version. What is wrong becomes a part of
the answer, as a sentence that ends with the line that mends it. `look` loads libraries of ROCm into this process;
`lines_of_child` has another one do it, which may crash.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rocmkern.runtime.errors import TargetError
from rocmkern.runtime.versions import installed_version
from rocmkern.targets import amd_llvm, code_object, linkers
from rocmkern.targets.numba_hip import numba_hip

_BINDINGS = ("numba-hip", "rocm-bindings-hip", "rocm-bindings-compiler")
_INSTALL = 'pip install "rocmkern[hip]"'
#: What a ROCm needs to load code objects of version 5, as HIP counts its releases: ROCm 5.5.
_OLDEST_HIP = (5, 5)


@dataclass(frozen=True)
class Pair:
    """What goes together on this machine; an empty string for what there is not.

    Attributes
    ----------
    runtime : str
        Version and file of the HIP runtime.
    bindings : str
        numba-hip and the bindings of ROCm.
    llvm : str
        The LLVM that makes machine code.
    linkers : tuple of str
        What can link it, in the order in which it is tried.
    problems : tuple of str
        What is wrong; each ends with the line that mends it.
    """

    runtime: str
    bindings: str
    llvm: str
    linkers: tuple[str, ...]
    problems: tuple[str, ...]

    @property
    def usable(self) -> bool:
        """Whether kernels can be compiled and loaded: everything is there, and nothing is wrong."""
        return bool(self.runtime and self.bindings and self.llvm and self.linkers) and not self.problems

    def lines(self) -> list[str]:
        """The pair as text, for ``rocmkern doctor``."""
        return [
            f"runtime   {self.runtime or 'none'}",
            f"bindings  {self.bindings or 'none'}",
            f"llvm      {self.llvm or 'none'}",
            f"linker    {', then '.join(self.linkers) or 'none'}",
            *(f"mend      {problem}" for problem in self.problems),
        ]


def look(
    *,
    installed: Callable[[str], str | None] = installed_version,
    llvm_version: Callable[[], str] = amd_llvm.version,
    found: Callable[[int], list[linkers.Comgr | linkers.Lld | str]] = linkers.found,
    compiler: Callable[[], Any] = numba_hip,
    runtime: Callable[[], tuple[str, tuple[int, int]]] | None = None,
    others: Callable[[], Iterable[str]] | None = None,
    platform: str = sys.platform,
) -> Pair:
    """Look at this machine; the parameters replace it in tests.

    Parameters
    ----------
    installed : callable
        Version of a distribution, or None.
    llvm_version : callable
        Version of the bindings' LLVM; raises `TargetError`.
    found : callable
        `linkers.found`.
    compiler : callable
        Imports numba-hip; raises `TargetError`.
    runtime : callable, optional
        File and version of the HIP runtime that the bindings load; raises `TargetError`.
    others : callable, optional
        Files of other HIP runtimes that this process has loaded, or would with PyTorch.
    platform : str
        As `sys.platform`.
    """
    versions = {name: installed(name) for name in _BINDINGS}
    bindings = ", ".join(f"{name} {version}" for name, version in versions.items() if version)
    problems = []
    if not platform.startswith("linux"):
        problems.append(
            "HIP kernels run on Linux. On Windows: install Ubuntu under WSL2 (`wsl --install`), AMD's driver for WSL "
            f"and ROCm in it, and there {_INSTALL}"
        )
    missing = [name for name, version in versions.items() if not version]
    if missing:
        problems.append(f"not installed: {', '.join(missing)}. {_INSTALL}")
        return Pair("", bindings, "", (), tuple(problems))
    llvm, usable, reasons = "", [], []
    try:
        llvm = f"LLVM {llvm_version()}"
        answers = found(code_object.CONCRETE_VERSION)
        usable = [str(each) for each in answers if not isinstance(each, str)]
        reasons = [each for each in answers if isinstance(each, str)]
    except TargetError as error:
        problems.append(str(error))
    if llvm and not usable:
        remedy = linkers.remedy(code_object.CONCRETE_VERSION)
        problems.append(f"there is nothing to link machine code with: {'; '.join(reasons)}. Remedy: {remedy}")
    try:
        compiler()
    except TargetError as error:
        problems.append(str(error))
    described, file = "", ""
    try:
        file, version = (runtime or _runtime)()
        described = f"HIP {version[0]}.{version[1]} ({file})"
        if version < _OLDEST_HIP:
            problems.append(
                f"HIP {version[0]}.{version[1]} does not load code objects of version {code_object.CONCRETE_VERSION}: "
                "install ROCm 5.5 or newer (https://rocm.docs.amd.com)"
            )
    except TargetError as error:
        problems.append(str(error))
    problems += [_foreign(other, file) for other in (others or _others)() if file and not _same(other, file)]
    return Pair(described, bindings, llvm, tuple(usable), tuple(problems))


def lines_of_child(timeout_s: float = 60.0) -> list[str]:
    """The lines of `look`, found out by another process, in which a library may do what it likes. Never raises."""
    command = [sys.executable, "-m", "rocmkern.targets.rocm_pair"]
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", timeout=timeout_s
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return [f"mend      ROCm's libraries cannot be looked at: {error}"]
    if done.returncode not in (0, 1) or not done.stdout:
        words = (done.stderr.strip().splitlines() or ["no words"])[-1]
        return [f"mend      ROCm's libraries ended the process that looked at them ({done.returncode}): {words}"]
    return done.stdout.splitlines()


def _runtime() -> tuple[str, tuple[int, int]]:
    """The HIP runtime that the bindings load: its file, and its version (major, minor)."""
    path = amd_llvm.library_path("amdhip64")
    try:
        library, number = ctypes.CDLL(path), ctypes.c_int()
        status = library.hipRuntimeGetVersion(ctypes.byref(number))
    except (OSError, AttributeError) as error:
        raise TargetError(
            f"the HIP runtime cannot be loaded ({error}): install ROCm (https://rocm.docs.amd.com), or name "
            "its folder: export ROCM_PATH=/opt/rocm"
        ) from None
    if status:
        raise TargetError(
            f"the HIP runtime {path} does not start (error {status}); is the amdgpu driver loaded? See: rocminfo"
        )
    # HIP writes 6.3.42133 as 60342133.
    return path, (number.value // 10_000_000, number.value // 100_000 % 100)


def _others() -> list[str]:
    """HIP runtimes beside the bindings' own: loaded in this process, or brought by a PyTorch that is installed."""
    # deferred: start-up
    from rocmkern.runtime.devices import loaded_runtimes

    try:
        loaded = loaded_runtimes(Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace"))
    except OSError:
        loaded = []
    torch = importlib.util.find_spec("torch")
    folders = list(torch.submodule_search_locations or ()) if torch else []
    brought = [path for folder in folders if (path := Path(folder, "lib", "libamdhip64.so")).exists()]
    return list(dict.fromkeys([*loaded, *map(str, brought)]))


def _same(one: str, other: str) -> bool:
    return os.path.realpath(one) == os.path.realpath(other) or Path(one).name == other


def _foreign(other: str, file: str) -> str:
    """What two HIP runtimes in one process mean, and how there comes to be one."""
    return (
        f"{other} is a HIP runtime beside {file}: each knows nothing of the other's memory and streams. Let both sides "
        f"use the first: export ROCM_PATH={Path(other).parent.parent}"
    )


if __name__ == "__main__":
    found: Pair = look()
    print("\n".join(found.lines()))
    sys.exit(0 if found.usable else 1)
