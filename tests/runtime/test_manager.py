"""The manager: cap, refusal, ledger, waiting, threads, forks."""

from __future__ import annotations

import gc
import os
import re
import threading

import ml_dtypes
import numpy as np
import pytest
from fake_device import FakeDevice

from rocmkern.runtime.errors import (
    ArgumentError,
    ArgumentTypeError,
    ClosedError,
    DeadlineError,
    DeviceMemoryError,
    DeviceUnavailableError,
    LeakError,
)
from rocmkern.runtime.host import HostDevice
from rocmkern.runtime.manager import ResourceManager, default_manager
from rocmkern.runtime.settings import MemorySettings

MIB = 1 << 20


def bytes_tensor(manager, nbytes):
    return manager.empty(nbytes, np.uint8, uninitialized=True)


# Cap


def test_ten_allocations_of_sixty_percent_do_not_succeed():
    for reported_free in ("computed", 100 * MIB):
        device = FakeDevice(100 * MIB)
        # A driver whose free memory never moves (pages that nobody touched) must not help either.
        device.reported_free = reported_free
        manager = ResourceManager(device)
        kept = []
        for _ in range(10):
            try:
                kept.append(bytes_tensor(manager, 60 * MIB))
            except DeviceMemoryError:
                continue
        assert len(kept) == 1


def test_can_allocate_and_safe_size_agree_with_what_happens(fake, fake_manager):
    safe = fake_manager.safe_alloc_size()
    assert safe == (1 << 30) * 7 // 10
    assert fake_manager.can_allocate(safe)
    assert not fake_manager.can_allocate(safe + 1)
    with pytest.raises(DeviceMemoryError):
        bytes_tensor(fake_manager, safe + 1)
    kept = bytes_tensor(fake_manager, safe)
    assert kept.nbytes == safe
    assert fake_manager.safe_alloc_size() == 0


@pytest.mark.parametrize("nbytes", [-1, 1.5, "1"])
def test_can_allocate_checks_its_argument(fake_manager, nbytes):
    with pytest.raises(ArgumentError, match="nbytes"):
        fake_manager.can_allocate(nbytes)


def test_memory_of_other_processes_is_not_ours_to_use():
    manager = ResourceManager(FakeDevice(1000 * MIB, used_by_others=900 * MIB), cap=0.5)
    assert manager.safe_alloc_size() == 50 * MIB


@pytest.mark.parametrize(
    ("total", "free", "allowed"),
    [(100, 800, 70), (0, 100, 70), (None, 100, 70), (100, -3, 0), (100, None, 70), (None, None, 0)],
)
def test_odd_readings_of_a_driver(total, free, allowed):
    device = FakeDevice(total)
    device.reported_free = free
    manager = ResourceManager(device)
    assert manager.safe_alloc_size() == allowed
    stats = manager.memory_stats()
    assert stats.allowed == allowed
    assert stats.free >= 0 <= stats.total


def test_the_error_gives_every_number(fake):
    manager = ResourceManager(fake, cap=0.5)
    kept = bytes_tensor(manager, 100 * MIB)
    with pytest.raises(DeviceMemoryError, match="over the cap of 50%") as caught:
        bytes_tensor(manager, 500 * MIB)
    error = caught.value
    assert (error.asked, error.allowed) == (500 * MIB, 412 * MIB)
    assert (error.free, error.held, error.total) == (924 * MIB, kept.nbytes, 1024 * MIB)
    for number in (error.asked, error.allowed, error.free, error.held, error.total):
        assert str(number) in str(error)


def test_a_refused_allocation_leaves_everything_unchanged(fake, fake_manager):
    kept = bytes_tensor(fake_manager, 1000)
    before = fake_manager.memory_stats(), fake_manager.live_buffers(), list(fake.calls)
    with pytest.raises(DeviceMemoryError):
        bytes_tensor(fake_manager, 1 << 30)
    assert (fake_manager.memory_stats(), fake_manager.live_buffers(), fake.calls) == before
    assert not kept.closed


def test_a_driver_that_refuses_is_asked_again_after_a_trim(fake, fake_manager):
    bytes_tensor(fake_manager, 1000).close()
    fake.fail_allocations = {2}
    fake.calls.clear()
    assert bytes_tensor(fake_manager, 5000).nbytes == 5000
    assert fake.calls == ["allocate", "free", "flush", "allocate"]


