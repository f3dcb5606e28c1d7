"""Refuse circles among modules, imports against the layers, and deferred imports that do not say why.

    python tools/check_imports.py

Files that need each other are one file in disguise, whenever it is that they ask for each other. So all imports are
arrows here: those that run with the module, the *deferred* ones inside a function, those for types only, under ``if
TYPE_CHECKING``, and those by a name that stands in the text, ``import_module("rocmkern.torch")``. `LAYERS` says which
package may import which, and `PLUGS` where one below finds what lies above by its name, and why.

An import is deferred for one of the `REASONS`, which its line says, or a comment above it; one comment serves all
imports that follow it without an empty line between::

    # deferred: start-up
    import numba
    from llvmlite import ir

    import torch  # deferred: optional dependency
"""

from __future__ import annotations

import ast
import enum
import re
import sys
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

REASONS = {
    "start-up": "it takes time that many processes can do without",
    "optional dependency": "it may not be installed",
    "platform": "it is not on every system",
}
_REASON = re.compile(r"#\s*deferred:\s*(" + "|".join(map(re.escape, REASONS)) + r")\b")

#: From the bottom up: the packages of a row import those of the rows before it, and nothing of their own row.
LAYERS: tuple[tuple[str, ...], ...] = (
    ("runtime",),
    ("architectures",),
    ("tile", "checkpoint", "reference"),
    ("targets",),
    ("calls",),
    ("ops",),
    ("decoder", "flash_attn", "torch"),
    ("transformers",),
    ("distributed",),
    ("matrix",),
    ("declarations",),
    ("testing",),
    ("cli",),
)
#: What lies above and is plugged in below: found by its name when there is a use for it.
PLUGS = {
    ("rocmkern.calls.routing", "rocmkern.torch.operators"): "operators call the operations that are routed to them",
}
#: Modules that are no part of the package they stand in: what an operation's folder says for others.
APART = {
    "cases": "declarations",
    "faults": "declarations",
    "catalog": "declarations",
    "places": "reference",
    "reference": "reference",
    "baseline": "reference",
    "roundings": "reference",
    "precision": "reference",
}

#: Packages with such modules.
DECLARING = ("ops", "decoder", "flash_attn", "distributed")


class Kind(enum.Enum):
    """When an import runs."""

    MODULE = "import"
    DEFERRED = "deferred"
    TYPES = "types only"
    NAMED = "by name"


@dataclass(frozen=True, order=True)
class Arrow:
    """One import: the module it stands in, its line, the module that it asks for, and when."""

    source: str
    target: str
    line: int
    kind: Kind = field(compare=False)

    def __str__(self) -> str:
        when = "" if self.kind is Kind.MODULE else f", {self.kind.value}"
        return f"{self.source}:{self.line} imports {self.target}{when}"


def modules_of(root: Path) -> dict[str, Path]:
    """Return the modules of a package by their names; `root` is the package's folder."""
    found = {}
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root.parent).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


class _Imports(ast.NodeVisitor):
    """The imports of one module, with the kind of each."""

    def __init__(self, package: str, constants: dict[str, str]) -> None:
        self.package, self.kind = package, Kind.MODULE
        self.constants = constants
        self.found: list[tuple[ast.Import | ast.ImportFrom | ast.Call, Kind]] = []

    def _within(self, kind: Kind, nodes: Iterable[ast.AST]) -> None:
        before, self.kind = self.kind, kind
        for node in nodes:
            self.visit(node)
        self.kind = before

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        self._within(Kind.TYPES if self.kind is Kind.TYPES else Kind.DEFERRED, node.body)

    visit_AsyncFunctionDef = visit_FunctionDef  # type: ignore[assignment]

    def visit_If(self, node: ast.If) -> None:
        if ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING"):
            self._within(Kind.TYPES, node.body)
            self._within(self.kind, node.orelse)
        else:
            self.generic_visit(node)

    def visit_Import(self, node: ast.Import) -> None:
        self.found.append((node, self.kind))

    visit_ImportFrom = visit_Import  # type: ignore[assignment]

    def visit_Call(self, node: ast.Call) -> None:
        if ast.unparse(node.func) in ("importlib.import_module", "import_module"):
            self.found.append((node, Kind.NAMED))
        self.generic_visit(node)

    def named(self, node: ast.Import | ast.ImportFrom | ast.Call) -> Iterator[str]:
        """The dotted names that an import asks for, the longest that may be modules; of a call if it says one."""
        if isinstance(node, ast.Call):
            name = ast.unparse(node.args[0]) if node.args else ""
            yield self.constants.get(name, name.strip("'"))
            return
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
            return
        base = self.package.split(".")[: None if node.level <= 1 else 1 - node.level] if node.level else []
        module = ".".join([*base, *([node.module] if node.module else [])])
        yield from (f"{module}.{alias.name}" for alias in node.names)


