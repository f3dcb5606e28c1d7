"""The examples that train: as PyTorch does, and on top of frozen weights."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="the examples train with PyTorch's optimizers")

EXAMPLES = Path(__file__).parents[2] / "examples"


def output_of(name: str, plot: Path, *arguments: str) -> str:
    run = subprocess.run(
        [sys.executable, EXAMPLES / name, "--plot", plot, *arguments],
        capture_output=True,
        text=True,
        timeout=900,
        env=os.environ | {"ROCMKERN_NO_GPU": "1"},
    )
    assert run.returncode == 0, run.stderr
    return run.stdout


@pytest.mark.timeout(900)
def test_the_loss_follows_pytorch(tmp_path):
    said = output_of("train_decoder.py", tmp_path / "loss.svg", "--batch", "4", "--spread")
    apart, *spread = (float(x) for x in re.findall(r"(\d\.\d+e[+-]\d+) (?:apart|from PyTorch's)", said))
    assert len(spread) == 2 and 0 < apart <= 3 * max(spread)
    first, last = (float(re.search(rf"rocmkern: step {n} of 200, loss (\S+)", said)[1]) for n in (1, 200))
    assert last < 0.6 * first
    assert (tmp_path / "loss.svg").read_text().count("<polyline") == 4


@pytest.mark.timeout(900)
def test_what_is_beside_frozen_weights_learns(tmp_path):
    said = output_of("qlora.py", tmp_path / "loss.svg", "--steps", "60")
    before, after = (float(x) for x in re.search(r"steps (\S+), of the last (\S+);", said).groups())
    assert after < 0.95 * before
    assert "<polyline" in (tmp_path / "loss.svg").read_text()
