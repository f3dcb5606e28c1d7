"""Idle buffers: what is reused, when, and by whom."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from fake_device import FakeDevice

from rocmkern.runtime.errors import DeadlineError, DeviceMemoryError, DriverError
from rocmkern.runtime.manager import ResourceManager
from rocmkern.runtime.pool import Block, Pool, size_class
from rocmkern.runtime.settings import MemorySettings

OTHER = 0x7


@pytest.mark.parametrize(
    ("nbytes", "capacity"), [(1, 512), (512, 512), (513, 1024), (4096, 4096), (4097, 4608), (2**20 + 1, 2**20 + 4096)]
)
def test_size_classes(nbytes, capacity):
    assert size_class(nbytes) == capacity


def test_size_classes_waste_less_than_an_eighth():
    for nbytes in range(4096, 70_000, 13):
        assert nbytes <= size_class(nbytes) < nbytes * 1.125 + 1


def test_a_dead_buffer_is_reused_at_once_on_its_stream(fake, fake_manager):
    first = fake_manager.empty(1000)
    address = first.data_ptr
    fake.stall(fake_manager.stream)
    first.close()
    # Work on one stream is ordered: the stall does not matter.
    assert fake_manager.empty(1000, uninitialized=True).data_ptr == address
    assert fake.allocations == 1


def test_a_reused_buffer_is_zero_again(fake_manager):
    with fake_manager.zeros(256) as tensor:
        tensor.copy_(tensor.to_numpy() + 7)
    assert not fake_manager.empty(256).to_numpy().any()


def test_a_much_smaller_request_does_not_take_a_large_buffer(fake, fake_manager):
    fake_manager.empty(1 << 20).close()
    fake_manager.empty(10)
    assert fake.allocations == 2


def test_another_stream_gets_it_only_after_the_event_of_the_first(fake, fake_manager):
    tensor = fake_manager.empty(1000)
    address = tensor.data_ptr
    fake.submit(fake_manager.stream)
    fake.stall(fake_manager.stream)
    fake.submit(fake_manager.stream)
    tensor.close()
    fresh = fake_manager.empty(1000, uninitialized=True, stream=OTHER)
    assert fresh.data_ptr != address
    fake.resume(fake_manager.stream)
    assert fake_manager.empty(1000, uninitialized=True, stream=OTHER).data_ptr == address


def test_a_buffer_that_another_stream_reads_is_not_reused_before_its_event(fake, fake_manager):
    tensor = fake_manager.empty(1000)
    address = tensor.data_ptr
    tensor.record_stream(OTHER)
    fake.stall(OTHER)
    fake.submit(OTHER)
    tensor.close()
    fresh = fake_manager.empty(1000)
    assert fresh.data_ptr != address
    fake.resume(OTHER)
    assert fake_manager.empty(1000).data_ptr == address


def test_the_event_of_another_stream_is_recorded_when_the_buffer_dies(fake, fake_manager):
    tensor = fake_manager.empty(1000)
    address = tensor.data_ptr
    tensor.record_stream(OTHER)
    tensor.close()
    fake_manager.memory_stats()
    fake.stall(OTHER)
    fake.submit(OTHER)
    # Later work of that stream has nothing to do with the buffer.
    assert fake_manager.empty(1000).data_ptr == address


def test_a_buffer_of_the_default_stream_waits_for_what_that_stream_does_when_it_is_asked_for(fake, fake_manager):
    tensor = fake_manager.empty(1000, stream=0)
    address = tensor.data_ptr
    tensor.close()
    fake_manager.memory_stats()
    assert fake.live_events == 0
    fake.stall(0)
    fake.submit(0)
    fresh = fake_manager.empty(1000)
    assert fresh.data_ptr != address
    fake.resume(0)
    assert fake_manager.empty(1000).data_ptr == address


def test_events_are_given_back(fake, fake_manager):
    for stream in (None, OTHER, 0x8):
        tensor = fake_manager.empty(1000, stream=stream)
        tensor.record_stream(0x9)
        tensor.close()
    fake_manager.trim()
    assert fake.live_events == 0
    assert fake.driver_bytes == 0


def test_trim_returns_idle_memory_only(fake, fake_manager):
    kept = fake_manager.empty(1000)
    fake_manager.empty(5000).close()
    assert fake_manager.trim() == size_class(20_000)
    assert fake.driver_bytes == fake_manager.memory_stats().reserved == size_class(kept.nbytes)


def test_trim_waits_for_the_work_on_idle_memory(fake, fake_manager, clock):
    tensor = fake_manager.empty(1000)
    fake.stall(fake_manager.stream)
    fake.submit(fake_manager.stream)
    tensor.close()
    clock.appointments.append((5.0, lambda: fake.resume(fake_manager.stream)))
    assert fake_manager.trim() == 4096
    assert clock.now >= 5.0


def test_the_pool_is_trimmed_before_anything_is_refused(fake, fake_manager):
    fake_manager.empty(600 << 20, "u1", True).close()
    # 600 MiB idle of 1 GiB: a buffer of another size fits only if they go first.
    assert fake_manager.can_allocate(700 << 20)
    tensor = fake_manager.empty(700 << 20, "u1", True)
    assert fake_manager.memory_stats().reserved == 700 << 20 <= fake.driver_bytes
    tensor.close()


def test_idle_memory_that_is_still_in_use_is_waited_for(fake, fake_manager, clock):
    tensor = fake_manager.empty(600 << 20, "u1", True, stream=OTHER)
    fake.stall(OTHER)
    fake.submit(OTHER)
    tensor.close()
    clock.appointments.append((3.0, lambda: fake.resume(OTHER)))
    assert fake_manager.empty(700 << 20, "u1", True).nbytes == 700 << 20
    assert clock.now >= 3.0


def test_waiting_for_idle_memory_has_a_deadline(fake, fake_manager):
    tensor = fake_manager.empty(600 << 20, "u1", True, stream=OTHER)
    fake.stall(OTHER)
    fake.submit(OTHER)
    tensor.close()
    with pytest.raises(DeadlineError, match="idle memory"):
        fake_manager.empty(700 << 20, "u1", True)


def test_with_the_pool_off_memory_goes_back_at_once(fake):
    manager = ResourceManager(fake, settings=MemorySettings(pool=False))
    manager.empty(1000).close()
    assert fake.driver_bytes == 0
    assert fake.calls == ["allocate", "free"]


def test_pool_by_itself_picks_the_smallest_block_that_fits():
    device = FakeDevice()
    pool = Pool(device, own_stream=1)
    for address, capacity in ((1, 4608), (2, 4096), (3, 5120)):
        pool.put(Block(address, capacity, 1), frozenset())
    assert pool.idle_bytes == 4608 + 4096 + 5120
    assert pool.take(4097, 1).address == 1
    assert pool.take(4097, 1) is None
    assert pool.take(4000, 1).address == 2
    assert pool.idle_bytes == 5120


def test_a_refused_allocation_changes_nothing_in_the_pool(fake, fake_manager):
    fake_manager.empty(1000).close()
    before = fake_manager.memory_stats(), list(fake.calls)
    with pytest.raises(DeviceMemoryError, match="idle bytes of the pool counted as free"):
        fake_manager.empty(1 << 30, "u1")
    assert (fake_manager.memory_stats(), fake.calls) == before


# Scratch: idle memory used where it lies


def address_of(address):
    return address


def test_scratch_is_idle_memory_of_the_stream(fake, fake_manager):
    def submit(address):
        assert len(fake_manager.live_buffers()) == 1
        return address

    first = fake_manager.scratch(1000, fake_manager.stream).lend(submit)
    assert fake_manager.live_buffers() == []
    second = fake_manager.scratch(900, fake_manager.stream).lend(address_of)
    with fake_manager.empty(225, np.float32, uninitialized=True) as tensor:
        assert first == second == tensor.data_ptr
    assert fake.allocations == 1 and fake.live_events == 0


@pytest.mark.parametrize("other", [False, True])
def test_scratch_is_no_buffer_where_nothing_is_recorded(fake_manager, monkeypatch, other):
    stream = OTHER if other else fake_manager.stream
    tensor = fake_manager.empty(1000, np.uint8, uninitialized=True, stream=stream)
    address = tensor.data_ptr
    tensor.close()
    monkeypatch.setattr(type(fake_manager), "empty", lambda *given, **named: pytest.fail("a buffer was made"))
    assert fake_manager.scratch(1000, stream).lend(address_of) == address


@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("home", ["ours", "another"])
def test_whoever_takes_the_memory_comes_after_the_work_on_scratch(fake, fake_manager, home, again):
    stream = fake_manager.stream if home == "ours" else OTHER
    fake_manager.empty(250, stream=stream).close()
    lent_again = fake_manager.scratch(1000, stream)
    for _ in range(3):  # an event of an earlier use must not count for a later one
        fake.submit(stream)
        fake.stall(stream)
        scratch = lent_again if again else fake_manager.scratch(1000, stream)
        address = scratch.lend(lambda address: fake.submit(stream) or address)
        taken = fake_manager.empty(250, uninitialized=True, stream=0x9)
        assert taken.data_ptr != address
        fake.resume(stream)
        with fake_manager.empty(250, uninitialized=True, stream=stream) as same:
            assert same.data_ptr == address
        taken.close()
    assert fake.allocations == 2


@pytest.mark.parametrize("what", ["taken", "freed", "home of another stream", "used by another stream"])
@pytest.mark.parametrize("other", [OTHER, 0])
def test_scratch_that_is_lent_again_looks_whether_its_memory_is_still_free(fake, fake_manager, what, other):
    fake_manager.empty(250).close()
    scratch = fake_manager.scratch(1000, fake_manager.stream)
    first = scratch.lend(address_of)
    assert fake.allocations == 1
    if what == "freed":
        fake_manager.trim()
        scratch.lend(address_of)
        assert fake.allocations == 2
        return
    home = other if what == "home of another stream" else fake_manager.stream
    tensor = fake_manager.empty(250, uninitialized=True, stream=home)
    assert tensor.data_ptr == first
    if what != "taken":
        fake.stall(other)
        fake.submit(other)
        tensor.record_stream(other)
        tensor.close()
    assert scratch.lend(address_of) != first
    fake.resume(other)
    tensor.close()


@pytest.mark.parametrize("other", [OTHER, 0])
def test_memory_that_scratch_has_from_another_stream_is_of_its_own_from_then_on(fake, fake_manager, monkeypatch, other):
    fake_manager.empty(250, stream=other).close()
    scratch = fake_manager.scratch(1000, fake_manager.stream)
    first = scratch.lend(address_of)
    assert fake.live_events == 0
    with monkeypatch.context() as patch:
        for call in ("record", "query"):
            patch.setattr(fake, call, None)  # costs as much as a launch
        second = scratch.lend(address_of)
        fake.stall(fake_manager.stream)
        fake.submit(fake_manager.stream)
    assert first == second and fake.allocations == 1
    with fake_manager.empty(250, uninitialized=True, stream=other) as tensor:
        assert tensor.data_ptr != first
    fake.resume(fake_manager.stream)


def test_threads_that_one_scratch_is_lent_to_have_memory_each(fake):
    with ResourceManager(fake, settings=MemorySettings(pool=False)) as manager:
        scratch, both_in, addresses = manager.scratch(1000, manager.stream), threading.Barrier(2), set()

        def submit(address):
            both_in.wait(60)
            addresses.add(address)
            assert len(manager.live_buffers()) == 2
            both_in.wait(60)

        with ThreadPoolExecutor(2) as threads:
            for lent in [threads.submit(scratch.lend, submit) for _ in range(2)]:
                lent.result()
        assert len(addresses) == 2 and manager.live_buffers() == []


def test_scratch_of_an_interrupted_use_is_not_free(fake, fake_manager):
    fake_manager.empty(250, stream=OTHER).close()
    fake.submit(OTHER)
    fake.stall(OTHER)
    addresses = []

    def submit(address):
        addresses.append(address)
        fake.submit(OTHER)
        raise RuntimeError("the second launch fails")

    with pytest.raises(RuntimeError):
        fake_manager.scratch(1000, OTHER).lend(submit)
    (address,) = addresses
    assert fake_manager.empty(250, uninitialized=True, stream=0x9).data_ptr != address
    fake.resume(OTHER)


def test_under_test_scratch_is_a_buffer(fake):
    for settings in (MemorySettings(pool=False), MemorySettings(poison=True), MemorySettings(guard=True)):
        with ResourceManager(fake, settings=settings) as manager:
            manager.empty(1000).close()
            assert manager.scratch(1000, manager.stream).lend(lambda _: len(manager.live_buffers())) == 1
            assert manager.live_buffers() == []


def test_scratch_is_not_idle_memory_while_a_graph_is_recorded(fake, fake_manager):
    fake_manager.empty(250, stream=OTHER).close()
    fake.capture = lambda stream: 7 if stream == OTHER else None
    assert fake_manager.scratch(1000, OTHER).lend(lambda _: len(fake_manager.live_buffers())) == 1


@pytest.mark.parametrize("home", [OTHER, None])
def test_memory_used_on_a_stream_that_is_no_more_goes_back_to_the_driver(fake, monkeypatch, home):
    with ResourceManager(fake, settings=MemorySettings()) as manager:
        tensor = manager.empty(1000, stream=home)
        for stream in (OTHER, OTHER + 1):
            tensor.record_stream(stream)
        events, record = fake.live_events, fake.record

        def recorded(stream):
            if stream == OTHER:
                raise DriverError("hipEventRecord", "hipErrorInvalidHandle", "fake")
            return record(stream)

        monkeypatch.setattr(fake, "record", recorded)
        tensor.close()
        assert fake.calls[-1] == "free" and fake.live_events == events
        assert manager.memory_stats().reserved == fake.driver_bytes
        manager.zeros(1000).close()


def test_memory_that_the_driver_does_not_take_back_now_goes_back_later(fake, monkeypatch):
    with ResourceManager(fake, settings=MemorySettings()) as manager:
        tensor = manager.empty(1000, stream=OTHER)
        modes, free, beside = [], fake.free, fake.beside_capture

        def record(stream):
            raise DriverError("hipEventRecord", "hipErrorInvalidHandle", "fake")

        def refused(address):
            modes.append("free")
            raise DriverError("hipFree", "hipErrorStreamCaptureUnsupported", "fake")

        def relaxed():
            modes.append("relaxed")
            return beside()

        with monkeypatch.context() as patch:
            patch.setattr(fake, "record", record)
            patch.setattr(fake, "free", refused)
            patch.setattr(fake, "beside_capture", relaxed)
            tensor.close()
            assert modes[:2] == ["relaxed", "free"]
            assert manager.memory_stats().reserved == fake.driver_bytes > 0
        monkeypatch.setattr(fake, "record", record)
        assert fake.free == free
        assert manager.memory_stats().reserved == fake.driver_bytes == 0
        monkeypatch.undo()
