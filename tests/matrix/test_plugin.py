"""The pytest plugin, run in projects of its own, each time in a process of its own."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys

import pytest
from projects import INI, ROOT, Project, QuickProject

from rocmkern.matrix.results import read, write
from rocmkern.testing import plugin

OPERATIONS = """
import numpy as np
from rocmkern.matrix import Call, Dim, Operation, Peer, PeerUnavailable, Registry

def double(x, *, out=None):
    if x.shape[0] == 7:
        raise RuntimeError("seven is broken")
    out = np.empty(x.shape, x.dtype) if out is None else out
    np.multiply(x, x.dtype.type(2 if x.shape[0] != 13 else 3), out=out)
    return out

def call(draw):
    shape = (draw.dims["rows"], 4)
    return Call({"x": draw.array("x", shape)}, out_shapes=(shape,))

def unavailable(call, case, target):
    raise PeerUnavailable("other is not installed")

OPERATIONS = Registry(Operation(
    "double", function=double, reference=lambda x: 2 * x, call=call, dims=(Dim("rows", "r"),), arrays=("x",),
    flops=lambda case: 4.0 * case.dims["rows"], nbytes=lambda case: 32.0 * case.dims["rows"],
    peers=(Peer("numpy", lambda call, case, target: lambda: call.arguments["x"] * 2), Peer("other", unavailable),
           Peer("wrong", lambda call, case, target: lambda: call.arguments["x"] * 3)),
))
"""
MATRIX = """
version: 1
registry: my_operations
groups:
  a:
    why: a group of the example
    operation: double
    rows:
      - {axes: {rows: [1, 2]}}
      - {shape: {rows: 3}, targets: {only: [cpu], reason: not for the interpreter}}
      - {shape: {rows: 50}, category: full}
      - {shape: {rows: 200}, category: benchmark, peers: [numpy, other], bars: {numpy: 0.001}}
