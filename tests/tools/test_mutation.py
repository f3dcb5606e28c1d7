"""Mutation testing chooses changes that a test can notice, and for each the tests that run what is changed."""

from __future__ import annotations

import ast
import importlib
import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def tool(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "tools")
    for name in ("mutants", "mutation_tests", "mutation"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return importlib.import_module("mutation")


def bits(*lines):
    return f"{sum(1 << line for line in lines):x}"


def written(directory, *entries):
    """A recording: (test, seconds, lines of ops/a.py, variants), or (variant, seconds, lines of ops/a.py)."""
    lines = []
    for name, seconds, lines_of_a, *variants in entries:
        entry = {"seconds": seconds, "lines": {"ops/a.py": bits(*lines_of_a)} if lines_of_a else {}}
        lines.append(
            json.dumps({"test": name, "variants": variants[0]} | entry if variants else {"variant": name} | entry)
        )
    (directory / "record-x.jsonl").write_text("\n".join(lines) + "\n")


def mutant(tool, spans=((4, 5), (3, 9)), file="ops/a.py"):
    return tool.Mutant("ops", file, "NumberReplacer", 0, 4, spans)


def covering(tool, directory, spans=((4, 5), (3, 9))):
    one = mutant(tool, spans)
    return tool.Tests(directory, [one]).of(one)


def test_tests_of_the_statement_quick_ones_first_and_files_take_turns(tool, tmp_path):
    written(
        tmp_path,
        ("x::slow", 9.0, [4], []), ("x::quick", 0.1, [5], []), ("y::one", 1.0, [4], []), ("z::beside", 0.1, [6], []),
    )  # fmt: skip
    found = covering(tool, tmp_path)
    assert (found.tests, found.executed) == (["x::quick", "y::one", "x::slow"], True)


def test_a_test_runs_what_compiling_its_kernel_ran_though_it_found_it_compiled(tool, tmp_path):
    written(
        tmp_path, ("k", 2.0, [5]), ("x::first", 2.5, [8], ["k"]), ("x::later", 0.1, [], ["k"]), ("x::no", 0.1, [8], [])
    )
    tests = tool.Tests(tmp_path, [mutant(tool)])
    assert tests.of(mutant(tool)).tests == ["x::later", "x::first"]
    compiled = set()
    assert [tests.cost(test, compiled) for test in ("x::later", "x::first")] == [2.1, 2.5]


def test_without_a_test_of_the_statement_those_of_the_function_are_tried_then_those_of_the_file(tool, tmp_path):
    written(tmp_path, ("x::a", 1.0, [7], []), ("x::b", 0.5, [20], []))
    assert covering(tool, tmp_path).tests == ["x::a"] and not covering(tool, tmp_path).executed
    assert covering(tool, tmp_path, ((40, 41), (39, 50))).tests == ["x::b", "x::a"]


def test_what_is_at_the_level_of_the_module_has_the_tests_of_its_file(tool, tmp_path):
    written(tmp_path, ("x::a", 1.0, [3], []), ("x::b", 0.5, [9], []), ("x::c", 0.1, [], []))
    found = covering(tool, tmp_path, ())
    assert (found.tests, found.executed) == (["x::b", "x::a"], True)


def test_a_table_has_the_tests_that_read_it_without_a_line_of_its_file(tool, tmp_path):
    named, reading = "tests/ops/test_ops_a.py::named", "tests/matrix/test_golden.py::reading"
    written(tmp_path, ("x::a", 1.0, [3], []), (named, 0.5, [], []), (reading, 0.6, [], []), ("x::no", 0.1, [], []))
    assert covering(tool, tmp_path, ()).tests == [named, reading, "x::a"]
    assert covering(tool, tmp_path, ((3, 3),)).tests == ["x::a"]


def test_only_tests_that_are_there_are_chosen(tool, tmp_path):
    written(tmp_path, ("x::a", 1.0, [4], []), ("x::gone", 0.1, [4], []))
    assert tool.Tests(tmp_path, [mutant(tool)], {"x::a"}).of(mutant(tool)).tests == ["x::a"]


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("ops/norm/api.py", "test_ops_norm"),
        ("ops/norm/kernels/rms_norm.py", "test_ops_norm"),
        ("tile/language/rows.py", "test_tile_rows"),
        ("runtime/probe/child.py", "test_runtime_probe"),
        ("cli/_explain.py", "test_explain"),
    ],
)
def test_tests_are_found_by_the_names_of_folders_too(tool, file, name):
    import mutation_tests

    assert name in mutation_tests._named_after(file)


def test_the_last_line_of_a_recording_may_be_cut(tool, tmp_path):
    written(tmp_path, ("x::a", 1.0, [4], []), ("x::b", 0.5, [4], []))
    path = tmp_path / "record-x.jsonl"
    path.write_text(path.read_text()[:-10])
    assert covering(tool, tmp_path).tests == ["x::a"]


SOURCE = """\
import x

def f(a=1,
      b=2):
    if (a and
            b):
        return 1
    x.y(
        a,
        b)
    def g(c=3):
        return c

class C:
    d = 1
    def h(self):
        return 2
"""


@pytest.mark.parametrize(
    "line, expected",
    [
        (1, ()),
        (3, ((5, 12),)),  # the default of an argument: the whole function
        (5, ((5, 6), (5, 12))),  # the head of a branch, without the branch
        (7, ((7, 7), (5, 12))),
        (9, ((8, 10), (5, 12))),  # a statement of three lines
        (11, ((12, 12), (5, 12))),  # the default of an inner function
        (15, ()),
        (17, ((17, 17),)),
    ],
)
def test_what_runs_with_a_line(tool, line, expected):
    import mutants

    assert mutants.spans(ast.parse(SOURCE), line) == expected


