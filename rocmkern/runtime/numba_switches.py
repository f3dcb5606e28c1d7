"""Numba's variables: those that leave nothing to launch (nothing is compiled, or a simulator stands for the GPU), and
those that make it compile other code, which must not be taken for what it makes without them.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from rocmkern.runtime.errors import TargetError

_CODE = (
    "NUMBA_BOUNDSCHECK", "NUMBA_CUDA_DEBUGINFO", "NUMBA_DEBUGINFO", "NUMBA_DEBUG_NRT", "NUMBA_DISABLE_INTEL_SVML",
    "NUMBA_EXTEND_VARIABLE_LIFETIMES", "NUMBA_FORCE_CUDA_CC", "NUMBA_LLVM_REFPRUNE_FLAGS", "NUMBA_LLVM_REFPRUNE_PASS",
    "NUMBA_LOOP_VECTORIZE", "NUMBA_OPT", "NUMBA_SLP_VECTORIZE",
)  # fmt: skip
#: Variables that leave nothing to launch, and Numba's settings of the same meaning.
SWITCHES = {"NUMBA_DISABLE_JIT": "DISABLE_JIT", "NUMBA_ENABLE_CUDASIM": "ENABLE_CUDASIM"}


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


def _is_on(variable: str) -> bool:
    config: Any = getattr(sys.modules.get("numba"), "config", None)
    setting = SWITCHES[variable]
    if hasattr(config, setting):
        return bool(getattr(config, setting))
    return os.environ.get(variable, "").strip() not in ("", "0")
