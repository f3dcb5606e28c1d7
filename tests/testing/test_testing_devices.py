"""Targets and devices of a run: what cannot be used gives its reason, names that are none are refused."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

import rocmkern
from rocmkern.runtime.errors import DeviceUnavailableError, TargetError
from rocmkern.testing import devices

GIB = 1 << 30


def config(option):
    return SimpleNamespace(getoption={"rocmkern_target": option}.__getitem__)


def test_targets_of_the_command_line(monkeypatch):
    monkeypatch.setattr(devices, "usable_targets", lambda: ("cpu", "python"))
    assert devices.chosen_targets(config(None)) == ("cpu", "python")
    assert devices.chosen_targets(config("python")) == ("python",)
    assert devices.chosen_targets(config(" hip , cpu,")) == ("hip", "cpu")
    for text in ("", " , ", "cpu,gpu"):
        with pytest.raises(pytest.UsageError, match=r"--rocmkern-target: .*hip"):
            devices.chosen_targets(config(text))


def test_usable_targets_have_no_reason(monkeypatch):
    monkeypatch.setattr(devices, "target_reason", {"hip": "no card", "cuda": "x", "cpu": None, "python": None}.get)
    assert devices.usable_targets() == tuple(name for name in devices.NAMES if name in ("cpu", "python"))


def test_a_reason_is_the_error_of_the_target_and_of_nothing_else(monkeypatch):
    assert devices.reason_here("python") is None

    def using(error):
        def refuse(target):
            raise error

        return refuse

    monkeypatch.setattr(rocmkern, "using", using(TargetError("no compiler")))
    assert devices.reason_here("cpu") == "no compiler"
    monkeypatch.setattr(rocmkern, "using", using(ZeroDivisionError("a mistake of ours")))
    with pytest.raises(ZeroDivisionError):
        devices.reason_here("cpu")


def test_a_gpu_is_asked_for_in_the_worker(monkeypatch):
    asked = []
    worker = SimpleNamespace(call=lambda *given, **named: asked.append((given, named)))
    monkeypatch.setattr(devices.worker, "shared_worker", lambda: worker)
    monkeypatch.setattr(devices, "check_driver", lambda target: None)
    devices.target_reason.cache_clear()
    try:
        assert devices.target_reason("hip") is None
        assert asked == [(("rocmkern.testing.devices:reason_here", "hip"), {"what": "opening hip"})]

        def no_driver(target):
            raise DeviceUnavailableError(f"no driver of {target}")

        monkeypatch.setattr(devices, "check_driver", no_driver)
        assert devices.target_reason("cuda") == "no driver of cuda" and len(asked) == 1
    finally:
        devices.target_reason.cache_clear()


@pytest.mark.parametrize("worker_answers", [True, False])
def test_lines_of_the_header(monkeypatch, worker_answers):
    def call(function, kind, *, what):
        if not worker_answers:
            raise DeviceUnavailableError("gone")
        return f"{function} of {kind}, {what}"

    monkeypatch.setattr(devices.worker, "shared_worker", lambda: SimpleNamespace(call=call))
    none = SimpleNamespace(chosen=None, reason="no node", checks=("look", "ask"))
    monkeypatch.setattr(devices, "gpu_status", lambda: none)
    assert devices.device_lines() == ["rocmkern device: no GPU: no node", "  check 1: look", "  check 2: ask"]
    assert devices.gpu_reason() == "no GPU: no node"

    class Card:
        kind = "hip"

        def __str__(self):
            return "a card"

    monkeypatch.setattr(devices, "gpu_status", lambda: SimpleNamespace(chosen=Card()))
    memory = "rocmkern.testing.devices:memory_here of hip, opening hip" if worker_answers else "cannot be used: gone"
    assert devices.device_lines() == [f"rocmkern device: a card; {memory}"] and devices.gpu_reason() is None


def test_memory_is_shown_in_gib(monkeypatch):
    stats = SimpleNamespace(total=16 * GIB, free=7.25 * GIB)
    manager = SimpleNamespace(memory_stats=lambda: stats, safe_alloc_size=lambda: 3 * GIB)
    monkeypatch.setattr(devices, "default_manager", lambda kind: manager)
    assert devices.memory_here("hip") == "total 16.0 GiB, free 7.2 GiB, safe limit 3.0 GiB"
