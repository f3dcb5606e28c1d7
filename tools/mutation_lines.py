"""Which lines of the library run, for `tools/mutation_record.py`: in its own process, and in those that tests start.

Each line is told once, until `again` is called. Python 3.12 asks for the library's functions only and is then silent;
older ones are asked about every call and every line of the library, which takes a few times as long.

A child process appends ``file:line`` to the file that `CHILDREN` names: one that is forked from here on, and any Python
that finds `SITECUSTOMIZE` in its ``PYTHONPATH``.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

PACKAGE = f"{Path(__file__).resolve().parents[1] / 'rocmkern'}{os.sep}"
#: Environment variable: where a child process writes.
CHILDREN = "ROCMKERN_MUTATION_CHILDREN"
#: Text of a ``sitecustomize.py``.
SITECUSTOMIZE = f"""import sys

sys.path.append({str(Path(__file__).resolve().parent)!r})
import mutation_lines

sys.path.pop()
mutation_lines.in_child()
"""

_note: Callable[[str, int], Any] = lambda file, line: None  # noqa: E731


def listen(note: Callable[[str, int], Any]) -> None:
    """Call ``note(file, line)`` for the lines of this process, the file's path within the package."""
    global _note
    _note = note
    if hasattr(sys, "monitoring"):
        tool, events = sys.monitoring.COVERAGE_ID, sys.monitoring.events
        sys.monitoring.use_tool_id(tool, "mutation")
        sys.monitoring.register_callback(tool, events.PY_START, _started)
        sys.monitoring.register_callback(tool, events.LINE, _line)
        sys.monitoring.set_events(tool, events.PY_START)
    else:
        threading.settrace(_called)
        sys.settrace(_called)
    os.register_at_fork(after_in_child=_forked)


def again() -> None:
    """Tell of lines that were told already."""
    if hasattr(sys, "monitoring"):
        sys.monitoring.restart_events()


def in_child() -> None:
    """What a Python that a test started does first."""
    if os.environ.get(CHILDREN):
        listen(_append)


def _forked() -> None:
    global _note
    if os.environ.get(CHILDREN):
        _note = _append
        again()


def _append(file: str, line: int) -> None:
    path = os.environ.get(CHILDREN)
    if path:
        # At once: a child may end at any moment. One write is one line, whoever else writes.
        target = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        os.write(target, f"{file}:{line}\n".encode())
        os.close(target)


def _started(code: Any, offset: int) -> Any:
    if code.co_filename.startswith(PACKAGE):
        sys.monitoring.set_local_events(sys.monitoring.COVERAGE_ID, code, sys.monitoring.events.LINE)
    return sys.monitoring.DISABLE


def _line(code: Any, line: int) -> Any:
    _note(code.co_filename[len(PACKAGE) :], line)
    return sys.monitoring.DISABLE


def _called(frame: Any, event: str, argument: Any) -> Any:
    return _traced if frame.f_code.co_filename.startswith(PACKAGE) else None


def _traced(frame: Any, event: str, argument: Any) -> Any:
    if event == "line":
        _note(frame.f_code.co_filename[len(PACKAGE) :], frame.f_lineno)
    return _traced
