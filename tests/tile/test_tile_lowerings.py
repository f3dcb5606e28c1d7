"""Lowerings of GPU targets are chains of classes: a method of one must not replace that of another unnoticed."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

import pytest

import rocmkern

TILE = Path(rocmkern.__file__).parent / "tile"


@pytest.mark.parametrize("target", ["hip", "cuda"])
def test_no_method_is_defined_twice(target):
    chain = [
        node
        for path in sorted((TILE / target).glob("*.py"))
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.ClassDef) and any("Lowering" in ast.unparse(base) for base in node.bases)
    ]
    methods = Counter(node.name for cls in chain for node in cls.body if isinstance(node, ast.FunctionDef))
    assert len(chain) >= 5 and methods["dot_nt"] == 1
    assert [name for name, count in methods.items() if count > 1] == []
