"""The example of training: the loss falls, and follows that of PyTorch."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import rocmkern  # noqa: E402

STEPS = 12


def test_the_loss_falls_as_pytorchs():
    from train import Ours, PyTorchs, losses

    with rocmkern.using("cpu"):
        ours, theirs = (losses(kind, STEPS) for kind in (Ours(), PyTorchs()))
    assert ours[-1] < ours[0] - 1
    assert ours == pytest.approx(theirs, rel=1e-4)


def test_the_same_bits_each_time():
    from train import Ours, losses

    with rocmkern.using("cpu"):
        assert losses(Ours(), 3) == losses(Ours(), 3)


def test_the_command_line(capsys):
    from train import main

    with rocmkern.using("cpu"):
        main(["--steps", "2"])
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:2] for line in lines] == [["step", "0"], ["step", "1"]]
