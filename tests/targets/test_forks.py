"""Children of a process that works with threads, and its end."""

from __future__ import annotations

import os

import pytest

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")

START = """
import atexit, json, multiprocessing, os, signal, sys, threading, time, warnings
import numpy as np
import rocmkern

warnings.simplefilter("ignore", DeprecationWarning)
x = np.random.default_rng(0).standard_normal((2000, 63), dtype=np.float32)
right = rocmkern.softmax(x)

def fine():
    manager = rocmkern.default_manager("host")
    both = rocmkern.softmax(x), rocmkern.softmax(manager.from_numpy(x)).to_numpy()
    return all(np.array_equal(each, right) for each in both)

# All is imported that calls need: who forks while another thread imports has a child whose import of the same module
# waits for ever, for a lock of Python's own.
fine()

def answer(queue):
    queue.put(fine())

def status_of(child, seconds=60):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return status
        time.sleep(0.01)
    os.kill(child, signal.SIGKILL)
    return "it hangs"

def forked():
    child = os.fork()
    if child == 0:
        status = 1
        try:
            status = 0 if fine() else 2
        finally:
            os._exit(status)
    return status_of(child)

def work():
    while not over:
        rocmkern.softmax(x)
        fine()

over = False
"""

CHILDREN = """
threads = [threading.Thread(target=work) for _ in range(2)]
for thread in threads:
    thread.start()
statuses = [forked() for _ in range(8)]
in_thread = threading.Thread(target=lambda: statuses.append(forked()))
in_thread.start()
in_thread.join()
queue = multiprocessing.get_context("fork").Queue()
child = multiprocessing.get_context("fork").Process(target=answer, args=(queue,))
child.start()
statuses.append(0 if queue.get(timeout=60) else "wrong")
child.join()
over = True
print(json.dumps(statuses))
"""

END = """
for _ in range(2):
    threading.Thread(target=work, daemon=True).start()
time.sleep(0.05)
atexit.register(lambda: print(json.dumps(fine())))
"""

HANDLERS = """
called = wrong = refused = 0

def handler(number, frame):
    global called, wrong, refused
    try:
        bad = not fine()
        wrong += bad
    except rocmkern.runtime.errors.ReentryError:
        refused += 1
    called += 1

tensor = rocmkern.default_manager("host").from_numpy(x)
signal.signal(signal.SIGALRM, handler)
outer = calls = 0
while called < 40:
    signal.setitimer(signal.ITIMER_REAL, 0.0005 + 0.0001 * (calls % 30))
    outer += not np.array_equal(rocmkern.softmax(tensor).to_numpy(), right)
    outer += not np.array_equal(rocmkern.softmax(x), right)
    calls += 1
signal.setitimer(signal.ITIMER_REAL, 0)
print(json.dumps([wrong, outer, refused < called]))
"""

COMPILATION = """
import logging
from types import SimpleNamespace
from rocmkern.targets import cache

compiler, begun = threading.RLock(), threading.Event()
key = SimpleNamespace(kept=False, kernel="module.kernel", arch="cpu")

def make(seconds):
    with compiler:
        begun.set()
        time.sleep(seconds)
        logging.getLogger(f"compiler.{time.time()}").isEnabledFor(logging.DEBUG)
        return "made"

def obtain(seconds):
    return cache.obtain(key, lambda: "", lambda: make(seconds), lambda entry: entry)

thread = threading.Thread(target=obtain, args=(0.5,))
thread.start()
begun.wait(30)
child = os.fork()
if child == 0:
    os._exit(0 if obtain(0) == "made" else 1)
thread.join()
print(json.dumps(status_of(child, 20)))
"""


def test_children_of_a_process_that_is_at_work(script):
    assert script(START + CHILDREN, ROCMKERN_TARGET="cpu", ROCMKERN_NUM_THREADS="3") == [0] * 10


def test_calls_at_the_end_of_the_interpreter_while_other_threads_work(script):
    assert script(START + END, ROCMKERN_TARGET="cpu", ROCMKERN_NUM_THREADS="3") is True


def test_signal_handlers_that_call_operations(script):
    assert script(START + HANDLERS, ROCMKERN_TARGET="cpu", ROCMKERN_NUM_THREADS="3") == [0, 0, True]


def test_a_fork_waits_for_a_compilation(script):
    assert script(START + COMPILATION) == 0


WITHIN_IMPORT = """
from rocmkern.calls import adapters

tensor = rocmkern.default_manager("host").from_numpy(x)
adapters._adapters.clear()  # as before the first of these arrays came
whole, name = adapters.tensors, adapters.tensors.__name__
del adapters.tensors
half = sys.modules[name] = type(sys)(name)  # as it is while another call imports it
half.__spec__ = type("Spec", (), {"_initializing": True, "name": name, "origin": None})()
try:
    rocmkern.softmax(tensor)
except rocmkern.runtime.errors.ReentryError as error:
    said = str(error)
sys.modules[name] = whole
print(json.dumps([said, bool(np.array_equal(rocmkern.softmax(tensor).to_numpy(), right))]))
"""


def test_a_call_within_the_import_of_what_it_needs_is_refused(script):
    said, right = script(START + WITHIN_IMPORT, ROCMKERN_TARGET="cpu")
    assert said.startswith("softmax: a signal handler") and right


FREE = """
import json, os, threading
from rocmkern.runtime import fork

class Owner:
    def __init__(self):
        self.lock = threading.RLock()

def had(lock, seconds=5):
    found = []
    thread = threading.Thread(target=lambda: found.append(lock.acquire(timeout=seconds) and lock.release() is None))
    thread.start()
    thread.join()
    return found[0]

def forked(owner):
    child = os.fork()
    if child == 0:
        os._exit(0 if had(owner.lock) else 1)
    return os.waitpid(child, 0)[1]

fork._PATIENCE_S = 0.2
idle, held = Owner(), Owner()
release, holding = threading.Event(), threading.Event()

def hold():
    with held.lock:
        holding.set()
        release.wait(60)

fork.await_lock(idle, "lock")
said = [forked(idle), had(idle.lock)]
fork.await_lock(held, "lock")
holder = threading.Thread(target=hold)
holder.start()
holding.wait(60)
said += [forked(held), had(held.lock, 0.01)]
release.set()
holder.join()
print(json.dumps([*said, had(held.lock), had(idle.lock)]))
"""


def test_behind_a_fork_the_locks_that_it_waits_for_are_free_on_both_sides(script):
    """But for the parent's that another thread has for longer than a fork waits."""
    assert script(FREE) == [0, True, 0, False, True, True]
