"""What importing the runtime costs, and what it offers."""

from __future__ import annotations

import subprocess
import sys

import pytest

from rocmkern import runtime


def test_no_heavy_module_is_imported():
    code = (
        "import sys; from rocmkern import runtime; [getattr(runtime, name) for name in runtime.__all__]; "
        "runtime.default_manager().zeros(3).to_numpy(); "
        "print([m for m in ('numba', 'torch', 'pydantic', 'yaml', 'hip', 'cuda') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
    assert done.stderr == ""


def test_names_are_listed_and_others_refused():
    assert set(runtime.__all__) <= set(dir(runtime))
    with pytest.raises(AttributeError, match="no_such_name"):
        runtime.no_such_name  # noqa: B018


def test_tensors_that_are_alive_at_exit_are_quiet():
    code = (
        "import numpy as np; from rocmkern.runtime import default_manager; m = default_manager(); "
        "x = m.from_numpy(np.ones(3)); y = x[1:]; a = np.asarray(x); c = x.__dlpack__(); "
        "cycle = [x]; cycle.append(cycle)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
