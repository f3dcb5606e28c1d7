"""What is compiled, in words and as a key: a kernel, its configuration, the types of its tensors, the library.

A key follows from these and from nothing that a machine happens to have, so that two machines give a variant the same
one; it is found without importing a compiler.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rocmkern.architectures import architecture
from rocmkern.runtime.geometry import dtype_name
from rocmkern.targets import words
from rocmkern.targets.entries import Entry
from rocmkern.tile import entry
from rocmkern.tile.language.kernel import Config, Kernel
from rocmkern.tile.reached import named_by, reached

#: Targets that compile; a file named after one of them is its own business.
TARGETS = ("cpu", "hip", "cuda")


def dtypes_of(kernel: Kernel, args: Sequence[Any]) -> tuple[str, ...]:
    """Element type of each tensor argument, by NumPy's name (``bfloat16`` included)."""
    return tuple(map(dtype_name, words.dtypes(kernel, args)))


def argument_expressions(kernel: Kernel, dtypes: Sequence[str], word: str = "words[{}]") -> list[str]:
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


@dataclass(frozen=True)
class Key:
    """Which variant of a kernel.

    Attributes
    ----------
    target, arch, kernel, config : str
        In words: the target, the architecture, the kernel's full name, its configuration.
    dtypes : tuple of str
        Element types of the tensors.
    digest : str
        Of all of it, and of everything else that machine code depends on.
    kept : bool
        Whether the digest says all, so that the variant can be kept on disk.
    """

    target: str
    arch: str
    kernel: str
    config: str
    dtypes: tuple[str, ...]
    digest: str
    kept: bool = True

    @classmethod
    def of(cls, entry: Entry) -> Key:
        """The key of an entry."""
        return cls(entry.target, entry.arch, entry.kernel, entry.config, entry.dtypes, entry.key)


def variant_key(target: str, kernel: Kernel, cfg: Config, dtypes: tuple[str, ...], machine: Sequence[str] = ()) -> Key:
    """The key of a variant.

    Parameters
    ----------
    target : str
        Name of the target.
    kernel, cfg, dtypes
        What is compiled: the function, its configuration, the element types of its tensors.
    machine : sequence of str
        What else the code is made for, beside ``cfg.arch``.
    """
    name, config = f"{kernel.__module__}.{kernel.__qualname__}", repr(cfg)
    kept = all(map(_has_all_in_files, reached(kernel)))
    hardware = repr(architecture(cfg.arch))
    parts = [target, cfg.arch, hardware, name, config, repr(dtypes), *machine, library_fingerprint(target)]
    if kept:
        parts += [kernel_fingerprint(kernel), *map(_class_fingerprint, sorted(_classes(cfg), key=repr))]
    digest = hashlib.sha256("\n".join(parts).encode()).hexdigest()
    return Key(target, cfg.arch, name, config, dtypes, digest, kept)


def entry_of(key: Key, compiler: str, launch: Mapping[str, Any], code: bytes, needs: Sequence[str] = ()) -> Entry:
    """What is kept of a compiled variant.

    Parameters
    ----------
    key : Key
        Which.
    compiler : str
        Versions of what compiled it.
    launch, code
        See `Entry`.
    needs : sequence of str
        Features that the processor must have.
    """
    words = (key.target, key.arch, key.kernel, key.config, key.dtypes)
    return Entry(key.digest, *words, compiler, tuple(needs), launch, code)


def _has_all_in_files(fn: Callable[..., Any]) -> bool:
    """Whether a function is what its file says; one that a function made or that was typed in depends on more."""
    code = fn.__code__
    return fn.__globals__.get(fn.__name__) is fn and not code.co_freevars and os.path.isfile(code.co_filename)


def _classes(cfg: Config) -> set[type]:
    """The classes of a configuration and of those in it, without the library's own base."""
    values = [getattr(cfg, field.name) for field in dataclasses.fields(cfg)]
    inner = [_classes(value) for value in values if isinstance(value, Config)]
    return {cls for cls in type(cfg).__mro__ if issubclass(cls, Config) and cls is not Config}.union(*inner)


def _class_fingerprint(cls: type) -> str:
    """The name of a class, and a hash of its file where it has one: properties of a configuration are constants."""
    path = getattr(sys.modules.get(cls.__module__), "__file__", None)
    digest = _file_hash(path).hex() if path is not None and os.path.isfile(path) else ""
    return f"{cls.__module__}.{cls.__qualname__} {digest}"


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
        if others.isdisjoint(Path(part).stem for part in path.relative_to(folder).parts)
    ]


def kernel_fingerprint(kernel: Kernel) -> str:
    """Hash of the files that define a kernel and the functions it reaches, and of the constants they name."""
    digest = hashlib.sha256()
    for fn in reached(kernel):
        digest.update(_file_hash(fn.__code__.co_filename))
        for name, value in named_by(fn):
            if _is_constant(value):
                digest.update(f"{name} = {value!r}\n".encode())
    return digest.hexdigest()[:16]


def _is_constant(value: Any) -> bool:
    return isinstance(value, int | float | str) or (isinstance(value, tuple) and all(map(_is_constant, value)))


@functools.cache
def _file_hash(path: str) -> bytes:
    return hashlib.sha256(Path(path).read_bytes()).digest()
