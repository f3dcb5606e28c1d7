"""Each guard finds and names a kernel that is broken on purpose, and the cases behind it run as if nothing had been.

On the cpu target, and on the virtual AMD GPU where these tests run on one; on a card nothing is made to hang or crash.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import broken_kernels
import pytest
from projects import INI, ROOT, Project

sys.path.append(str(Path(__file__).parents[1] / "runtime"))
from running import is_running

# What the failures of cases say.
FOUND = {
    "past_the_end": r"check outside failed:\n.*the nearest 0 bytes past its end(?s:.*)"
    r"kernels launched: past_the_end_kernel",
    "before_the_start": r"check outside failed:\n.*the nearest 1 bytes (before its start|ahead)(?s:.*)"
    r"kernels launched: before_the_start_kernel",
    "unwritten": r"check unwritten failed:\noutput out: 1 elements were not written.* first \(4,\)\n"
    r"kernels launched: unwritten_kernel",
    "changed_input": r"check inputs failed:\n.*changed \d bytes of the buffer of x\n"
    r"kernels launched: changed_input_kernel",
    "leaking": r"check ledger failed:\n\d+ buffers are alive after the call\nkernels launched: fine_kernel",
    "crashing": r"the worker process \d+ was ended by SIG(SEGV|ABRT|BUS) while it ran crashing-crashing-n5-f32 on "
    r"TARGET; the kernel launched last is crashing_kernel",
    "hanging": r"hanging-hanging-n5-f32 on TARGET did not finish within DEADLINE s; the kernel launched last is "
    r"hanging_kernel\nthe worker process \d+ was killed",
}


@pytest.fixture
def project(tmp_path):
    shutil.copy(broken_kernels.__file__, tmp_path)
    (tmp_path / "pytest.ini").write_text(INI)
    (tmp_path / "locks").mkdir()
    return Project(tmp_path)


def run(project, target, deadline, *arguments, **environ):
    """Run the rows in a worker; what is said of devices stays within the project."""
    project.write("matrix.yaml", broken_kernels.MATRIX.replace("DEADLINE", str(deadline)))
    environ = {"TMPDIR": str(project.path / "locks"), **environ}
    return project.pytest("--rocmkern-target", target, "--rocmkern-worker", "all", *arguments, timeout=600, **environ)


def section(done, group):
    """What is said of the failure of a group's case."""
    found = re.search(rf"_+ \w+-{group}-n5-f32\[\w+\] _+\n(.*?)\n(?:_{{10,}} |={{10,}} )", done.output, re.DOTALL)
    return found and found[1]


def check(done, target, deadline, groups):
    for group in groups:
        words = FOUND[group].replace("TARGET", target).replace("DEADLINE", str(deadline))
        text = section(done, group)
        assert text is not None, f"{group} was not found:\n{done.output}"
        assert re.search(words, text), f"{group}:\n{text}"
        assert text.count("case = find_case(") == 1, "every failure says how to reproduce it"


def test_every_guard_finds_its_broken_kernel_on_the_cpu(project):
    deadline = 12  # a worker that took a crashed one's place imports the compiler first
    done = run(project, "cpu", deadline)
    check(done, "cpu", deadline, FOUND)
    assert done.counts == {"failed": len(FOUND), "passed": 3}, done.output
    assert not list(project.path.glob("locks/**/*.suspect")), "the cpu is no device to be suspected"


def test_without_a_worker_the_checks_are_the_same(project):
    done = run(project, "cpu", 9, "--rocmkern-worker", "none", "-k", "not hanging and not crashing")
    check(done, "cpu", 9, ["past_the_end", "before_the_start", "unwritten", "changed_input", "leaking"])
    assert done.counts["failed"] == 5 and done.counts["passed"] == 3


