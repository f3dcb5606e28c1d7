"""Threads that make the first call of a process at once: one compiles, all get the result."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

TOOL = Path(__file__).resolve().parents[2] / "tools" / "first_calls.py"


@pytest.mark.parametrize("arguments", [["--starts", "4"], ["--starts", "1", "--empty", "--threads", "16"]])
def test_threads_that_make_the_first_call_at_once(arguments):
    done = subprocess.run([sys.executable, TOOL, *arguments], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith(": 0 failed\n")
