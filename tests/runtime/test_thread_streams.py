"""Memory and the default streams of threads, whose handle is the same number in every thread."""

from __future__ import annotations

import threading

import pytest
from fake_device import FakeDevice

from rocmkern.runtime.errors import ArgumentError
from rocmkern.runtime.interface import PER_THREAD_STREAM
from rocmkern.runtime.manager import ResourceManager
from rocmkern.runtime.settings import MemorySettings


@pytest.fixture
def device():
    return FakeDevice()


@pytest.fixture
def manager(device):
    with ResourceManager(device, settings=MemorySettings()) as manager:
        yield manager


def used_in_threads(tensor, count):
    for _ in range(count):
        thread = threading.Thread(target=tensor.record_stream, args=(PER_THREAD_STREAM,))
        thread.start()
        thread.join()


def test_no_memory_is_handed_out_on_them(device, manager, monkeypatch):
    before = manager.memory_stats()
    for hand_out in (
        lambda: manager.empty(5, stream=PER_THREAD_STREAM),
        lambda: manager.counters(5, PER_THREAD_STREAM),
        lambda: manager.scratch(5, PER_THREAD_STREAM).lend(lambda _: None),
    ):
        with pytest.raises(ArgumentError, match="default stream of a thread"):
            hand_out()
    assert manager.memory_stats() == before
    # A graph has memory of its own.
    monkeypatch.setattr(device, "capture", {PER_THREAD_STREAM: 1}.get)
    assert manager.scratch(5, PER_THREAD_STREAM).lend(lambda address: address)
    assert manager.counters(5, PER_THREAD_STREAM).size >= 5


def test_what_the_thread_itself_used_is_idle_after_its_work(device, manager):
    tensor = manager.empty(250)
    tensor.record_stream(PER_THREAD_STREAM)
    device.stall(PER_THREAD_STREAM)
    device.submit(PER_THREAD_STREAM)
    address = tensor.data_ptr
    tensor.close()
    with manager.empty(250) as other:
        assert other.data_ptr != address
    device.resume(PER_THREAD_STREAM)
    with manager.empty(250) as again, manager.empty(250) as other:
        assert address in (again.data_ptr, other.data_ptr)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("here_too", [False, True])
def test_what_another_thread_used_goes_back_to_the_driver_which_waits_for_all(device, manager, threads, here_too):
    tensor = manager.empty(250)
    used_in_threads(tensor, threads)
    if here_too:
        tensor.record_stream(PER_THREAD_STREAM)
    device.calls.clear()
    tensor.close()
    assert device.calls == ["free"]
    manager.assert_no_leak()
    assert manager.memory_stats().reserved == device.driver_bytes
