"""``rocmkern matrix``: finding cases, saying what they are, running them, and what faults they catch."""

import importlib
import json
from pathlib import Path

import pytest

from rocmkern import cli, targets
from rocmkern.matrix import Edit, Fault

TABLE = """\
version: 1
registry: rocmkern.ops.catalog
groups:
  halves:
    why: a half is exact
    operation: scale
    rows:
      - {shape: {size: [2, 3]}, features: {factor: 0.5}, dtypes: [f32, f16]}
      - {name: wide, category: full, shape: {size: [2, 70]}, tolerance: {absolute: 1.0e-3, reason: an older bound}}
      - {name: not_finite, shape: {size: [2]}, arguments: {factor: .nan},
         expect_error: {type: ArgumentError, argument: factor}}
"""


BIG = """\
from rocmkern.matrix import Call, Dim, Operation, Registry

def call(draw):
    shape = (draw.dims["rows"], draw.dims["columns"])
    return Call({"x": draw.array("x", shape)}, out_shapes=(shape,))

OPERATIONS = Registry(Operation("big", abs, abs, call, (Dim("rows", "r"), Dim("columns", "c")), ("x",)))
"""


@pytest.fixture
def table(tmp_path):
    path = tmp_path / "table.yaml"
    path.write_text(TABLE)
    return path


@pytest.fixture
def command(table, capsys):
    """``command("list", ...)`` on the table: exit status, standard output, standard error."""

    def run(action, *words):
        status = cli.main(["matrix", action, "--matrix", str(table), *words])
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return run


def test_list_names_cases_by_pattern_operation_and_category(command):
    assert command("list")[1].split() == [
        "scale-halves-n2x3-f32-factor0.5",
        "scale-halves-n2x3-f16-factor0.5",
        "scale-halves-wide-n2x70-f32",
        "scale-halves-not_finite-n2-f32",
    ]
    assert command("list", "*f16*")[1].split() == ["scale-halves-n2x3-f16-factor0.5"]
    assert command("list", "--category", "full")[1].split() == ["scale-halves-wide-n2x70-f32"]
    assert command("list", "--operation", "softmax")[1] == ""
    (record,) = json.loads(command("list", "--json", "*wide*")[1])
    assert record["dims"] == {"size": [2, 70]} and record["category"] == "full" and record["line"] == 9


def test_show_says_what_a_case_is(command, table):
    status, text, _ = command("show", "*f16*")
    assert status == 0
    assert f"{table}:8, group halves, category quick" in text
    assert "a half is exact" in text and "factor=0.5" in text
    assert "x           float16[2, 3]" in text and "-> out      float16[2, 3]" in text


def test_explain_gives_the_bound_and_lines_that_run(command):
    _, text, _ = command("explain", "*f32-factor*", "--target", "python")
    assert "c = 2, u = 2: the default" in text
    recipe = text.split("reproduce with\n\n")[1]
    scope: dict = {}
    exec(recipe, scope)
    assert scope["case"].id == "scale-halves-n2x3-f32-factor0.5" and scope["arguments"]["factor"] == 0.5


def test_explain_names_a_fixed_bound_and_an_expected_error(command):
    assert "0.001 for every element: an older bound" in command("explain", "*wide*", "--target", "python")[1]
    text = command("explain", "*not_finite*", "--target", "python")[1]
    assert "raises      ArgumentError that names factor" in text and "none: the row says which error" in text


def test_run_measures_and_fails(command, monkeypatch):
    status, text, _ = command("run", "*", "--target", "python")
    assert status == 0
    assert text.count("passed  ") == 4 and "error 0, bound" in text
    from rocmkern.matrix.faults import Edit, Fault, inject

    with inject(Fault("doubled", "twice the product", ("scale",), (Edit("scale", "t * factor", "t * factor * 2.0"),))):
        status, text, _ = command("run", "*f16*", "--target", "python")
    assert status == 1 and "FAILED   scale-halves-n2x3-f16-factor0.5: check parity" in text


def test_an_unknown_id_names_the_nearest(command):
    status, _, text = command("show", "scale-halves-wide-n2x71-f32")
    assert status == 2
    assert "did you mean 'scale-halves-wide-n2x70-f32'?" in text


def test_a_part_of_an_id_is_a_pattern_but_a_whole_id_is_that_case_only(command):
    assert command("list", "halves-wide")[1].split() == ["scale-halves-wide-n2x70-f32"]
    assert len(command("list", "n2x3")[1].split()) == 2
    assert command("list", "scale-halves-n2x3-f32-factor0.5")[1].split() == ["scale-halves-n2x3-f32-factor0.5"]


@pytest.mark.parametrize("action", [["run", "*"], ["isolate"]])
def test_a_target_that_there_is_not_is_refused_before_a_case_runs(command, capsys, action):
    with pytest.raises(SystemExit) as stop:
        command(*action, "--target", "vulkan")
    text, error = capsys.readouterr()
    assert stop.value.code == 2 and not text and error.count("\n") == 1
    assert "--target: invalid choice: 'vulkan'" in error and "cuda" in error


