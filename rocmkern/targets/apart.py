"""Work that no exception from outside can tear: it is done in a thread of its own, and its caller only waits for it.

Compilers do not bear an exception between any two instructions: LLVM's modules would be freed twice, and numba's lock
would be held for ever. Python raises KeyboardInterrupt in the main thread, and what `PyThreadState_SetAsyncExc` asks
for in a thread that somebody knows. Nobody knows the thread that works here. A caller that is interrupted has its
exception at once; the work goes on, and who wants it too finds what it has left.

The thread sees the caller's context variables, and its errors are the caller's. The interpreter does not end before it:
a process must not tear LLVM down while a thread is within.

Where the thread might wait for what its caller holds, the caller does the work itself, and so it does where no thread
can be had, as at the end of the interpreter.
"""

from __future__ import annotations

import contextvars
import logging
import os
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any, Generic, TypeVar

from rocmkern.runtime.once import making

Result = TypeVar("Result")

#: Exceptions that a thread asks for are raised between two instructions only, so that nobody waits for longer at once.
_LOOK_S = 0.05
#: What a compilation imports.
_PACKAGES = frozenset(["llvmlite", "numba", "rocmkern"])
#: The locks of numba, and numba-cuda's own.
_COMPILERS = ("numba.core.compiler_lock", "numba.cuda.core.compiler_lock")
_LOCK_OF_A_THREAD = type(threading.RLock())


class _Job(Generic[Result]):
    """Work, and what came of it once `over` can be had."""

    def __init__(self, work: Callable[[], Result]):
        self._work, self._context = work, contextvars.copy_context()
        self._result: list[Result] = []
        self._error: BaseException | None = None
        self.over = threading.Lock()
        self.over.acquire()

    def do(self) -> None:
        """In the thread."""
        try:
            self._result.append(self._context.run(self._work))
        except BaseException as error:
            self._error = error
        finally:
            self.over.release()

    def outcome(self) -> Result:
        """In the caller."""
        error, self._error = self._error, None
        if error is not None:
            try:
                raise error
            finally:
                del error  # it knows this frame
        return self._result[0]


def apart(work: Callable[[], Result]) -> Result:
    """Do some work in a thread of its own (see this module), wait, and return or raise what it does."""
    if _holds_what_is_needed():
        return work()
    job, process = _Job(work), os.getpid()
    try:
        threading.Thread(target=job.do, name="rocmkern-compiler", daemon=False).start()
    except RuntimeError:
        return work()
    while not job.over.acquire(timeout=_LOOK_S):
        if os.getpid() != process:
            return work()  # a signal's handler has forked, and this is the child: the thread is the parent's
    return job.outcome()


def _holds_what_is_needed() -> bool:
    """Whether the calling thread has a lock that a compilation takes: in a signal's handler, say, or in an import."""
    compilers = [module.global_compiler_lock for module in map(sys.modules.get, _COMPILERS) if module is not None]
    return (
        making()
        or logging._lock._is_owned()  # type: ignore[attr-defined]  # there is no public one
        or any(map(_is_held, compilers))
        or _imports()
    )


def _is_held(lock: Any) -> bool:
    """Whether this thread holds a lock of numba's: one of Python's, or an object of some."""
    if isinstance(lock, _LOCK_OF_A_THREAD):
        return bool(lock._is_owned())  # type: ignore[attr-defined]  # what `threading.Condition` asks too
    return any(map(_is_held, vars(lock).values()))


def _imports() -> bool:
    """Whether this thread is importing what a compilation imports: it has the lock of a module."""
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        code = frame.f_code
        if code.co_name == "_find_and_load" and code.co_filename == "<frozen importlib._bootstrap>":
            name = frame.f_locals.get("name")
            if isinstance(name, str) and name.partition(".")[0] in _PACKAGES:
                return True
        frame = frame.f_back
    return False
