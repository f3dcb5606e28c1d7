"""Files of the library have at most 600 lines and functions at most 100, as CONTRIBUTING.md says; none is excepted.

The docstring of a function does not count: what a public function takes and gives is to be said in full.
"""

from __future__ import annotations

import ast

import pytest
from pages import ROOT

LINES_OF_A_FILE = 600
LINES_OF_A_FUNCTION = 100


def too_long(text):
    """What is too long in a module, a few words each."""
    found, lines = [], len(text.splitlines())
    if lines > LINES_OF_A_FILE:
        found.append(f"{lines} lines")
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = node.end_lineno - node.lineno + 1
            if ast.get_docstring(node, clean=False) is not None:
                lines -= node.body[0].end_lineno - node.body[0].lineno + 1
            if lines > LINES_OF_A_FUNCTION:
                found.append(f"{node.name}: {lines} lines")
    return found


def function(statements, docstring=""):
    return f"async def f(\n    x,\n):\n{docstring}" + "    x\n" * statements


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("x\n" * 600, []),
        ("x\n" * 601, ["601 lines"]),
        (function(97), []),
        (function(98), ["f: 101 lines"]),
        (function(97, '    """It is\n\n    said.\n    """\n'), []),
        (function(98, '    """It is\n\n    said.\n    """\n'), ["f: 101 lines"]),
        ("class C:\n    def f(self):\n" + "        x\n" * 100, ["f: 101 lines"]),
    ],
)
def test_what_is_too_long_is_found(text, found):
    assert too_long(text) == found


def test_nothing_is_too_long():
    modules = sorted((ROOT / "rocmkern").rglob("*.py"))
    assert len(modules) > 200
    found = [(path, too_long(path.read_text(encoding="utf-8"))) for path in modules]
    assert [f"{path.relative_to(ROOT)}: {each}" for path, several in found for each in several] == []
