"""Loose bounds: ten times above all that was measured, on every target that was recorded."""

from __future__ import annotations

import pytest

from rocmkern import cli
from rocmkern.matrix import expand, loads
from rocmkern.matrix.bounds import judge_bounds, mistakes
from rocmkern.matrix.results import Environment, Run, labels_of, result_of, write

TABLE = """\
version: 1
registry: rocmkern.ops.catalog
operations:
  softmax: {tolerance: {c: 8.0, u: 8.0, dtypes: [f32], reason: another order}}
groups:
  rows:
    why: of two lengths
    operation: softmax
    rows:
      - {axes: {size: [[3], [40]]}, dtypes: [f32, f16]}
      - {name: own, shape: {size: [7]}, tolerance: {absolute: 1.0e-3, reason: an older bound}}
"""


@pytest.fixture
def judged():
    """``judged({case: error on cpu}, {case: error on cuda})``: what is refused where e is 1e-7 and a ulp 1e-8."""

    def judge(*measured, table=TABLE):
        document = loads(table, "table.yaml")
        runs = [run_of(table, errors, target) for errors, target in zip(measured, ("cpu", "cuda"), strict=False)]
        return mistakes(document, judge_bounds(document, expand(document), runs))

    return judge


def run_of(table, errors, target="cpu"):
    cases = {case.id: case for case in expand(loads(table))}
    results = []
    for name, error in errors.items():
        output = {"output": "out", "error": error, "bound": 8e-7, "share": 0.5, "parts": "", "e": 1e-7, "ulp": 1e-8}
        results.append(result_of(cases[name], target, "passed", "", {"outputs": [output]}))
    return Run(Environment("a run", "2026-01-01", "", "", {}, {}), results, labels_of(cases.values()))


SHORT, LONG, HALF = "softmax-rows-n3-f32", "softmax-rows-n40-f32", "softmax-rows-n3-f16"
OWN = "softmax-rows-own-n7-f32"


def test_a_bound_that_one_output_comes_near_is_not_loose(judged):
    assert judged({SHORT: 1e-9, LONG: 8.1e-8}) == []


def test_a_bound_ten_times_above_everything_is_refused_with_its_position(judged):
    (line,) = judged({SHORT: 1e-9, LONG: 4e-8})
    assert line.startswith("table.yaml:4:24: operations.softmax.tolerance: is loose: at most 5.0% of it was measured")
    assert f"({LONG}[cpu])" in line and "a 20 times smaller one would hold" in line


def test_each_target_is_judged_by_itself(judged):
    (line,) = judged({LONG: 4e-8}, {LONG: 1e-7})
    assert "at most 5.0% of it was measured in 1 outputs on cpu (" in line
    assert judged({LONG: 9e-8}, {LONG: 1e-7}) == []


def test_what_was_not_recorded_and_other_dtypes_say_nothing(judged):
    assert judged({}) == judged({HALF: 1e-9}) == []


def test_an_absolute_bound_of_a_row_is_judged_by_itself(judged):
    (line,) = judged({LONG: 1e-7, OWN: 1e-5})
    assert line.startswith("table.yaml:11:") and "groups.rows.rows[1].tolerance: is loose: at most 1.0%" in line
    assert judged({OWN: 2e-4}) == []


def test_a_reason_keeps_a_loose_bound_and_must_be_true(judged):
    kept = TABLE.replace("reason: another order", "reason: another order, loose: on hip it is nearer")
    assert judged({LONG: 4e-8}, table=kept) == []
    (line,) = judged({LONG: 4e-7}, table=kept)
    assert "says that it is loose, but at most 50.0% of it was measured in 1 outputs on cpu" in line


def test_validation_with_results_refuses_a_loose_bound(tmp_path, capsys):
    (tmp_path / "table.yaml").write_text(TABLE)
    command = ["matrix", "validate", "--matrix", str(tmp_path / "table.yaml"), "--results", str(tmp_path / "run.json")]
    write(tmp_path / "run.json", run_of(TABLE, {LONG: 4e-7}))
    assert cli.main(command) == 0
    assert "2 tolerances: 0 refused, 1 without results" in capsys.readouterr().out
    write(tmp_path / "run.json", run_of(TABLE, {LONG: 4e-9}))
    assert cli.main(command) == 1
    assert "operations.softmax.tolerance: is loose" in capsys.readouterr().err
