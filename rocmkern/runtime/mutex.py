"""Locks that a thread is never made to wait for while it has them itself.

A signal's handler, and a finalizer that a garbage collection calls, run in the middle of whatever their thread does. If
that is a region under one of our locks, a call of the library from there would wait for ever for a lock that its own
thread holds. So our locks are reentrant ones, and

* ``with alone(lock):`` is an error there, where the region changes what the call within would change too;
* ``with lock:`` goes on, where that is harmless.

Enter and exit are those of the lock, in C: no exception comes between them and the region (`rocmkern.runtime.memory`).
"""

from __future__ import annotations

import threading
from typing import Any

from rocmkern.runtime.errors import ReentryError

Mutex = threading.RLock
"""Makes a lock."""


def alone(lock: Any) -> Any:
    """The lock, for the ``with`` statement.

    Raises
    ------
    ReentryError
        If this thread has it already.
    """
    if lock._is_owned():  # what `threading.Condition` asks too
        raise ReentryError(
            "this call came from a signal handler or a finalizer (__del__), in the middle of a call of the same thread "
            "that was changing what both need. Let the handler set a flag, and do the work when that call has returned"
        )
    return lock