def test_survivors_count_unless_nothing_can_tell_them_apart(tool, tmp_path, capsys):
    outcomes = ["killed"] * 18 + ["survived", "survived", "survived"]
    facts = {"part": "ops", "ran": 1, "tests": 2, "executed": True, "before": "a", "after": "b"}
    entries = [{"id": f"m{i}", "outcome": outcome, **facts} for i, outcome in enumerate(outcomes)]
    entries.insert(0, {"id": "m3", "outcome": "survived", **facts})  # with more tests it was killed
    (tmp_path / "results.jsonl").write_text("\n".join(map(json.dumps, entries)))
    assert tool.report(tmp_path) == 1 and "21 mutants, 3 survive (14%)" in capsys.readouterr().out
    (tmp_path / "equivalent.json").write_text(json.dumps({"m20": "it only logs"}))
    assert tool.report(tmp_path) == 0 and "21 mutants, 2 survive (10%)" in capsys.readouterr().out


def test_annotations_and_caches_are_left_alone_and_the_seed_decides(tool, tmp_path, monkeypatch):
    pytest.importorskip("cosmic_ray.operators.provider")
    import mutants

    package = tmp_path / "rocmkern"
    (package / "ops").mkdir(parents=True)
    (package / "ops" / "a.py").write_text(
        "import functools\n\n\n@functools.cache\ndef f(x: int | None) -> int | str:\n    y: int | None = x\n"
        "    return y + 1 if y is not None else 0\n"
    )
    monkeypatch.setattr(mutants, "PACKAGE", package)
    drawn = mutants.draw(100, 3, ["ops"])
    assert {(each.line, each.spans) for each in drawn} == {(7, ((7, 7), (6, 7)))}
    assert [each.id for each in drawn] == [each.id for each in mutants.draw(100, 3, ["ops"])]
    assert all(text.count("int | None") == 2 and "@functools.cache" in text for text in drawn.values())
    assert len(set(drawn.values())) == len(drawn) >= 4


def test_each_file_is_in_one_part_or_in_none_on_purpose(tool):
    import mutants

    package = mutants.PACKAGE
    found = Counter(
        path.relative_to(package).as_posix()
        for patterns in mutants.PARTS.values()
        for path in {path for pattern in patterns for path in package.glob(pattern)}
    )
    assert [file for file, count in found.items() if count > 1] == []
    files = {path.relative_to(package).as_posix() for path in package.rglob("*.py") if path.name != "__init__.py"}
    # Commands, what compiles and what says what a card is; what operations are compared with; lowerings for cards.
    none = (
        "__main__.py",
        "architectures/",
        "cli/",
        "distributed/",  # runs in other processes
        "reference/",
        "targets/",
        "tile/_lowering/cuda/",
        "tile/_lowering/hip/",
        "torch/",  # needs PyTorch
        "transformers/",
    )
    compared = ("reference.py", "baseline.py", "roundings.py", "faults.py")
    assert {f for f in files - found.keys() if not f.startswith((*none, *mutants.LEFT_OUT))} == {
        f for f in files if f.startswith(("ops/", "flash_attn/")) and f.rpartition("/")[2] in compared
    }
    assert [name for name in mutants.LEFT_OUT if not (package / name).exists()] == []


def test_a_recording_has_the_lines_of_each_test_its_children_included(tool, tmp_path):
    (tmp_path / "test_it.py").write_text(
        "import os, subprocess, sys\nfrom rocmkern.ops.activations import reference\nimport numpy as np\n"
        "CODE = 'import numpy as np; from rocmkern.ops.activations import reference; reference.silu(np.ones(3))'\n"
        "def test_first(): reference.silu(np.ones(3))\n"
        "def test_nothing(): pass\n"
        "def test_again(): reference.silu(np.ones(3))\n"
        "def test_failing(): assert reference.silu(np.ones(3)) is None\n"
        "def test_process(): subprocess.run([sys.executable, '-c', CODE], check=True)\n"
        "def test_fork():\n    if not os.fork():\n        reference.silu(np.ones(3))\n        os._exit(0)\n"
        "    assert os.wait()[1] == 0\n"
    )
    record = tmp_path / "record"
    (tmp_path / "sitecustomize.py").write_text(importlib.import_module("mutation_lines").SITECUSTOMIZE)
    path = ":".join(map(str, (ROOT, ROOT / "tools", tmp_path)))
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", "-p", "mutation_record"]
        + ["--record", str(record), "test_it.py"],
        cwd=tmp_path, capture_output=True, text=True, timeout=120,
        env={"PATH": "", "PYTHONPATH": path, "HOME": str(tmp_path)},
    )  # fmt: skip
    entries = {each["test"]: each for each in map(json.loads, record.read_text().splitlines())}
    names = ("first", "nothing", "again", "process", "fork")
    assert list(entries) == [f"test_it.py::test_{name}" for name in names], done.stdout
    source = (ROOT / "rocmkern" / "ops" / "activations" / "reference.py").read_text().splitlines()
    line = next(n for n, text in enumerate(source, 1) if text.startswith("def silu")) + 1
    while not source[line - 1].strip().startswith("return"):
        line += 1
    ran = [int(each["lines"].get("ops/activations/reference.py", "0"), 16) >> line & 1 for each in entries.values()]
    assert ran == [1, 0, 1, 1, 1]
