"""Projects of their own, in which pytest runs as a process of its own, for tests of the pytest plugin."""

from __future__ import annotations

import contextlib
import functools
import importlib.metadata
import json
import os
import re
import select
import signal
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

    def pytest(self, *arguments, timeout=600, **environ):
        """Run pytest; an environment variable that is None is taken away."""
        return self._run([*PLUGIN, "-p", "no:cacheprovider", *arguments], self._environment(environ), timeout)

    def _environment(self, environ):
        # What an outer run under pytest-xdist left in the environment would disable benchmarks in the inner one.
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
        environment = {**inherited, "PYTHONPATH": f"{ROOT}{os.pathsep}{self.path}", "ROCMKERN_NO_GPU": "1", **environ}
        return {name: value for name, value in environment.items() if value is not None}

    def _run(self, arguments, environment, timeout):
        command = [sys.executable, "-m", "pytest", *arguments]
        done = subprocess.run(command, cwd=self.path, env=environment, capture_output=True, text=True, timeout=timeout)
        return Run(done.returncode, done.stdout + done.stderr)


class QuickProject(Project):
    """The same, but that the process is forked from one that has imported everything already, where there is a fork."""

    def _run(self, arguments, environment, timeout):
        if not hasattr(os, "fork"):
            return super()._run(arguments, environment, timeout)
        return forking().run(
            self.path, ["-W", "ignore::pytest.PytestAssertRewriteWarning", *arguments], environment, timeout
        )


@functools.cache
def forking():
    """The process that forks those of this process's quick projects."""
    return Forking()


class Forking:
    """The parent's end of `forked_pytest`, which is started at the first run, and again after a run that hung."""

    def __init__(self):
        self._process = None

    def run(self, directory, arguments, environment, timeout):
        """Run pytest in a directory."""
        if self._process is None:
            self._process = self._started()
        files = [directory / f".{name}" for name in ("out", "err")]
        request = {"directory": str(directory), "arguments": arguments, "environment": environment}
        request |= {"out": str(files[0]), "err": str(files[1])}
        print(json.dumps(request), file=self._process.stdin, flush=True)
        if not select.select([self._process.stdout], [], [], timeout)[0]:
            self._process, hung = None, self._process
            with contextlib.suppress(ProcessLookupError):
                os.killpg(hung.pid, signal.SIGKILL)
            raise subprocess.TimeoutExpired(["pytest", *arguments], timeout, files[0].read_text())
        status = int(self._process.stdout.readline())
        return Run(status, "".join(file.read_text(errors="replace") for file in files))

    def _started(self):
        # One thread: a process of several must not be forked.
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
        return subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("forked_pytest.py"))],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment, start_new_session=True,
        )  # fmt: skip


class Run:
    """How such a process ended, what it printed, and how many tests did what."""

    def __init__(self, status, output):
        self.status, self.output = status, output
        self.counts = {
            word: int(number) for number, word in re.findall(r"(\d+) (passed|failed|skipped|deselected)", output)
        }

    def __contains__(self, words):
        return words in self.output