@pytest.mark.parametrize("sigint", [False, True], ids=["killed", "interrupted"])
def test_a_worker_does_not_outlive_its_pytest(project, sigint):
    project.write("matrix.yaml", broken_kernels.MATRIX.replace("DEADLINE", "60"))
    project.write(
        "conftest.py",
        "import threading, time, pathlib\n"
        "from rocmkern.testing import worker\n"
        "def watch():\n"
        "    while worker._shared is None or worker._shared.pid is None: time.sleep(0.05)\n"
        "    pathlib.Path('pid').write_text(str(worker._shared.pid))\n"
        "threading.Thread(target=watch, daemon=True).start()\n",
    )
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-k", "hanging-hanging", "--rocmkern-target"]
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{project.path}", "ROCMKERN_NO_GPU": "1"}
    environment = {name: value for name, value in environment.items() if not name.startswith("PYTEST_")}
    process = subprocess.Popen(
        [*command, "cpu", "--rocmkern-worker", "all"],
        cwd=project.path,
        env=environment,
        stdout=subprocess.DEVNULL,
        # A shell starts what runs in the background with interrupts ignored, and that is inherited.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    try:
        deadline = time.monotonic() + 300
        while not (project.path / "pid").exists() or not (project.path / "pid").read_text():
            assert time.monotonic() < deadline and process.poll() is None
            time.sleep(0.05)
        pid = int((project.path / "pid").read_text())
        time.sleep(1)
        process.send_signal(signal.SIGINT if sigint else signal.SIGKILL)
        process.wait(60)
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and is_running(pid):
            time.sleep(0.05)
        assert not is_running(pid), "the worker is still there"
    finally:
        process.kill()
        process.wait()
        with contextlib.suppress(OSError, UnboundLocalError):
            os.kill(pid, signal.SIGKILL)


@pytest.fixture
def virtual_gpu():
    if getattr(sys.modules.get("vgpu"), "lib", None) is None:
        pytest.skip("seeded hangs and crashes of a GPU need the virtual AMD GPU (module vgpu)")


def test_every_guard_finds_its_broken_kernel_on_the_virtual_gpu(virtual_gpu, project):
    # It ends a kernel itself after so many instructions, which is before the deadline on a quick machine.
    gpu = {
        "ROCMKERN_NO_GPU": None,
        "ROCMKERN_CACHE_DIR": str(project.path / "cache"),
        "VGPU_MAX_INSTS": "1000000000000000",
    }
    found = [group for group in FOUND if group not in ("hanging", "crashing")]
    # Compiling is slow there, and counts.
    done = run(project, "hip", 60, "-k", "not crash", **gpu)
    check(done, "hip", 60, [*found, "hanging"])
    hang = section(done, "hanging")
    assert "the lock of hip:0 " in hang and "is free. The device is marked as suspect" in hang
    assert "ending a hung kernel of an AMD card can reset the whole card, and with it a display" in hang
    refused = section(done, "after_hang")
    assert re.search(r"hip:0 .* is suspect since .*: hanging-hanging-n5-f32 on hip did not finish within 60 s", refused)
    assert "rocmkern doctor" in refused and done.counts["passed"] == 1

    later = run(project, "hip", 60, "-k", "after_hang", **gpu)
    assert "1 skipped" in later.output and "is suspect since" in later.output, "a later process refuses it as well"

    environment = {
        **os.environ,
        "TMPDIR": str(project.path / "locks"),
        "ROCMKERN_CACHE_DIR": str(project.path / "cache"),
    }
    doctor = subprocess.run(
        [sys.executable, "-m", "rocmkern", "doctor"], env=environment, capture_output=True, text=True, timeout=300
    )
    assert "answers again" in doctor.stdout, doctor.stdout + doctor.stderr
    done = run(project, "hip", 60, "-k", "crash", VGPU_ABORT="1", **gpu)
    check(done, "hip", 60, ["crashing"])
    assert done.counts == {"failed": 1, "passed": 1, "deselected": len(FOUND) + 1}, done.output
