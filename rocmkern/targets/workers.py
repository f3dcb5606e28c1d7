"""Threads that share the blocks of a launch on the CPU, and a caller that never leaves while one of them is inside.

The caller works too, and comes back only when nobody works on its arrays any more, whatever is raised in it, and
however often: Python raises KeyboardInterrupt, and what `PyThreadState_SetAsyncExc` asks for, between two bytecodes, so
also within the ``finally`` that waits. Therefore the waiting is *one call of C*, which nothing can come into:

* ``job.starts`` is one iterator over the numbers of all blocks. Whoever works takes the next few from it;
* helpers hold the job's *gate*, a lock: the first that enters acquires it, the last that leaves releases it. They enter
  before they take blocks;
* to leave, the caller lets `collections.deque` run through an iterator of C functions: what is left of ``job.starts``
  (nobody finds a block any more, which cancels the job), then the acquisition of the gate (nobody is inside any more),
  then its return.

CPython looks for such exceptions when a function of Python begins, when a loop goes round and after a call, and looks
up the handler of the call then. So in ``try: ... finally: leave(steps)`` there is no place before ``leave`` where one
could be raised, and behind it there is nothing left to do. The lock is one of Python's C API, because waiting for a
`threading.Lock` ends when a signal's handler raises. The helpers are threads that nobody else knows: signals are
handled in the main thread, so nothing is raised in them.

Interruption is prompt: what is taken at once is one block, or as many as take about a millisecond.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import os
import queue
import threading
from collections import deque
from collections.abc import Callable, Iterator
from time import perf_counter

from rocmkern.runtime.mutex import Mutex

_TAKES_PER_THREAD = 16  # at least, so that all threads end at about the same time
_SHORT_S, _LONG_S = 0.5e-3, 2e-3  # a worker takes more blocks at once, or fewer

# Prototypes of ctypes release the GIL during the call, unlike the functions of `ctypes.pythonapi`.
_allocate = ctypes.CFUNCTYPE(ctypes.c_void_p)(("PyThread_allocate_lock", ctypes.pythonapi))
_acquire = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_int)(("PyThread_acquire_lock", ctypes.pythonapi))
_release = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(("PyThread_release_lock", ctypes.pythonapi))
_NO_WAIT, _WAIT = 0, 1

Work = Callable[[int, int], None]
"""Does the blocks from a first one up to another one, which is not among them."""

_leave = deque[object](maxlen=0).extend


class _Job:
    """One launch: see this module."""

    __slots__ = ("_inside", "_mutex", "error", "gate", "over", "share", "starts", "work")

    def __init__(self, work: Work, total: int, share: int, gate: int):
        self.work, self.share, self.gate = work, share, gate
        self.starts: Iterator[int] = iter(range(total))
        self.error: BaseException | None = None
        self.over = False
        self._mutex, self._inside = threading.Lock(), 0

    def do(self) -> None:
        """Take blocks until there are none left."""
        work, starts, share = self.work, self.starts, self.share
        count = 1
        while taken := list(itertools.islice(starts, count)):  # one call of C: consecutive blocks
            begin = perf_counter()
            work(taken[0], taken[-1] + 1)
            took = perf_counter() - begin
            if took < _SHORT_S:
                count = min(2 * count, share)
            elif took > _LONG_S:
                count = max(1, count // 2)

    def help(self) -> None:
        """Work as a helper, if there is still something to do."""
        if self.over or not self._enter():
            return
        try:
            self.do()
        except BaseException as error:
            self.error = error
        finally:
            with self._mutex:
                self._inside -= 1
                if not self._inside:
                    _release(self.gate)

    def _enter(self) -> bool:
        with self._mutex:
            # If the gate is taken before anybody has entered, it is the caller's, who leaves.
            if not self._inside and not _acquire(self.gate, _NO_WAIT):
                return False
            self._inside += 1
            return True


class Workers:
    """Helper threads, started when they are first needed; a forked child starts its own."""

    def __init__(self) -> None:
        self._reset()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._reset)

    def _reset(self) -> None:
        # A forked child has none of its parent's threads, and they may have held any of this.
        self._threads: list[threading.Thread] = []
        self._growing = Mutex()
        self._offers: queue.SimpleQueue[_Job] = queue.SimpleQueue()
        self._gates: list[int] = []  # that no job uses; they are kept, as a helper that comes too late looks at one

    def run(self, work: Work, total: int, threads: int) -> None:
        """Do the blocks 0 to `total` and wait for them; `threads` threads share them, of which the caller is one.

        Calls may come from several threads at once. What a helper raises is raised here.
        """
        share = max(1, total // (threads * _TAKES_PER_THREAD))
        helpers = min(threads, -(-total // share)) - 1
        if helpers < 1:
            _Job(work, total, total, 0).do()  # there is nobody to leave blocks to
            return
        gates = self._gates
        gate = gates.pop() if gates else _allocate()
        job = _Job(work, total, share, gate)
        # It is over before its gate may be another job's: a helper that comes too late leaves that alone.
        steps = itertools.chain(
            job.starts, map(_acquire, (gate,), (_WAIT,)), map(setattr, (job,), ("over",), (True,)),
            map(_release, (gate,)), map(gates.append, (gate,)),
        )  # fmt: skip
        try:
            self._offer(job, helpers)
            job.do()
        finally:
            _leave(steps)
        if job.error is not None:
            raise job.error

    def _offer(self, job: _Job, helpers: int) -> None:
        if len(self._threads) < helpers:
            # At interpreter shutdown no thread can be had any more: the caller then does all of the work.
            with contextlib.suppress(RuntimeError), self._growing:
                self._grow(helpers)
        for _ in range(helpers):
            self._offers.put(job)

    def _grow(self, helpers: int) -> None:
        while len(self._threads) < helpers:
            name = f"rocmkern-{len(self._threads)}"
            thread = threading.Thread(target=_serve, args=(self._offers,), name=name, daemon=True)
            thread.start()
            self._threads.append(thread)


def _serve(offers: queue.SimpleQueue[_Job]) -> None:
    while True:
        offers.get().help()


#: Those of this process: as many as the launch needs that has the most threads.
workers: Workers = Workers()
