"""Memory that is handed out while a stream records a graph stays the graph's."""

from __future__ import annotations

import numpy as np
import pytest
from fake_device import FakeDevice

from rocmkern.runtime.manager import ResourceManager
from rocmkern.runtime.settings import MemorySettings

OTHER = 0x200


class Recorded(FakeDevice):
    """Streams that record graphs are keys of ``graphs``; asking for one of their events is an error, as in a driver."""

    def __init__(self):
        super().__init__()
        self.graphs = {}

    def capture(self, stream):
        return self.graphs.get(stream)

    def record(self, stream):
        assert stream not in self.graphs, "an event of a graph"
        return super().record(stream)


@pytest.fixture
def device():
    return Recorded()


@pytest.fixture
def manager(device):
    with ResourceManager(device, settings=MemorySettings()) as manager:
        yield manager
    assert device.driver_bytes == 0


def address_of(manager, nbytes=1000, stream=OTHER):
    return manager.scratch(nbytes, stream).lend(lambda address: address)


def test_calls_of_one_graph_share_what_was_idle(device, manager):
    manager.empty(250, stream=OTHER).close()
    allocations = device.allocations
    device.graphs[OTHER] = 1
    first = address_of(manager)
    assert address_of(manager) == first
    assert device.allocations == allocations
    assert manager.live_buffers() == []


def test_what_lasts_beyond_a_call_is_not_where_calls_of_the_graph_write(device, manager):
    device.graphs[OTHER] = 1
    written = address_of(manager)
    counters = manager.counters(8, OTHER)
    assert counters.data_ptr != written
    assert address_of(manager) == written, "which is idle, and large enough for them"


def test_two_at_a_time_have_their_own(device, manager):
    device.graphs[OTHER] = 1
    one, two = manager.scratch(1000, OTHER).lend(lambda one: (one, address_of(manager)))
    assert one != two
    assert {address_of(manager), address_of(manager)} <= {one, two}


def test_no_other_work_gets_it(device, manager):
    device.graphs[OTHER] = 1
    first = address_of(manager)
    device.graphs[OTHER] = 2
    second = address_of(manager)
    device.graphs.clear()
    with manager.empty(250, stream=OTHER) as tensor, manager.empty(250) as ours:
        assert len({first, second, tensor.data_ptr, ours.data_ptr}) == 4


def test_it_is_not_taken_from_a_stream_that_is_not_done(device, manager):
    device.stall(OTHER)
    tensor = manager.empty(250, uninitialized=True, stream=OTHER)
    address = tensor.data_ptr
    device.submit(OTHER)
    tensor.close()
    device.graphs[OTHER] = 1
    assert address_of(manager) != address
    device.resume(OTHER)


def test_it_counts_as_reserved_until_the_last_manager_is_closed(device, manager):
    device.graphs[OTHER] = 1
    address_of(manager, 5000)
    device.graphs.clear()
    manager.trim()
    assert manager.memory_stats().reserved == device.driver_bytes >= 5000
    manager.assert_no_leak()


def test_a_buffer_that_dies_while_its_stream_records_waits_for_the_end(device, manager):
    tensor = manager.empty(250, stream=OTHER)
    address = tensor.data_ptr
    device.graphs[OTHER] = 1
    tensor.close()
    assert manager.live_buffers() == []
    device.graphs.clear()
    with manager.empty(250, stream=OTHER) as again:
        assert again.data_ptr == address


def test_copies_of_what_a_graph_uses_do_not_become_a_part_of_it(device, manager):
    tensor, other = manager.from_numpy(np.arange(3.0)), manager.zeros(3, np.float64)
    tensor.record_stream(OTHER)
    device.graphs[OTHER] = 1
    assert tensor.to_numpy().sum() == 3
    other.copy_(tensor)
    tensor.copy_(np.ones(3))
    device.graphs.clear()
    device.calls.clear()
    assert tensor.to_numpy().sum() == 3
    assert device.calls == [f"stream {manager.stream:#x} waits for {OTHER:#x}"]
