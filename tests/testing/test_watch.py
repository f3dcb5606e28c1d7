"""A case that uses a GPU without its lock, or takes memory that no ledger knows, fails."""

from __future__ import annotations

import sys
import threading
import types

import numpy as np
import pytest

from rocmkern.matrix import CaseFailure
from rocmkern.matrix.faults.simulated import SimulatedGpu
from rocmkern.runtime.cap import Reading
from rocmkern.runtime.device import MemoryInfo
from rocmkern.runtime.lock import device_lock
from rocmkern.runtime.manager import ResourceManager
from rocmkern.runtime.settings import MemorySettings
from rocmkern.testing import watch as module
from rocmkern.testing.watch import DeviceWatch


class Card(SimulatedGpu):
    """A GPU that says so before it is used, as those of the device layer do, and whose driver can lose memory."""

    lost = 0

    def fill(self, address, nbytes, byte, stream):
        for watcher in self.on_use:
            watcher(self)
        super().fill(address, nbytes, byte, stream)

    def memory_info(self):
        info = super().memory_info()
        return MemoryInfo(Reading(info.free.value - self.lost, "simulated"), info.total)


@pytest.fixture
def card():
    return Card()


@pytest.fixture
def manager(card):
    return ResourceManager(card, settings=MemorySettings())


@pytest.fixture
def place(tmp_path):
    (tmp_path / "locks").mkdir()
    return {"directory": tmp_path / "locks", "filesystem_root": tmp_path}


@pytest.fixture
def binding(monkeypatch):
    """A driver's binding with one function that allocates."""
    module = types.ModuleType("a_binding")
    module.gpuMalloc = lambda nbytes: (0, 4096)
    monkeypatch.setitem(sys.modules, "a_binding", module)
    return module


def watch(card):
    return DeviceWatch(card, {"a_binding": ("gpuMalloc", "gpuMallocManaged"), "not_loaded": ("gpuMalloc",)})


def test_a_case_under_the_lock_that_uses_the_ledger_is_sound(card, manager, place, binding):
    with device_lock(card.info, **place), watch(card):
        with manager.zeros(1000) as tensor:
            assert not tensor.to_numpy().any()
        manager.zeros(2000)
    assert card.on_use == []


def test_a_use_without_the_lock_fails_with_its_place(card, manager, place, binding):
    with pytest.raises(CaseFailure) as caught, watch(card):
        manager.zeros(1000)
    assert caught.value.check == "lock"
    for words in ("a GPU was used without its lock", "hip:0 simulated", "thread MainThread", "test_watch.py:"):
        assert words in str(caught.value)
    assert card.on_use == []


def test_another_device_than_the_locked_one_is_found_also_from_another_thread(card, place, binding):
    other = Card()
    object.__setattr__(other.info, "pci_id", "0000:99:00.0")
    theirs = ResourceManager(other, settings=MemorySettings())
    with pytest.raises(CaseFailure, match="without its lock") as caught, device_lock(card.info, **place), watch(card):
        thread = threading.Thread(target=theirs.zeros, args=(10,), name="leftover")
        thread.start()
        thread.join()
    assert "0000:99:00.0" in str(caught.value) and "thread leftover" in str(caught.value)


def test_an_allocation_past_the_device_layer_is_found_and_named(card, place, binding):
    before = binding.gpuMalloc
    with pytest.raises(CaseFailure) as caught, device_lock(card.info, **place), watch(card):
        assert binding.gpuMalloc(100) == (0, 4096), "it works as ever"
    assert caught.value.check == "ledger" and "gpuMalloc at " in str(caught.value)
    assert "test_watch.py:" in str(caught.value) and binding.gpuMalloc is before


def test_the_device_layer_itself_may_allocate(card, place, binding):
    layer = types.ModuleType("rocmkern.runtime.hip")
    exec("def allocate(binding):\n    return binding.gpuMalloc(8)", layer.__dict__)
    with device_lock(card.info, **place), watch(card):
        layer.allocate(binding)


def test_memory_that_is_missing_in_the_end_is_found(card, manager, place, binding):
    total = card.memory_info().total.value
    with device_lock(card.info, **place), watch(card):
        card.lost += total // 100
    words = r"bytes of hip:0 .* are missing that no ledger knows"
    with pytest.raises(CaseFailure, match=words) as caught, device_lock(card.info, **place), watch(card):
        card.lost += total // 10
        manager.zeros(1 << 20)
    assert caught.value.check == "ledger" and f"{total // 10} bytes" in str(caught.value)


def test_the_failure_of_the_case_itself_comes_first(card, manager, place, binding):
    with pytest.raises(ZeroDivisionError), watch(card):
        manager.from_numpy(np.zeros(3))
        binding.gpuMalloc(1)
        raise ZeroDivisionError
    assert card.on_use == []


def called_through(*names):
    """A function of this file's `_caller`, called through functions of modules with these names, the last one first."""
    function = module._caller
    for name in names:
        space = {"__name__": name, "inner": function}
        exec(compile("def outer(depth):\n    return inner(depth)", f"/{name}.py", "exec"), space)
        function = space["outer"]
    return function


def test_a_place_is_that_of_the_first_frame_that_is_not_ours_or_a_bindings():
    assert called_through("somebody", "else_")(1) == "at /somebody.py:2"
    assert called_through("numba.cuda", "rocmkern.runtime.hip", "a_project")(1) == "at /a_project.py:2"
    assert called_through("rocmkernels", "rocmkern.runtime")(1) == "at /rocmkernels.py:2", "another package"
    assert called_through("a", "b")(2) == "at /b.py:2"


def test_of_many_places_some_are_listed_and_each_once():
    places = [f"place {number}" for number in range(module._LISTED)]
    assert module._list([*places, *places]) == "\n".join(f"  {place}" for place in places)
    more = module._list([*places, "one", "two", "one"]).splitlines()
    assert more == [*(f"  {place}" for place in places), "  and 2 more"]


@pytest.mark.parametrize(("before", "missing", "found"), [(1000, 50, False), (1000, 51, True), (1010, 51, True)])
def test_a_twentieth_may_be_missing(card, place, monkeypatch, before, missing, found):
    watcher = DeviceWatch(card, {})
    readings = iter([before, before - missing])
    monkeypatch.setattr(watcher, "_free_and_reserved", lambda: next(readings))
    with device_lock(card.info, **place):
        if found:
            words = f"{missing} bytes of hip:0 .*{before} bytes for us before, and {before - missing} after; 5 % may be"
            with pytest.raises(CaseFailure, match=words), watcher:
                pass
        else:
            with watcher:
                pass


def test_methods_of_classes_are_watched_too(card, place, monkeypatch):
    module_of_driver = types.ModuleType("a_driver")

    class Manager:
        def memalloc(self, nbytes):
            return nbytes

    module_of_driver.Manager = Manager
    before = Manager.memalloc
    monkeypatch.setitem(sys.modules, "a_driver", module_of_driver)
    watcher = DeviceWatch(card, {"a_driver": ("Manager.memalloc", "Manager.other", "Absent.memalloc")})
    with pytest.raises(CaseFailure, match=r"Manager\.memalloc at "), device_lock(card.info, **place), watcher:
        assert Manager().memalloc(3) == 3
    assert Manager.memalloc is before
