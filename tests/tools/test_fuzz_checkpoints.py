"""Damaged checkpoints end in clean errors or right results; and the tool that says so notices when they do not."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))

import fuzz_checkpoints

#: A child that is fine, then takes too long to say anything or ends in the midst of it, and is fine again.
CHILD = """
import os, sys, time
first, stop = map(int, sys.argv[3:5])
for number in range(first, stop):
    print(number, end="\\t", flush=True)
    if number == 1:
        {deed}
    print("0\\t0\\tnothing\\topened", flush=True)
"""


def test_a_fixed_sample_ends_in_errors_or_right_results():
    results = fuzz_checkpoints.run(7, 0, 240)
    assert [number for number, _ in results] == [*range(240)]
    assert [rest for _, rest in results if rest[3].startswith("FAILED")] == []
    outcomes = {rest[3].split(":")[0] for _, rest in results}
    assert outcomes == {"refused", "opened; no decoder", "opened; a decoder"}


@pytest.mark.parametrize("deed", ["os.abort()", "sys.exit(3)", "time.sleep(100)"])
def test_a_child_that_dies_or_hangs_is_counted_against_its_checkpoint(tmp_path, monkeypatch, deed):
    (tmp_path / "child.py").write_text(CHILD.format(deed=deed))
    monkeypatch.setattr(fuzz_checkpoints, "__file__", str(tmp_path / "child.py"))
    monkeypatch.setattr(fuzz_checkpoints, "SILENCE", 12)
    results = dict(fuzz_checkpoints.run(0, 0, 4))
    assert [number for number, rest in sorted(results.items()) if rest[3].startswith("FAILED")] == [1]
    assert set(results) == {0, 1, 2, 3}


@pytest.mark.parametrize(
    ("deed", "words"),
    [
        ("raise KeyError('a')", "KeyError"),
        ("assert False", "AssertionError"),
        ("bytearray(400 << 20)", "MemoryError"),
        ("while True: pass", "TooSlowError"),
    ],
)
def test_what_a_checkpoint_must_not_do_is_seen(tmp_path, monkeypatch, deed, words):
    """In a child whose opening does it from the second checkpoint on."""
    wrapper = f"""
import sys
sys.path.insert(0, {str(Path(fuzz_checkpoints.__file__).parent)!r})
import fuzz_checkpoints
right, sound = fuzz_checkpoints.outcome_of, []
def outcome_of(damage, directory, files):
    sound.append(files)
    if len(sound) > len(damage.SOUND):
        {deed}
    return right(damage, directory, files)
fuzz_checkpoints.outcome_of = outcome_of
fuzz_checkpoints.SECONDS = 0.5
fuzz_checkpoints.work(*map(int, sys.argv[2:]))
"""
    (tmp_path / "child.py").write_text(wrapper)
    monkeypatch.setattr(fuzz_checkpoints, "__file__", str(tmp_path / "child.py"))
    ((_, (*_, outcome)),) = fuzz_checkpoints.run(0, 0, 1)
    assert outcome.startswith(f"FAILED: {words}")
