"""Several pytest processes on one card take turns, case by case; what runs on the CPU does not wait."""

from __future__ import annotations

import json
import os
import re
import sys
from itertools import pairwise
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "matrix"))
from projects import Project

# A card that is the host's memory and whose kernels the interpreter runs; each use is noted with its begin and end.
OPERATIONS = """
import json, os, time
import numpy as np
import rocmkern.targets as targets
from rocmkern.matrix import Call, Dim, Operation, Registry
from rocmkern.runtime import devices
from rocmkern.runtime.probe import driver as probe
from rocmkern.runtime.device import DeviceInfo
from rocmkern.runtime.host import HostDevice
from rocmkern.targets.python import PythonTarget

class Card(HostDevice):
    def __init__(self):
        super().__init__()
        self.info = DeviceInfo("hip", 0, "pretended", "0000:99:00.0", False, 1 << 30, "gfx1100")

card, target = Card(), PythonTarget()
open_device, get = devices.open_device, targets._get
devices.open_device = lambda device=None: card if device in ("hip", card) else open_device(device)
targets._get = lambda name: target if name == "hip" else get(name)
probe.check_driver = lambda kind: None

def double(x, *, out=None):
    begin = time.monotonic()
    time.sleep(0.05)
    with open(f"used-{os.getpid()}", "a") as file:
        print(json.dumps([targets.current_target() is target, begin, time.monotonic()]), file=file)
    out = np.empty_like(x) if out is None else out
    out[...] = 2 * x
    return out

def call(draw):
    return Call({"x": draw.array("x", (draw.dims["rows"],))}, out_shapes=((draw.dims["rows"],),))

OPERATIONS = Registry(Operation("double", function=double, reference=lambda x: 2 * x, call=call,
                                dims=(Dim("rows", "r"),), arrays=("x",), on_device=False))
"""
MATRIX = """
version: 1
registry: my_operations
groups:
  a: {why: to take turns, operation: double, rows: [{axes: {rows: [1, 2, 3, 4, 5, 6, 7, 8]}}]}
"""
CASES, CALLS = 8, 2


@pytest.fixture
def project(tmp_path):
    (tmp_path / "my_operations.py").write_text(OPERATIONS)
    (tmp_path / "matrix.yaml").write_text(MATRIX)
    (tmp_path / "pytest.ini").write_text("[pytest]\nrocmkern_matrix = matrix.yaml\n")
    # In every process of the run: those of pytest, of pytest-xdist, and the workers that cases run in.
    (tmp_path / "sitecustomize.py").write_text("import my_operations\n")
    (tmp_path / "locks").mkdir()
    return Project(tmp_path)


def uses(project):
    """Whether on the card, begin and end of each use, and the process, in their order."""
    found = []
    for path in project.path.glob("used-*"):
        found += [(*json.loads(line), path.name) for line in path.read_text().splitlines()]
    return sorted(found, key=lambda use: use[1])


def test_cases_on_a_card_never_overlap_between_the_processes_of_xdist(project):
    run = project.pytest("-n", "4", "--rocmkern-target", "hip,cpu", TMPDIR=str(project.path / "locks"))
    assert run.status == 0 and run.counts["passed"] == 2 * CASES, run.output
    on_card = [use for use in uses(project) if use[0]]
    assert len(on_card) == CASES * CALLS and len({use[3] for use in on_card}) > 1, (
        "several processes, or it is no proof"
    )
    for before, after in pairwise(on_card):
        assert before[2] <= after[1], "two processes used the card at the same time"
    # Both calls of a case are under one lock.
    owners = [use[3] for use in on_card]
    assert owners[::2] == owners[1::2]


def test_a_second_run_that_waits_too_long_says_who_holds_the_card(project):
    (project.path / "conftest.py").write_text(
        "import functools\n"
        "from rocmkern.runtime import lock\n"
        "lock.device_lock = functools.partial(lock.device_lock, timeout_s=0.2)\n"
    )
    locks = project.path / "locks"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tempfile.tempdir", str(locks))
        from rocmkern.runtime.device import DeviceInfo
        from rocmkern.runtime.lock import device_lock

        card = DeviceInfo("hip", 0, "pretended", "0000:99:00.0", False, 1 << 30, "gfx1100")
        with device_lock(card):
            options = ("-k", "r1-", "--rocmkern-target", "hip", "--rocmkern-worker", "none")
            run = project.pytest(*options, TMPDIR=str(locks))
    assert run.counts["failed"] == 1
    assert re.search(rf"was not free within 0.2 s: process {os.getpid()} \(.*\) holds it", run.output), run.output
