"""The zeros with which kernels count: whose they are, when they are filled, and how long they stay."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest
from test_graph_memory import OTHER, Recorded, address_of

from rocmkern.runtime.errors import ClosedError
from rocmkern.runtime.manager import ResourceManager
from rocmkern.runtime.settings import MemorySettings


class Soiled(Recorded):
    """New memory is not zero. Notes the streams that work was submitted to, and what is done beside a recording."""

    def __init__(self):
        super().__init__()
        self.submitted, self.beside = [], 0

    def allocate(self, nbytes):
        assert self.beside or not self.graphs, "memory is allocated while a stream records"
        address = super().allocate(nbytes)
        self.memory[address][:] = 0xA5
        return address

    def query(self, event):
        assert self.beside or not self.graphs, "an event is queried while a stream records"
        return super().query(event)

    def submit(self, stream):
        self.submitted.append(stream)
        super().submit(stream)

    @contextlib.contextmanager
    def beside_capture(self):
        self.beside += 1
        yield
        self.beside -= 1


@pytest.fixture
def device():
    return Soiled()


@pytest.fixture
def manager(device, clock):
    with ResourceManager(device, settings=MemorySettings(), clock=clock, sleep=clock.sleep) as manager:
        yield manager
        device.graphs.clear()
        manager.assert_no_leak()
    assert device.driver_bytes == 0


def assert_zeros(tensor, count):
    assert tensor.dtype == np.int32 and tensor.ndim == 1 and tensor.size >= count
    assert not tensor.to_numpy().any()


def test_a_stream_has_the_same_zeros_each_time(device, manager):
    counters = manager.counters(5, OTHER)
    assert device.submitted == [OTHER]
    assert_zeros(counters, 5)
    assert manager.counters(1, OTHER) is counters and manager.counters(5, OTHER) is counters


def test_other_streams_have_others(manager):
    streams = OTHER, OTHER + 1, manager.stream, 0
    for _ in range(2):
        assert len({manager.counters(5, stream).data_ptr for stream in streams}) == len(streams)


def test_those_that_are_too_few_stay_beside_more(device, manager):
    few = manager.counters(5, OTHER)
    more = manager.counters(few.size + 1, OTHER)
    assert_zeros(more, few.size + 1)
    most = manager.counters(5000, OTHER)
    assert_zeros(most, 5000)
    assert manager.counters(5, OTHER) is most
    size, found = few.size, {x.data_ptr for x in (few, more, most)}
    del few, more  # kernels that were submitted, and plans, may still count with them
    with manager.empty(size, np.int32, stream=OTHER) as later:
        assert len({*found, later.data_ptr}) == 4


def test_a_graph_has_its_own_which_are_no_part_of_it(device, manager, clock):
    eager = manager.counters(5, OTHER)
    found = {}
    for graph in (1, 2):
        device.graphs[OTHER] = graph
        device.submitted.clear()
        device.stall(manager.stream)
        clock.appointments.append((clock.now + 5, lambda: device.resume(manager.stream)))
        before = clock.now
        found[graph] = manager.counters(5, OTHER)
        assert clock.now >= before + 5, "the graph may be started as soon as it is recorded"
        assert set(device.submitted) == {manager.stream}
        assert manager.counters(5, OTHER) is found[graph]
    device.graphs.clear()
    for counters in found.values():
        assert_zeros(counters, 5)
    assert manager.counters(5, OTHER) is eager
    device.graphs[OTHER] = 1
    assert manager.counters(5, OTHER) is found[1]
    assert len({x.data_ptr for x in (eager, *found.values())}) == 3


def test_nothing_else_in_a_graph_writes_where_it_counts(device, manager):
    # Whenever it is started, the graph writes its inner results once more.
    device.graphs[OTHER] = 1
    before = address_of(manager, 1024)
    counters = manager.counters(5, OTHER)
    after = {address_of(manager, 1024), address_of(manager, 700)}
    more = manager.counters(counters.size + 1, OTHER)
    assert not {counters.data_ptr, more.data_ptr} & {before, *after}


@pytest.mark.parametrize("guard", [False, True])
@pytest.mark.parametrize("poison", [False, True])
def test_they_are_held_until_the_manager_is_closed(guard, poison):
    device = Recorded()
    manager = ResourceManager(device, settings=MemorySettings(guard=guard, poison=poison))
    held, nbytes = manager.memory_stats().held, 0
    for graph in (None, 1):
        device.graphs = {} if graph is None else {OTHER: graph}
        counters = manager.counters(5, OTHER)
        nbytes += counters.nbytes
        device.graphs = {}
        assert_zeros(counters, 5)
        manager.check_guards("counting")
    assert manager.memory_stats().held == held + nbytes
    assert manager.live_buffers() == []
    manager.assert_no_leak()
    assert_zeros(manager.counters(5, OTHER), 5)
    manager.close()
    assert device.driver_bytes == 0
    with pytest.raises(ClosedError):
        manager.counters(5, OTHER)
