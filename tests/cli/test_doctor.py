"""``rocmkern doctor``: what it reports, and that whatever is broken is reported instead of raised."""

import json
import os
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

import rocmkern
from rocmkern.cli import _trial, doctor, main


def in_this_process(target, deadline_s=None):
    """A trial without its child, which takes seconds to compile."""
    return _trial.measure(target)


@pytest.fixture(autouse=True)
def trials_here(monkeypatch):
    """Trials run in this process, where a test can break something; the child has tests of its own."""
    monkeypatch.setattr(doctor, "run_in_child", in_this_process)


@pytest.fixture
def report(trials_here):
    return doctor.examine()


def test_doctor_prints_the_facts_and_succeeds(capsys):
    assert main(["doctor"]) == 0
    out = capsys.readouterr().out
    assert f"numpy {np.__version__}" in out
    assert f"target    {rocmkern.target().name} (" in out
    assert "cpu       works: cpu-" in out


def test_json_is_one_object_with_the_same_facts(capsys):
    assert main(["doctor", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["versions"]["numpy"] == np.__version__
    assert [each["name"] for each in facts["targets"]] == ["hip", "cuda", "cpu", "python"]
    host = facts["memory"][0]
    assert host["device"] == "host"
    assert 0 < host["allowed"] < host["free"] <= host["total"]
    assert facts["cpu"]["works"] is True
    assert facts["cpu"]["error"] < 1e-5


def test_a_missing_extra_comes_with_the_line_that_installs_it(monkeypatch):
    monkeypatch.setattr(doctor, "installed_version", lambda distribution: None)
    for name in ("hip", "cuda"):
        found = doctor.examine_target(name)
        assert found.install == f'pip install "rocmkern[{name}]"'
    assert doctor.examine_target("python").install == ""


def test_both_gpu_extras_at_once_are_reported_as_a_conflict(monkeypatch, report):
    assert report.conflict == ""
    monkeypatch.setattr(doctor, "installed_version", lambda distribution: "1.0")
    conflict = doctor._conflict()
    assert "exclude each other" in conflict
    assert f"conflict  {conflict}" in doctor.describe(replace(report, conflict=conflict))


def test_a_wrong_result_of_the_cpu_target_is_a_failure(monkeypatch, capsys):
    monkeypatch.setattr(rocmkern, "flash_attention", lambda q, k, v, causal: np.zeros_like(q))
    assert main(["doctor"]) == 1
    assert "cpu       DOES NOT WORK: the result is wrong" in capsys.readouterr().out


def test_a_cpu_target_that_raises_is_a_failure_with_the_reason(monkeypatch, capsys):
    def broken(*args, **kwargs):
        raise OSError("libllvm is gone")

    monkeypatch.setattr(rocmkern, "flash_attention", broken)
    assert main(["doctor"]) == 1
    assert "cpu       DOES NOT WORK: OSError: libllvm is gone" in capsys.readouterr().out


def test_a_target_that_does_not_exist_is_reported(monkeypatch, capsys):
    monkeypatch.setenv("ROCMKERN_TARGET", "abacus")
    main(["doctor"])
    out = capsys.readouterr().out
    assert "target    none (" in out
    assert "got 'abacus'; allowed: hip, cuda, cpu, python)" in out
    assert "variable  ROCMKERN_TARGET=abacus" in out


def test_memory_that_cannot_be_read_is_said_to_be_so(report):
    memory = doctor.examine_memory("the card of a dream")
    assert "the card of a dream" in memory.error
    assert any(line.startswith("memory    the card") for line in doctor.describe(replace(report, memory=(memory,))))


def test_the_cache_is_counted_and_not_created(monkeypatch, tmp_path):
    directory = tmp_path / "kernels"
    monkeypatch.setenv("ROCMKERN_CACHE_DIR", str(directory))
    before = doctor.examine_cache()
    assert (before.exists, before.writable, before.kernels, before.nbytes) == (False, True, 0, 0)
    assert not directory.exists()

    directory.mkdir()
    (directory / "cpu-scale-0123.entry").write_bytes(bytes(100))
    (directory / "something").write_bytes(bytes(6))
    after = doctor.examine_cache()
    assert (after.exists, after.writable, after.kernels, after.nbytes) == (True, True, 1, 106)
    directory.chmod(0o777)  # others may write it, so it is not used
    assert not doctor.examine_cache().writable


def test_a_user_without_a_home_directory_is_told_what_to_set(monkeypatch):
    monkeypatch.delenv("ROCMKERN_CACHE_DIR", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)
    report = doctor.examine_cache()
    assert "ROCMKERN_CACHE_DIR" in report.directory and not report.writable


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write everywhere")
def test_a_cache_that_cannot_be_written_is_said_to_be_so(monkeypatch, tmp_path):
    tmp_path.chmod(0o500)
    monkeypatch.setenv("ROCMKERN_CACHE_DIR", str(tmp_path / "kernels"))
    assert not doctor.examine_cache().writable


def test_a_cache_below_a_file_cannot_be_written(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("ROCMKERN_CACHE_DIR", str(tmp_path / "file" / "kernels"))
    assert not doctor.examine_cache().writable


# A target is usable if it works


def test_a_target_whose_kernels_do_not_compile_is_not_usable(monkeypatch, capsys):
    def trial(name):
        return _trial.Trial(False, problem="np.row_stack is gone") if name == "python" else _trial.measure(name)

    monkeypatch.setattr(doctor, "run_in_child", trial)
    found = doctor.examine_target("python")
    assert not found.available and found.detail == "python: np.row_stack is gone"
    monkeypatch.setenv("ROCMKERN_TARGET", "python")
    assert main(["doctor"]) == 1
    assert "  python  no   python: np.row_stack is gone" in capsys.readouterr().out


def child(code, deadline_s=60.0, monkeypatch=None):
    monkeypatch.setattr(_trial.sys, "executable", sys.executable)
    run = subprocess.run
    monkeypatch.setattr(
        _trial.subprocess, "run", lambda command, **options: run([sys.executable, "-c", code], **options)
    )
    return _trial.run_in_child("cpu", deadline_s)


@pytest.mark.parametrize(
    ("code", "problem"),
    [
        ("import os; os.abort()", "by signal 6"),
        ("raise SystemExit('a driver went away')", "with status 1: a driver went away"),
        ("print('hello')", "printed 'hello"),
        ("import time; time.sleep(60)", "within 1 s"),
    ],
)
def test_what_happens_to_the_child_is_reported(monkeypatch, code, problem):
    trial = child(code, 1.0 if "sleep" in code else 60.0, monkeypatch)
    assert not trial.works and problem in trial.problem


def test_the_child_finds_the_package_and_keeps_nothing(monkeypatch, tmp_path):
    monkeypatch.setenv("ROCMKERN_CACHE_DIR", str(tmp_path / "kernels"))
    monkeypatch.setenv("ROCMKERN_TARGET", "abacus")
    monkeypatch.chdir(tmp_path)
    trial = _trial.run_in_child("python")
    assert trial.works and trial.error < 1e-5, trial.problem
    assert not (tmp_path / "kernels").exists()


def test_a_disk_that_is_full_or_read_only_is_not_said_to_be_writable(monkeypatch, tmp_path):
    def full(*args, **kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setenv("ROCMKERN_CACHE_DIR", str(tmp_path / "kernels"))
    assert doctor.examine_cache().writable
    monkeypatch.setattr(doctor.tempfile, "NamedTemporaryFile", full)
    assert not doctor.examine_cache().writable