@dataclass
class Package:
    """What the files of a package import of each other, and which deferred imports do not say why."""

    arrows: set[Arrow] = field(default_factory=set)
    silent: list[str] = field(default_factory=list)


def read(root: Path) -> Package:
    """Read the imports of all modules below a package's folder."""
    package, modules = Package(), modules_of(root)
    for name, path in modules.items():
        text = path.read_text(encoding="utf-8")
        tree = ast.parse(text, str(path))
        imports = _Imports(name if path.name == "__init__.py" else name.rpartition(".")[0], _constants(tree))
        imports.visit(tree)
        said = _said(text.splitlines())
        for node, kind in imports.found:
            for wanted in imports.named(node):
                target = wanted if wanted in modules else wanted.rpartition(".")[0]
                if target in modules and target != name:
                    package.arrows.add(Arrow(name, target, node.lineno, kind))
            if kind is Kind.DEFERRED and node.lineno not in said:
                package.silent.append(f"{path}:{node.lineno}: {ast.unparse(node)}")
    return package


def _constants(tree: ast.Module) -> dict[str, str]:
    """The texts that a module gives names to."""
    return {
        target.id: node.value.value
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        for target in node.targets
        if isinstance(target, ast.Name)
    }


def _said(lines: list[str]) -> set[int]:
    """The numbers of the lines that a reason is given for: its own, and those that follow a comment without a gap."""
    said, lasting = set(), False
    for number, line in enumerate(lines, 1):
        words = line.strip()
        if words.startswith("#"):
            lasting = lasting or bool(_REASON.match(words))
        elif not words:
            lasting = False
        if lasting or _REASON.search(line):
            said.add(number)
    return said


def circles(arrows: Iterable[Arrow]) -> list[list[str]]:
    """Return the groups of modules that reach each other, each sorted (Tarjan's strongly connected components)."""
    graph: dict[str, set[str]] = {}
    for arrow in arrows:
        graph.setdefault(arrow.source, set()).add(arrow.target)
        graph.setdefault(arrow.target, set())
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(node: str) -> None:
        index[node] = low[node] = len(index)
        stack.append(node)
        for other in sorted(graph[node]):
            if other not in index:
                visit(other)
                low[node] = min(low[node], low[other])
            elif other in stack:
                low[node] = min(low[node], index[other])
        if low[node] == index[node]:
            start = stack.index(node)
            found.append(sorted(stack[start:]))
            del stack[start:]

    for node in sorted(graph):
        if node not in index:
            visit(node)
    return sorted(group for group in found if len(group) > 1)


def against_layers(arrows: Iterable[Arrow], layers: Sequence[Sequence[str]] = LAYERS) -> list[Arrow]:
    """Return the arrows between packages that do not point down. The package's own `__init__` may import all."""
    level = {package: number for number, row in enumerate(layers) for package in row}

    def is_refused(arrow: Arrow) -> bool:
        source, target = _part(arrow.source), _part(arrow.target)
        return source != target and level.get(source, len(level)) <= level.get(target, -1)

    return sorted(filter(is_refused, arrows))


def _part(module: str) -> str:
    """The first folder or file below the package, or what a module of `DECLARING` is instead."""
    part = [*module.split("."), ""][1]
    return APART.get(module.rpartition(".")[2], part) if part in DECLARING else part


def complaints(
    package: Package, layers: Sequence[Sequence[str]] = LAYERS, plugs: Collection[tuple[str, str]] = ()
) -> list[str]:
    """Return what is refused, a text each."""
    said = []
    plugged = {arrow for arrow in package.arrows if arrow.kind is Kind.NAMED and (arrow.source, arrow.target) in plugs}
    arrows = package.arrows - plugged
    for group in circles(arrows):
        lines = [f"    {arrow}" for arrow in sorted(arrows) if {arrow.source, arrow.target} <= set(group)]
        said.append("\n".join([f"a circle of {len(group)} modules:", *lines]))
    said += [f"against the layers: {arrow}" for arrow in against_layers(arrows, layers)]
    unused = set(plugs) - {(arrow.source, arrow.target) for arrow in plugged}
    said += [f"a plug that nobody uses: {source} for {target}" for source, target in sorted(unused)]
    said += [f"deferred, and does not say why: {line}" for line in package.silent]
    return said


def main(root: Path = Path("rocmkern")) -> int:
    """Print what is refused; return the exit status."""
    found = complaints(read(root), plugs=PLUGS if root.name == "rocmkern" else ())
    print("\n".join(found), end="\n" if found else "")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
