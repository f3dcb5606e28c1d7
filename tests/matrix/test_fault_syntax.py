"""Where a fault changes a kernel does not depend on how its text is laid out."""

from __future__ import annotations

import pytest

from rocmkern.matrix.faults.syntax import replaced

TEXT = '''
def kernel(a, b):
    """Doc."""
    x = load(  # why
        "bias",
        a,
        (0, 1), b,
    )
    for i in range(3):
        x = x + 1
        y = x * 2
    return x, y
'''


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("load('bias', a, (0, 1), b)", "load('mask', a)", "x = load('mask', a)"),
        ("load('bias', ...)", "load('mask', ...)", "x = load('mask', a, (0, 1), b)"),
        ("load('bias', a, (0, 1), b, ...)", "load(...)", "x = load()"),
        ("x+1", "x - 1", "x = x - 1"),
        ("x = x + 1\ny = x * 2", "y = x * 2\nx = x + 1", "y = x * 2\n        x = x + 1"),
        ("return x, y", "return y, x", "return (y, x)"),
        ("range(3)", "range(0)", "for i in range(0):"),
    ],
)
def test_what_has_the_structure_is_replaced(old, new, expected):
    text, found = replaced(TEXT, old, new)
    assert found == 1 and expected in text


@pytest.mark.parametrize(("old", "count"), [("x", 5), ("load('mask', ...)", 0), ("x + 2", 0), ("load('bias')", 0)])
def test_what_is_not_there_once_is_counted_and_left(old, count):
    text, found = replaced(TEXT, old, "nothing")
    assert found == count and "nothing" not in text


def test_a_part_of_a_statement_is_looked_up_as_text():
    text, found = replaced(TEXT, "y = x *", "y = b *")
    assert found == 1 and "y = b * 2" in text and "# why" in text