def test_a_driver_that_refuses_twice_is_a_clear_error(fake, fake_manager):
    bytes_tensor(fake_manager, 1000)
    fake.fail_allocations = {2, 3}
    with pytest.raises(DeviceMemoryError, match=r"refused it twice.*fake driver is out of memory") as caught:
        bytes_tensor(fake_manager, 5000)
    assert isinstance(caught.value, MemoryError)
    assert fake.allocations == 3
    assert fake_manager.live_buffers() == []
    assert bytes_tensor(fake_manager, 5000).nbytes == 5000


def test_managers_of_a_device_share_cap_and_ledger(fake):
    first, second = ResourceManager(fake), ResourceManager(fake, cap=0.5)
    kept = bytes_tensor(first, 600 * MIB)
    assert not second.can_allocate(1)
    assert first.can_allocate(100 * MIB)
    assert second.memory_stats().held == kept.nbytes
    assert first.stream == second.stream
    second.assert_no_leak()
    with pytest.raises(LeakError):
        first.assert_no_leak()


def test_stats_name_their_sources(fake, fake_manager):
    tensor = fake_manager.empty(1000)
    stats = fake_manager.memory_stats()
    assert (stats.total, stats.held, stats.reserved) == (1 << 30, 4000, 4096)
    assert stats.free == (1 << 30) - 4096
    assert set(stats.sources) == {"free", "total", "held", "reserved", "allowed"}
    assert stats.sources["free"] == stats.sources["total"] == "fake driver"
    with pytest.raises(AttributeError):
        stats.free = 1
    tensor.close()
    assert fake_manager.memory_stats().held == 0


# Making tensors


@pytest.mark.parametrize("shape", [(), 0, 3, (0, 4), (2, 0, 3), (2, 3, 4)])
@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16, np.int64, bool])
def test_new_tensors_are_zero(manager, shape, dtype):
    for tensor in (manager.zeros(shape, dtype), manager.empty(shape, dtype)):
        array = tensor.to_numpy()
        assert array.dtype == tensor.dtype == np.dtype(dtype)
        assert array.shape == tensor.shape == np.empty(shape).shape
        assert not array.astype(np.float32).any()


def test_size_zero_needs_no_memory(fake, fake_manager):
    tensor = fake_manager.empty((0, 5))
    assert (tensor.data_ptr, tensor.nbytes, fake.allocations) == (0, 0, 0)
    assert len(fake_manager.live_buffers()) == 1
    tensor.close()
    fake_manager.assert_no_leak()


@pytest.mark.parametrize(
    "array",
    [
        np.arange(24, dtype=np.float32).reshape(2, 3, 4).transpose(2, 0, 1),
        np.arange(24, dtype=np.float16)[::-3],
        np.broadcast_to(np.float64(2.5), (3, 2)),
        np.arange(4).astype(ml_dtypes.bfloat16),
        np.array(3 + 4j, np.complex64),
        np.empty((0, 3), np.int8),
    ],
)
def test_from_numpy_takes_any_strides_and_dtypes(manager, array):
    tensor = manager.from_numpy(array)
    assert tensor.is_contiguous
    np.testing.assert_array_equal(tensor.to_numpy(), array)


@pytest.mark.parametrize("dtype", [object, "U3", "M8[s]", [("a", "f4")], ">f4", "no such type"])
def test_dtypes_without_a_fixed_layout_are_refused(manager, dtype):
    with pytest.raises(ArgumentTypeError, match="dtype"):
        manager.zeros(3, dtype)


def test_from_numpy_wants_an_array(manager):
    with pytest.raises(ArgumentTypeError, match="a: got list"):
        manager.from_numpy([1, 2])
    with pytest.raises(ArgumentTypeError, match="a: got dtype object"):
        manager.from_numpy(np.array([None]))
    assert manager.live_buffers() == []


def test_addresses_are_aligned(manager):
    assert [manager.empty(n).data_ptr % 256 for n in (1, 33, 1000)] == [0, 0, 0]


# Ledger and leaks


def test_a_leak_is_listed_with_the_line_that_made_it(manager):
    tensor = manager.zeros((2, 3), np.float16)
    line = re.escape(__file__) + r":\d+"
    with pytest.raises(LeakError, match=rf"1 buffers with 12 bytes.*\n.*12 bytes, float16\[2, 3\], made at {line}"):
        manager.assert_no_leak()
    tensor.close()
    manager.assert_no_leak()


def test_many_leaks_are_counted(manager):
    kept = [manager.zeros(1) for _ in range(13)]
    with pytest.raises(LeakError, match=r"13 buffers with 52 bytes(.|\n)*and 3 more"):
        manager.assert_no_leak()
    assert len(kept) == 13


