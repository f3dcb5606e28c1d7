"""The cpu target's helper threads: what is raised in the caller, or in a helper, leaves nobody at work."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from rocmkern.targets import workers

sys.path.append(str(Path(__file__).parents[1] / "runtime"))
from async_exceptions import everywhere, of_modules


class Blocks:
    """Work that notes which blocks are done, and how many threads are at it now."""

    def __init__(self, total, seconds=0.0):
        self.total, self.seconds = total, seconds
        self.done, self.inside, self.lock = [], 0, threading.Lock()

    def __call__(self, first, last):
        with self.lock:
            self.inside += 1
        time.sleep(self.seconds * (last - first))
        self.done += range(first, last)
        with self.lock:
            self.inside -= 1

    def run(self, threads, pool=workers.workers):
        pool.run(self, self.total, threads)


@pytest.mark.parametrize("threads", [1, 2, 3, 8])
@pytest.mark.parametrize("total", [1, 2, 47, 1000])
def test_every_block_is_done_once(total, threads):
    blocks = Blocks(total)
    blocks.run(threads)
    assert sorted(blocks.done) == list(range(total))


def test_nobody_works_any_more_after_an_exception_at_any_place():
    pool, came = workers.Workers(), threading.Event()  # of one helper: another one may still be at what was interrupted
    inside = number = helped = 0

    def work(first, last):
        nonlocal inside
        if threading.current_thread() is not threading.main_thread():
            inside += 1
            came.set()
            time.sleep(0.0002)
            inside -= 1
        else:
            assert came.wait(60)  # so that it has helped wherever there was something to interrupt

    def run():
        came.clear()
        pool.run(work, 12, 2)

    run()  # the helper is there
    for number in everywhere(run, of_modules(workers)):
        assert inside == 0, number
        helped += came.is_set()
    assert number > 100 and helped > 40  # what follows the first block alone is 80 instructions
    blocks = Blocks(100)
    blocks.run(2, pool)
    assert len(blocks.done) == 100


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="this system has no timers")
@pytest.mark.parametrize("threads", [2, 4])
def test_a_handler_that_raises_again_and_again_waits_for_the_helpers(threads):
    armed = False

    def interrupt(number, frame):
        if armed:
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    interrupts = 0
    try:
        for attempt in range(40):
            blocks = Blocks(200, 0.0015)
            try:
                armed = True
                signal.setitimer(signal.ITIMER_REAL, 0.0001 + 0.0002 * attempt, 0.0004)
                blocks.run(threads)
                armed = False
            except KeyboardInterrupt:
                armed = False  # no exception comes between the two lines
                at_work, done = blocks.inside, len(blocks.done)
                interrupts += 1
                # The caller's own share may have been left in the middle of its Python code.
                assert at_work <= 1
                time.sleep(0.004)
                assert len(blocks.done) == done
            signal.setitimer(signal.ITIMER_REAL, 0)
    finally:
        signal.signal(signal.SIGALRM, before)
    assert interrupts > 20


def test_an_interrupt_does_not_wait_for_the_rest_of_the_work():
    blocks = Blocks(100_000, 0.0005)

    def interrupt(first, last):
        if threading.current_thread() is threading.main_thread() and len(blocks.done) > 20:
            raise KeyboardInterrupt
        blocks(first, last)

    with pytest.raises(KeyboardInterrupt):
        workers.workers.run(interrupt, blocks.total, 2)
    assert len(blocks.done) < blocks.total // 2


def test_what_a_helper_raises_reaches_the_caller():
    came = threading.Event()

    def work(first, last):
        if threading.current_thread() is not threading.main_thread():
            came.set()
            raise ZeroDivisionError("in a helper")
        assert came.wait(60)

    with pytest.raises(ZeroDivisionError, match="in a helper"):
        workers.workers.run(work, 64, 2)
    blocks = Blocks(64)
    blocks.run(2)
    assert sorted(blocks.done) == list(range(64))


def test_calls_of_several_threads_share_the_helpers():
    def run(number):
        blocks = Blocks(60 + number, 1e-5)
        blocks.run(3)
        return sorted(blocks.done) == list(range(60 + number))

    pool = workers.Workers()
    with ThreadPoolExecutor(8) as threads:
        assert all(threads.map(run, range(200)))
    assert len(pool._threads) == 0 and len(workers.workers._threads) <= 7


def test_the_caller_does_everything_where_no_thread_can_be_had(monkeypatch):
    def refuse(thread):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    blocks = Blocks(64)
    blocks.run(4, workers.Workers())
    assert sorted(blocks.done) == list(range(64))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_child_that_is_forked_during_a_launch_of_another_thread_works():
    blocks, started = Blocks(200, 0.001), threading.Event()

    def launch():
        started.set()
        blocks.run(3)

    thread = threading.Thread(target=launch)
    with workers.workers._growing:  # as if another thread was just starting one
        thread.start()
        started.wait()
        child = os.fork()
        if child == 0:
            own = Blocks(64)
            own.run(3)
            os._exit(0 if sorted(own.done) == list(range(64)) else 1)
    end = time.monotonic() + 30
    status = 0
    while time.monotonic() < end:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            break
        time.sleep(0.01)
    else:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        pytest.fail("the child hangs")
    thread.join(30)
    assert status == 0 and len(blocks.done) == 200


SCRIPT = """
import json, signal, sys, time
import numpy as np
import rocmkern

def interrupt(number, frame):
    raise KeyboardInterrupt

x = np.random.default_rng(0).standard_normal((20_000, 63), dtype=np.float32)
out, right = np.zeros_like(x), rocmkern.softmax(x)
signal.signal(signal.SIGALRM, interrupt)
interrupts = changed = wrong = 0
for attempt in range(60):
    try:
        signal.setitimer(signal.ITIMER_REAL, 1e-4 + 5e-5 * attempt)
        rocmkern.softmax(x, out=out) if attempt % 2 else rocmkern.softmax(x)
        signal.setitimer(signal.ITIMER_REAL, 0)
    except KeyboardInterrupt:
        interrupts += 1
        after = out.copy()
        time.sleep(0.002)
        changed += not np.array_equal(after, out)
    wrong += not np.array_equal(rocmkern.softmax(x), right)
print(json.dumps([interrupts > 10, changed, wrong]))
"""


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="this system has no timers")
@pytest.mark.parametrize("threads", ["4", "8"])
def test_no_operation_writes_after_an_interrupt(script, threads):
    assert script(SCRIPT, ROCMKERN_NUM_THREADS=threads, ROCMKERN_TARGET="cpu") == [True, 0, 0]
