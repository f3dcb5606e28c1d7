"""Compilations go on where their callers are interrupted, and nobody waits for what waits for him."""

from __future__ import annotations

import contextvars
import logging
import os
import sys
import threading
import traceback
import warnings
from pathlib import Path

import pytest
from numba.core import compiler_lock

from rocmkern import targets
from rocmkern.runtime.once import once
from rocmkern.targets import apart as module
from rocmkern.targets.apart import apart

RUNTIME = Path(__file__).parents[1] / "runtime"
ident = threading.get_ident
variable = contextvars.ContextVar("variable")


def test_a_result_comes_from_another_thread_which_the_interpreter_waits_for():
    found = []

    def work():
        found.append(threading.current_thread())
        return "made"

    caller = threading.Thread(target=lambda: found.append(apart(work)), daemon=True)
    caller.start()
    caller.join()
    assert found[1] == "made" and found[0] is not caller and not found[0].daemon


@pytest.mark.parametrize("kind", [ValueError, KeyboardInterrupt, SystemExit])
def test_an_error_is_the_callers_with_the_place_where_it_was_raised(kind):
    def innermost():
        raise kind("said")

    with pytest.raises(kind, match="said") as caught:
        apart(innermost)
    names = [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]
    assert names[0] == "test_an_error_is_the_callers_with_the_place_where_it_was_raised" and names[-1] == "innermost"


def test_the_thread_has_the_context_of_its_caller():
    variable.set("the caller's")
    with targets.using("python"):
        assert apart(lambda: (variable.get(), targets.target().name)) == ("the caller's", "python")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(UserWarning, match="as an error"):
            apart(lambda: warnings.warn("as an error", stacklevel=1))
    with pytest.warns(UserWarning, match="as a warning"):
        apart(lambda: warnings.warn("as a warning", stacklevel=1))


def in_once():
    made = once(lambda: apart(ident))
    return made()


def in_logging():
    with logging._lock:
        return apart(ident)


def in_numba():
    pytest.importorskip("numba")
    from numba.core.compiler_lock import global_compiler_lock

    with global_compiler_lock:
        return apart(ident)


@pytest.mark.parametrize("within", [in_once, in_logging, in_numba])
def test_who_has_a_lock_that_the_thread_would_wait_for_works_himself(within):
    assert within() == ident()
    assert apart(ident) != ident()


class TwoLocks:
    """As numba-cuda's: its own, around a lock of Python's, and numba's."""

    def __init__(self):
        self._mine, self._numbas = threading.RLock(), compiler_lock._CompilerLock()


@pytest.mark.parametrize("make", [threading.RLock, compiler_lock._CompilerLock, TwoLocks])
def test_locks_of_compilers_are_seen_to_be_held(make):
    lock = make()
    inner = getattr(lock, "_numbas", lock)
    assert not module._is_held(lock)
    inner.acquire()
    assert module._is_held(lock)
    there = []
    other = threading.Thread(target=lambda: there.append(module._is_held(lock)))
    other.start()
    other.join()
    assert there == [False], "another thread has it"
    inner.release()
    assert not module._is_held(lock)