def test_a_cycle_that_nobody_holds_is_no_leak(manager):
    gc.disable()
    try:
        cycle = [manager.zeros(1)]
        cycle.append(cycle)
        del cycle
        assert len(manager.live_buffers()) == 1
        manager.assert_no_leak()
    finally:
        gc.enable()


def test_memory_that_the_driver_misses_is_a_leak(fake, fake_manager):
    fake.leaked = (1 << 30) * 4 // 100
    fake_manager.assert_no_leak()
    fake.leaked = (1 << 30) * 6 // 100
    with pytest.raises(LeakError, match="are missing"):
        fake_manager.assert_no_leak()
    fake_manager.assert_no_leak(tolerance_percent=7)
    fake_manager.assert_no_leak(tolerance_percent=100)
    for beyond in (-1, 100.5, 101, float("nan")):
        with pytest.raises(ArgumentError, match=r"tolerance_percent: got .*; allowed: 0 to 100"):
            fake_manager.assert_no_leak(tolerance_percent=beyond)


def test_a_leak_check_trims_first_and_knows_what_others_hold(fake, fake_manager):
    other = ResourceManager(fake)
    kept = bytes_tensor(other, 300 * MIB)
    bytes_tensor(fake_manager, 200 * MIB).close()
    fake_manager.assert_no_leak(tolerance_percent=0)
    assert fake.driver_bytes == kept.nbytes


# Waiting


def test_waiting_ends_when_the_work_does(fake, fake_manager, clock):
    fake.stall(fake_manager.stream)
    fake.submit(fake_manager.stream)
    clock.appointments.append((10.0, lambda: fake.resume(fake_manager.stream)))
    fake_manager.wait()
    assert 10.0 <= clock.now < 60.0
    assert fake.live_events == 0


def test_after_the_deadline_the_operation_is_named(fake, fake_manager, clock):
    fake.stall(fake_manager.stream)
    fake.submit(fake_manager.stream)
    with pytest.raises(DeadlineError, match="my reduction did not finish within 60 s") as caught:
        fake_manager.wait("my reduction")
    assert isinstance(caught.value, TimeoutError)
    assert 60 <= clock.now < 70


def test_the_first_operation_that_is_not_done_is_the_stuck_one(fake, fake_manager):
    fake.submit(fake_manager.stream)
    fake_manager.track("kernel one")
    fake.stall(fake_manager.stream)
    for name in ("kernel two", "kernel three"):
        fake.submit(fake_manager.stream)
        fake_manager.track(name)
    with pytest.raises(DeadlineError, match=r"^kernel two \(while waiting for: "):
        fake_manager.wait()


def test_work_tracked_on_another_stream_is_waited_for(fake, fake_manager, clock):
    fake.stall(0x7)
    fake.submit(0x7)
    fake_manager.track("kernel on another stream", stream=0x7)
    clock.appointments.append((4.0, lambda: fake.resume(0x7)))
    fake_manager.wait()
    assert clock.now >= 4.0
    fake_manager.wait()
    assert fake.live_events == 0


def test_finished_work_does_not_pile_up(fake, fake_manager):
    fake.stall(fake_manager.stream)
    fake.submit(fake_manager.stream)
    fake_manager.track("first")
    fake.resume(fake_manager.stream)
    for _ in range(100):
        fake.submit(fake_manager.stream)
        fake_manager.track("more")
    fake_manager.wait()
    assert fake.live_events == 0


def test_a_copy_to_the_host_waits_and_has_a_deadline(fake, fake_manager):
    tensor = fake_manager.zeros(3)
    fake.stall(fake_manager.stream)
    with pytest.raises(DeadlineError, match=r"the copy of float32\[3\] on hip:0"):
        tensor.to_numpy()


def test_a_copy_waits_for_other_streams_that_use_the_buffer(fake, fake_manager):
    tensor = fake_manager.zeros(3)
    tensor.record_stream(0x7)
    tensor.to_numpy()
    assert f"stream {fake_manager.stream:#x} waits for 0x7" in fake.calls


@pytest.mark.parametrize("deadline_s", [0, -1, float("nan"), float("inf"), "60", True])
def test_deadlines_are_positive_numbers(fake, deadline_s):
    with pytest.raises(ArgumentError, match="deadline_s"):
        ResourceManager(fake, deadline_s=deadline_s)
    manager = ResourceManager(fake)
    with pytest.raises(ArgumentError, match="deadline_s"):
        manager.deadline_s = deadline_s
    assert manager.deadline_s == 60


