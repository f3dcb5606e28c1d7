"""Who notes what this thread's call does, if anybody: below what is noted. See `recording`."""

from __future__ import annotations

import threading
from typing import Any


class _Thread(threading.local):
    recorder: Any = None  # a `recording.Recorder`, which knows views
    in_operator: bool = False


#: ``recorder`` is that of this thread's call, if it is recorded; ``in_operator`` says whether PyTorch's dispatcher is
#: the one who calls, so that it need not be asked.
thread: _Thread = _Thread()


def refuse(reason: str) -> None:
    """Say that this thread's call cannot be done again from notes."""
    if thread.recorder is not None:
        thread.recorder.refuse(reason)
