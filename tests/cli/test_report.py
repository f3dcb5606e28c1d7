"""``rocmkern report --card``: one file, whatever the rows do, that says nothing of who made it."""

from __future__ import annotations

import hashlib
import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from rocmkern.cli import _card_report, _sensors, main
from rocmkern.cli._anonymous import Anonymizer
from rocmkern.cli._card_report import BENCHMARKS, CardReport
from rocmkern.matrix import CaseFailure, load_cases
from rocmkern.matrix.results import read
from rocmkern.matrix.sample import in_fixed_order
from rocmkern.runtime.device import DeviceInfo
from rocmkern.runtime.probe import suspect
from rocmkern.targets import entries
from rocmkern.testing.worker import WorkerError

ROOT = Path(__file__).parents[2]
COMMITTED = ROOT / "matrix.yaml"
CARD = DeviceInfo("hip", 0, "a card", "0000:03:00.0", False, 1 << 34, "gfx1100")

# An operation that fails, hangs or ends its process, by the size of its argument.
MODULE = """\
import os, time
from pathlib import Path
import numpy as np
from rocmkern.matrix import Call, Dim, Operation, Registry

def double(x, *, out=None):
    out = np.empty_like(x) if out is None else out
    if len(x) == 2:
        return np.add(x, x + 1, out=out)
    if len(x) == 3:
        time.sleep(3600)
    if len(x) == 4:
        os.abort()
    if len(x) == 5:
        raise OSError(f"{Path.home()}/checkpoint of {os.environ['USER']} is missing")
    return np.multiply(x, x.dtype.type(2), out=out)

def call(draw):
    shape = (draw.dims["rows"],)
    return Call({"x": draw.array("x", shape)}, out_shapes=(shape,))

OPERATIONS = Registry(Operation("double", function=double, reference=lambda x: 2 * x, call=call,
                                dims=(Dim("rows", "r"),), arrays=("x",), exact=True))
"""
MATRIX = """\
version: 1
registry: faulty
groups:
  some:
    why: a test
    operation: double
    rows:
      - {axes: {rows: [1, 2, 3, 4, 5, 6]}}
known_failures:
  - {cases: "*r6*", targets: [cpu], issue: "7: it passes", expires: "2099-01-01"}
"""


@pytest.fixture(scope="module")
def faulty(tmp_path_factory):
    """What the command leaves of a matrix whose rows fail in all ways, in a home of somebody with a name."""
    home = tmp_path_factory.mktemp("katherine johnson")
    (home / "faulty.py").write_text(MODULE)
    (home / "matrix.yaml").write_text(MATRIX)
    path = f"{ROOT}{os.pathsep}{home}"
    who = {"HOME": str(home), "USER": "kjohnson", "LOGNAME": "kjohnson", "HOSTNAME": "langley-7"}
    environment = {**os.environ, **who, "PYTHONPATH": path, "ROCMKERN_TARGET": "cpu", "ROCMKERN_NO_GPU": "1"}
    command = [sys.executable, "-m", "rocmkern", "report", "--card", "--deadline", "8", "--out", "card.json"]
    done = subprocess.run(command, cwd=home, env=environment, capture_output=True, text=True, timeout=600)
    return home, done, (home / "card.json").read_text()


def test_a_row_that_hangs_crashes_or_fails_is_in_the_report_and_the_rest_goes_on(faulty):
    _, done, text = faulty
    data = json.loads(text)
    assert done.returncode == 1 and data["complete"], done.stdout + done.stderr
    outcomes = {result["case"]: result["outcome"] for result in data["run"]["results"]}
    assert outcomes == {f"double-some-r{n}-f32": "passed" if n == 1 else "failed" for n in range(1, 7)}
    kinds = {error["case"]: error["kind"] for error in data["errors"]}
    assert kinds == {
        "double-some-r2-f32": "check parity", "double-some-r3-f32": "hang", "double-some-r4-f32": "crash",
        "double-some-r5-f32": "OSError", "double-some-r6-f32": "check known_failure",
    }  # fmt: skip
    assert data["counts"] == {
        "outcomes": {"passed": 1, "failed": 5},
        "not_run": 0,
        "errors": {kind: 1 for kind in kinds.values()},
    }
    reasons = {result["case"].split("-")[2]: result["reason"] for result in data["run"]["results"]}
    assert "did not finish within 8 s" in reasons["r3"] and "SIGABRT" in reasons["r4"]
    assert reasons["r5"].startswith("OSError: ") and reasons["r5"].endswith("is missing")
    assert data["doctor"]["targets"] and data["doctor"]["cpu"]["works"] and "1 x hang" in done.stdout
    assert data["target"] == "cpu" and data["emulated"] is False and data["code"] == {}


