"""Lowerings of GPU targets: no method of a chain of classes replaces another unnoticed; tables beside them agree."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

import pytest

import rocmkern
from rocmkern.ops.quantized.tuning import ONE_ROW
from rocmkern.tile._lowering.shared.lanes import PairReader
from rocmkern.tile.formats import IN_PAIRS

TILE = Path(rocmkern.__file__).parent / "tile"


@pytest.mark.parametrize("target", ["cpu", "hip", "cuda"])
def test_no_method_is_defined_twice(target):
    chain = [
        node
        for path in sorted((TILE / "_lowering" / target).glob("*.py"))
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.ClassDef) and any("Lowering" in ast.unparse(base) for base in node.bases)
    ]
    methods = Counter(node.name for cls in chain for node in cls.body if isinstance(node, ast.FunctionDef))
    assert len(chain) >= 5 and methods["dot_nt"] == 1
    assert [name for name, count in methods.items() if count > 1] == []


def test_the_table_of_rows_knows_the_formats_that_are_read_in_pairs():
    assert IN_PAIRS == PairReader.FORMATS
    for sizes in ONE_ROW.values():
        assert set(sizes.packed) <= set(PairReader.FORMATS)
