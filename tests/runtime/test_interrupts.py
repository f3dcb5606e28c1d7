"""An exception between any two instructions of the runtime: no lock is kept, no block is lost, the next call is right.

Each test calls something again and again, interrupted one instruction later each time (`async_exceptions`).
"""

from __future__ import annotations

import contextlib
import functools
import gc
import io
import itertools
import os
import signal
import sys
import threading

import async_exceptions
import fake_device
import numpy as np
import pytest
from async_exceptions import Interrupt, everywhere, interrupted, of_modules
from fake_device import FakeDevice

from rocmkern.runtime import (
    allocator,
    base_manager,
    device,
    devices,
    error_word,
    graph_memory,
    guard,
    handle,
    kept,
    kv_cache,
    leaks,
    ledger,
    manager,
    memory,
    mutex,
    pinned,
    pool,
    queue,
    scratch,
    storage,
    tensor,
    transfer,
    waiting,
)
from rocmkern.runtime import host as host_module
from rocmkern.runtime.device import Device
from rocmkern.runtime.gpu import GpuDevice
from rocmkern.runtime.host import HostDevice
from rocmkern.runtime.kv_cache import KVCache
from rocmkern.runtime.manager import ResourceManager
from rocmkern.runtime.memory import DeviceMemory
from rocmkern.runtime.mutex import Mutex, alone
from rocmkern.runtime.once import once
from rocmkern.runtime.settings import MemorySettings

RUNTIME = of_modules(
    allocator, base_manager, device, devices, error_word, fake_device, graph_memory, guard, handle, kept, kv_cache,
    leaks, ledger, manager, memory, mutex, pinned, pool, queue, scratch, storage, tensor, transfer, waiting,
)  # fmt: skip
OTHER = 0x77
DATA = np.arange(300, dtype=np.float32)


class Recording(FakeDevice):
    """Streams may record graphs."""

    def __init__(self):
        super().__init__()
        self.graphs = {}

    def capture(self, stream):
        return self.graphs.get(stream)


@pytest.fixture
def gpu():
    return Recording()


@pytest.fixture(autouse=True)
def swallowed(monkeypatch):
    """Exceptions that a finalizer has lost."""
    lost = []
    # Not the exception itself: its frames keep tensors alive.
    monkeypatch.setattr(sys, "unraisablehook", lambda unraisable: lost.append(type(unraisable.exc_value)))
    return lost


def check(manager, held=()):
    """Whether everything is as it should be, with some tensors alive."""
    of_device = DeviceMemory.of(manager.device)
    for lock in (of_device.lock, of_device.pinned._lock, of_device.error_words._lock, manager.queue._lock):
        assert not lock._is_owned()
    assert not manager._constants._lock._is_owned() and not manager._counters._lock._is_owned()
    expected = sorted(tensor.nbytes for tensor in held)
    if sorted(entry.nbytes for entry in manager.live_buffers()) != expected:
        gc.collect()  # an exception while another is handled: its frames, and what they hold, wait to be collected
    assert sorted(entry.nbytes for entry in manager.live_buffers()) == expected
    of_device.settle()
    assert of_device.reserved == manager.device.driver_bytes == sum(manager.device.allocated().values())
    kept = sum(t.block.capacity for t in of_device.ledger.live() if t.block is not None)
    in_graphs = sum(block.capacity for blocks in of_device.graphs._unused.values() for block in blocks)
    assert of_device.pool.idle_bytes == of_device.reserved - kept - in_graphs
    listed = [block for idle in of_device.pool._idle.values() for *_, block in idle]
    assert len(set(map(id, listed))) == len(listed)
    with manager.from_numpy(DATA) as again:
        np.testing.assert_array_equal(again.to_numpy(), DATA)


def interrupt(manager, action, least=50, held=(), step=1):
    struck = 0
    for struck in everywhere(action, RUNTIME, step):  # noqa: B007 (counted for what follows)
        check(manager, held)
    assert struck >= least


@pytest.mark.parametrize("settings", [MemorySettings(), MemorySettings(pool=False), MemorySettings(poison=True)])
@pytest.mark.parametrize("stream", [None, OTHER])
def test_tensors_that_come_and_go(gpu, settings, stream):
    manager = ResourceManager(gpu, settings=settings)

    def action():
        one = manager.empty(1000, stream=stream)
        two = manager.zeros(20)
        one.record_stream(OTHER + 1)
        one.close()
        del two

    interrupt(manager, action, 100, step=1 if settings.pool and not settings.poison and stream is None else 5)


