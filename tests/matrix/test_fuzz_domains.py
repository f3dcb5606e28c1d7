"""Rows that are drawn within an operation's declared domain are rows: they can be made, and hold on the interpreter."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("hypothesis")

from rocmkern.matrix import load
from rocmkern.matrix.fuzz import fuzz
from rocmkern.ops.catalog import OPERATIONS

MATRIX = Path(__file__).parents[2] / "matrix.yaml"
DRAWN = [operation.name for operation in OPERATIONS if operation.domain is not None]


@pytest.fixture(scope="module")
def document():
    return load(MATRIX)


@pytest.mark.parametrize("name", DRAWN)
def test_drawn_rows_hold(document, name):
    assert fuzz(document, document.registry[name], "python", 12, 20260101) == 12


@pytest.mark.parametrize("name", DRAWN)
def test_what_is_drawn_differs(document, name):
    """A value that stands twice hides one that was meant; a range has something in it."""
    domain = document.registry[name].domain
    for feature, values in domain.features.items():
        assert len(values) == len(set(map(repr, values))), feature
    for dim, (smallest, largest) in domain.dims.items():
        assert 0 <= smallest < largest, dim
