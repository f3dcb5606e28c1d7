"""``make amd-test`` without the virtual GPU: which rows it takes, and what it calls a failure."""

import argparse
import subprocess
import sys
from pathlib import Path

import pytest

from rocmkern.matrix import expand, loads

FOLDER = Path(__file__).parents[2] / "tools" / "virtual_gpu"
sys.path.insert(0, str(FOLDER))

import kept  # noqa: E402
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


def test_rows_can_be_those_of_some_operations():
    everything, gradients = rows.sample("all"), rows.sample("all", "*_backward")
    assert gradients == [name for name in everything if "_backward-" in name] and len(gradients) > 1000
    with pytest.raises(SystemExit, match="--operation is nothing; allowed: a pattern"):
        rows.sample("all", "nothing")


def test_rows_that_passed_on_code_that_was_loaded_are_right():
    assert rows.judge(["a", "b"], {"a": result(), "b": result(code=["bb", "aa"])}, LOG) == []
    assert rows.judge(["a"], {"a": result(operation="quantize", code=[])}, LOG) == []
    for dims in ({"size": [3, 0], "k": 1}, {"k": 0}, {"k": 1, "lens": []}):
        assert rows.judge(["a"], {"a": result(dims=dims, code=[])}, LOG) == []
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


@pytest.fixture
def stopping(tmp_path, monkeypatch):
    """Runs of rows of which each is a file's name, its code and how it ends; the log of what was run."""
    asked, ends = [], {}

    def run(ids, _):
        asked.append(ids)
        if "stop" in ids:
            raise KeyboardInterrupt
        log = [{"loaded": {"sha256": f"code of {name}"}} for name in ids]
        log += [{"problem": "reads v3"} for name in ids if name == "checked"]
        found = {name: {**result(code=[f"code of {name}"]), "case": name, **ends.get(name, {})} for name in ids}
        return found, log, False

    arguments = argparse.Namespace(keep=tmp_path / "kept", jobs=1, arch="gfx1100", seed="0")
    monkeypatch.setattr(rows, "AT_ONCE", 2)
    monkeypatch.setattr(rows, "run", run)
    monkeypatch.setattr(rows, "keys_of", lambda ids, _: {name: f"key of {name}" for name in ids})
    return lambda ids: rows.kept_and_run(ids, arguments), asked, ends


def test_a_run_that_was_stopped_goes_on(stopping):
    run, asked, _ = stopping
    with pytest.raises(KeyboardInterrupt):
        run(["a", "b", "c", "d", "stop"])
    results, log, failed = run(["a", "b", "c", "d", "e"])
    assert asked == [["a", "b"], ["c", "d"], ["stop"], ["e"]]
    assert (list(results), failed) == (["a", "b", "c", "d", "e"], False)
    assert rows.judge(list(results), results, log) == []


def test_only_what_is_known_to_be_right_is_kept(stopping):
    run, asked, ends = stopping
    ends.update(failed={"outcome": "failed", "reason": "check value failed"}, host={"code": []})
    names = ["failed", "b", "host", "d", "checked", "f"]
    run(names)
    run(names)
    assert asked[3:] == [["failed", "host"], ["checked", "f"]]


def test_a_line_that_was_cut_off_counts_for_nothing(tmp_path):
    path = tmp_path / "kept"
    file = kept.KeptRows(path)
    file.add({"a": "k", "b": "l"}, [{**result(), "case": "a"}, {**result(code=["bb"]), "case": "b"}], LOG)
    assert kept.KeptRows(path).rows == file.rows and set(file.rows) == {"k", "l"}
    path.write_text(path.read_text()[:-9])
    cut = kept.KeptRows(path)
    assert set(cut.rows) == {"k"}
    cut.add({"c": "m"}, [{**result(), "case": "c"}], LOG)
    assert set(kept.KeptRows(path).rows) == {"k", "m"}


def test_a_key_is_of_the_row_its_code_and_what_is_the_same_for_all(monkeypatch):
    text = """
    version: 1
    registry: rocmkern.ops.catalog
    groups:
      some:
        why: a test
        operation: softmax
        rows:
          - {shape: {size: [3, 4]}, dtypes: [f32, f16]}
          - {name: bad, shape: {size: [4]}, spoil: {x: as_list}, expect_error: {type: ArgumentTypeError, argument: x}}
    """
    cases = expand(loads(text))
    keys = [kept.key_of(case, arch, [word]) for case in cases for arch in ("gfx1100", "gfx942") for word in "ab"]
    assert len(set(keys)) == len(keys) == 12
    assert kept.key_of(cases[0], "gfx1100", ["a"]) == keys[0]
    monkeypatch.setattr(kept.source, "kernel_fingerprint", lambda kernel: "other source")
    assert kept.key_of(cases[0], "gfx1100", ["a"]) != keys[0]
