"""A pool of processes that end when the one that started them does, however that ends.

Workers of the standard library's pool hold an end of their own of the pipe that they read: where a signal ended the
process that writes to it, they wait for ever.
"""

from __future__ import annotations

import multiprocessing
import os
import threading
from concurrent.futures import ProcessPoolExecutor


def processes(count: int) -> ProcessPoolExecutor:
    """A pool of so many processes, to be used in a ``with``."""
    # Not forked: the compiler's libraries may hold locks in threads of their own.
    return ProcessPoolExecutor(count, multiprocessing.get_context("spawn"), initializer=_end_with_parent)


def _end_with_parent() -> None:
    threading.Thread(target=_await_parent, daemon=True).start()


def _await_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
