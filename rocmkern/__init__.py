"""rocmkern: attention and MLP kernels for AMD GPUs, written in Python and compiled by Numba.

The public names are loaded when they are first used, so that ``import rocmkern`` stays cheap and never touches a
driver. ``__init__.pyi`` says where they come from, to type checkers and to this module; it is written by
tools/public_names.py.
"""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.1.0"


def _homes() -> dict[str, str]:
    """Module of each public name: lines ``from MODULE import NAME as NAME`` of the stub."""
    with open(__path__[0] + "/__init__.pyi", encoding="utf-8") as stub:
        lines = [line.split() for line in stub if line.startswith("from ")]
    return {name: module for _, module, _, name, *_ in lines}


_MODULE_OF = _homes()
_SUBMODULES = tuple(name for name, module in _MODULE_OF.items() if module == "rocmkern")

__all__ = sorted(_MODULE_OF.keys() - set(_SUBMODULES))


def __getattr__(name: str) -> Any:
    if name in _SUBMODULES:
        return importlib.import_module(f"rocmkern.{name}")
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'rocmkern' has no attribute {name!r}")
    value = getattr(importlib.import_module(_MODULE_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULE_OF})
