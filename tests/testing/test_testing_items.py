"""What an item of a matrix says when it fails, and where it stands."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from rocmkern.matrix import CaseFailure, MatrixError
from rocmkern.matrix.fuzz import FuzzFailure
from rocmkern.runtime.errors import DeviceUnavailableError
from rocmkern.testing import items
from rocmkern.testing.worker import WorkerError

OPTIONS = {"rocmkern_fuzz": 20, "rocmkern_fuzz_seed": 7}


@pytest.fixture
def item(monkeypatch):
    """An item of line 12 of a matrix, without pytest's part."""
    monkeypatch.setattr(items, "reproduce", lambda case, target: f"recipe of {case.id} on {target}")
    monkeypatch.setattr(pytest.Item, "repr_failure", lambda self, excinfo, style=None: "pytest's own")

    def make(kind):
        made = kind.__new__(kind)
        facts = SimpleNamespace(file="matrix.yaml", line=12, why="a reason")
        made.case, made.target = SimpleNamespace(id="some-case", facts=facts, category="quick"), "cpu"
        made.path, made.name = Path("matrix.yaml"), "some-case[cpu]"
        made.config = SimpleNamespace(getoption=OPTIONS.__getitem__)
        return made

    return make


def failed(error):
    return SimpleNamespace(value=error, traceback=None)


HEAD, RECIPE = "some-case on cpu (matrix.yaml:12): a reason", "reproduce with\n\nrecipe of some-case on cpu\n"


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (CaseFailure("parity", "out differs"), f"{HEAD}\ncheck parity failed:\nout differs\n\n{RECIPE}"),
        (MatrixError("a mistake"), f"{HEAD}\na mistake"),
        (DeviceUnavailableError("no GPU"), f"{HEAD}\nno GPU"),
        (WorkerError("hang", "it hung"), f"{HEAD}\nit hung\n\n{RECIPE}"),
    ],
)
def test_a_case_that_fails_says_what_failed_and_how_to_reproduce_it(item, error, text):
    assert item(items.CaseItem).repr_failure(failed(error)) == text


def test_drawn_rows_that_fail_say_how_to_draw_them_again(item):
    fuzz, failure = item(items.FuzzItem), FuzzFailure.__new__(FuzzFailure)
    failure.seed, failure.args = 9, ("the row",)
    head = (
        "a drawn row fails on cpu (--rocmkern-fuzz=20 --rocmkern-fuzz-seed=9 draws it again); as a group of the table:"
    )
    assert fuzz.repr_failure(failed(failure)) == f"{head}\n\n{failure}"
    assert fuzz.repr_failure(failed(WorkerError("crash", "it crashed"))) == "it crashed"
    assert fuzz.repr_failure(failed(ValueError("x"))) == "pytest's own"


def test_an_item_stands_in_the_line_of_its_row_counted_from_0(item):
    assert item(items.CaseItem).reportinfo() == (Path("matrix.yaml"), 11, "some-case[cpu]")
    assert item(items.FuzzItem).reportinfo() == (Path("matrix.yaml"), 0, "some-case[cpu]")


def test_the_category_of_what_is_no_case_is_none(item):
    assert items.category_of(item(items.CaseItem)) is None  # its case is none of a matrix
    assert items.category_of(SimpleNamespace()) is None
