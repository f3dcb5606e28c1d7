"""tools/new_operation.py: what it writes passes the linters, fails its tests, and passes them once it is filled in."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    """A copy of this repository with a new operation, and what the tool printed."""
    root = tmp_path_factory.mktemp("copy")
    for folder in ("rocmkern", "tools", "tests/ops", "tests/runtime"):
        shutil.copytree(ROOT / folder, root / folder, ignore=shutil.ignore_patterns("__pycache__", "virtual_gpu"))
    for file in ("matrix.yaml", "pyproject.toml"):
        shutil.copy(ROOT / file, root)
    started = run(root, "tools/new_operation.py", "halved")
    assert started.returncode == 0, started.stderr
    return root, started.stdout


def run(root, *words):
    environment = {**os.environ, "PYTHONPATH": str(root)}
    return subprocess.run([sys.executable, *words], cwd=root, capture_output=True, text=True, env=environment)


def results_of(root, *words):
    plain = ("-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider")
    return run(root, *plain, *words)


def test_it_says_what_it_wrote_and_everything_is_there(copy):
    root, printed = copy
    written = [line.split()[1] for line in printed.splitlines() if line.startswith("written")]
    assert "rocmkern/ops/halved/kernels/halved.py" in written and "tests/ops/test_ops_halved.py" in written
    texts = [(root / path).read_text(encoding="utf-8") for path in written]
    assert not any("new_operation" in text for text in texts) and any("FILL IN" in text for text in texts)
    assert "import halved as halved" in (root / "rocmkern" / "__init__.pyi").read_text(encoding="utf-8")


def test_it_passes_the_linters(copy):
    root, _ = copy
    for words in (("ruff", "check", "."), ("ruff", "format", "--check", "."), ("mypy", "rocmkern/ops/halved")):
        pytest.importorskip(words[0])
        done = run(root, "-m", *words)
        assert done.returncode == 0, done.stdout


def test_its_tests_fail_until_it_is_filled_in(copy):
    root, _ = copy
    before = results_of(root, "tests/ops/test_ops_halved.py")
    assert before.returncode == 1 and "NotImplementedError" in before.stdout
    family = root / "rocmkern" / "ops" / "halved"
    fill(family / "reference.py", 'raise NotImplementedError("rocmkern/ops/halved/reference.py: what halved means")',
         "return x.astype(compute) * compute(0.5)")  # fmt: skip
    half_done = results_of(root, "tests/ops/test_ops_halved.py")
    assert half_done.returncode == 1 and "NotImplementedError" not in half_done.stdout
    fill(family / "kernels" / "halved.py", "return x\n", "return 0.5 * x\n")
    for words in (["tests/ops/test_ops_halved.py"], ["matrix.yaml", "-k", "halved and python"]):
        after = results_of(root, *words)
        assert after.returncode == 0 and " passed" in after.stdout, after.stdout
    caught = run(root, "-m", "rocmkern", "matrix", "mutate", "halved_of_nothing")
    assert caught.returncode == 0, caught.stdout + caught.stderr


def fill(path, old, new):
    text = path.read_text(encoding="utf-8")
    assert text.count(old) == 1
    path.write_text(text.replace(old, new), encoding="utf-8")


@pytest.mark.parametrize(
    ("name", "allowed"),
    [
        ("Halved", "a name of lower-case letters, digits and underscores, which Python can use"),
        ("lambda", "a name of lower-case letters, digits and underscores, which Python can use"),
        ("softmax", "a name that is not public yet"),
        ("norm", "a name without files; there is rocmkern/ops/norm/api.py"),
    ],
)
def test_names_that_cannot_be_are_refused(name, allowed):
    refused = run(ROOT, "tools/new_operation.py", name)
    assert refused.returncode == 2 and refused.stderr == f"new_operation: name: got {name!r}; allowed: {allowed}\n"


def test_help_says_what_is_to_be_filled_in():
    shown = run(ROOT, "tools/new_operation.py", "--help")
    assert shown.returncode == 0 and "reference.py         what it means" in shown.stdout