def test_memory_that_the_driver_gives_and_takes(gpu):
    manager = ResourceManager(gpu, settings=MemorySettings())

    def action():
        manager.empty(1000).close()
        manager.trim()

    for number in everywhere(action, RUNTIME):
        check(manager)
        manager.trim()
        assert gpu.driver_bytes == 0, number
    assert number > 500


def test_what_is_alive_stays_alive(gpu):
    manager = ResourceManager(gpu, settings=MemorySettings())
    held = [manager.from_numpy(DATA), manager.empty(0)]
    interrupt(manager, lambda: held[0].copy().close(), 200, held, 3)
    np.testing.assert_array_equal(held[0].to_numpy(), DATA)


def test_a_refusal(gpu):
    manager = ResourceManager(gpu, settings=MemorySettings())

    def action():
        manager.empty(5000).close()
        with pytest.raises(MemoryError):
            manager.empty(1 << 30)

    interrupt(manager, action, 200, step=3)


def test_copies(gpu, monkeypatch):
    monkeypatch.setattr(transfer, "BLOCK_BYTES", 512)
    manager = ResourceManager(gpu, settings=MemorySettings())
    interrupt(manager, lambda: manager.from_numpy(DATA)[::2].to_numpy(), 200, step=8)
    made = [len(blocks) for blocks in DeviceMemory.of(gpu).pinned._blocks.values()]
    assert max(made) <= 16


@pytest.mark.parametrize("stream", ["ours", 0, OTHER])
def test_scratch(gpu, stream):
    manager = ResourceManager(gpu, settings=MemorySettings())
    stream = manager.stream if stream == "ours" else stream
    lent = manager.scratch(1000, stream)
    addresses = set()

    def submit(address):
        addresses.add(address)
        gpu.submit(stream)

    interrupt(manager, lambda: lent.lend(submit), 20)
    manager.empty(250, stream=OTHER + 1).close()
    interrupt(manager, lambda: lent.lend(submit), 20)
    # Whoever takes it comes after the work of a call that was interrupted.
    at, goes_on, late = 0, True, 0
    while goes_on:
        lent.lend(submit)  # so that each attempt finds the same: nothing to repair, and a block that is its stream's
        addresses.clear()
        gpu.stall(stream)
        before = gpu._positions[stream]
        goes_on = interrupted(lambda: lent.lend(submit), RUNTIME, at)
        submitted = gpu._positions[stream] > before
        with manager.empty(250, stream=OTHER + 2) as taken:
            assert not submitted or taken.data_ptr not in addresses
        late += submitted
        gpu.resume(stream)
        at += 1
    assert late > 30


def test_graphs(gpu):
    manager = ResourceManager(gpu, settings=MemorySettings())
    gpu.graphs[OTHER] = 1

    def action():
        manager.empty(1000, stream=OTHER).close()
        manager.counters(5, OTHER)

    interrupt(manager, action, 200, step=37)  # what counters leave belongs to the graph until the end
    gpu.graphs.clear()
    manager.close()
    assert gpu.driver_bytes == 0


def test_counters_constants_and_waits(gpu):
    manager = ResourceManager(gpu, settings=MemorySettings())
    numbers = iter(range(10**6))

    def action():
        manager.note(["kernel"] * 9, manager.stream)
        manager.note(["kernel"] * 9, 0)
        manager.constant(np.array([next(numbers)]))
        manager.counters(5, manager.stream)
        manager.wait()

    interrupt(manager, action, 500, step=5)
    assert len(manager.queue._in_flight) < 50
    np.testing.assert_array_equal(manager.counters(5, manager.stream).to_numpy(), 0)
    manager.close()
    assert gpu.driver_bytes == 0


def test_guard_bands(gpu):
    manager = ResourceManager(gpu, settings=MemorySettings(guard=True))

    def action():
        with manager.empty(10):
            manager.check_guards("kernel")

    interrupt(manager, action, 500, step=5)


def test_a_manager_that_is_closed_and_opened(gpu):
    def action():
        with ResourceManager(gpu, settings=MemorySettings()) as manager:
            manager.zeros(100)

    for number in everywhere(action, RUNTIME, 3):
        with ResourceManager(gpu, settings=MemorySettings()) as manager:
            check(manager)
            held = manager.zeros(100)
        assert held.closed, number
    assert gpu.driver_bytes == 0


