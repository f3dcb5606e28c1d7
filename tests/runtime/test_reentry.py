"""Signal handlers and finalizers that call the library in the middle of a call: they run, or are told why not.

A handler is called at one instruction after the other of the runtime; an exception of the kind that a hang would be is
`ReentryError`, and whatever it is, the call around it is right.
"""

from __future__ import annotations

import sys
import threading

import numpy as np
import pytest
from async_exceptions import of_modules
from fake_device import FakeDevice

from rocmkern.runtime import (
    allocator,
    base_manager,
    error_word,
    handle,
    manager,
    memory,
    pinned,
    pool,
    queue,
    scratch,
    storage,
    tensor,
    transfer,
)
from rocmkern.runtime.errors import ReentryError
from rocmkern.runtime.manager import ResourceManager
from rocmkern.runtime.memory import DeviceMemory
from rocmkern.runtime.mutex import Mutex, alone
from rocmkern.runtime.once import once
from rocmkern.runtime.settings import MemorySettings

RUNTIME = of_modules(
    allocator,
    base_manager,
    error_word,
    handle,
    manager,
    memory,
    pinned,
    pool,
    queue,
    scratch,
    storage,
    tensor,
    transfer,
)
DATA = np.arange(300, dtype=np.float32)


def visited(action, handler, at):
    """What `action` returns, and whether `handler` was called, at instruction number `at` of the runtime."""
    count, called = 0, False

    def trace(frame, event, argument):
        nonlocal count, called
        frame.f_trace_opcodes = True
        if event == "opcode" and RUNTIME(frame.f_code):
            if count == at:
                called = True
                handler()
            count += 1
        return trace

    sys.settrace(trace)
    try:
        result = action()
    finally:
        sys.settrace(None)
    return result, called


def test_a_handler_at_any_place_runs_or_is_refused():
    device = FakeDevice()
    at_work = ResourceManager(device, settings=MemorySettings())
    of_device = DeviceMemory.of(device)
    ran = refused = 0

    def handler():
        nonlocal ran, refused
        try:
            with at_work.from_numpy(DATA[::-1]) as copy:
                np.testing.assert_array_equal(copy.to_numpy(), DATA[::-1])
            ran += 1
        except ReentryError:
            refused += 1

    def action():
        with at_work.from_numpy(DATA) as copy, at_work.zeros(100):
            return at_work.scratch(1000, at_work.stream).lend(lambda address: copy.to_numpy())

    at, called = 0, True
    while called:
        result, called = visited(action, handler, at)
        np.testing.assert_array_equal(result, DATA)
        assert at_work.live_buffers() == []
        of_device.settle()
        assert of_device.reserved == of_device.pool.idle_bytes == sum(device.allocated().values())
        at += 23
    assert ran > 10 and refused > 10


def test_a_lock_of_ones_own_is_an_error_and_that_of_another_is_waited_for():
    lock, got = Mutex(), []

    def wait():
        with alone(lock):
            got.append(1)

    with alone(lock):
        with pytest.raises(ReentryError, match="signal handler or a finalizer"), alone(lock):
            pass
        waiting = threading.Thread(target=wait)
        waiting.start()
        waiting.join(0.05)
        assert got == []
    waiting.join(30)
    assert got == [1]


def test_what_a_process_has_one_of_stays_one_where_a_handler_asks_first():
    within = []

    @once
    def make():
        if not within:
            within.append(None)
            within.append(make())
        return object()

    assert make() is within[1] is make()
