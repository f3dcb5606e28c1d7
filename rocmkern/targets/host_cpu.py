"""Which processor this is, and what is compiled for it (see `rocmkern.architectures.host`)."""

from __future__ import annotations

import functools
import os
import platform
import sys
from dataclasses import dataclass

from rocmkern.architectures import architecture, known
from rocmkern.runtime.errors import TargetError

#: Widest first; the last one is what a processor must have.
ARCHITECTURES = tuple(sorted(known("cpu"), key=lambda arch: -len(architecture(arch).features)))
WIDEST, NARROWEST = ARCHITECTURES[0], ARCHITECTURES[-1]
#: What LLVM calls features that Linux has another name for.
_LLVM_NAMES = {
    "lahf_lm": "sahf", "pni": "sse3", "sse4_1": "sse4.1", "sse4_2": "sse4.2", "bmi1": "bmi", "abm": "lzcnt",
}  # fmt: skip


@dataclass(frozen=True)
class Machine:
    """What machine code is made for.

    Attributes
    ----------
    kind : str
        Processor and operating system, such as ``"x86_64-linux"``.
    cpu, features : str
        As LLVM's code generator is told.
    needs : tuple of str
        Features that a processor must have to run it, as Linux calls them.
    """

    kind: str
    cpu: str
    features: str
    needs: tuple[str, ...]

    @property
    def converts_halves(self) -> bool:
        """Whether it has instructions between float16 and float32."""
        return not self.kind.startswith("x86_64") or "f16c" in self.needs


def is_x86_64() -> bool:
    """Whether this is an x86-64 processor."""
    return platform.machine() in ("x86_64", "AMD64")


@functools.cache
def host_features() -> frozenset[str]:
    """Features of this processor that the operating system lets programs use, those of `Machine.needs` among them."""
    try:
        with open("/proc/cpuinfo", encoding="ascii", errors="replace") as file:
            for line in file:
                if line.startswith("flags"):
                    return frozenset(line.partition(":")[2].split())
    except OSError:
        pass
    # deferred: start-up
    import llvmlite.binding as llvm

    found = llvm.get_host_cpu_features()
    return frozenset(name for name in architecture(WIDEST).features if found.get(_LLVM_NAMES.get(name, name)))


def host_architecture() -> str:
    """The widest of `ARCHITECTURES` that this host has; ``ROCMKERN_CPU_ARCH`` overrides it."""
    if is_x86_64():
        has = {arch: host_features().issuperset(architecture(arch).features) for arch in ARCHITECTURES}
    else:
        has = {arch: arch == NARROWEST for arch in ARCHITECTURES}
    wanted = os.environ.get("ROCMKERN_CPU_ARCH")
    if wanted:
        if not has.get(wanted):
            raise TargetError(
                f"ROCMKERN_CPU_ARCH={wanted}: not possible on this host; allowed: {', '.join(a for a in has if has[a])}"
            )
        return wanted
    for arch in ARCHITECTURES:
        if has[arch]:
            return arch
    missing = ", ".join(sorted(set(architecture(NARROWEST).features) - host_features()))
    raise TargetError(f"this processor lacks {missing}, which all machine code of the cpu target needs: use('python')")


def machine(arch: str) -> Machine:
    """What variants of an architecture are compiled for.

    Raises
    ------
    TargetError
        If there is no such architecture.
    """
    if not is_x86_64():
        # deferred: start-up
        import llvmlite.binding as llvm

        features = llvm.get_host_cpu_features().flatten()
        return Machine(f"{platform.machine()}-{sys.platform}", llvm.get_host_cpu_name(), features, ())
    if arch not in ARCHITECTURES:
        raise TargetError(f"{arch!r} cannot be compiled by the cpu target; allowed: {', '.join(ARCHITECTURES)}")
    level = architecture(arch)
    return Machine(f"x86_64-{sys.platform}", level.processor, "", tuple(sorted(level.features)))
