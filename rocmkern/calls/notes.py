"""Who notes what this thread's call does, if anybody: below what is noted. See `recording`."""

from __future__ import annotations

import threading
from typing import Any


class _Thread(threading.local):
    recorder: Any = None  # a `recording.Recorder`, which knows views


#: ``recorder`` is that of this thread's call, if it is recorded.
thread: _Thread = _Thread()


def refuse(reason: str) -> None:
    """Say that this thread's call cannot be done again from notes."""
    if thread.recorder is not None:
        thread.recorder.refuse(reason)
