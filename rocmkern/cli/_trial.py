"""One small attention on a target, in a child process: whether the target works, rather than whether it could.

That a driver answers and packages are installed does not mean that a kernel compiles and runs: versions that do not fit
each other show only then, and may end or hang the process. A child is run with this file as a program; it prints one
line of JSON. Nothing it compiles is kept, and nothing that is kept helps it: its cache is a directory of its own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from typing import Any

import rocmkern
from rocmkern.runtime.errors import RocmkernError
from rocmkern.targets import TargetName

DEADLINE_S = 120.0
# The attention is one of a few dozen float32 numbers; its results are of order one.
_TOLERANCE = 1e-5
_WIDER = {"cuda": 2e-3, "hip": 2e-3}  # a GPU's matrix units may round operands


@dataclass(frozen=True)
class Trial:
    """A small attention on one target against the float64 reference."""

    works: bool
    arch: str = ""
    threads: int = 0
    error: float | None = None
    seconds: float | None = None
    problem: str = ""


def run_in_child(target: str, deadline_s: float = DEADLINE_S) -> Trial:
    """Try a target in a child process; whatever happens to it is part of the result."""
    with tempfile.TemporaryDirectory(prefix="rocmkern-doctor-") as cache:
        environment = {**os.environ, "ROCMKERN_CACHE_DIR": cache, "ROCMKERN_QUIET": "1"}
        environment.pop("ROCMKERN_TARGET", None)
        command = [sys.executable, "-c", f"from rocmkern.cli import _trial; _trial.main({target!r})"]
        path = os.pathsep.join(entry for entry in (_ROOT, environment.get("PYTHONPATH", "")) if entry)
        environment["PYTHONPATH"] = path
        try:
            done = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=deadline_s,
                env=environment,
            )
        except subprocess.TimeoutExpired:
            return Trial(False, problem=f"a small kernel was not compiled and run within {deadline_s:g} s")
        except OSError as error:
            return Trial(False, problem=f"the child process could not be started: {error}")
    return _read(done)


def _read(done: subprocess.CompletedProcess[str]) -> Trial:
    if done.returncode == 0:
        try:
            return Trial(**json.loads(done.stdout.strip().splitlines()[-1]))
        except (ValueError, TypeError, IndexError):
            return Trial(False, problem=f"the child process printed {done.stdout[-200:]!r} instead of its result")
    tail = done.stderr.strip().splitlines()[-1:] or ["it said nothing"]
    end = f"by signal {-done.returncode}" if done.returncode < 0 else f"with status {done.returncode}"
    return Trial(False, problem=f"a small kernel ended the child process {end}: {tail[0]}")


def measure(target: TargetName) -> Trial:
    """Compile and run a small causal attention on a target, in this process."""
    try:
        # deferred: start-up
        import numpy as np

        # deferred: start-up
        from rocmkern.targets.cpu import thread_count

        rng = np.random.default_rng(0)
        q, k, v = (rng.standard_normal((1, 2, 7, 16), dtype=np.float32) for _ in range(3))
        with rocmkern.using(target):
            arch, threads = rocmkern.target().arch, thread_count() if target == "cpu" else 0
            started = time.perf_counter()
            out = rocmkern.flash_attention(q, k, v, causal=True)
            seconds = time.perf_counter() - started
        error = float(np.abs(out - rocmkern.reference.flash_attention(q, k, v, causal=True)).max())
    except Exception as failure:
        return Trial(False, problem=words(failure))
    bound = _WIDER.get(target, _TOLERANCE)
    # A NaN is beyond every bound.
    problem = "" if error <= bound else f"the result is wrong: error {error:.2g}, bound {bound:g}"
    return Trial(not problem, arch, threads, error, seconds, problem)


def words(error: BaseException) -> str:
    """An exception in one line of text, by its own words where it is ours."""
    return str(error) if isinstance(error, RocmkernError) else f"{type(error).__name__}: {error}"


def main(target: TargetName) -> None:
    """What the child does."""
    result: dict[str, Any] = asdict(measure(target))
    print(json.dumps(result), flush=True)


#: The directory that holds this package, which a child started elsewhere may not find.
_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
