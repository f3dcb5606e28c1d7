"""The worker process: results, failures with their whole text, deadlines, crashes, and a new one afterwards."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from pathlib import Path

import pytest

from rocmkern.matrix import CaseFailure
from rocmkern.runtime.device import DeviceInfo
from rocmkern.runtime.errors import DeadlineError, DriverError, LockTimeoutError
from rocmkern.runtime.probe import suspect
from rocmkern.testing import worker as module
from rocmkern.testing.worker import Worker, WorkerError, progress, using_device, waiting

HERE = Path(__file__).stem
CARD = DeviceInfo("hip", 0, "RX 7900 XT", "0000:03:00.0", False, 1 << 34, "gfx1100")


@pytest.fixture(scope="module")
def process():
    """One worker for all of these tests, as in a run: each must find it usable."""
    # The functions below are called in it by the name of this module.
    sys.path.insert(0, str(Path(__file__).parent))
    worker = Worker()
    yield worker
    worker.close()
    sys.path.remove(str(Path(__file__).parent))


def call(process, function, *arguments, **options):
    return process.call(f"{HERE}:{function.__name__}", *arguments, **options)


def add(a, b):
    return a + b, os.getpid()


def fail_case():
    raise CaseFailure("parity", "output out: WRONG\n  worst at (3,)", kernels=("softmax",))


def fail_otherwise():
    print("on the way")
    raise ZeroDivisionError("by nothing")


def leave():
    raise SystemExit(3)


def end(how):
    launch("softmax")
    if how == "abort":
        os.abort()
    os._exit(7)


def launch(name):
    from rocmkern.targets.launches import launching

    with launching(name):
        pass


def hang():
    using_device(CARD)
    launch("flash_attention")
    time.sleep(600)


def be_stuck(chained):
    using_device(CARD)
    if not chained:
        raise DeadlineError("softmax did not finish within 60 s")
    try:
        raise DeadlineError("softmax did not finish within 60 s")
    except DeadlineError as error:
        raise CaseFailure("error", "expected ArgumentError, got DeadlineError") from error


def lose_the_device():
    raise DriverError("hipMemcpyAsync", "hipErrorIllegalAddress", "hip:0")


def take_long(steps):
    for _ in range(steps):
        time.sleep(1.0)
        progress()
    return "done"


def wait_for_a_lock():
    with waiting():
        time.sleep(6)
    return "done"


def stay_on():
    threading.Thread(target=time.sleep, args=(600,)).start()


def say_much(letters):
    print("x" * letters + "the end")


def be_locked_out():
    raise LockTimeoutError("the lock was not free")


@pytest.fixture
def marks(tmp_path, monkeypatch):
    monkeypatch.setattr(suspect, "lock_directory", lambda: tmp_path)


def test_calls_are_answered_by_one_process(process):
    (three, pid), (text, same) = call(process, add, 1, 2), call(process, add, "a", "b")
    assert (three, text) == (3, "ab") and pid == same == process.pid != os.getpid()


def test_failures_of_the_matrix_arrive_as_themselves(process):
    with pytest.raises(CaseFailure) as caught:
        call(process, fail_case)
    assert caught.value.check == "parity" and caught.value.kernels == ("softmax",)
    assert str(caught.value) == "output out: WRONG\n  worst at (3,)\nkernels launched: softmax"


def test_other_failures_arrive_with_their_whole_text_and_what_was_printed(process):
    _, pid = call(process, add, 1, 1)
    with pytest.raises(WorkerError) as caught:
        call(process, fail_otherwise)
    assert caught.value.kind == "ZeroDivisionError"
    for words in ("Traceback", "in fail_otherwise", "ZeroDivisionError: by nothing"):
        assert words in str(caught.value)
    assert process.printed() == "on the way"
    assert call(process, add, 1, 1) == (2, pid) and process.printed() == "", "it goes on, with a new account"


def test_a_function_that_asks_to_exit_is_one_failure_of_that_name(process):
    _, pid = call(process, add, 1, 1)
    with pytest.raises(WorkerError, match="in leave") as caught:
        call(process, leave)
    assert caught.value.kind == "SystemExit"
    assert call(process, add, 1, 1) == (2, pid)


@pytest.mark.parametrize(("how", "words"), [("abort", "was ended by SIGABRT"), ("exit", "ended with status 7")])
def test_a_crash_is_one_failure_and_the_next_call_gets_a_new_process(process, how, words):
    _, before = call(process, add, 1, 1)
    with pytest.raises(WorkerError) as caught:
        call(process, end, how, what="softmax-row on cpu")
    assert caught.value.kind == "crash" and caught.value.kernel == "softmax"
    assert f"the worker process {before} {words} while it ran softmax-row on cpu" in str(caught.value)
    assert "the kernel launched last is softmax" in str(caught.value)
    assert ("in end" in str(caught.value)) == (how == "abort"), "where it crashed"
    assert call(process, add, 1, 1)[1] != before


def test_at_the_deadline_it_is_killed_and_the_device_marked(process, marks):
    _, before = call(process, add, 1, 1)
    with pytest.raises(WorkerError) as caught:
        call(process, hang, deadline_s=6, what="attention-row on hip")
    for words in (
        "attention-row on hip did not finish within 6 s; the kernel launched last is flash_attention",
        f"the worker process {before} was killed and the lock of hip:0 RX 7900 XT",
        "marked as suspect",
        "rocmkern doctor",
        "ending a hung kernel of an AMD card can reset the whole card, and with it a display that it drives",
    ):
        assert words in str(caught.value)
    assert caught.value.kind == "hang" and not os.path.exists(f"/proc/{before}")
    assert "attention-row on hip" in suspect.suspicion_of(CARD).reason
    assert call(process, add, 1, 1)[1] != before


@pytest.mark.parametrize("chained", [False, True], ids=["directly", "as the cause"])
def test_work_that_the_runtime_finds_stuck_is_a_hang_too(process, marks, chained):
    with pytest.raises(WorkerError) as caught:
        call(process, be_stuck, chained)
    assert caught.value.kind == "hang" and suspect.suspicion_of(CARD) is not None


def test_a_process_that_lost_its_device_is_replaced(process, marks):
    _, before = call(process, add, 1, 1)
    with pytest.raises(WorkerError, match="hipErrorIllegalAddress"):
        call(process, lose_the_device)
    assert call(process, add, 1, 1)[1] != before
    assert suspect.suspicions() == [], "the context is lost, not the device"


def test_progress_begins_the_deadline_anew_and_waiting_for_a_lock_stops_it(process):
    assert call(process, take_long, 6, deadline_s=5) == "done"
    assert call(process, wait_for_a_lock, deadline_s=5) == "done"


def test_a_lock_that_is_not_free_says_nothing_about_the_device(process, marks):
    _, before = call(process, add, 1, 1)
    with pytest.raises(LockTimeoutError):
        call(process, be_locked_out)
    assert call(process, add, 1, 1)[1] == before and suspect.suspicions() == []


def test_an_unknown_function_is_a_failure(process):
    with pytest.raises(WorkerError, match="nowhere"):
        process.call("nowhere_at_all:nothing")


def test_closing_ends_the_process(process):
    pid = call(process, add, 1, 1)[1]
    process.close()
    assert process.pid is None and not os.path.exists(f"/proc/{pid}")
    assert module.progress() is None, "in this process nobody listens"


def test_without_words_the_function_is_named(process):
    with pytest.raises(WorkerError, match=f"while it ran {HERE}:end; "):
        call(process, end, "exit")


def test_a_crash_before_a_launch_says_so(process):
    with pytest.raises(WorkerError, match="no kernel was launched") as caught:
        process.call("os:_exit", 3)
    assert caught.value.kernel is None and "ended with status 3" in str(caught.value)


def test_a_process_that_ended_between_two_calls_is_replaced(process):
    _, before = call(process, add, 1, 1)
    os.kill(before, signal.SIGKILL)
    os.waitid(os.P_PID, before, os.WEXITED | os.WNOWAIT)
    assert call(process, add, 1, 1)[1] != before


def test_a_process_that_takes_no_call_is_one_failure(process, monkeypatch):
    call(process, add, 1, 1)
    before = process.pid
    # It dies right after it was found alive.
    monkeypatch.setattr(process, "_ensure_started", lambda: os.kill(before, signal.SIGKILL) or time.sleep(0.5))
    with pytest.raises(WorkerError, match=f"the worker process {before} was ended by SIGKILL while it ran") as caught:
        call(process, add, b"x" * (1 << 20), b"")
    assert caught.value.kind == "crash" and process.pid is None


def test_ctrl_c_is_for_the_parent(process):
    _, before = call(process, add, 1, 1)
    os.kill(before, signal.SIGINT)
    assert call(process, add, 1, 1)[1] == before


def test_of_much_that_was_printed_the_end_is_shown(process):
    call(process, say_much, module.SHOWN - len("the end"))
    assert process.printed() == "x" * (module.SHOWN - len("the end")) + "the end"
    call(process, say_much, 2 * module.SHOWN)
    text = process.printed()
    assert text.startswith("...xxx") and text.endswith("xthe end") and len(text) == module.SHOWN + len("...")


def test_one_that_does_not_end_by_itself_is_killed(process, monkeypatch):
    monkeypatch.setattr(module, "END_S", 0.3)
    call(process, stay_on)
    ended = process._process
    process.close()
    assert ended.wait(60) == -signal.SIGKILL and ended.stdout.closed


def test_one_that_ends_by_itself_is_not_killed(process):
    call(process, add, 1, 1)
    ended = process._process
    process.close()
    assert ended.returncode == 0


def test_the_worker_of_this_process_is_made_once_and_again_after_it_was_closed(process, monkeypatch):
    monkeypatch.setattr(module, "_shared", None)
    module.close_shared_worker()
    shared = module.shared_worker()
    pid = call(shared, add, 1, 1)[1]
    assert module.shared_worker() is shared
    module.close_shared_worker()
    assert not os.path.exists(f"/proc/{pid}") and module.shared_worker() is not shared
    module.close_shared_worker()


def test_a_process_that_not_even_a_kill_ends_is_said_to_hold_on(monkeypatch, marks):
    class Process:
        """As one whose driver does not let it go."""

        pid, returncode = 4321, None

        def kill(self):
            pass

        def wait(self, seconds):
            raise module.subprocess.TimeoutExpired("worker", seconds)

    stuck = Worker()
    stuck._process, stuck._device = Process(), CARD
    error = stuck._hang("attention-row on hip", "did not finish within 5 s", None)
    assert error.kind == "hang" and "no kernel was launched" in str(error) and stuck.pid is None
    assert str(error).endswith("process 4321 has not ended: the driver holds it, and perhaps the lock with it")
    stuck._process = Process()
    crash = stuck._crash("attention-row on hip", "softmax")
    assert "the worker process 4321 ended while it ran attention-row on hip; the kernel launched last is" in str(crash)
