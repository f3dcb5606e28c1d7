"""Tables and the API reference, from the package: public names, operations of the tile language, architectures."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Callable, Iterable, Sequence
from types import ModuleType
from typing import Any

import rocmkern
from rocmkern.architectures import architecture, known
from rocmkern.ops.places import modules
from rocmkern.tile.language.operation import OPERATIONS, Operation

#: Parts of the API reference beside the operations, and the packages that their names come from.
PARTS = {
    "targets": ("rocmkern.targets",),
    "invariance": ("rocmkern.calls.invariance",),
    "memory": ("rocmkern.runtime.manager", "rocmkern.runtime.kv_cache", "rocmkern.runtime.probe.status"),
    "files": ("rocmkern.checkpoint",),
    "scaling": ("rocmkern.ops.rotary.scaling",),
    "errors": ("rocmkern.runtime.errors",),
}


def summary(thing: Any) -> str:
    """The first paragraph of a docstring, as a line of Markdown."""
    text = (inspect.getdoc(thing) or "").partition("\n\n")[0]
    return re.sub(r"::$", ":", " ".join(text.split()))


def first_sentence(thing: Any) -> str:
    """The first sentence of a docstring, as a line of Markdown."""
    return re.split(r"(?<=\.)\s(?=[A-Z`])", summary(thing))[0].rstrip(".:")


def families() -> dict[str, list[str]]:
    """Names of the public operations by family, as the folders of ``rocmkern/ops`` have them."""
    found: dict[str, list[str]] = {}
    for name in modules("api"):
        public = [each for each in rocmkern.__all__ if getattr(rocmkern, each).__module__ == name]
        if public:
            found.setdefault(name.split(".")[2], []).extend(public)
    return found


def part(name: str) -> list[str]:
    """Public names of a part of the reference: see `PARTS`."""
    return [each for each in rocmkern.__all__ if getattr(rocmkern, each).__module__.startswith(PARTS[name])]


def _module(family: str) -> ModuleType:
    return importlib.import_module(f"rocmkern.ops.{family}.api")


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown; a bar within a cell is escaped."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines) + "\n"


def operations() -> str:
    """A table of the public operations: family, name, what it computes."""
    rows = []
    for family, names in families().items():
        for number, name in enumerate(names):
            link = f"[`{name}`](#rocmkern.{name})"
            rows.append((family if number == 0 else "", link, first_sentence(getattr(rocmkern, name))))
    return table(("Family", "Operation", "What it is"), rows)


def _documented(names: Iterable[str]) -> str:
    """The docstrings of public names, which Sphinx takes from the code."""
    lines = []
    for name in names:
        thing = getattr(rocmkern, name)
        kind = "class" if inspect.isclass(thing) else "function"
        lines += [f".. auto{kind}:: rocmkern.{name}"]
        if kind == "class" and not issubclass(thing, BaseException):
            lines += ["   :members:", "   :inherited-members:"]
        lines += [""]
    return "\n".join(["```{eval-rst}", ".. currentmodule:: rocmkern", "", *lines, "```"])


def reference_of_operations() -> str:
    """The reference of all operations, a section for each family."""
    parts = []
    for family, names in families().items():
        parts += [f"## {family}\n", summary(_module(family)) + "\n", _documented(names) + "\n"]
    return "\n".join(parts)


def reference(name: str) -> str:
    """The reference of another part: see `PARTS`."""
    return _documented(part(name))


def signature(operation: Operation) -> str:
    """An operation as a kernel writes it, without the types."""
    names = []
    for p in operation.signature.parameters.values():
        default = "" if p.default is p.empty else f"={p.default!r}"
        names.append(("*" if p.kind is p.VAR_POSITIONAL else "") + p.name + default)
    return f"{operation.name}({', '.join(names)})"


def tile_operations() -> str:
    """The operations of the tile language, a table for each file of ``rocmkern/tile/language`` that declares some."""
    files: dict[str, list[Operation]] = {}
    for operation in OPERATIONS.values():
        files.setdefault(operation.meaning.__module__, []).append(operation)
    parts = []
    for file, declared in files.items():
        rows = []
        for each in declared:
            result = str(each.signature.return_annotation)
            rows.append(
                (
                    f"`{signature(each)}`",
                    f"`{result}`",
                    ", ".join(f"`{name}`" for name in each.consumes),
                    first_sentence(each.meaning),
                )
            )
        title = file.rpartition(".")[2]
        parts += [f"### {title}\n", summary(importlib.import_module(file)) + "\n"]
        parts += [table(("Operation", "Gives", "Consumes", "Meaning"), rows)]
    return "\n".join(parts)


def architectures() -> str:
    """The processors that kernels are compiled for, from their records."""
    rows = []
    for target in ("hip", "cuda", "cpu"):
        for name in known(target):
            record = architecture(name)
            shared = f"{record.shared_bytes // 1024} KiB" if target != "cpu" else ""
            matrix = record.matrix or ("vectors of the CPU" if target == "cpu" else "FMA")
            rows.append((target, f"`{name}`", ", ".join(record.families), str(record.wave), shared, matrix))
    return table(("Target", "Name", "Families, closest first", "Wave", "Shared memory", "Products by"), rows)


INSERTS: dict[str, Callable[..., str]] = {
    "operations": operations,
    "reference-of-operations": reference_of_operations,
    "reference": reference,
    "tile-operations": tile_operations,
    "architectures": architectures,
}
