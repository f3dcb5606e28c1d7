"""Regions under a lock have no loop in which an exception could leave the lock held: see `rocmkern.runtime.mutex`."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import rocmkern

ROOT = Path(rocmkern.__file__).parent
_OTHER_FRAMES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda, ast.GeneratorExp)
_INLINED = {"any", "all", "tuple", "list", "set"}  # of a generator expression, in one version or another


def _locks(tree: ast.Module) -> set[str]:
    """Names, of variables and attributes, that are given a `Mutex`."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and "Mutex()" in ast.unparse(node.value):
            for target in node.targets:
                for each in target.elts if isinstance(target, ast.Tuple) else [target]:
                    names.add(ast.unparse(each).rpartition(".")[2])
    return names


def regions(tree: ast.Module) -> Iterator[ast.With]:
    """The ``with`` statements that hold a lock."""
    locks = _locks(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.With):
            held = [ast.unparse(item.context_expr) for item in node.items]
            if any(each.startswith("alone(") or each.rpartition(".")[2] in locks for each in held):
                yield node


def _own(node: ast.AST) -> Iterator[ast.AST]:
    """What a node has within it in the same frame."""
    for child in ast.iter_child_nodes(node):
        yield child
        if not isinstance(child, _OTHER_FRAMES):
            yield from _own(child)


def _jumps_back(node: ast.AST) -> bool:
    """Whether a node has a jump back under a condition."""
    if isinstance(node, ast.For):
        return any(isinstance(each, (ast.If, ast.Continue)) for each in _own(node))
    if isinstance(node, (ast.ListComp, ast.SetComp, ast.DictComp)):
        return any(each.ifs for each in node.generators)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        return node.func.id in _INLINED and any(isinstance(each, ast.GeneratorExp) for each in node.args)
    return isinstance(node, ast.While)


def faults(source: str) -> list[int]:
    """Lines of regions with such a jump."""
    tree = ast.parse(source)
    return sorted({node.lineno for region in regions(tree) for node in _own(region) if _jumps_back(node)})


def test_regions_of_the_library_have_no_jump_back_under_a_condition():
    found, count = [], 0
    for path in sorted(ROOT.rglob("*.py")):
        source = path.read_text()
        if "mutex" in source:
            count += len(list(regions(ast.parse(source))))
            found += [f"{path.relative_to(ROOT)}:{line}" for line in faults(source)]
    assert found == []
    assert count > 25


@pytest.mark.parametrize(
    ("body", "bad"),
    [
        ("while a(): b()", True),
        ("for x in a:\n  if x: b()", True),
        ("for x in a:\n  if x: continue\n  b()", True),
        ("for x in a: b(x)", False),
        ("y = [x for x in a if x]", True),
        ("y = [b(x) for x in a]", False),
        ("y = any(x for x in a)", True),
        ("y = next((x for x in a if x), None)", False),
        ("def y():\n  while a(): b()", False),
        ("if a:\n  while a(): b()", True),
    ],
)
@pytest.mark.parametrize("lock", ["alone(self.lock)", "_making", "x(), self._lock"])
def test_such_a_jump_is_found(body, bad, lock):
    given = "_making = Mutex()\nself._lock, y = Mutex(), 0\n"
    inner = body.replace("\n", "\n ")
    assert bool(faults(f"{given}with {lock}:\n {inner}\n")) == bad
    assert not faults(f"{given}with open(a):\n {inner}\n")