def test_who_imports_what_a_compilation_imports_works_himself(tmp_path, monkeypatch):
    source = "import threading\nfrom rocmkern.targets.apart import apart\nwho = apart(threading.get_ident)\n"
    for name in ("compiler_of_a_test", "another_of_a_test"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("from . import inner\n")
        (tmp_path / name / "inner.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(module, "_PACKAGES", frozenset(["compiler_of_a_test"]))
    try:
        import another_of_a_test
        import compiler_of_a_test
    finally:
        for name in [name for name in sys.modules if name.partition(".")[0].endswith("_of_a_test")]:
            del sys.modules[name]
    assert compiler_of_a_test.inner.who == ident() and another_of_a_test.inner.who != ident()


def test_without_threads_the_caller_works(monkeypatch):
    def start(thread):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)
    assert apart(ident) == ident()


def test_an_error_of_what_starts_the_thread_is_the_callers(monkeypatch):
    def start(thread):
        raise MemoryError("no room for a thread")

    monkeypatch.setattr(threading.Thread, "start", start)
    with pytest.raises(MemoryError, match="no room"):
        apart(ident)


def test_while_the_interpreter_ends_the_caller_works(monkeypatch):
    monkeypatch.setattr(sys, "is_finalizing", lambda: True)
    assert apart(ident) == ident()


START = """
import atexit, ctypes, json, os, signal, sys, threading, time
import numpy as np
import target_kernels as k
from rocmkern.targets import cache, cpu
from rocmkern.targets.cpu import CpuTarget
from rocmkern.targets.cpu import compile_entry as really

begun, go, threads, made = threading.Event(), threading.Event(), [], []

def compile_entry(*variant):
    threads.append(threading.get_ident())
    begun.set()
    go.wait(60)
    made.append(really(*variant))
    return made[-1]

cpu.compile_entry = compile_entry
target, x = CpuTarget(), k.data()
out = x * 0

def local():
    # What depends on more than its file is kept on no disk.
    def square(cfg, *tensors):
        return None
    kernel = type(k.square)(k.square.__code__, k.square.__globals__ | {"square": None}, "square")
    kernel.__dict__.update(k.square.__dict__)
    return kernel

def launch(kernel=k.square):
    out[:] = np.nan
    target.launch(kernel, k.Config(arch=target.arch), (-(-len(x) // 4), 1, 1), [x, out])
    return k.is_right(out)

class Asked(BaseException):
    pass

def interrupt(number, frame):
    raise KeyboardInterrupt

main = threading.get_ident()

def interrupted(how, delay, kernel=k.square):
    # Whether the call was.
    def ask():
        begun.wait(60)
        time.sleep(delay)
        if how == "signal":
            signal.pthread_kill(main, signal.SIGINT)
        else:
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(main), ctypes.py_object(Asked))
    asking = threading.Thread(target=ask)
    asking.start()
    try:
        launch(kernel)
    except (Asked, KeyboardInterrupt):
        return True
    finally:
        asking.join()
    return False

signal.signal(signal.SIGINT, interrupt)
"""

INTERRUPTED = """
report = []
for kernel in (k.square, local()):
    begun.clear(), go.clear(), threads.clear()
    prompt = [interrupted(how, 0.05, kernel) for how in ("signal", "thread", "signal")]
    unfinished = not made
    go.set()
    right = launch(kernel)
    report.append([all(prompt) and unfinished, right, len(threads), main in threads])
    made.clear()
    target.__init__()
    report.append([launch(kernel), len(threads), launch(kernel)])
print(json.dumps(report))
"""

TWO = """
results = []
others = [threading.Thread(target=lambda: results.append(launch())) for _ in range(2)]
took = interrupted("signal", 0.05)
go.set()
for other in others:
    other.start()
    other.join()
print(json.dumps([took, results, len(threads)]))
"""

HANDLER = """
inner = []

def handler(number, frame):
    go.set()
    inner.append(launch())
    child = os.fork()
    if child == 0:
        inner.append("child")
    else:
        inner.append(os.waitpid(child, 0)[1])

signal.signal(signal.SIGALRM, handler)
signal.setitimer(signal.ITIMER_REAL, 0.3)
right = launch()
if "child" in inner:
    os._exit(0 if right and launch() else 1)
print(json.dumps([right, inner, len(threads)]))
"""

FINALIZER = """
import gc
from rocmkern.runtime.errors import ReentryError
outcome = []

class Cycle:
    def __init__(self):
        self.me = self
    def __del__(self):
        try:
            outcome.append(launch(other))
        except ReentryError:
            outcome.append("refused")

def compile_entry(*variant):
    gc.collect()
    return really(*variant)

other = local()
cpu.compile_entry = compile_entry
gc.disable()  # until then
Cycle()
print(json.dumps([launch(), outcome]))
"""

LEAVING = """
atexit.register(lambda: print(json.dumps([len(threads), launch(), len(threads), len(os.listdir(sys.argv[1]))])))
interrupted("signal", 0.05)
go.set()
"""


def test_an_interrupted_compilation_goes_on_and_the_next_call_has_what_it_made(script_with, tmp_path):
    """Kept on disk, and (a kernel that no disk keeps) in memory; another target compiles the latter again."""
    kept, local = [[True, True, 1, False], [True, 1, True]], [[True, True, 1, False], [True, 2, True]]
    assert script_with(tmp_path)(START + INTERRUPTED) == [*kept, *local]


def test_others_wait_for_what_a_caller_has_left(script_with, tmp_path):
    assert script_with(tmp_path)(START + TWO) == [True, [True, True], 1]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_signal_handler_that_needs_what_is_compiled_waits_for_it_and_its_child_goes_on(script_with, tmp_path):
    assert script_with(tmp_path)(START + HANDLER, ROCMKERN_NUM_THREADS="1") == [True, [True, 0], 1]


def test_a_finalizer_within_a_compilation_is_refused_where_it_would_wait_for_it(script_with, tmp_path):
    assert script_with(tmp_path)(START + FINALIZER) == [True, ["refused"]]


def test_the_interpreter_ends_when_what_was_interrupted_is_done(script_with, tmp_path):
    """And what is called behind that finds it: in memory, and (one entry, and the folder of locks) on disk."""
    assert script_with(tmp_path)(START + LEAVING, str(tmp_path)) == [1, True, 1, 2]


TORN = """
import json, random, signal, time
import numpy as np
import rocmkern
from rocmkern.targets import cpu

def interrupt(number, frame):
    raise KeyboardInterrupt

signal.signal(signal.SIGALRM, interrupt)
x = np.random.default_rng(0).standard_normal((20, 63), dtype=np.float32)
exact = np.exp(x.astype(np.float64)) / np.exp(x.astype(np.float64)).sum(1, keepdims=True)
draw, interrupts = random.Random(SEED), 0
for _ in range(40):
    try:
        signal.setitimer(signal.ITIMER_REAL, draw.uniform(0.001, 0.2))
        rocmkern.softmax(x)
        signal.setitimer(signal.ITIMER_REAL, 0)
        break
    except BaseException as error:
        # Up to Python 3.11 what is raised while a class gets its attributes is the cause of a RuntimeError.
        if not isinstance(error.__cause__ or error, KeyboardInterrupt):
            raise
        interrupts += 1
print(json.dumps([interrupts > 2, bool(np.allclose(rocmkern.softmax(x), exact, rtol=1e-5)), cpu.compiled()]))
"""


@pytest.mark.parametrize("seed", [1, 2])
def test_a_first_call_that_is_interrupted_at_random_moments(script_with, tmp_path, seed):
    settings = {"ROCMKERN_TARGET": "cpu", "ROCMKERN_QUIET": "1"}
    assert script_with(tmp_path)(f"SEED = {seed}\n" + TORN, **settings) == [True, True, 1]


PLACES = """
import faulthandler, json, sys, threading
sys.path.insert(0, sys.argv[1])
from async_exceptions import interrupted, of_modules
from rocmkern.targets import apart as module

faulthandler.dump_traceback_later(100, exit=True)
sys.unraisablehook = lambda ignored: None  # of a thread that an exception was raised in before it began
at = 0
while interrupted(lambda: module.apart(lambda: None), of_modules(threading, module), at):
    at += 1
print(json.dumps([at > 50, module.apart(lambda: "made")]))
"""


def test_it_may_be_interrupted_anywhere_and_the_interpreter_ends(script_with, tmp_path):
    """The functions of `threading` too: the new thread is one that nobody else waits for."""
    assert script_with(tmp_path)(PLACES, str(RUNTIME)) == [True, "made"]


IMPORTS = """
import json, os, signal, sys
sys.path.insert(0, sys.argv[1])
import numpy as np
import numpy.random
import rocmkern
import rocmkern.targets.cpu
from async_exceptions import interrupted

def of_importlib(code):
    return code.co_name == "_get_module_lock" and code.co_filename == "<frozen importlib._bootstrap>"

report, x = [], np.zeros((20, 50), np.float32)
for at in range(2, 6):
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        was = interrupted(lambda: rocmkern.softmax(x), of_importlib, at)
        os._exit(0 if was and (rocmkern.softmax(x) == np.float32(0.02)).all() else 1)
    report.append(os.waitpid(child, 0)[1])
print(json.dumps(report))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_an_import_that_was_interrupted_leaves_nothing_locked(script_with, tmp_path):
    """importlib takes the lock of all imports a few instructions before the ``try`` that releases it."""
    settings = {"ROCMKERN_TARGET": "cpu", "ROCMKERN_QUIET": "1"}
    assert script_with(tmp_path)(IMPORTS, str(RUNTIME), **settings) == [0] * 4
