"""The text of a generated module: one compiled variant of one kernel.

Numba's on-disk cache works for functions of a module with a stable name and constants as literals; a launcher closed
over a dispatcher would miss it in every process. So each variant is written out as a module whose file name is the hash
of its text, and the text holds a fingerprint of everything that it depends on.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import sys
import types
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rocmkern.tile import api, entry

#: Targets that compile; a file named after one of them is its own business.
TARGETS = ("cpu", "hip", "cuda")


def dtypes_of(kernel: Callable, args: Sequence) -> tuple[str, ...]:
    """Element type of each tensor argument, by NumPy's name (``bfloat16`` included)."""
    return tuple([_name(a.dtype) for (_, p), a in zip(kernel.parameters, args, strict=True) if p.kind == "tensor"])


@functools.cache
def _name(dtype: np.dtype) -> str:
    # Every launch asks, and NumPy takes microseconds to make a name.
    return dtype.name


def argument_expressions(kernel: Callable, dtypes: Sequence[str], word: str = "words[{}]") -> list[str]:
    """Python expressions that put the kernel's arguments together from launch words (see `entry`)."""
    names, expressions, at = iter(dtypes), [], 0
    for _, parameter in kernel.parameters:
        n = entry.words_of(parameter)
        words = [word.format(at + i) for i in range(n)]
        at += n
        if parameter.kind == "tensor":
            expressions.append(f"tensor({next(names)!r}, {', '.join(words)})")
        else:
            expressions.append(f"float32({words[0]})" if parameter.kind == "float" else words[0])
    return expressions


def importable(kernel: Callable) -> bool:
    """Whether a generated module can import the kernel again; one defined in a script or in a function cannot be."""
    module = sys.modules.get(kernel.__module__)
    return kernel.__module__ != "__main__" and getattr(module, kernel.__name__, None) is kernel


@functools.cache
def library_fingerprint(target: str) -> str:
    """Hash of the tile language and the launch code, without the files of the other targets.

    A change in any of them makes old variants useless.
    """
    digest = hashlib.sha256()
    for path in library_files(target):
        digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def library_files(target: str) -> list[Path]:
    """The files of `tile` and `targets`, except modules and packages named after another target."""
    root = Path(__file__).resolve().parent.parent
    others = set(TARGETS) - {target}
    return [
        path
        for folder in (root / "tile", root / "targets")
        for path in sorted(folder.rglob("*.py"))
        if Path(path.relative_to(folder).parts[0]).stem not in others
    ]


def kernel_fingerprint(kernel: Callable) -> str:
    """Hash of the files that define a kernel and the device functions it reaches, and of the constants they name."""
    digest, seen, waiting = hashlib.sha256(), set(), [kernel]
    while waiting:
        fn = waiting.pop()
        if fn in seen:
            continue
        seen.add(fn)
        digest.update(_file_hash(fn.__code__.co_filename))
        for name, value in _named_by(fn):
            if any(value is device_function for device_function in api.DEVICE_FUNCTIONS):
                waiting.append(value)
            elif isinstance(value, int | float | str):
                digest.update(f"{name} = {value!r}\n".encode())
    return digest.hexdigest()[:16]


@functools.cache
def _file_hash(path: str) -> bytes:
    return hashlib.sha256(Path(path).read_bytes()).digest()


def _named_by(fn: Callable) -> list[tuple[str, Any]]:
    """Globals that a function names, and what it may take from the modules among them, in the order of its code."""
    names = fn.__code__.co_names
    found = [(name, fn.__globals__[name]) for name in names if name in fn.__globals__]
    modules = [value for _, value in found if isinstance(value, types.ModuleType)]
    return found + [(name, getattr(m, name)) for m in modules for name in names if hasattr(m, name)]


def config_expression(cfg: api.Config) -> tuple[str, dict[type, str]]:
    """Python text that makes a configuration, and the names of the classes in it.

    A class is imported under a name of its own: a package may have something else by the name of the module.
    """
    names: dict[type, str] = {}

    def expression(value: Any) -> str:
        if not isinstance(value, api.Config):
            return repr(value)
        name = names.setdefault(type(value), f"Config{len(names)}")
        fields = [f"{field.name}={expression(getattr(value, field.name))}" for field in dataclasses.fields(value)]
        return f"{name}({', '.join(fields)})"

    return expression(cfg), names


def render(target: str, kernel: Callable, cfg: api.Config, template: str, dtypes: Sequence[str], versions: str) -> str:
    """Fill a target's template.

    Parameters
    ----------
    target : str
        Name of the target.
    kernel, cfg, dtypes
        What is compiled: the function, its configuration, the element types of its tensors.
    template : str
        Module text with ``{imports}``, ``{config}``, ``{arguments}``.
    versions : str
        Versions of the compiler in use; part of the text, hence of the file's name.
    """
    expression, names = config_expression(cfg)
    imports = "\n".join(
        f"from {thing.__module__} import {thing.__name__} as {name}"
        for thing, name in {kernel: "kernel", **names}.items()
    )
    head = (
        f'"""Generated: {kernel.__module__}.{kernel.__name__} for {cfg}, {", ".join(dtypes)}.\n\n'
        f"library {library_fingerprint(target)}, kernel {kernel_fingerprint(kernel)}, {versions}\n"
        '"""\n\n'
    )
    body = template.format(
        imports=imports, config=expression, arguments=",\n            ".join(argument_expressions(kernel, dtypes))
    )
    return head + body
