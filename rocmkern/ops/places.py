"""Where the families of operations are, by their files: nothing is imported.

A family is a folder beside this file, whose gradients are a folder ``backward`` in it, of the same form. A package
elsewhere that declares operations too is one of `ELSEWHERE`.
"""

from __future__ import annotations

from pathlib import Path

from rocmkern.runtime.errors import MatrixError

ELSEWHERE = ("rocmkern.decoder", "rocmkern.distributed", "rocmkern.flash_attn")
_HERE = Path(__file__).parent


def modules(name: str) -> list[str]:
    """Names of the families' modules of this name (``"cases"``, ``"api"``, ...), in alphabetical order."""
    other = [place for place in ELSEWHERE if (_HERE.parents[1] / place.replace(".", "/") / f"{name}.py").exists()]
    return _named(f"{name}.py") + [f"{place}.{name}" for place in other]


def kernel_modules() -> list[str]:
    """Names of the modules with kernels, in alphabetical order of the families."""
    return [module for module in _named("kernels/*.py") if not module.endswith(".__init__")]


def _named(pattern: str) -> list[str]:
    """Names of the families' modules, and of their gradients', whose paths in the folder match."""
    paths = sorted([*_HERE.glob(f"*/{pattern}"), *_HERE.glob(f"*/backward/{pattern}")])
    return [".".join(("rocmkern", "ops", *path.relative_to(_HERE).with_suffix("").parts)) for path in paths]


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
