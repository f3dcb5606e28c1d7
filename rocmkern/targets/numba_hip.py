"""numba-hip, which compiles kernels for AMD GPUs, or a sentence that says why it does not start and what mends it.

Its import needs no device, but parts of ROCm: it asks comgr for a table of architectures, and has libclang read the
header of hipRTC. So a machine without them compiles nothing, whatever it could link with (see `linkers`).
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from rocmkern.runtime.errors import TargetError
from rocmkern.runtime.versions import installed_version

_INSTALL = 'pip install "rocmkern[hip]"'
_ROCM = (
    "install ROCm with its compiler (https://rocm.docs.amd.com), or name the folder that holds lib/libamd_comgr.so and "
    "llvm/lib/libclang.so: export ROCM_PATH=/opt/rocm"
)


def numba_hip(load: Callable[[str], Any] = importlib.import_module) -> Any:
    """The package ``numba.hip`` with its compiler; `load` replaces the import in tests.

    Raises
    ------
    TargetError
        If it cannot be imported.
    """
    try:
        package = load("numba.hip")
        load("numba.hip.compiler")
    except Exception as error:  # without ROCm's libraries it is not always an ImportError
        remedy = _ROCM if installed_version("numba-hip") else _INSTALL
        raise TargetError(
            f"numba-hip, which compiles the kernels, does not start ({type(error).__name__}: {error}). Remedy: {remedy}"
        ) from None
    return package
