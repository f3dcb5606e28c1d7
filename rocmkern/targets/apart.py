"""Work that no exception from outside can tear: it is done in a thread of its own, and its caller only waits for it.

Compilers do not bear an exception between any two instructions: LLVM's modules would be freed twice, and numba's lock
would be held for ever. Python raises KeyboardInterrupt in the main thread, and what `PyThreadState_SetAsyncExc` asks
for in a thread that somebody knows. Nobody knows the thread that works here. A caller that is interrupted has its
exception at once; the work goes on, and who wants it too finds what it has left.

The thread sees the caller's context variables, and its errors are the caller's. The interpreter does not end before it:
a process must not tear LLVM down while a thread is within.

`threading.Thread.start` is itself not to be torn: it waits under a lock of Python's, and where that stays locked the
new thread never comes. So what the caller does is one call of C, which starts a thread that starts the one that works.
(Until it runs, CPython takes a thread for the one that made it. An exception that somebody asks for just then ends it
instead of interrupting the caller, who sees that nobody has begun, and starts another.)

Where the thread might wait for what its caller holds, the caller does the work itself, and so it does where no thread
can be had, as at the end of the interpreter. What an interrupted import has left locked is unlocked, as the thread
would wait for it for ever: CPython's importlib takes the lock of all imports, and may be interrupted before its
``try``. (So it would be for a caller who has taken that lock himself: nothing tells one from the other.)
"""

from __future__ import annotations

import _imp
import _thread
import contextlib
import contextvars
import logging
import os
import sys
import threading
from collections.abc import Callable, Iterator
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
    """Work, and what came of it once `over` can be had; `begun` is taken by the one thread that does it."""

    def __init__(self, work: Callable[[], Result]):
        self._work, self._context = work, contextvars.copy_context()
        self._result: list[Result] = []
        self._error: BaseException | None = None
        self.begun, self.over = threading.Lock(), threading.Lock()
        self.over.acquire()
        self.without_thread = False

    def begin(self) -> None:
        """In a thread that ends with this call."""
        if self.begun.acquire(blocking=False):
            try:
                # The interpreter waits for this kind of thread.
                threading.Thread(target=self._do, name="rocmkern-compiler", daemon=False).start()
            except BaseException as error:
                self._error, self.without_thread = error, isinstance(error, RuntimeError)
                self.over.release()

    def _do(self) -> None:
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
    if sys.is_finalizing() or _holds_what_is_needed():
        return work()
    job, process = _Job(work), os.getpid()
    while True:
        if not job.begun.locked():
            try:
                _thread.start_new_thread(job.begin, ())
            except RuntimeError:
                if job.begun.acquire(blocking=False):
                    return work()
        if job.over.acquire(timeout=_LOOK_S):
            return work() if job.without_thread else job.outcome()
        if os.getpid() != process:
            return work()  # a signal's handler has forked, and this is the child: the thread is the parent's


def _holds_what_is_needed() -> bool:
    """Whether the calling thread has a lock that a compilation takes: in a signal's handler, say, or in an import."""
    compilers = [module.global_compiler_lock for module in map(sys.modules.get, _COMPILERS) if module is not None]
    return (
        making()
        or logging._lock._is_owned()  # type: ignore[attr-defined]  # there is no public one
        or any(map(_is_held, compilers))
        or _imports()
        or _has_lock_of_imports()
    )


def _is_held(lock: Any) -> bool:
    """Whether this thread holds a lock of numba's: one of Python's, or an object of some."""
    if isinstance(lock, _LOCK_OF_A_THREAD):
        return bool(lock._is_owned())  # type: ignore[attr-defined]  # what `threading.Condition` asks too
    return any(map(_is_held, vars(lock).values()))


def _imports() -> bool:
    """Whether this thread is importing what a compilation imports: it has the lock of a module."""
    for frame in _frames_of_imports():
        name = frame.f_locals.get("name") if frame.f_code.co_name == "_find_and_load" else None
        if isinstance(name, str) and name.partition(".")[0] in _PACKAGES:
            return True
    return False


def _has_lock_of_imports() -> bool:
    """Whether this thread is within importlib, with the lock of all imports held; elsewhere it gives that up."""
    if not _imp.lock_held():
        return False
    if any(True for _ in _frames_of_imports()):
        return True
    with contextlib.suppress(RuntimeError):  # it is another thread's, or free at last
        while True:
            _imp.release_lock()
    return False


def _frames_of_imports() -> Iterator[FrameType]:
    """The frames of importlib in this thread."""
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if frame.f_code.co_filename == "<frozen importlib._bootstrap>":
            yield frame
        frame = frame.f_back
