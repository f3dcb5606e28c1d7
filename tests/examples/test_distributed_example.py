"""The example of attention over ranks, as torchrun starts it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="torch.distributed is part of PyTorch")

EXAMPLE = Path(__file__).parents[2] / "examples" / "distributed_attention.py"


def test_two_processes_of_torchrun():
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone"]
    run = subprocess.run(
        [*command, EXAMPLE, "--tokens", "301"],
        capture_output=True,
        text=True,
        timeout=300,
        env=os.environ | {"ROCMKERN_NUM_THREADS": "1", "ROCMKERN_NO_GPU": "1", "OMP_NUM_THREADS": "1"},
    )
    assert run.returncode == 0, run.stderr
    tokens = [int(n) for n in re.findall(r"rank \d of 2: (\d+) tokens", run.stdout)]
    assert sorted(tokens) == [150, 151]
