"""Numba's variables: those that leave nothing to launch (nothing is compiled, or a simulator stands for the GPU), and
those that make it compile other code, which must not be taken for what it makes without them.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

from rocmkern.runtime.errors import TargetError

_CODE = (
    "NUMBA_BOUNDSCHECK", "NUMBA_CUDA_DEBUGINFO", "NUMBA_DEBUGINFO", "NUMBA_DEBUG_NRT", "NUMBA_DISABLE_INTEL_SVML",
    "NUMBA_EXTEND_VARIABLE_LIFETIMES", "NUMBA_FORCE_CUDA_CC", "NUMBA_LLVM_REFPRUNE_FLAGS", "NUMBA_LLVM_REFPRUNE_PASS",
    "NUMBA_LOOP_VECTORIZE", "NUMBA_OPT", "NUMBA_SLP_VECTORIZE",
)  # fmt: skip
#: Variables that leave nothing to launch, and Numba's settings of the same meaning.
SWITCHES = {"NUMBA_DISABLE_JIT": "DISABLE_JIT", "NUMBA_ENABLE_CUDASIM": "ENABLE_CUDASIM"}

# What os.environ looks into, and how it spells a name there.
_variables = getattr(os.environ, "_data", os.environ)
_encoded: Callable[[str], Any] = getattr(os.environ, "encodekey", str)
_SPELLED = {name: _encoded(name) for name in SWITCHES}


def compiles() -> bool:
    """Whether Numba compiles: not where ``NUMBA_DISABLE_JIT`` is set. Numba is not imported."""
    return not _is_on("NUMBA_DISABLE_JIT")


def code_settings() -> tuple[str, ...]:
    """Numba's variables that are set here and change the code that it makes, as ``NAME=value``."""
    return tuple(f"{name}={os.environ[name].strip()}" for name in _CODE if os.environ.get(name, "").strip())


def check_switches(target: str) -> None:
    """Raise `TargetError` if a target cannot launch anything under the variables that are set."""
    instead = 'the interpreter runs the same kernels: rocmkern.use("python"), ROCMKERN_TARGET=python'
    if target != "python" and not compiles():
        raise TargetError(f"{target}: NUMBA_DISABLE_JIT is set, so Numba compiles nothing. Unset it, or {instead}")
    if target == "cuda" and _is_on("NUMBA_ENABLE_CUDASIM"):
        raise TargetError(f"{target}: NUMBA_ENABLE_CUDASIM is set, a simulator that kernels do not run in: unset it")


def switches() -> tuple[bool, ...]:
    """Which of `SWITCHES` are on; importing numba changes nothing of it."""
    return tuple([_is_on(name) for name in SWITCHES])


def variable(name: str) -> str | None:
    """An environment variable; None where it is not set.

    Each call of an operation asks for some, and `os.environ` takes a microsecond for one that is not set.
    """
    value = _variables.get(_encoded(name))
    return value if value is None or isinstance(value, str) else os.fsdecode(value)


def _is_on(name: str) -> bool:
    numba = sys.modules.get("numba")
    setting = None if numba is None else getattr(getattr(numba, "config", None), SWITCHES[name], None)
    if setting is not None:
        return bool(setting)
    if _SPELLED[name] not in _variables:  # each call of an operation asks
        return False
    return (variable(name) or "").strip() not in ("", "0")
