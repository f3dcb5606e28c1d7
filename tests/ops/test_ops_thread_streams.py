"""Work on the default stream of a thread: its handle is the same number in every thread, the stream is not."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from stand_in_gpu import FakeDevice

import rocmkern
from rocmkern import reference
from rocmkern.runtime.interface import PER_THREAD_STREAM
from rocmkern.runtime.manager import default_manager
from rocmkern.runtime.views import memory_view


class Threaded(FakeDevice):
    """Notes who waits for whom between two launches, and the threads that it happens in. May record graphs."""

    def __init__(self):
        super().__init__()
        self.graphs, self.order = {}, []

    def _which(self, stream):
        return (stream, threading.get_ident()) if stream == PER_THREAD_STREAM else stream

    def record(self, stream):
        assert self._which(stream) not in self.graphs, "an event of a graph"
        event = super().record(stream)
        event.which = self._which(stream)
        return event

    def stream_wait(self, stream, event):
        self.order.append((self._which(stream), "waits for", event.which))

    def submit(self, stream):
        super().submit(stream)
        self.order.append((self._which(stream), "works"))

    def capture(self, stream):
        return self.graphs.get(self._which(stream))


pytestmark = pytest.mark.usefixtures("no_plans")


@pytest.fixture
def device():
    return Threaded()


def in_thread(function):
    """What a function returns in a thread of its own, and the thread's number."""
    found = []
    thread = threading.Thread(target=lambda: found.append((function(), threading.get_ident())))
    thread.start()
    thread.join()
    return found[0]


@pytest.fixture
def decode(device, gpu, manager):
    """Decode with split keys on a stream; returns (went by a plan, what happened in which order)."""
    values = [np.random.default_rng(n).standard_normal((1, 2, n, 8), np.float32) for n in (1, 40)]
    exact = reference.decode_attention(values[0], values[1], values[1])

    def call(stream=PER_THREAD_STREAM):
        q, k, out = (manager.from_numpy(x) for x in (*values, np.full_like(values[0], np.nan)))
        ordinary, begin = gpu.ordinary, len(device.order)
        rocmkern.decode_attention(q, k, k, num_splits=3, out=out, stream=stream)
        order = device.order[begin:]
        # Not by a copy: it would wait for a stream that may record a graph.
        found = memory_view(out.data_ptr, out.shape, out.strides, out.dtype, out, True)
        np.testing.assert_allclose(found, exact, rtol=1e-4, atol=1e-6)
        return gpu.ordinary == ordinary, order

    return call


def test_it_goes_on_our_own_stream_between_what_the_thread_did_before_and_what_it_does_after(manager, decode):
    own = manager.stream
    default_manager(manager.device).counters(1, own)  # made by the first call
    for expected in (False, True):
        for run in (lambda f: (f(), threading.get_ident()), in_thread):
            (planned, order), thread = run(decode)
            theirs = PER_THREAD_STREAM, thread
            assert order == [(own, "waits for", theirs), (own, "works"), (theirs, "waits for", own)]
            assert planned is expected
            expected = True


def test_threads_that_come_and_go_leave_nothing(manager, decode):
    in_thread(decode)
    before = manager.memory_stats()
    events = manager.device.live_events
    for _ in range(50):
        in_thread(decode)
    manager.wait()
    default_manager(manager.device).wait()
    after = manager.memory_stats()
    assert (after.held, after.reserved) == (before.held, before.reserved)
    assert manager.device.live_events <= events


def test_a_graph_is_recorded_by_the_stream_itself(device, manager, decode):
    theirs = PER_THREAD_STREAM, threading.get_ident()
    for graph, calls in ((1, 2), (None, 2), (2, 1)):
        device.graphs = {} if graph is None else {theirs: graph}
        for number in range(calls):
            planned, order = decode()
            worked = [stream for stream, what, *_ in order if what == "works"]
            if graph is None:
                assert set(worked) == {manager.stream} and planned is (number > 0)
            else:
                assert worked[-1] == theirs and not planned
    device.graphs = {}
    assert decode()[0]
    # The other threads' streams do not record.
    device.graphs = {theirs: 3}
    assert in_thread(decode)[0][0]
    device.graphs = {}
