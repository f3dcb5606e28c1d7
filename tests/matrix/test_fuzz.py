"""Rows drawn at random: the same for the same seed, others for another, and a failure names its seed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from rocmkern.matrix import Domain, Registry
from rocmkern.matrix.fuzz import FuzzFailure, fuzz

ANY = "  a: {why: because, operation: double, rows: [{shape: {rows: 1}}]}\n"


@pytest.fixture
def drawn(matrix, registry):
    """``drawn(function, seed)``: the shapes that a function of the domain is called with."""

    def run(function, seed, examples=30):
        shapes = []

        def noting(x, *, out=None):
            shapes.append(x.shape)
            return function(x, out=out)

        operation = replace(registry["double"], function=noting, domain=Domain({"rows": (0, 40), "columns": (0, 40)}))
        fuzz(matrix(ANY, Registry(operation)), operation, "python", examples, seed)
        return shapes

    return run


def right(x, *, out=None):
    out = np.empty_like(x, order="C", subok=False) if out is None else out
    return np.multiply(x, x.dtype.type(2), out=out)


def test_a_seed_draws_its_rows_and_another_one_others(drawn):
    first, again, other = drawn(right, 1), drawn(right, 1), drawn(right, 2)
    assert first == again and set(first) != set(other) and len(set(first)) > 5


@pytest.mark.parametrize("error", [RuntimeError("broken"), SystemExit(3)], ids=["exception", "exit"])
def test_a_failure_is_the_smallest_row_with_its_seed(drawn, error):
    def failing(x, *, out=None):
        if x.shape[0] >= 13:
            raise error
        return right(x, out=out)

    with pytest.raises(FuzzFailure) as caught:
        drawn(failing, 7, examples=100)
    assert caught.value.row["shape"] == {"rows": 13, "columns": 0} and caught.value.seed == 7
    assert str(error) in str(caught.value)
