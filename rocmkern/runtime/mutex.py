"""Locks that a thread is never made to wait for while it has them itself.

A signal's handler, and a finalizer that a garbage collection calls, run in the middle of whatever their thread does. If
that is a region under one of our locks, a call of the library from there would wait for ever for a lock that its own
thread holds. So our locks are reentrant ones, and

* ``with alone(lock):`` is an error there, where the region changes what the call within would change too;
* ``with lock:`` goes on, where that is harmless.

No exception comes between a lock and its region (where CPython looks for them: `rocmkern.runtime.memory`). The exit is
that of `threading.RLock`, in C: where an exception is found behind it, the lock is free. The entry depends on the
version:

* up to 3.13 ``with`` calls it and looks for nothing before the region, so that of `threading.RLock` does;
* from 3.14 on ``with`` looks behind a function of C, with the lock held and the region not begun. It does not behind
  one of Python, whose return leads right into the region. So there `Mutex` has one of Python, which releases a lock
  that it was interrupted behind: the lock itself counts how often its thread has it. (Where something evaluates frames
  in place of CPython (PEP 523), as PyTorch's compiler does while what it compiled runs, a function of Python is called
  as one of C is, and 3.14 looks behind it.)

Within a region there is one kind of place that belongs to no ``with`` and no ``try``. From 3.12 on CPython makes of a
jump back under a condition two, and its exception table lacks the second, where it looks for exceptions. Such jumps
have ``while``, a ``for`` with ``if`` or ``continue``, a comprehension with ``if``, and (3.14) ``any``, ``all`` or
``tuple`` of a generator expression. So a region has none of these: they are in a function that it calls.
"""

from __future__ import annotations

import sys
import threading
from typing import Any

from rocmkern.runtime.errors import ReentryError


class Mutex(type(threading.RLock())):  # type: ignore[misc]  # a class that `threading` has no public name for
    """A lock that its thread may take again; use it in ``with``, and see `alone`."""

    __slots__ = ()

    if sys.version_info >= (3, 14):

        def __enter__(self) -> bool:
            before = self._recursion_count()
            try:
                return self.acquire()
            except BaseException:
                if self._recursion_count() > before:
                    self.release()
                raise


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