def test_the_report_names_nobody_and_no_path_and_says_so(faulty):
    home, done, text = faulty
    for word in ("kjohnson", "katherine", "langley", str(home), str(ROOT), sys.prefix, "/tmp", "/home", "/usr"):
        assert word not in text.replace("<path>/", ""), word
    host = socket.gethostname()
    assert len(host) < 4 or host not in text
    # The error is still of use: what is missing, and in which line of which file it was found.
    (error,) = (each["text"] for each in json.loads(text)["errors"] if each["kind"] == "OSError")
    assert "<path> of <user> is missing" in error and 'File "<path>/faulty.py", line ' in error
    assert "names of users and hosts and all paths were taken out" in json.loads(text)["privacy"]
    assert "paths are not in it" in done.stdout


def test_three_rows_of_this_library_and_a_benchmark_become_results_that_can_be_read(tmp_path):
    cases = load_cases(COMMITTED)[1]
    rows = in_fixed_order(cases, "cpu")[:3]
    timed = next(case for case in cases if case.id.startswith("layer_norm-speed_of_layer_norms-minilm"))
    path = tmp_path / "card.json"
    said = []
    report = CardReport(path, said.append, Anonymizer.of_this_machine())
    try:
        assert report.open("cpu", COMMITTED)
        report.rows(rows, None)
        report.benchmarks([timed])
        data = report.finish()
    finally:
        report.close()
    assert data == json.loads(path.read_text()) and data["complete"]
    run = read(path)
    assert [(result.case, result.outcome) for result in run.results] == [(c.id, "passed") for c in (*rows, timed)]
    assert run.results[-1].speed["wall_s"] > 0 and run.environment.devices["cpu"].arch.startswith("cpu")
    assert data["counts"] == {"outcomes": {"passed": 4}, "not_run": 0, "errors": {}}
    assert data["sensors"].keys() == {"before", "after_rows", "during", "after_benchmarks"}
    assert all(reading.keys() in ({"absent"}, {"source", "values"}) for reading in
               (data["sensors"]["before"], *data["sensors"]["during"][timed.id]))  # fmt: skip
    assert f"row 1 of 3: {rows[0].id}" in said


class Broken:
    """A worker whose every call hangs, or fails otherwise."""

    def __init__(self, error=None):
        self.calls = self.closed = 0
        self.error = error or WorkerError("hang", "did not finish within 8 s", "some_kernel")

    def call(self, function, *arguments, **options):
        self.calls += 1
        raise self.error

    def close(self):
        self.closed += 1


@pytest.fixture
def hanging(tmp_path, monkeypatch):
    """A report of a card on which every row hangs, and the rows."""
    report = CardReport(tmp_path / "card.json", lambda _: None, Anonymizer([], [], []))
    report._worker, report._info, report._target = Broken(), CARD, "hip"
    monkeypatch.setattr(_sensors, "read", lambda device: {"absent": "a test"})
    monkeypatch.setattr(suspect, "suspicion_of", lambda info: suspect.Suspicion(info, "a row hung", 0.0))
    return report, in_fixed_order(load_cases(COMMITTED)[1], "hip")[:20]


def test_a_card_that_does_not_answer_after_a_hang_is_not_used_again(hanging, monkeypatch):
    report, rows = hanging
    monkeypatch.setattr(suspect, "look_again", lambda mark: "it did not fill and copy 1048576 bytes")
    report.rows(rows, None)
    data = report.finish()
    assert report._worker.calls == 1
    assert "did not answer any more: it did not fill and copy" in data["given_up"]
    assert data["counts"] == {"outcomes": {"failed": 1}, "not_run": 19, "errors": {"hang": 1}}


def test_a_card_that_answers_is_used_until_too_many_rows_have_hung(hanging, monkeypatch):
    report, rows = hanging
    monkeypatch.setattr(suspect, "look_again", lambda mark: None)
    report.rows(rows, None)
    data = report.finish()
    assert report._worker.calls == _card_report.MOST_LOST
    assert data["counts"]["not_run"] == 20 - _card_report.MOST_LOST and "hung or crashed" in data["given_up"]


@pytest.mark.parametrize(
    ("target", "error", "closed"),
    [
        ("hip", WorkerError("TargetError", "the HIP runtime reports hipErrorLaunchFailure"), 2),
        ("hip", CaseFailure("parity", "wrong"), 0),
        ("cpu", WorkerError("TypeError", "wrong"), 0),
    ],
)
def test_after_a_driver_has_failed_a_row_runs_in_a_new_process(hanging, target, error, closed):
    report, rows = hanging
    report._worker, report._target = Broken(error), target
    report.rows(rows[:2], None)
    assert (report._worker.calls, report._worker.closed) == (2, closed)


