"""Which target runs: use, using, ROCMKERN_TARGET, automatic."""

from __future__ import annotations

import sys
import threading

import pytest

import rocmkern
from rocmkern import ArgumentError, TargetError, targets


@pytest.fixture(autouse=True)
def _automatic_afterwards(monkeypatch):
    monkeypatch.setenv("ROCMKERN_NO_GPU", "1")
    yield
    rocmkern.use(None)


def test_without_a_gpu_the_cpu_is_chosen_and_the_reason_says_so(script):
    code = """
import json, rocmkern
t = rocmkern.target()
print(json.dumps([t.name, t.arch, t.reason]))
"""
    name, arch, reason = script(code)
    assert name == "cpu" and arch.startswith("cpu-")
    assert reason.startswith("automatic: ") and "ROCMKERN_NO_GPU" in reason


def test_use_chooses_for_the_process_and_restores_as_a_context():
    rocmkern.use("python")
    assert rocmkern.target() == targets.TargetInfo("python", "python", "chosen by use()")
    with rocmkern.use("cpu"):
        assert rocmkern.target().name == "cpu"
    assert rocmkern.target().name == "python"
    rocmkern.use(None)
    assert rocmkern.target().reason.startswith("automatic")


def test_a_context_restores_after_an_error_too():
    with pytest.raises(ZeroDivisionError), rocmkern.use("python"):
        1 / 0  # noqa: B018
    with pytest.raises(ZeroDivisionError), rocmkern.using("python"):
        1 / 0  # noqa: B018
    assert rocmkern.target().reason.startswith("automatic")


def test_use_comes_before_the_environment_and_using_before_use(monkeypatch):
    monkeypatch.setenv("ROCMKERN_TARGET", "python")
    assert rocmkern.target() == targets.TargetInfo("python", "python", "ROCMKERN_TARGET=python")
    with rocmkern.use("cpu"):
        assert rocmkern.target().name == "cpu"
        with rocmkern.using("python"):
            assert rocmkern.target().reason == "chosen by using() in this thread"
            with rocmkern.using("cpu"):
                assert rocmkern.target().name == "cpu"
            assert rocmkern.target().name == "python"
        assert rocmkern.target().name == "cpu"


def test_using_is_for_one_thread(monkeypatch):
    seen = {}
    inside, leave = threading.Event(), threading.Event()

    def other():
        with rocmkern.using("python"):
            seen["other"] = rocmkern.target().name
            inside.set()
            leave.wait(60)

    thread = threading.Thread(target=other)
    with rocmkern.use("cpu"):
        thread.start()
        assert inside.wait(60)
        seen["main"] = rocmkern.target().name
        leave.set()
        thread.join()
    assert seen == {"other": "python", "main": "cpu"}


@pytest.mark.parametrize("choose", [rocmkern.use, lambda name: rocmkern.using(name).__enter__()])
@pytest.mark.parametrize("name", ["gpu", "CPU", ""])
def test_a_name_that_is_not_one_of_the_four_is_refused(choose, name):
    with pytest.raises(ArgumentError, match=r"target: got .*; allowed: hip, cuda, cpu, python") as error:
        choose(name)
    assert error.value.argument == "target" and repr(name) in str(error.value)
    assert rocmkern.target().reason.startswith("automatic")


def test_a_wrong_name_in_the_environment_is_refused_by_the_variable_s_name(monkeypatch):
    monkeypatch.setenv("ROCMKERN_TARGET", "rocm")
    with pytest.raises(ArgumentError, match="ROCMKERN_TARGET: got 'rocm'; allowed: hip, cuda, cpu, python"):
        rocmkern.target()
    monkeypatch.setenv("ROCMKERN_TARGET", "  ")
    assert rocmkern.target().name == "cpu"


@pytest.mark.parametrize("name", ["hip", "cuda"])
def test_a_gpu_target_that_cannot_be_used_says_why_and_changes_nothing(script, name):
    code = f"""
import json, rocmkern
messages = []
def attempt(call):
    try:
        call()
    except rocmkern.TargetError as e:
        messages.append(str(e))
attempt(lambda: rocmkern.use({name!r}))
attempt(lambda: rocmkern.using({name!r}).__enter__())
after = rocmkern.target().name
import os
os.environ["ROCMKERN_TARGET"] = {name!r}
attempt(rocmkern.target)
print(json.dumps([after, messages]))
"""
    after, messages = script(code)
    assert after == "cpu"
    assert len(messages) == 3
    for message in messages:
        assert len(message) > 20 and ("ROCMKERN_NO_GPU" in message or name in message.lower())


def test_the_error_of_a_target_is_a_runtime_error():
    assert issubclass(TargetError, RuntimeError) and issubclass(ArgumentError, ValueError)


@pytest.mark.parametrize("name", ["", "hip", "cuda", "cpu", "python"])
def test_all_that_answer_about_the_machine_agree(script, monkeypatch, name):
    """`target`, `gpu_available` and `default_manager` of one process, wherever this runs, with and without a card."""
    monkeypatch.setenv("ROCMKERN_TARGET", name)
    monkeypatch.delenv("ROCMKERN_NO_GPU")
    code = """
import json, rocmkern
def answer(ask):
    try:
        return ask()
    except rocmkern.TargetError as error:
        return "none: " + str(error)
print(json.dumps([
    answer(lambda: rocmkern.target().name),
    answer(lambda: rocmkern.default_manager().device.kind),
    rocmkern.gpu_available(),
    rocmkern.gpu_status().reason,
]))
"""
    target, memory, available, reason = script(code)
    if target.startswith("none: "):
        assert name in ("hip", "cuda") and not available
        assert memory == target and reason
    elif target in ("hip", "cuda"):
        assert memory == target and available and reason.startswith(f"using {target}:")
    else:
        assert memory == "host"
        assert name or not available


# Numba's own switches


def test_where_numba_compiles_nothing_the_interpreter_is_chosen(script, monkeypatch):
    monkeypatch.setenv("NUMBA_DISABLE_JIT", "1")
    code = """
import json, numpy as np, rocmkern
t = rocmkern.target()
x = np.ones((2, 4), np.float32)
messages = []
for name in ("cpu", "hip", "cuda"):
    try:
        rocmkern.use(name)
    except rocmkern.TargetError as error:
        messages.append(str(error))
print(json.dumps([t.name, t.reason, rocmkern.rms_norm(x, x[0]).tolist(), messages]))
"""
    name, reason, result, messages = script(code)
    assert name == "python" and "NUMBA_DISABLE_JIT" in reason
    assert result == [[pytest.approx(1.0, abs=1e-5)] * 4] * 2
    assert len(messages) == 3
    for message in messages:
        assert "NUMBA_DISABLE_JIT" in message and "ROCMKERN_TARGET=python" in message


def test_a_switch_of_zero_is_off(monkeypatch):
    from rocmkern.runtime import numba_switches

    monkeypatch.delitem(sys.modules, "numba", raising=False)
    for value, expected in (("0", True), ("", True), ("1", False)):
        monkeypatch.setenv("NUMBA_DISABLE_JIT", value)
        assert numba_switches.compiles() is expected


def test_the_simulator_of_cuda_is_refused_by_name(monkeypatch):
    monkeypatch.delitem(sys.modules, "numba", raising=False)
    monkeypatch.setenv("NUMBA_ENABLE_CUDASIM", "1")
    with pytest.raises(TargetError, match="NUMBA_ENABLE_CUDASIM"):
        rocmkern.use("cuda")
    rocmkern.use("python")