def test_the_targets_of_the_command_line_are_those_there_are():
    assert set(cli.commands()["matrix"].TARGETS) == set(targets.NAMES)


def test_run_counts_what_it_ran(command):
    assert command("run", "*", "--target", "python")[1].splitlines()[-1] == "on python: 4 passed"


def test_validate_counts_or_points_at_the_mistake(command, table):
    status, text, _ = command("validate")
    assert status == 0 and "4 cases (3 quick, 1 full, 0 benchmark)" in text
    table.write_text(TABLE.replace("factor: 0.5", "facto: 0.5"))
    status, _, text = command("validate")
    assert status == 1 and f"{table}:8:" in text and "did you mean 'factor'?" in text


@pytest.mark.parametrize(
    ("shape", "words"),
    [
        ("{rows: 3, columns: 3000000000000}", "columns: input should be less than or equal to 1099511627776"),
        ("{rows: 3, columns: 1" + 29 * "0" + "}", "columns: input should be less than or equal to 1099511627776"),
        (
            "{rows: 2000000, columns: 2000000}",
            "case big-a-r2000000c2000000-f32 needs an array of 4000000000000 elements",
        ),
        (
            "{rows: 1}, axes: {columns: [4, 2000000000000]}",
            "columns is 2000000000000; at most 1099511627776 is allowed",
        ),
    ],
)
def test_a_shape_that_no_machine_has_is_a_mistake_with_its_position(tmp_path, monkeypatch, capsys, shape, words):
    name = f"big_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(BIG)
    monkeypatch.syspath_prepend(tmp_path)
    table = tmp_path / "big.yaml"
    table.write_text(f"version: 1\nregistry: {name}\ngroups:\n  a:\n    why: because\n    operation: big\n    rows:\n"
                     f"      - {{shape: {shape}}}\n")  # fmt: skip
    for action in (["validate"], ["explain", "*"], ["show", "*"]):
        assert cli.main(["matrix", *action, "--matrix", str(table)]) == 1
        error = capsys.readouterr().err
        assert words in error and error.startswith(f"rocmkern: {table}:8:")
    status = cli.main(["matrix", "run", "*", "--matrix", str(table), "--target", "python"])
    text = "".join(capsys.readouterr())
    assert status == 1 and words in text and "Traceback" not in text


def test_a_shape_that_this_machine_has_no_memory_for_is_one_line(command, table):
    table.write_text(TABLE.replace("[2, 3]", "[30000000, 30000]"))
    assert command("validate")[0] == 0, "another machine may have it"
    status, text, error = command("show", "*f32-factor*")
    assert status == 1 and "Unable to allocate" in error and error.startswith(f"rocmkern: {table}:8:1: case scale-")
    status, text, _ = command("run", "*f32-factor*", "--target", "python")
    assert status == 1 and "Unable to allocate" in text and "Traceback" not in text


def test_mutate_says_which_rows_catch_a_fault(command):
    status, text, _ = command("mutate", "--json", "last_row_not_written")
    (record,) = json.loads(text)["faults"]
    assert status == 0 and record["caught"] and record["name"] == "last_row_not_written"
    assert set(record["rows"]) == {"scale-halves-n2x3-f32-factor0.5", "scale-halves-n2x3-f16-factor0.5"}


def test_mutate_fails_for_a_fault_that_no_row_catches(command):
    status, text, _ = command("mutate", "mask_inverted")
    assert status == 1 and "NOT CAUGHT: True hides instead of showing" in text and "1 faults, 1 not caught" in text


def test_mutate_refuses_a_fault_that_it_does_not_know(command):
    status, _, text = command("mutate", "mask_invert")
    assert status == 2 and "did you mean 'mask_inverted'?" in text


OWN = """\
import sys
import numpy as np
from rocmkern.matrix import Call, Dim, Operation, Registry

def ident(x, out=None):
    if x.shape[0] == 2:
        sys.exit(3)
    if x.shape[0] == 3:
        raise RuntimeError("three is broken")
    out = np.empty_like(x) if out is None else out
    out[...] = x if x.shape[0] != 4 else x + 1
    return out

def half(x, out=None):
    out = np.empty_like(x) if out is None else out
    out[...] = x / 2
    return out

def call(draw):
    shape = (draw.dims["rows"], 4)
    return Call({"x": draw.array("x", shape)}, out_shapes=(shape,))

def operation(name, function, reference):
    return Operation(name, function, reference, call, (Dim("rows", "r"),), ("x",), exact=True)

OPERATIONS = Registry(operation("ident", "NAME:ident", lambda x: x), operation("half", "NAME:half", lambda x: x / 2))
"""
OWN_TABLE = """\
version: 1
registry: NAME
groups:
  a:
    why: because
    operation: ident
    rows: [{axes: {rows: [1, 2, 3, 4, 5]}}]
  b:
    why: because
    operation: half
    rows: [{axes: {rows: [1, 2]}}]
"""
RULES = """\
known_failures:
  - {cases: '*r2-*', issue: exits, expires: '9999-01-01'}
  - {cases: '*r3-*', issue: raises, expires: '2020-01-01'}
  - {cases: '*r4-*', issue: adds one, expires: '9999-01-01'}
  - {cases: '*r5-*', issue: fives, expires: '9999-01-01'}
"""