def test_a_close_that_was_interrupted_is_finished_by_the_next(gpu):
    at, goes_on = 0, True
    while goes_on:
        manager = ResourceManager(gpu, settings=MemorySettings())
        tensor = manager.zeros(100)
        goes_on = interrupted(manager.close, RUNTIME, at)
        manager.close()
        assert tensor.closed and gpu.driver_bytes == 0, at
        at += 2


def test_host_memory():
    host = HostDevice()
    manager = ResourceManager(host, settings=MemorySettings())
    elsewhere, names = of_modules(memory, pool, ledger), ("allocate", "free", "allocated")

    def where(code):
        return elsewhere(code) or (code.co_filename == host_module.__file__ and code.co_name in names)

    for _ in everywhere(lambda: manager.empty(100).close() or manager.trim(), where, 3):
        manager.trim()
        assert DeviceMemory.of(host).reserved == 0 and not host.allocated()


def test_finalizers_run_no_code_of_ours(gpu, swallowed):
    manager = ResourceManager(gpu, settings=MemorySettings())
    tensors = [manager.empty(100)]
    owner = tensors[0].keep_alive()
    del owner
    called = []
    sys.setprofile(lambda frame, event, argument: called.append(frame.f_code.co_name) if event == "call" else None)
    tensors.clear()
    sys.setprofile(None)
    assert called == [] and swallowed == []
    assert manager.live_buffers() == []


def test_repairing_what_is_whole_changes_nothing(gpu):
    manager = ResourceManager(gpu, settings=MemorySettings())
    of_device = DeviceMemory.of(gpu)
    held = [manager.empty(10 + 1000 * i, stream=stream) for i, stream in enumerate((None, 0, OTHER))]
    for size in (100, 3000, 200):
        manager.empty(size, stream=OTHER).close()
    of_device.settle()
    before = of_device.reserved, of_device.pool._idle, of_device.pool.idle_bytes, of_device.ledger.entries()
    of_device._torn = True
    of_device.settle()
    after = of_device.reserved, of_device.pool._idle, of_device.pool.idle_bytes, of_device.ledger.entries()
    assert {k: v for k, v in before[1].items() if v} == {k: v for k, v in after[1].items() if v}
    assert (before[0], before[2:]) == (after[0], after[2:]) and len(held) == 3


def careless(lock):
    lock.acquire()
    try:
        pass
    finally:
        lock.release()


def careful(lock):
    with lock:
        pass


def careful_and_alone(lock):
    with alone(lock):
        pass


def release_all(lock):
    """How often this thread had the lock."""
    count = 0
    while lock._is_owned():
        lock.release()
        count += 1
    return count


@pytest.mark.parametrize(
    ("region", "had"), [(careless, 0), (careless, 2), (careful, 0), (careful, 2), (careful_and_alone, 0)]
)
@pytest.mark.parametrize("kind", [threading.RLock, Mutex])
def test_a_region_leaves_its_lock_as_it_was_at_any_interrupt(kind, region, had):
    """Also that the method notices the mistakes which it is for."""
    lock, of_enter, mistakes, at, goes_on = kind(), of_modules(mutex), 0, 0, True
    while goes_on:
        for _ in range(had):
            lock.acquire()
        goes_on = interrupted(lambda: region(lock), lambda code: code is region.__code__ or of_enter(code), at)
        mistakes += release_all(lock) != had
        at += 1
    assert at > 5
    # From 3.14 on the entry of a lock written in C is as careless.
    assert (mistakes > 0) == (region is careless or (kind is threading.RLock and sys.version_info >= (3, 14)))


def test_a_lock_that_could_not_be_had_is_not_released():
    """An exception while another thread has it: that of the thread stays, and so does what the waiting one had."""
    lock, release, taken = Mutex(), threading.Event(), threading.Event()

    def hold():
        with lock:
            taken.set()
            release.wait(30)

    holder = threading.Thread(target=hold)
    holder.start()
    taken.wait(30)
    main = threading.get_ident()
    timer = threading.Timer(0.1, lambda: signal.pthread_kill(main, signal.SIGUSR1))
    before = signal.signal(signal.SIGUSR1, lambda *_: (_ for _ in ()).throw(Interrupt))
    try:
        with pytest.raises(Interrupt):
            timer.start()
            with lock:
                pass
        assert not lock._is_owned() and not lock.acquire(blocking=False)
    finally:
        signal.signal(signal.SIGUSR1, before)
        release.set()
        holder.join(30)
    with lock:
        assert lock._is_owned()