def test_a_machine_that_stops_leaves_a_report_that_says_so(hanging, monkeypatch):
    report, rows = hanging
    monkeypatch.setattr(suspect, "look_again", lambda mark: None)
    report.rows(rows[:2], None)
    data = json.loads(report._path.read_text())
    assert data["complete"] is False and data["counts"]["errors"] == {"hang": 1}


def test_an_interrupted_run_leaves_what_it_had(monkeypatch, tmp_path, capsys):
    def look(report, target):
        report.data["target"] = target
        report._keep("doctor", OSError("something"))
        raise KeyboardInterrupt

    monkeypatch.setattr(CardReport, "look", look)
    path = tmp_path / "card.json"
    words = ["report", "--card", "--matrix", str(COMMITTED), "--target", "cpu", "--out", str(path)]
    assert main(words) == 130
    data = json.loads(path.read_text())
    assert (data["complete"], data["target"], data["counts"]["errors"]) == (False, "cpu", {"OSError": 1})
    assert "ended before it was complete" in capsys.readouterr().err


def test_the_benchmarks_are_rows_of_the_matrix_that_run_on_a_card():
    cases = {case.id: case for case in load_cases(COMMITTED)[1]}
    for name in BENCHMARKS:
        assert cases[name].category == "benchmark" and cases[name].skip_reason("hip") is None, name
    assert len({cases[name].operation.name for name in BENCHMARKS}) == len(BENCHMARKS) - 1


def test_the_code_that_ran_is_described_by_the_cache(tmp_path):
    launch = {"title": "t", "name": "t", "words": 1, "threads": 32}
    entry = entries.Entry(
        "k" * 64, "cuda", "sm_90", "some.module.scale", "block=1", ("float32",), "v1", (), launch, b"ptx"
    )
    (tmp_path / "cuda-scale-1.entry").write_bytes(entries.encode(entry))
    (tmp_path / "cuda-scale-2.entry").write_bytes(b"damaged")
    for file in tmp_path.iterdir():
        file.chmod(0o600)
    sha256 = hashlib.sha256(b"ptx").hexdigest()
    found = _card_report.described_code([sha256], tmp_path)
    assert found[sha256]["kernel"] == "scale" and found[sha256]["arch"] == "sm_90" and found[sha256]["bytes"] == 3
    assert _card_report.described_code(["0" * 64], tmp_path) == {}


def test_who_holds_a_lock_and_where_the_cache_lies_is_left_out():
    doctor = {
        "locks": {"hip:0": "process 7 of ada"},
        "environment": {"ROCMKERN_CACHE_DIR": "ada", "ROCMKERN_DEVICE": "1"},
    }
    assert _card_report.without_places(doctor) == {
        "locks": {"hip:0": "another process holds it"},
        "environment": {"ROCMKERN_CACHE_DIR": "set", "ROCMKERN_DEVICE": "1"},
    }


def test_the_versions_of_kernel_and_driver_are_read(tmp_path):
    (tmp_path / "sys/module/amdgpu").mkdir(parents=True)
    assert _card_report.system(tmp_path)["amdgpu"] == "the kernel's own"
    (tmp_path / "sys/module/amdgpu/version").write_text("6.10.5\n")
    found = _card_report.system(tmp_path)
    assert found["amdgpu"] == "6.10.5" and found["wsl"] == "false" and "nvidia" not in found


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--rows", "-1"], "--rows: got -1; allowed: a whole number"),
        (["--benchmarks", "some"], "--benchmarks: got some"),
        (["--deadline", "0"], "--deadline: got 0"),
        (["--target", "vulkan"], "--target: got vulkan; allowed: hip"),
        (["--out", "missing/card.json"], "--out: got missing/card.json, in a folder that is missing"),
    ],
)
def test_what_makes_no_sense_is_refused_before_anything_runs(words, expected, capsys, monkeypatch, tmp_path):
    monkeypatch.setattr(CardReport, "look", lambda *_: pytest.fail("it ran"))
    monkeypatch.chdir(tmp_path)
    assert main(["report", "--card", "--matrix", str(COMMITTED), *words]) == 2
    assert expected in capsys.readouterr().err


def test_pytest_is_not_needed():
    code = "import sys; sys.modules['pytest'] = None; import rocmkern.testing.jobs, rocmkern.cli._card_report"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, timeout=60)
