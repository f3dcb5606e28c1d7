"""A process that has imported what a run of pytest with a matrix imports, and forks one for each run.

A run then takes a tenth of the time of one in a process that starts anew. ``python forked_pytest.py`` reads requests
from its input, one a line: JSON with the arguments of pytest, the directory, the environment and two files for what is
printed. It answers each with the exit status of the run.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import io
import json
import os
import sys
import tempfile

#: What runs import sooner or later; hypothesis only where it is installed.
MODULES = (
    "hypothesis", "rocmkern.matrix.fuzz", "rocmkern.matrix.peers", "rocmkern.ops.attention.api",
    "rocmkern.runtime.manager", "rocmkern.runtime.probe.status", "rocmkern.targets.cpu", "rocmkern.targets.python",
    "rocmkern.testing.bench", "rocmkern.testing.items", "rocmkern.testing.results",
)  # fmt: skip


def imported():
    """`pytest.main`, when everything is imported, plugins of pytest included."""
    import pytest

    for name in MODULES:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        pytest.main(["--version"])
    gc.freeze()
    return pytest.main


def serve() -> None:
    """Answer requests until there are no more."""
    main = imported()
    answers = os.fdopen(os.dup(1), "w")
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            run(main, json.loads(line))
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        print(status, file=answers, flush=True)


def run(main, request) -> None:
    """The life of a child."""
    status = 120
    try:
        os.chdir(request["directory"])
        os.environ.clear()
        os.environ.update(request["environment"])
        tempfile.tempdir = None
        sys.path.insert(0, request["directory"])
        sys.argv[:] = ["pytest", *request["arguments"]]
        for descriptor, file in ((0, os.devnull), (1, request["out"]), (2, request["err"])):
            os.dup2(
                os.open(file, os.O_RDONLY if descriptor == 0 else os.O_WRONLY | os.O_CREAT | os.O_TRUNC), descriptor
            )
        status = int(main(request["arguments"]))
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(status)


if __name__ == "__main__":
    serve()