def test_an_interrupt_reaches_the_caller():
    def action():
        for _ in range(3):
            len("")

    caught = 0
    for at in range(3):
        raised = []

        def watched(raised=raised):
            try:
                action()
            except Interrupt:
                raised.append(1)
                raise

        assert interrupted(watched, lambda code: code is action.__code__, at)
        caught += len(raised)
    assert caught == 3 and async_exceptions.__doc__


# Pages


def test_pages_of_sequences():
    cache = KVCache(8, 4, 1, 2)
    prompt = cache.add()
    cache.append(prompt, 6)

    def action():
        other = cache.fork(prompt)
        cache.append(other, 7)
        cache.free(other)

    for number in everywhere(action, RUNTIME, 1):
        for sequence in cache.sequences:
            if sequence != prompt:
                cache.free(sequence)
        assert cache.length(prompt) == 6 and cache.free_blocks == 6, number
        assert [cache.reference_count(block) for block in cache.blocks(prompt)] == [1, 1], number
    assert number > 100


# Forks and first calls


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_has_locks_of_its_own():
    host = ResourceManager(HostDevice(), settings=MemorySettings())
    of_device = DeviceMemory.of(host.device)
    locks = (of_device.lock, host.queue._lock, host._constants._lock, host._counters._lock, devices._opening,
             of_device.pinned._lock, of_device.error_words._lock)  # fmt: skip
    for lock in locks:
        lock.acquire()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            np.testing.assert_array_equal(host.from_numpy(DATA).to_numpy(), DATA)
            host.constant(DATA)
            host.counters(3, 0)
            status = 0 if devices._opening.acquire(blocking=False) else 1
        finally:
            os._exit(status)
    for lock in locks:
        lock.release()
    assert os.waitpid(child, 0)[1] == 0


def test_threads_that_ask_first_get_the_same_device(monkeypatch):
    for _ in range(20):
        monkeypatch.setattr(devices, "host_device", once(HostDevice))
        start, found = threading.Barrier(8), []

        def ask(start=start, found=found):
            start.wait(60)
            found.append(manager.default_manager())

        threads = [threading.Thread(target=ask) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        assert len(found) == 8 and len(set(map(id, found))) == 1


class Driver(GpuDevice):
    """A GPU whose driver's calls are in C, and note what they were asked for."""

    def __init__(self):
        super().__init__(FakeDevice().info)
        self.said = io.StringIO()

    locals().update(dict.fromkeys(Device.__abstractmethods__ | GpuDevice.__abstractmethods__))
    current = contextlib.nullcontext

    def _create_event(self):
        return "event"

    def _following(self, event, streams, other):
        say = functools.partial(print, file=self.said)
        return itertools.starmap(say, [("record", event, other), *(("wait", stream, event) for stream in streams)])

    def _read_following(self, answers):
        assert answers == [None] * 3


def test_other_streams_wait_for_what_was_submitted_whatever_is_raised_when():
    gpu, submitted = Driver(), []

    def submit():
        submitted.append("work")  # one call of C, as a launch is
        len(submitted)

    def action():
        gpu.said = io.StringIO()
        submitted.clear()
        gpu.call_followed(submit, [5, 7], 9)

    places = {action.__code__, submit.__code__, GpuDevice.call_followed.__code__}
    unsubmitted = followed = 0
    for _ in everywhere(action, lambda code: code in places or code is Driver._following.__code__):
        if submitted:
            assert gpu.said.getvalue() == "record event 9\nwait 5 event\nwait 7 event\n"
            followed += 1
        else:
            unsubmitted += 1
    assert unsubmitted > 20 and followed > 10


def test_other_streams_wait_where_a_submission_has_failed():
    gpu = Driver()
    with pytest.raises(ZeroDivisionError):
        gpu.call_followed(lambda: 1 / 0, [5, 7], 9)
    assert gpu.said.getvalue().count("wait") == 2 and gpu._idle_events == ["event"]
    assert gpu.call_followed(lambda: "result", [5, 7], 9) == "result"
