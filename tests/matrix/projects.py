"""Projects of their own in fresh processes, for tests of the pytest plugin."""

from __future__ import annotations

import importlib.metadata
import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
INI = "[pytest]\nrocmkern_matrix = matrix.yaml\ntestpaths = tests\n"
# An installed rocmkern brings its plugin by itself; from a source tree it is named.
PLUGIN = [] if importlib.metadata.entry_points(group="pytest11", name="rocmkern") else ["-p", "rocmkern.testing.plugin"]


class Project:
    """A directory with files of a project, in which pytest runs as a process of its own."""

    def __init__(self, path):
        self.path = path

    def write(self, name, text):
        (self.path / name).write_text(text)

    def pytest(self, *arguments, timeout=120, **environ):
        """Run pytest; an environment variable that is None is taken away."""
        command = [sys.executable, "-m", "pytest", *PLUGIN, "-p", "no:cacheprovider", *arguments]
        # What an outer run under pytest-xdist left in the environment would disable benchmarks in the inner one.
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
        environment = {**inherited, "PYTHONPATH": f"{ROOT}{os.pathsep}{self.path}", "ROCMKERN_NO_GPU": "1", **environ}
        environment = {name: value for name, value in environment.items() if value is not None}
        done = subprocess.run(command, cwd=self.path, env=environment, capture_output=True, text=True, timeout=timeout)
        return Run(done.returncode, done.stdout + done.stderr)


class Run:
    """How such a process ended, what it printed, and how many tests did what."""

    def __init__(self, status, output):
        self.status, self.output = status, output
        self.counts = {
            word: int(number) for number, word in re.findall(r"(\d+) (passed|failed|skipped|deselected)", output)
        }

    def __contains__(self, words):
        return words in self.output
