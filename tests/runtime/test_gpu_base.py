"""What all GPUs share: events that are used again, and memory that no exception loses between driver and ledger."""

from __future__ import annotations

import contextlib

import pytest

from rocmkern.runtime.device import DeviceInfo
from rocmkern.runtime.errors import DriverError
from rocmkern.runtime.gpu import GpuDevice


class Driver(GpuDevice):
    """A driver that answers (status, address), as those of cards do."""

    def __init__(self):
        super().__init__(DeviceInfo("hip", 0, "simulated", "0000:03:00.0", False, 1 << 30, "gfx1100"))
        self.next, self.made, self.recorded, self.current_depth = 0x1000, 0, [], 0
        self.status = 0
        self.interrupt_after = None

    @contextlib.contextmanager
    def current(self):
        self.current_depth += 1
        yield
        self.current_depth -= 1

    def _malloc(self, nbytes, note):
        note.append(((self.status, self.next), nbytes))
        self.next += 0x1000
        self._interrupted("malloc")

    def _free(self, address, note):
        note.append(((self.status,), address))
        self._interrupted("free")

    def _interrupted(self, name):
        if self.interrupt_after == name:
            self.interrupt_after = None
            raise KeyboardInterrupt

    def _read_malloc(self, answer):
        status, address = answer
        if status == 2:
            raise MemoryError
        self._check(status)
        return address

    def _read_free(self, answer):
        self._check(answer[0])

    def _check(self, status):
        if status:
            raise DriverError("call", f"error {status}", "hip:0")

    def _create_event(self):
        assert self.current_depth
        self.made += 1
        return f"event {self.made}"

    def _create_timed_event(self):
        assert self.current_depth
        return "timed event"

    def _record(self, event, stream):
        assert self.current_depth
        if stream < 0:
            raise DriverError("record", "invalid handle", "hip:0")
        self.recorded.append((event, stream))

    def _elapsed_ms(self, start, stop):
        assert self.current_depth
        return 250.0


Driver.__abstractmethods__ = frozenset()


@pytest.fixture
def driver():
    return Driver()


def test_what_the_driver_gave_is_known_until_it_is_given_back(driver):
    first, second = driver.allocate(100), driver.allocate(200)
    assert driver.allocated() == {first: 100, second: 200}
    driver.free(first)
    assert driver.allocated() == {second: 200} and driver._given == driver._taken == []


@pytest.mark.parametrize(("status", "error"), [(2, MemoryError), (7, DriverError)])
def test_what_the_driver_refused_is_not_known(driver, status, error):
    kept = driver.allocate(100)
    driver.status = status
    with pytest.raises(error):
        driver.allocate(200)
    with pytest.raises(DriverError):
        driver.free(kept)
    assert driver.allocated() == {kept: 100} and driver._given == driver._taken == []


def test_memory_that_came_at_an_interrupt_is_known_afterwards(driver):
    driver.interrupt_after = "malloc"
    with pytest.raises(KeyboardInterrupt):
        driver.allocate(300)
    assert driver.allocated() == {0x1000: 300} and driver._given == []


def test_memory_that_went_at_an_interrupt_is_not_known_any_more(driver):
    kept, gone = driver.allocate(100), driver.allocate(200)
    driver.interrupt_after = "free"
    with pytest.raises(KeyboardInterrupt):
        driver.free(gone)
    assert driver.allocated() == {kept: 100} and driver._taken == []


def test_a_refusal_that_was_noted_at_an_interrupt_changes_nothing(driver):
    kept = driver.allocate(100)
    driver.status, driver.interrupt_after = 2, "malloc"
    with pytest.raises(KeyboardInterrupt):
        driver.allocate(300)
    driver.status, driver.interrupt_after = 7, "free"
    with pytest.raises(KeyboardInterrupt):
        driver.free(kept)
    assert driver.allocated() == {kept: 100}


def test_an_interrupt_before_the_driver_was_asked_leaves_no_memory(driver, monkeypatch):
    def interrupted(nbytes, note):
        raise KeyboardInterrupt

    monkeypatch.setattr(driver, "_malloc", interrupted)
    with pytest.raises(KeyboardInterrupt):
        driver.allocate(300)
    assert driver.allocated() == {}


def test_events_are_used_again_and_one_that_was_not_recorded_is_not_lost(driver):
    first, second = driver.record(5), driver.record(6)
    assert (first, second) == ("event 1", "event 2") and driver.recorded == [(first, 5), (second, 6)]
    driver.release_event(first)
    assert driver.record(7) == first and driver.made == 2
    with pytest.raises(DriverError):
        driver.record(-1)
    assert driver.record(8) == "event 3" and driver.made == 3


def test_times_are_in_seconds(driver):
    start = driver.record_timed(4)
    assert start == "timed event" and driver.recorded == [(start, 4)]
    assert driver.elapsed(start, start) == 0.25 and driver.current_depth == 0


def test_frees_that_numba_put_off_are_done(driver, monkeypatch):
    import sys
    from types import SimpleNamespace

    driver.flush()  # numba was not used
    cleared = []
    deallocations = SimpleNamespace(clear=lambda: cleared.append(driver.current_depth))
    context = SimpleNamespace(memory_manager=SimpleNamespace(deallocations=deallocations))
    devices = SimpleNamespace(
        _runtime=SimpleNamespace(gpus=SimpleNamespace(lst=[SimpleNamespace(primary_context=context)]))
    )
    driver._numba_devices = "numba_devices_of_a_test"
    monkeypatch.setitem(sys.modules, "numba_devices_of_a_test", devices)
    driver.flush()
    assert cleared == [1], "while the device is current"
    devices._runtime.gpus.lst[0].primary_context = None
    driver.flush()
    devices._runtime.gpus = SimpleNamespace()  # before numba looked for devices
    driver.flush()
    assert cleared == [1]