def test_a_deadline_and_a_cap_that_are_set_later_hold_from_then_on(fake, fake_manager):
    before = fake_manager.safe_alloc_size()
    fake_manager.cap = fake_manager.cap / 2
    assert fake_manager.safe_alloc_size() == pytest.approx(before / 2, abs=1)
    with pytest.raises(ArgumentError, match="cap"):
        fake_manager.cap = 0.95
    fake_manager.deadline_s = 7
    fake.stall(fake_manager.stream)
    fake.submit(fake_manager.stream)
    with pytest.raises(DeadlineError, match="within 7 s"):
        fake_manager.wait()


# Life of a manager


def test_close_returns_everything_and_ends_its_tensors(fake):
    with ResourceManager(fake) as manager:
        tensor, view = manager.zeros(1000), manager.zeros((2, 2))[0]
    assert fake.driver_bytes == 0
    for handle in (tensor, view):
        with pytest.raises(ClosedError, match="the manager of the tensor"):
            handle.to_numpy()
    with pytest.raises(ClosedError, match="is closed"):
        manager.zeros(1)
    manager.close()


def test_close_leaves_other_managers_alone(fake):
    first, second = ResourceManager(fake), ResourceManager(fake)
    kept = second.zeros(1000)
    first.zeros(1000)
    first.close()
    assert kept.to_numpy().shape == (1000,)
    second.close()
    assert fake.driver_bytes == 0


def test_close_does_not_free_under_a_running_kernel(fake, fake_manager):
    fake_manager.zeros(1000)
    fake.stall(fake_manager.stream)
    fake.submit(fake_manager.stream)
    with pytest.raises(DeadlineError):
        fake_manager.close()
    assert not fake_manager.closed
    fake.resume(fake_manager.stream)
    fake_manager.close()
    assert fake.driver_bytes == 0


def test_one_default_manager_per_device(fake):
    assert default_manager(fake) is default_manager(fake) is not default_manager()
    assert default_manager() is default_manager("host")
    closed = default_manager(fake)
    closed.close()
    assert default_manager(fake) is not closed


def test_a_tensor_keeps_its_manager(fake):
    tensor = ResourceManager(fake).zeros(3)
    gc.collect()
    assert tensor.to_numpy().sum() == 0


@pytest.mark.parametrize("settings", [MemorySettings(), MemorySettings(pool=False), MemorySettings(poison=True)])
@pytest.mark.parametrize("make_device", [HostDevice, FakeDevice])
def test_threads_allocate_and_free_at_once(make_device, settings):
    device = make_device()
    manager = ResourceManager(device, settings=settings)
    failures = []

    def work(seed):
        generator = np.random.default_rng(seed)
        try:
            kept = []
            for _ in range(80):
                tensor = manager.zeros(int(generator.integers(0, 2000)), np.float32)
                assert not tensor.to_numpy().any()
                kept.append(tensor.copy_(np.full(tensor.shape, seed, np.float32)))
                if len(kept) > 8:
                    victim = kept.pop(int(generator.integers(len(kept))))
                    assert (victim.to_numpy() == seed).all()
                    victim.clone().close()
                    victim.close()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(1, 9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    stats = manager.memory_stats()
    assert stats.held == 0
    manager.assert_no_leak(tolerance_percent=0)
    assert manager.memory_stats().reserved == 0


def test_giving_back_inside_a_collection_does_not_deadlock(fake, fake_manager):
    # The driver's call runs with the lock held, and there a collection may find a dead tensor.
    dead = [fake_manager.zeros(10)]

    def memory_info():
        dead.clear()
        return FakeDevice.memory_info(fake)

    fake.memory_info = memory_info
    fake_manager.empty(1 << 20)
    assert fake_manager.memory_stats().held == 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this platform cannot fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_may_not_use_the_parents_gpu_but_may_use_the_host(fake, fake_manager):
    tensor, host = fake_manager.zeros(3), default_manager("host")
    before = list(fake.calls)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            assert host.zeros(3).to_numpy().sum() == 0
            for use in (lambda: fake_manager.zeros(1), tensor.to_numpy, fake_manager.memory_stats):
                try:
                    use()
                except DeviceUnavailableError as error:
                    assert "fork" in str(error)
                else:
                    raise AssertionError("the parent's context was used")
            tensor.close()
            assert fake.calls == before
            status = 0
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert tensor.to_numpy().sum() == 0


def test_settings_from_the_environment():
    read = MemorySettings.from_environment
    assert read({}) == MemorySettings(pool=True, poison=False, guard=False)
    assert read({"ROCMKERN_MEMORY": "nopool, guard"}) == MemorySettings(pool=False, guard=True)
    with pytest.raises(ArgumentError, match="ROCMKERN_MEMORY: got pioson"):
        read({"ROCMKERN_MEMORY": "pioson"})
