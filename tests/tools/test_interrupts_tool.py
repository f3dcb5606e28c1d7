"""The tool that interrupts operations: it finds nothing wrong, and it would find threads that go on."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

TOOL = Path(__file__).resolve().parents[2] / "tools" / "interrupts.py"
BROKEN = f"""
import runpy, sys
from rocmkern.targets import workers
workers._leave = lambda steps: None
sys.argv = ["interrupts.py", "cpu", "--rounds", "200", "--seed", "1", "--threads", "3"]
runpy.run_path({str(TOOL)!r}, run_name="__main__")
"""


def run(*command):
    return subprocess.run([sys.executable, *command], capture_output=True, text=True, timeout=300)


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="this system has no timers")
class TestInterrupts:
    def test_operations_survive_interrupts(self):
        done = run(TOOL, "cpu", "--rounds", "60", "--threads", "3", "--seed", "1")
        assert done.returncode == 0, done.stdout + done.stderr
        assert "60 exceptions landed inside" in done.stdout and done.stdout.endswith("0 failures\n")

    def test_threads_that_go_on_are_found(self):
        done = run("-c", BROKEN)  # they may also crash it
        assert done.stdout.startswith("cpu, 3 threads") and done.returncode != 0
