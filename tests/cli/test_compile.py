"""`rocmkern compile`: what it finds, what it leaves alone, where it writes."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from rocmkern import cli
from rocmkern.targets import cache, entries
from rocmkern.targets.host_cpu import host_architecture, is_x86_64


@pytest.fixture(autouse=True)
def _own_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("ROCMKERN_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("ROCMKERN_QUIET", "1")


ONE = ["compile", "--target", "cpu", "--ops", "scale", "--dtypes", "float32", "--jobs", "1"]


def test_variants_are_compiled_once_and_used(tmp_path, capsys):
    assert cli.main(ONE) == 0
    assert "1 compiled in" in capsys.readouterr().out
    assert cli.main(ONE) == 0
    assert "1 of them in" in capsys.readouterr().out
    program = """
import json, sys
import numpy as np
import rocmkern
out = rocmkern.scale(np.ones((3, 5), np.float32), 2.0)
print(json.dumps([float(out.sum()), "numba" in sys.modules, "llvmlite" in sys.modules]))
"""
    environment = {**os.environ, "ROCMKERN_TARGET": "cpu"}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == [30.0, False, False] and done.stderr == ""


def test_variants_are_listed_without_compiling(tmp_path, capsys):
    assert cli.main([*ONE, "--list"]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith(f"{host_architecture():<12} scale") and "float32,float32" in line
    assert not (tmp_path / "cache").exists()


@pytest.mark.skipif(not is_x86_64(), reason="the architectures are those of x86-64")
def test_a_wheel_s_directory_holds_what_it_needs_and_nothing_else(tmp_path, capsys):
    directory = tmp_path / "shipped"
    directory.mkdir()
    (directory / "cpu-old-0123.entry").write_bytes(b"of an older version")
    assert cli.main([*ONE, "--arch", "cpu-avx2,cpu-avx512", "--into", str(directory)]) == 0
    made = [entries.decode(path.read_bytes()) for path in directory.iterdir()]
    assert sorted(entry.arch for entry in made) == ["cpu-avx2", "cpu-avx512"]
    for entry in made:
        assert (directory / cache.shipped_name(cache.Key.of(entry))).stat().st_mode & 0o777 == 0o644
        assert ("avx512f" in entry.machine) == (entry.arch == "cpu-avx512")


def test_the_common_calls_can_be_recorded(capsys):
    arguments = ["compile", "--target", "cpu", "--common", "--list"]
    assert cli.main(arguments) == 0
    lines = capsys.readouterr().out.splitlines()
    kernels = {line.split()[1] for line in lines}
    assert {"flash_attention", "matmul", "rms_norm", "layer_norm", "rope", "sample", "embedding"} <= kernels
    assert all(any(dtype in line for line in lines) for dtype in ("float32", "float16", "bfloat16"))
    assert len(lines) < 200


@pytest.mark.parametrize(
    "wrong, words",
    [
        (["--ops", "scales"], "--ops: got scales; allowed: "),
        (["--dtypes", "float8"], "--dtypes: got float8; allowed: float32"),
        (["--jobs", "0"], "--jobs: got 0"),
        (["--arch", "cpu-sse9"], "'cpu-sse9' cannot be compiled by the cpu target; allowed: cpu-avx512"),
    ],
)
def test_what_makes_no_sense_is_refused(capsys, wrong, words):
    assert cli.main(["compile", "--target", "cpu", *wrong]) == 1
    assert words in capsys.readouterr().err
