"""Where the families of operations are, by their files: nothing is imported.

A family is a folder beside this file. A package elsewhere that declares operations too is one of `ELSEWHERE`.
"""

from __future__ import annotations

from pathlib import Path

from rocmkern.runtime.errors import MatrixError

ELSEWHERE = ("rocmkern.decoder", "rocmkern.distributed", "rocmkern.flash_attn")
_HERE = Path(__file__).parent


def modules(name: str) -> list[str]:
    """Names of the families' modules of this name (``"cases"``, ``"api"``, ...), in alphabetical order."""
    own = [f"rocmkern.ops.{path.parent.name}.{name}" for path in sorted(_HERE.glob(f"*/{name}.py"))]
    other = [place for place in ELSEWHERE if (_HERE.parents[1] / place.replace(".", "/") / f"{name}.py").exists()]
    return own + [f"{place}.{name}" for place in other]


def kernel_modules() -> list[str]:
    """Names of the modules with kernels, in alphabetical order of the families."""
    paths = sorted(_HERE.glob("*/kernels/*.py"))
    return [f"rocmkern.ops.{path.parts[-3]}.kernels.{path.stem}" for path in paths if path.stem != "__init__"]


def kernel_module(name: str) -> str:
    """The module with kernels that has this name within its package.

    Raises
    ------
    MatrixError
        If no family has such a module.
    """
    found = [module for module in kernel_modules() if module.rpartition(".")[2] == name]
    if len(found) != 1:
        raise MatrixError(
            f"{len(found)} families have a module of kernels {name!r}; give it as 'package.module:function'"
        )
    return found[0]
