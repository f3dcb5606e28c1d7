"""The kernel of `examples/custom_kernel.py`, which the tutorial names, is right on both targets."""

import inspect
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import rocmkern


@pytest.mark.parametrize("target", ["python", "cpu"])
@pytest.mark.parametrize("dtype, bound", [(np.float32, 1e-5), (np.float16, 2e-2), (ml_dtypes.bfloat16, 1.3e-1)])
def test_log_softmax_agrees_with_float64(target, dtype, bound):
    from custom_kernel import log_softmax, reference

    rng = np.random.default_rng(0)
    for shape in ((1, 1), (5, 7), (17, 257), (16, 256)):
        x = rng.normal(0, 3, shape).astype(dtype)
        with rocmkern.use(target):
            out = log_softmax(x)
        assert out.dtype == x.dtype
        assert np.abs(out.astype(np.float64) - reference(x)).max() < bound


@pytest.mark.parametrize("target", ["python", "cpu"])
def test_whole_blocks_of_minus_infinity_do_not_give_nan(target):
    from custom_kernel import log_softmax, reference

    x = np.random.default_rng(0).standard_normal((3, 600), dtype=np.float32)
    x[:, :300] = -np.inf
    with rocmkern.use(target):
        out = log_softmax(x)
    assert np.array_equal(np.isneginf(out), np.isneginf(x))
    assert np.abs(out[:, 300:] - reference(x)[:, 300:]).max() < 1e-5


def test_the_script_succeeds_and_prints_one_line_per_target(capsys):
    from custom_kernel import main

    assert main() == 0
    assert [line.split()[2] for line in capsys.readouterr().out.splitlines()] == ["python", "cpu"]


def test_the_kernel_is_short_and_the_tutorial_names_its_file():
    from custom_kernel import log_softmax_kernel

    assert len(inspect.getsource(log_softmax_kernel).splitlines()) <= 30
    tutorial = Path(__file__).parents[2] / "docs" / "tutorial.md"
    assert "`examples/custom_kernel.py`" in tutorial.read_text(encoding="utf-8")
