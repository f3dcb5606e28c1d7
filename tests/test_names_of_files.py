"""Test files have names of their own, for pytest imports each by its name alone."""

from __future__ import annotations

from collections import Counter
from pathlib import Path


def test_no_two_test_files_have_one_name():
    names = Counter(path.name for path in Path(__file__).parent.rglob("test_*.py"))
    assert len(names) > 100
    assert [name for name, count in names.items() if count > 1] == []