EDITS = {
    "nothing": ("ident", "out[...] = x if", "out[...] = x if"),
    "third": ("half", "out[...] = x / 2", "out[...] = x / 3"),
    "no_name": ("half", "out[...] = x / 2", "out[...] = y / 2"),
    "no_python": ("half", "out[...] = x / 2", "out[...] = x / / 2"),
    "gone": ("half", "x * 2", "x"),
    "raising": ("half", "out[...] = x / 2", "out[...] = x.reshape(99) / 2"),
}


@pytest.fixture
def own(tmp_path, monkeypatch, capsys):
    """``own("run", ..., rules="", faults="")`` in a project of its own: status, standard output, standard error."""
    name = f"own_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(OWN.replace("NAME", name))
    monkeypatch.syspath_prepend(tmp_path)
    path = tmp_path / "own.yaml"

    def run(action, *words, rules="", faults=()):
        path.write_text(OWN_TABLE.replace("NAME", name) + rules)
        if faults:
            edits = {fault: Edit(f"{name}:{EDITS[fault][0]}", *EDITS[fault][1:]) for fault in faults}
            declared = {fault: Fault(fault, f"is {fault}", ("ident", "half"), (edit,)) for fault, edit in edits.items()}
            importlib.import_module(name).OPERATIONS.faults.update(declared)
        status = cli.main(["matrix", action, "--matrix", str(path), *words])
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return run


def test_run_goes_on_after_whatever_an_operation_raises(own):
    status, text, _ = own("run", "ident", "--target", "python")
    assert status == 1
    assert "FAILED   ident-a-r2-f32: SystemExit: 3" in text
    assert "FAILED   ident-a-r3-f32: RuntimeError: three is broken" in text
    assert "FAILED   ident-a-r4-f32: check parity" in text
    assert text.count("case = find_case(") == 3 and "passed   ident-a-r5-f32" in text
    assert text.splitlines()[-1] == "on python: 2 passed, 3 failed"


def test_run_tolerates_known_failures_as_pytest_does(own):
    status, text, _ = own("run", "ident", "--target", "python", rules=RULES)
    assert status == 1
    assert "known    ident-a-r2-f32: known failure until 9999-01-01: exits" in text
    assert "FAILED   ident-a-r3-f32: check known_failure\ntolerated until 2020-01-01: raises" in text
    assert "FAILED   ident-a-r5-f32: check known_failure\npasses, but '*r5-*' says that it fails: fives" in text
    assert text.splitlines()[-1] == "on python: 1 passed, 2 failed, 2 known"
    assert own("run", "ident-a-r2-f32", "ident-a-r4-f32", "--target", "python", rules=RULES)[0] == 0


def test_mutate_without_faults_says_that_there_are_none(own):
    for words in ((), ("nope",)):
        status, text, error = own("mutate", *words)
        assert (status, text) == (1, "") and "declares no seeded faults" in error and "own.yaml" in error


def test_mutate_names_what_is_allowed_in_a_sentence(own):
    status, _, error = own("mutate", "zzzzzz", faults=["nothing", "third"])
    assert status == 2 and error.endswith("FAULT: got zzzzzz; allowed: one of nothing, third\n")


def test_a_row_that_fails_without_the_fault_as_well_proves_nothing(own):
    status, text, _ = own("mutate", "--json", faults=["nothing", "third"])
    nothing, third = json.loads(text)["faults"]
    assert status == 1 and nothing == {"name": "nothing", "caught": False, "rows": []}
    assert third["rows"] == ["half-b-r1-f32", "half-b-r2-f32"]
    status, text, _ = own("mutate", "--first", "third", rules="known_failures:\n"
                          "  - {cases: half-b-r1-f32, issue: first, expires: '9999-01-01'}\n")  # fmt: skip
    assert status == 0 and "1 rows, half-b-r2-f32" in text, "a row that is known to fail is passed over"


def test_a_fault_that_cannot_be_put_in_is_named_and_the_others_are_still_tried(own):
    status, text, _ = own("mutate", "--json", faults=["no_name", "no_python", "gone", "raising", "third"])
    found = {record["name"]: record for record in json.loads(text)["faults"]}
    assert status == 1
    for name, words in (("no_name", "'y' is not defined"), ("no_python", "SyntaxError"), ("gone", "occurs 0 times")):
        assert not found[name]["caught"] and words in found[name]["error"]
    assert found["raising"]["caught"] and found["third"]["caught"] and "error" not in found["third"]
    assert "no_name                          NOT CAUGHT: fault no_name: its text does not run" in own("mutate")[1]


def test_the_default_is_the_matrix_of_the_directory_else_that_of_the_library(monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(Path(__file__).parents[2])
    assert cli.main(["matrix", "validate"]) == 0
    here = capsys.readouterr().out
    assert here.startswith("matrix.yaml: ")
    monkeypatch.chdir(tmp_path)
    assert cli.main(["matrix", "validate"]) == 0
    assert capsys.readouterr().out.endswith(here.removeprefix("matrix.yaml"))
