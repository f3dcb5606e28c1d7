"""What the tests of the targets share: processes of their own, with one cache directory for most of them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SETTINGS = ("ROCMKERN_TARGET", "ROCMKERN_NUM_THREADS", "ROCMKERN_CPU_ARCH", "ROCMKERN_CACHE_DIR")


@pytest.fixture(autouse=True)
def _no_settings_from_outside(monkeypatch):
    for name in SETTINGS:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="session")
def shared_cache(tmp_path_factory):
    """A cache directory for all tests that do not look at it, so that a variant is compiled once."""
    return tmp_path_factory.mktemp("cache")


class Script:
    """Python processes that report by JSON on their last line."""

    def __init__(self, cache: Path):
        self.cache = cache

    def start(self, code: str, *arguments: str, **settings: str) -> subprocess.Popen:
        """Start a process; ``code`` is a program, or the path of one."""
        environment = {k: v for k, v in os.environ.items() if k not in SETTINGS}
        environment |= {"ROCMKERN_CACHE_DIR": str(self.cache), "ROCMKERN_NO_GPU": "1"} | settings
        environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), str(Path(__file__).parent)])
        program = [code] if code.endswith(".py") else ["-c", code]
        return subprocess.Popen(
            [sys.executable, *program, *arguments],
            env=environment,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    @staticmethod
    def finish(process: subprocess.Popen) -> dict:
        out, err = process.communicate(timeout=120)
        assert process.returncode == 0, err
        return json.loads(out.splitlines()[-1])

    def __call__(self, code: str, *arguments: str, **settings: str) -> dict:
        return self.finish(self.start(code, *arguments, **settings))


@pytest.fixture
def script(shared_cache):
    """Run a program in a new process: ``script(code, **environment)`` returns what it reports."""
    return Script(shared_cache)


@pytest.fixture
def script_with():
    """As `script`, with a cache directory of the test's own: ``script_with(directory)``."""
    return Script


@pytest.fixture(scope="session")
def warm_cache(tmp_path_factory):
    """A cache with the variant of `target_kernels.run`, and nothing else."""
    directory = tmp_path_factory.mktemp("warm")
    Script(directory)("import target_kernels; target_kernels.report()")
    return directory
