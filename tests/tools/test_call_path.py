"""tools/call_path.py, and the way of a call: few files, few changes of file."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[2] / "tools"))
import call_path

LIMITS = {"flash_attention": (7, 20), "rms_norm": (6, 14)}


@pytest.mark.parametrize("name", LIMITS)
def test_a_warm_call_passes_few_files(name):
    with call_path.prepared(name) as call:
        path = call_path.path_of(call)
    files, changes = LIMITS[name]
    assert 1 < len(path.files) <= files and path.changes <= changes, str(path)
    assert path.calls[0][1] == "call" and path.files[-1].startswith("targets/"), str(path)


def test_a_path_by_its_calls():
    path = call_path.CallPath((("a.py", "f"), ("a.py", "g"), ("b.py", "f"), ("a.py", "f")))
    assert (path.files, path.changes) == (["a.py", "b.py"], 2)
    assert str(path).splitlines() == [
        "4 calls, 3 functions, 2 files, 2 changes",
        "  a.py: f, g",
        "  b.py: f",
        "  a.py: f",
    ]


def test_the_ordinary_way_is_longer():
    with call_path.prepared("rms_norm") as call, call_path.prepared("rms_norm", ordinary=True) as ordinary:
        assert len(call_path.path_of(ordinary).calls) > len(call_path.path_of(call).calls)


def test_exit_status(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["call_path.py", "rms_norm", "--max-files", "1"])
    assert call_path.main() == 1
    assert capsys.readouterr().out.startswith("rms_norm: ")
    monkeypatch.setattr(sys, "argv", ["call_path.py", "rms_norm", "--max-files", "30", "--max-changes", "200"])
    assert call_path.main() == 0
