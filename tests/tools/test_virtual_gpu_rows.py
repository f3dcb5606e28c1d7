"""``make amd-test`` without the virtual GPU: which rows it takes, and what it calls a failure."""

import argparse
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "tools" / "virtual_gpu"
sys.path.insert(0, str(FOLDER))

import rows  # noqa: E402


def result(**changes):
    row = {"outcome": "passed", "reason": "", "outputs": [{"output": "out"}], "code": ["aa"]}
    return {**row, "operation": "softmax", "dims": {"size": [3, 4], "k": 1}, **changes}


LOG = [{"loaded": {"sha256": "aa"}}, {"loaded": {"sha256": "bb"}}, {"lacks": "gfx950: v_some"}]


def test_the_sample_is_fixed_and_a_smaller_one_is_a_part_of_it():
    everything, few = rows.sample("all"), rows.sample("40")
    assert few == rows.sample("200")[:40] == everything[:40]
    assert len(set(everything)) == len(everything) > 2000


@pytest.mark.parametrize("count", ["0", "-3", "many", "1000000", ""])
def test_another_number_of_rows_is_refused(count):
    with pytest.raises(SystemExit, match="allowed: 1 to"):
        rows.sample(count)


def test_rows_that_passed_on_code_that_was_loaded_are_right():
    assert rows.judge(["a", "b"], {"a": result(), "b": result(code=["bb", "aa"])}, LOG) == []
    assert rows.judge(["a"], {"a": result(operation="quantize", code=[])}, LOG) == []
    assert rows.judge(["a"], {"a": result(dims={"size": [3, 0], "k": 1}, code=[])}, LOG) == []
    # A row whose arguments are refused runs nothing.
    assert rows.judge(["a"], {"a": result(outputs=[], code=[])}, LOG) == []


@pytest.mark.parametrize(
    ("found", "words"),
    [
        ({}, "a was not collected"),
        ({"a": result(code=["aa", "cc"])}, "a ran code cc that the loader was not given"),
        ({"a": result(code=[])}, "a ran no code on the GPU"),
        ({"a": result(outcome="failed", reason="check value failed: 1 of 4")}, "a: check value failed: 1 of 4"),
        ({"a": result(outcome="skipped", reason="hip: no device")}, "a was skipped: hip: no device"),
    ],
)
def test_everything_else_is_a_failure(found, words):
    assert rows.judge(["a"], found, LOG) == [words]


def test_what_a_check_finds_is_a_failure_once():
    found = {"problem": "kernel softmax: reads v3 whose load is outstanding"}
    assert rows.judge(["a"], {"a": result()}, [*LOG, found, found]) == [found["problem"]]


def test_a_row_that_the_emulator_cannot_execute_is_none():
    lacking = result(outcome="failed", reason="hipErrorNotSupported", outputs=[], code=[])
    problem = {"problem": "kernel softmax: cannot emulate the instruction at +0x10"}
    assert rows.judge(["a"], {"a": lacking}, [*LOG, problem]) == []


def test_where_it_is_not_set_up_the_rows_are_counted_as_skipped(tmp_path):
    command = [sys.executable, str(FOLDER / "amd_test.py"), "--if-there", "--folder", str(tmp_path), "--rows", "40"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.startswith("SKIPPED: rows on the virtual AMD GPU (--rows 40)")


def test_the_rows_are_those_of_this_checkout_which_need_not_be_installed(tmp_path, monkeypatch):
    run = tmp_path / "run"
    run.write_text('#!/bin/sh\necho "$PYTHONPATH" "$@"\n')
    run.chmod(0o755)
    monkeypatch.setenv("TINYGRAD", str(tmp_path))
    monkeypatch.delenv("PYTHONPATH", raising=False)
    command = [sys.executable, str(FOLDER / "amd_test.py"), "--folder", str(tmp_path), "--rows", "40"]
    done = subprocess.run(command, capture_output=True, text=True)
    said, ran = done.stdout.splitlines()
    assert said.startswith(f"emulator: {tmp_path}, commit unknown; known to work: ")
    assert ran == f"{FOLDER.parents[1]} python {FOLDER / 'rows.py'} --rows 40 --json {tmp_path / 'result.json'}"


def test_the_record_has_the_hashes_of_every_row():
    arguments = argparse.Namespace(arch="gfx1100", seed="0")
    made = rows.record({"b": result(code=["bb", "aa"]), "a": result()}, LOG, arguments, ["a problem"])
    assert made["rows"]["b"] == {"outcome": "passed", "reason": "", "code": ["bb", "aa"]}
    assert list(made["rows"]) == ["a", "b"] and set(made["code_objects"]) == {"aa", "bb"}
    assert (made["lacks"], made["problems"]) == (["gfx950: v_some"], ["a problem"])
