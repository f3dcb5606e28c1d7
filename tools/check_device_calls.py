"""Refuse calls that go past the runtime: raw allocations, and waiting for, or resetting, a whole device.

    python tools/check_device_calls.py rocmkern tests examples

Memory comes from a `ResourceManager`, which knows the cap, the pool and the ledger; only ``rocmkern/runtime/hip.py``
and ``cuda.py`` call the drivers' allocators. Nothing waits for a whole device or resets it: other programs use it, a
display perhaps. Where a test is about arrays that another library made, the line says so::

    theirs = cuda.to_device(x)  # device call: an array of Numba's own is the subject
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ALLOCATIONS = re.compile(
    r"hip(Ext)?(Host)?Malloc\w*|hip(Host)?Free(Async)?|hipHostAlloc|hipMemAlloc\w*"
    r"|cu(Mem)(Host)?(Alloc|Free)\w*|cuda(Host)?(Malloc|Alloc|Free)\w*"
)
WHOLE_DEVICE = re.compile(
    r"hip(Device|Ctx)(Synchronize|Reset)|hipDevicePrimaryCtxReset|hipCtxDestroy"
    r"|cuCtx(Synchronize|Destroy|ResetPersistingL2Cache)\w*|cuDevicePrimaryCtx(Reset|Release)\w*"
    r"|cuda(Device|Thread)(Synchronize|Reset|Exit)"
)
#: Names of modules like numba.cuda, and what makes arrays or waits for the whole device there.
MODULES = {"cuda", "hip", "numba_gpu"}
MODULE_FUNCTIONS = {
    "to_device": "allocates",
    "device_array": "allocates",
    "device_array_like": "allocates",
    "pinned_array": "allocates",
    "pinned_array_like": "allocates",
    "mapped_array": "allocates",
    "mapped_array_like": "allocates",
    "managed_array": "allocates",
    "synchronize": "waits for the whole device",
    "close": "destroys the context of the device",
}
#: What returns or holds a context or a device there, by its name or by what it was assigned from.
CONTEXT_METHODS = {
    "synchronize": "waits for the whole device",
    "reset": "resets the device",
    "memalloc": "allocates",
    "memallocmanaged": "allocates",
    "memhostalloc": "allocates",
}
CONTEXTS = {"current_context", "get_context", "require_context", "get_current_device", "select_device"}
CONTEXT_NAMES = {"context", "ctx", "gpus"}
ALLOCATORS_ARE_HERE = {Path("rocmkern/runtime/hip.py"), Path("rocmkern/runtime/cuda.py")}
PERMISSION = re.compile(r"#\s*device call: \S")


class Finding(NamedTuple):
    """A call that is refused: where it stands, and why."""

    path: Path
    line: int
    column: int
    message: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}:{self.column}: {self.message}"


def check_text(text: str, path: Path) -> list[Finding]:
    """Return what is refused in a module."""
    lines = text.splitlines()
    findings = _Visitor(path).look(ast.parse(text, str(path)))
    return [finding for finding in findings if not PERMISSION.search(lines[finding.line - 1])]


class _Visitor:
    def __init__(self, path: Path):
        self.path = path
        self.may_allocate = path in ALLOCATORS_ARE_HERE
        self.modules, self.contexts = set(MODULES), set(CONTEXT_NAMES)

    def look(self, tree: ast.Module) -> list[Finding]:
        findings = []
        for node in ast.walk(tree):
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                self.modules |= {a.asname for a in node.names if a.asname and a.name.split(".")[-1] in MODULES}
            elif isinstance(node, (ast.Assign, ast.NamedExpr)) and self._is_context(node.value):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                self.contexts |= {name for name in map(_last_name, targets) if name}
        for node in ast.walk(tree):
            for message in self._messages(node):
                findings.append(Finding(self.path, node.lineno, node.col_offset + 1, message))  # type: ignore[attr-defined]
        return sorted(findings)

    def _messages(self, node: ast.AST) -> Iterator[str]:
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                yield from self._named(alias.name)
                if node.module and node.module.split(".")[-1] in MODULES and alias.name in MODULE_FUNCTIONS:
                    yield f"{node.module}.{alias.name} {MODULE_FUNCTIONS[alias.name]}"
        elif isinstance(node, ast.Name):
            yield from self._named(node.id)
        elif isinstance(node, ast.Attribute):
            yield from self._named(node.attr)
            base = _last_name(node.value)
            if base in self.modules and node.attr in MODULE_FUNCTIONS:
                yield f"{base}.{node.attr} {MODULE_FUNCTIONS[node.attr]}"
            if node.attr in CONTEXT_METHODS and self._is_context(node.value):
                yield f"{node.attr}() of a context {CONTEXT_METHODS[node.attr]}"
        elif isinstance(node, ast.Call) and _last_name(node.func) == "getattr" and len(node.args) > 1:
            name = node.args[1]
            if isinstance(name, ast.Constant) and isinstance(name.value, str):
                yield from self._named(name.value)

    def _is_context(self, node: ast.AST) -> bool:
        if isinstance(node, ast.Call):
            return _last_name(node.func) in CONTEXTS
        if isinstance(node, ast.Subscript):
            return self._is_context(node.value)
        return (_last_name(node) or "").lstrip("_") in self.contexts

    def _named(self, name: str) -> Iterator[str]:
        if WHOLE_DEVICE.fullmatch(name):
            yield f"{name} concerns the whole device, which other programs use: wait with ResourceManager.wait"
        elif ALLOCATIONS.fullmatch(name) and not self.may_allocate:
            yield f"{name} goes past cap, pool and ledger: use a ResourceManager"


def _last_name(node: ast.AST) -> str | None:
    if isinstance(node, ast.Name):
        return node.id
    return node.attr if isinstance(node, ast.Attribute) else None


def files_in(names: list[str]) -> Iterator[Path]:
    """Python files of the given directories and files, without the virtual GPU's: such calls are its subject."""
    for path in map(Path, names):
        files = sorted(path.rglob("*.py")) if path.is_dir() else [path]
        yield from (file for file in files if "virtual_gpu" not in file.parts)


def main(names: list[str]) -> int:
    """Print what is refused in files and directories; 1 if there is anything."""
    findings = [finding for path in files_in(names) for finding in check_text(path.read_text("utf-8"), path)]
    for finding in findings:
        print(finding)
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