"""


@pytest.fixture
def project(tmp_path):
    """A project with a matrix and one test; returns a function that runs pytest in it."""
    (tmp_path / "my_operations.py").write_text(OPERATIONS)
    (tmp_path / "matrix.yaml").write_text(MATRIX)
    (tmp_path / "pytest.ini").write_text(INI)
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_own.py").write_text("def test_own():\n    assert True\n")
    return QuickProject(tmp_path)


def test_a_bare_pytest_runs_the_quick_rows_on_every_usable_target_and_the_own_tests(project):
    run = Project(project.path).pytest()
    assert run.status == 0
    assert run.counts == {"passed": 1 + 2 * 2 + 1, "skipped": 1, "deselected": 2 * 2}
    assert "targets: cpu, python" in run
    assert "rows: quick (full rows: -m full or --rocmkern-all; benchmark rows: --benchmark-only)" in run
    assert "rocmkern device: no GPU: ROCMKERN_NO_GPU=1 is set" in run
    assert all(f"check {number}: " in run for number in (1, 2, 3))
    assert "1  python: not for the interpreter" in run
    assert "outputs within their bounds" in run


@pytest.mark.parametrize(
    ("arguments", "passed", "deselected"),
    [
        (["-m", "quick"], 2, 3),
        (["-m", "full"], 1, 5),
        (["--rocmkern-all"], 4, 1),
        (["matrix.yaml"], 2, 2),
        (["tests"], 1, 0),
        (["matrix.yaml::double-a-r2-f32"], 1, 0),
        (["matrix.yaml::double-a-r50-f32[python]"], 1, 0),
        (["-k", "r1-", "--rocmkern-all"], 1, 5),
    ],
)
def test_selection(project, arguments, passed, deselected):
    run = project.pytest("--rocmkern-target", "python", *arguments)
    assert run.status == 0
    assert (run.counts.get("passed", 0), run.counts.get("deselected", 0)) == (passed, deselected)


def test_ids_are_case_and_target(project):
    run = project.pytest("--collect-only", "-q", "--rocmkern-target", "python,cpu")
    assert "matrix.yaml::double-a-r1-f32[python]\nmatrix.yaml::double-a-r1-f32[cpu]\n" in run


def test_another_matrix_may_be_named(project):
    project.write("other.yaml", MATRIX.replace("[1, 2]", "[4, 5, 6]"))
    run = project.pytest("--matrix", "other.yaml", "--collect-only", "-q", "--rocmkern-target", "python")
    assert "other.yaml::double-a-r6-f32[python]" in run and "\nmatrix.yaml" not in run


def test_a_failure_says_what_was_measured_and_how_to_reproduce_it(project):
    project.write("matrix.yaml", MATRIX.replace("[1, 2]", "[13]"))
    run = project.pytest("--rocmkern-target", "python")
    assert run.status == 1 and run.counts["failed"] == 1
    for words in (
        "double-a-r13-f32 on python",
        "matrix.yaml:9): a group of the example",
        "check parity failed",
        "worst at (",
        "got      min",
        "expected first 10: [",
        "case = find_case(",
        "print(run_case(case, 'python'))",
    ):
        assert words in run
    assert "Traceback" not in run
    recipe = re.search(r"reproduce with\n\n(import rocmkern\n(?:.*\n){4})", run.output).group(1)
    done = subprocess.run(
        [sys.executable, "-c", recipe],
        cwd=project.path,
        env={**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{project.path}"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert "CaseFailure" in done.stderr and "output out: WRONG" in done.stderr


def test_an_error_in_a_kernel_fails_and_is_never_a_skip(project):
    project.write("matrix.yaml", MATRIX.replace("[1, 2]", "[7]"))
    run = project.pytest("--rocmkern-target", "python")
    assert run.status == 1 and run.counts["failed"] == 1
    assert "RuntimeError: seven is broken" in run and "case = find_case(" in run
    report = run.output.split("FAILURES")[1].split("short test summary")[0]
    assert "def double(x" in report and "runner.py" not in report and "pluggy" not in report
    assert len(report.splitlines()) < 60, "the operation's own lines and the recipe"


def test_a_mistake_in_the_matrix_is_a_collection_error_with_its_position(project):
    project.write("matrix.yaml", MATRIX.replace("axes:", "axis:"))
    run = project.pytest()
    assert run.status == 2
    assert "matrix.yaml:9:10: groups.a.rows[0].axis: unknown key 'axis'; did you mean 'axes'?" in run
    assert "Traceback" not in run


def test_an_unknown_target_is_named(project):
    run = project.pytest("--rocmkern-target", "cpy")
    assert run.status != 0 and "unknown target 'cpy'; did you mean 'cpu'? known: cpu, cuda, hip, python" in run


def test_a_target_that_cannot_be_used_is_a_counted_skip(project):
    run = project.pytest("--rocmkern-target", "hip", "matrix.yaml")
    assert run.status == 0 and run.counts["skipped"] == 3
    assert re.search(r"2  hip: ", run.output) and "1  hip: not for the interpreter" in run


def test_a_required_gpu_that_is_not_there_fails_the_run(project):
    run = project.pytest("--require-gpu")
    assert run.status == 4 and "--require-gpu: no GPU: ROCMKERN_NO_GPU=1 is set" in run


def test_the_gpu_fixture_skips_with_the_reason(project):
    project.write("tests/test_own.py", "def test_gpu(gpu):\n    gpu.zeros((2,))\n")
    run = project.pytest("tests")
    assert run.counts == {"skipped": 1} and "1  no GPU: ROCMKERN_NO_GPU=1 is set" in run


def test_the_gpu_fixture_gives_the_shared_manager_under_the_lock_and_finds_leaks(project):
    # The host's memory stands for a card: the fixture, the lock and the leak check are the same.
    project.write(
        "conftest.py",
        "import pytest\n"
        "from rocmkern.runtime.probe import status as probe\n"
        "from rocmkern.runtime.devices import host_device\n"
        "info = host_device().info\n"
        "status = probe.GpuStatus(True, 'the host stands for a card', (), (info,), info)\n"
        "probe._found = type('Always', (dict,), {'__contains__': lambda self, key: True,\n"
        "                                        '__getitem__': lambda self, key: status})()\n",
    )
    project.write(
        "tests/test_own.py",
        "from rocmkern import default_manager\n"
        "kept = []\n"
        "def test_sound(gpu):\n"
        "    assert gpu is default_manager('host')\n"
        "    gpu.zeros((2,)).close()\n"
        "def test_leaking(gpu):\n"
        "    kept.append(gpu.zeros((3,)))\n",
    )
    run = project.pytest("tests")
    assert run.counts["passed"] == 2 and "1 error" in run.output
    assert "LeakError: 1 buffers with 12 bytes are alive" in run and "test_own.py:7" in run
    assert re.search(r"rocmkern device: host.*total .* GiB, free .* GiB, safe limit .* GiB", run.output)


def test_benchmarks_are_timed_with_their_peers(project):
    run = project.pytest(
        "--benchmark-only", "--rocmkern-target", "python", "--benchmark-json", "out.json", "--rocmkern-bars"
    )
    assert run.status == 0 and run.counts["passed"] == 1
    assert "speed against peers" in run
    assert re.search(r"double-a-r200-f32 +python .*numpy \d+\.\d+ \(wall .*\), bar 0\.001 met", run.output)
    assert "other: other is not installed" in run
    (entry,) = json.loads((project.path / "out.json").read_text())["benchmarks"]
    info = entry["extra_info"]
    assert info["flop_per_s"] == pytest.approx(800 / info["wall_s"])
    assert info["byte_per_s"] == pytest.approx(6400 / info["wall_s"])
    assert info["peers"]["numpy"]["ratio"] > 0 and entry["group"] == "double"


def test_a_missed_bar_fails_where_bars_count(project):
    project.write("matrix.yaml", MATRIX.replace("numpy: 0.001", "numpy: 1.0e+9"))
    run = project.pytest("--benchmark-only", "--rocmkern-target", "python")
    assert run.status == 0 and "bar 1e+09 MISSED" in run
    run = project.pytest("--benchmark-only", "--rocmkern-target", "python", "--rocmkern-bars")
    assert run.status == 1 and "times the speed of numpy, the bar is 1e+09" in run


def test_a_benchmark_of_a_wrong_result_fails(project):
    project.write("matrix.yaml", MATRIX.replace("[numpy, other], bars: {numpy: 0.001}", "[wrong]"))
    run = project.pytest("--benchmark-only", "--rocmkern-target", "python")
    assert run.status == 1 and "differs from wrong by" in run


def test_several_workers_run_the_same_cases(project):
    run = project.pytest("-n", "2", "--rocmkern-all", "--rocmkern-target", "python")
    assert run.status == 0 and run.counts["passed"] == 4
    assert "1  python: not for the interpreter" in run and "outputs within their bounds" in run


def test_a_project_without_a_matrix_pays_nothing(project):
    project.write("pytest.ini", "[pytest]\ntestpaths = tests\n")
    project.write(
        "tests/test_own.py",
        "import sys\n"
        "def test_own():\n"
        "    heavy = {'numba', 'torch', 'pydantic', 'yaml', 'numpy', 'rocmkern.matrix'}\n"
        "    assert not heavy & set(sys.modules)\n",
    )
    run = Project(project.path).pytest("-p", "no:hypothesispytest", "-p", "no:benchmark")
    assert run.status == 0 and run.counts == {"passed": 1} and "rocmkern matrix" not in run


@pytest.mark.parametrize("workers", [[], ["-n", "2"]], ids=["one process", "two workers"])
def test_the_results_of_a_run_become_a_file(project, workers):
    project.write("matrix.yaml", MATRIX.replace("rows: [1, 2]", "rows: [1, 13]"))
    run = project.pytest("--rocmkern-json", "run.json", "--rocmkern-label", "my machine", *workers)
    assert run.status == 1 and "results of 6 cases: " in run
    file = read(project.path / "run.json")
    assert file.environment.label == "my machine" and set(file.environment.devices) == {"cpu", "python"}
    found = {(result.case, result.target): result for result in file.results}
    assert found["double-a-r1-f32", "cpu"].outputs[0]["error"] == 0
    assert found["double-a-r13-f32", "cpu"].outcome == "failed"
    assert found["double-a-r13-f32", "cpu"].reason == "check parity failed:"
    assert found["double-a-r3-f32", "python"].outcome == "skipped"
    assert found["double-a-r3-f32", "python"].reason == "python: not for the interpreter"
    assert file.labels == {"double": {"rows": "r"}}


def test_results_of_benchmarks_hold_their_speed(project):
    run = project.pytest("--benchmark-only", "--rocmkern-target", "cpu", "--rocmkern-json", "run.json")
    assert run.status == 0
    (result,) = read(project.path / "run.json").results
    assert result.category == "benchmark" and result.speed["wall_s"] > 0 and "numpy" in result.speed["peers"]


WRONG = MATRIX.replace("rows: [1, 2]", "rows: [1, 7, 13]").replace("groups:", "known_failures: [RULES]\ngroups:")


@pytest.mark.parametrize(
    ("rules", "counts", "message"),
    [
        ("{cases: '*r7-*', issue: seven is broken, expires: '9999-01-01'}, "
         "{cases: '*r13-*', issue: threes, expires: '9999-01-01'}",
         {"xfailed": 2, "passed": 1}, "known failure until 9999-01-01: seven is broken"),
        ("{cases: '*r?-*', issue: digits, expires: '9999-01-01'}, {cases: '*r13-*', issue: x y, expires: '9999-01-01'}",
         {"failed": 1, "xfailed": 2}, "passes, but '*r?-*' says that it fails: digits; remove that rule"),
        ("{cases: '*r7-*', issue: seven is broken, expires: '2020-01-01'}, "
         "{cases: '*', targets: [python], issue: threes, expires: '9999-01-01'}",
         {"failed": 2, "xfailed": 1}, "tolerated until 2020-01-01: seven is broken"),
        ("{cases: '*r7-*', targets: [hip], issue: not here, expires: '9999-01-01'}",
         {"failed": 2, "passed": 1}, "RuntimeError: seven is broken"),
    ],
    ids=["known", "passes", "expired and most specific", "another target"],
)  # fmt: skip
def test_known_failures_run_and_must_fail(project, rules, counts, message):
    project.write("matrix.yaml", WRONG.replace("RULES", rules))
    run = project.pytest("matrix.yaml", "--rocmkern-target", "python", "--rocmkern-json", "run.json", "-rx")
    assert message in run
    last = re.findall(r"(\d+) (passed|failed|xfailed)", run.output.splitlines()[-1])
    assert {word: int(number) for number, word in last} == counts
    assert run.status == (1 if "failed" in counts else 0)
    outcomes = [result.outcome for result in read(project.path / "run.json").results]
    assert outcomes.count("failed") == counts.get("failed", 0) + counts.get("xfailed", 0)


def test_a_known_failure_that_fits_no_case_is_a_mistake(project):
    project.write("matrix.yaml", WRONG.replace("RULES", "{cases: '*r8-*', issue: eight, expires: '9999-01-01'}"))
    run = project.pytest("matrix.yaml")
    assert run.status != 0 and "known_failures[0].cases: '*r8-*' fits none of the" in run
    project.write("matrix.yaml", WRONG.replace("RULES", "{cases: '*r7-*', issue: seven, expires: '2026-13-01'}"))
    assert "known_failures[0].expires: month must be in 1..12" in project.pytest("matrix.yaml")


def test_fuzzing_prints_the_smallest_row_that_fails_and_it_can_be_pasted(project):
    declared = OPERATIONS.replace('arrays=("x",),', "arrays=(\"x\",), domain=Domain({'rows': (0, 40)}),").replace(
        "import Call, Dim,", "import Call, Dim, Domain,"
    )
    project.write("my_operations.py", declared.replace("x.shape[0] != 13", "x.shape[0] < 13").replace("== 7", "== -1"))
    run = project.pytest(
        "matrix.yaml", "--rocmkern-fuzz", "200", "--rocmkern-fuzz-seed", "5", "--rocmkern-target", "python"
    )
    assert run.status == 1 and run.counts == {"failed": 1}
    assert "--rocmkern-fuzz=200 --rocmkern-fuzz-seed=5 draws it again" in run
    group = re.search(r"(?m)^  found_by_fuzzing:\n(?:    .*\n)+", run.output)[0]
    assert "- {shape: {rows: 13}, dtypes: [f" in group and "CaseFailure" in run
    project.write("matrix.yaml", MATRIX + group)
    run = project.pytest("matrix.yaml", "-k", "found_by_fuzzing", "--rocmkern-target", "python")
    assert run.status == 1 and run.counts["failed"] == 1 and "check parity failed" in run


def test_fuzzing_passes_over_operations_without_a_domain_and_finds_nothing_in_right_ones(project):
    assert project.pytest("matrix.yaml", "--rocmkern-fuzz", "20").status == 5, "no domain, no tests"
    declared = OPERATIONS.replace('arrays=("x",),', "arrays=(\"x\",), domain=Domain({'rows': (0, 6)}),").replace(
        "import Call, Dim,", "import Call, Dim, Domain,"
    )
    project.write("my_operations.py", declared)
    run = project.pytest("matrix.yaml", "--rocmkern-fuzz", "30", "--rocmkern-target", "python", "-rA")
    assert run.status == 0 and run.counts == {"passed": 1} and "30 rows, seed 0" in run
    run = project.pytest(
        "matrix.yaml", "--rocmkern-fuzz=30", "--rocmkern-fuzz-seed=random", "--rocmkern-target", "python", "-rA", "-n1"
    )
    seeds = re.findall(r"30 rows, seed (\d+)", run.output)
    assert run.status == 0 and len(seeds) == 2 and seeds[0] == seeds[1] != "0", "in the header, and where it was drawn"


def test_a_run_is_compared_with_an_earlier_one_and_fails_for_what_became_slower(project):
    options = ("--benchmark-only", "--rocmkern-target", "python", "--rocmkern-json", "run.json")
    assert project.pytest(*options).status == 0
    run = project.pytest(*options[:3], "--rocmkern-compare", "run.json", "--rocmkern-effect", "1000")
    assert run.status == 0 and "speed against the baseline" in run and "1 noise" in run
    file = read(project.path / "run.json")
    speed = file.results[0].speed
    assert len(speed["samples"]) == speed["rounds"] == len(speed["peers"]["numpy"]["samples"])
    speed["samples"] = [sample / 1000 for sample in speed["samples"]]
    write(project.path / "run.json", file)
    run = project.pytest(*options[:3], "--rocmkern-compare", "run.json")
    assert run.status == 1 and run.counts == {"passed": 1, "deselected": 5}
    assert re.search(r"regression +double-a-r200-f32\[python\]: 0\.\d+ times the baseline's speed by cpu_s", run.output)


@pytest.mark.parametrize("content", [None, "{}"], ids=["no file", "another file"])
def test_a_baseline_that_is_none_is_refused_before_anything_runs(project, content):
    if content is not None:
        project.write("run.json", content)
    run = project.pytest("--benchmark-only", "--rocmkern-compare", "run.json")
    assert run.status == 4 and "--rocmkern-compare: " in run and "Traceback" not in run


def ran(run):
    """The ids of the cases of a verbose run, in their order."""
    return re.findall(r"(?m)^matrix\.yaml::(\S+)\[", run.output)


def test_a_random_order_is_that_of_its_seed(project):
    project.write("matrix.yaml", MATRIX.replace("[1, 2]", "[1, 2, 4, 5, 6, 8, 9, 10]"))
    arguments = ("matrix.yaml", "tests", "--rocmkern-target", "python", "-v")
    in_file_order = ran(project.pytest(*arguments))
    first, again = (project.pytest(*arguments, "--rocmkern-order", "random:1") for _ in range(2))
    assert ran(first) == ran(again) != in_file_order and sorted(ran(first)) == sorted(in_file_order)
    assert "rocmkern order: random:1" in first and "test_own.py::test_own PASSED" in first


def test_cases_in_a_worker_process_give_the_same_results(project):
    project.write("matrix.yaml", MATRIX.replace("rows: [1, 2]", "rows: [1, 7, 13]"))
    arguments = ("matrix.yaml", "--rocmkern-target", "python")
    counts, results = [], []
    for where in ("none", "all"):
        run = project.pytest(*arguments, "--rocmkern-worker", where, "--rocmkern-json", f"{where}.json")
        counts.append(run.counts)
        found = {result.case: result for result in read(project.path / f"{where}.json").results}
        results.append({case: (r.outcome, r.outputs) for case, r in found.items()})
        for words in ("seven is broken", "RuntimeError", "output out: WRONG", "worst at (", "case = find_case("):
            assert words in run, f"{words} with --rocmkern-worker {where}"
    assert counts[0] == counts[1] and counts[0]["failed"] == 2
    assert results[0] == results[1]


def test_benchmarks_in_the_worker_process_are_timed_as_well(project):
    run = project.pytest(
        "--benchmark-only", "--rocmkern-target", "cpu", "--rocmkern-worker", "all", "--rocmkern-json", "run.json",
        "--benchmark-json", "out.json", "--rocmkern-bars",
    )  # fmt: skip
    assert run.status == 0 and "bar 0.001 met" in run, run.output
    (result,) = read(project.path / "run.json").results
    (entry,) = json.loads((project.path / "out.json").read_text())["benchmarks"]
    assert entry["extra_info"]["wall_s"] == result.speed["wall_s"] and entry["group"] == "double"
    assert entry["stats"]["rounds"] == result.speed["rounds"]
    # Its rounds are those of the worker: around the same function calls, with the clock's own time on top.
    assert result.speed["wall_s"] <= entry["stats"]["median"] < result.speed["wall_s"] + 1e-3


def test_fuzzing_in_the_worker_process_prints_the_smallest_row_that_fails(project):
    declared = OPERATIONS.replace('arrays=("x",),', "arrays=(\"x\",), domain=Domain({'rows': (0, 40)}),").replace(
        "import Call, Dim,", "import Call, Dim, Domain,"
    )
    project.write("my_operations.py", declared.replace("x.shape[0] != 13", "x.shape[0] < 13").replace("== 7", "== -1"))
    run = project.pytest(
        "matrix.yaml", "--rocmkern-fuzz", "60", "--rocmkern-target", "python", "--rocmkern-worker", "all"
    )
    assert run.status == 1 and "as a group of the table" in run and "- {shape: {rows: 13}, dtypes: [f" in run


def test_what_a_failing_case_prints_in_the_worker_is_shown(project):
    project.write(
        "my_operations.py", OPERATIONS.replace("    out = np.empty", "    print('I doubled'); out = np.empty")
    )
    project.write("matrix.yaml", MATRIX.replace("[1, 2]", "[13]"))
    run = project.pytest("matrix.yaml", "--rocmkern-target", "python", "--rocmkern-worker", "all")
    assert run.counts["failed"] == 1 and "I doubled" in run


@pytest.mark.parametrize(
    ("option", "values", "allowed"),
    [
        ("deadline", ["0", "-1", "nan", "inf", "soon"], "a finite number above 0"),
        ("effect", ["0", "-1", "nan", "inf", "much"], "a finite number above 0"),
        ("order", ["sideways", "random", "random:x", "random:-1"], "file, or random:SEED with a whole number"),
        ("fuzz", ["-3", "1.5", "many"], "a whole number, at least 0"),
        ("fuzz-seed", ["-3", "1.5", "any"], "a whole number, at least 0, or random"),
    ],
)
def test_the_value_of_an_option_is_refused_with_what_is_allowed(option, values, allowed):
    parser = pytest.Parser(_ispytest=True)
    plugin.pytest_addoption(parser)
    for value in values:
        with pytest.raises(pytest.UsageError, match=f"--rocmkern-{option}: got '{value}'; allowed: {allowed}$"):
            parser.parse([f"--rocmkern-{option}={value}"])


def test_an_option_that_makes_no_sense_ends_pytest_before_anything_runs(project):
    run = project.pytest("--rocmkern-effect=nan")
    assert run.status == 4 and "argument --rocmkern-effect: got 'nan'; allowed: a finite number above 0" in run


def test_options_of_a_matrix_that_is_not_there_are_refused(project, tmp_path_factory):
    """Pytest takes a word behind our option for a path where it exists, and then another directory for the project."""
    elsewhere = tmp_path_factory.mktemp("elsewhere") / "run.json"
    assert project.pytest("--rocmkern-target", "python", "--rocmkern-json", str(elsewhere)).status == 0
    before = elsewhere.read_bytes()
    run = project.pytest("--rocmkern-target", "python", "--rocmkern-json", str(elsewhere))
    assert run.status == 4 and "--rocmkern-json: there is no matrix: rocmkern_matrix is not set in" in run
    assert "write it as --option=VALUE" in run and elsewhere.read_bytes() == before
    assert project.pytest("--rocmkern-target", "python", f"--rocmkern-json={elsewhere}").status == 0


def test_a_file_of_results_that_cannot_be_written_is_refused_before_the_run(project):
    for path, reason in (("no/such/directory/run.json", "has no directory"), ("tests", "is a directory")):
        run = project.pytest(f"--rocmkern-json={path}")
        assert run.status == 4 and reason in run and "passed" not in run.counts and "Traceback" not in run


def test_a_comparison_that_compared_nothing_fails_the_run(project):
    options = ("--rocmkern-target", "python")
    assert project.pytest("--benchmark-only", *options, "--rocmkern-json=run.json").status == 0
    run = project.pytest(*options, "--rocmkern-compare=run.json")
    assert run.status == 1 and "no row can be compared: this run has none of the baseline (double-a-r200-f32)" in run
