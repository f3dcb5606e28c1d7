"""Pools of processes: what becomes of them when the process that started them is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1] / "runtime"))
from running import is_running

PROGRAM = """
import os, time
from rocmkern.cli._processes import processes

if __name__ == "__main__":
    with processes(1) as pool:
        print(pool.submit(os.getpid).result(), flush=True)
        time.sleep(600)
"""


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="asks /proc whether a process is running")
def test_a_pool_s_processes_end_when_the_one_that_started_them_is_killed(tmp_path):
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    with subprocess.Popen([sys.executable, str(path)], stdout=subprocess.PIPE, text=True) as parent:
        worker = int(parent.stdout.readline())
        assert is_running(worker)
        parent.send_signal(signal.SIGKILL)
    until = time.monotonic() + 60
    while is_running(worker) and time.monotonic() < until:
        time.sleep(0.05)
    left = is_running(worker)
    if left:
        os.kill(worker, signal.SIGKILL)
    assert not left
