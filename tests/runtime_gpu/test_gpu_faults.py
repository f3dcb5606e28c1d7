"""What a driver may do to us: after each fault a clear error, a right ledger, no leak, and the next call works."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from rocmkern.runtime import memory as memory_module
from rocmkern.runtime.errors import DeadlineError, DeviceMemoryError, DriverError
from rocmkern.runtime.lock import device_lock
from rocmkern.runtime.manager import ResourceManager
from rocmkern.runtime.settings import MemorySettings

OUT_OF_MEMORY, NOT_READY, LAUNCH_FAILURE, UNKNOWN = 2, 600, 719, 999
MIB = 1 << 20
ARRAY = np.arange(1000, dtype=np.float32)


@pytest.fixture
def manager(device, vgpu):
    """A manager with a short deadline on the virtual GPU; afterwards the driver holds no more than before."""
    with ResourceManager(device, settings=MemorySettings(), deadline_s=0.3) as manager:
        manager.trim()
        alive = len(vgpu.live())
        yield manager
        vgpu.clear_failures()
        manager.assert_no_leak(tolerance_percent=0)
        assert len(vgpu.live()) == alive


@contextlib.contextmanager
def nothing_changes(manager):
    """The ledger and the reserved bytes are afterwards what they were; a copy there and back works."""
    before = manager.live_buffers(), manager.memory_stats().held
    yield
    assert (manager.live_buffers(), manager.memory_stats().held) == before
    with manager.from_numpy(ARRAY) as tensor:
        np.testing.assert_array_equal(tensor.to_numpy(), ARRAY)


# Allocation


@pytest.mark.parametrize("nth", [1, 2, 3])
def test_the_nth_allocation_fails_once_and_is_repeated(manager, vgpu, nth):
    vgpu.fail("hipMalloc", nth=nth, error=OUT_OF_MEMORY)
    kept = [manager.zeros((n + 1) * 1000) for n in range(4)]
    assert [tensor.size for tensor in kept] == [1000, 2000, 3000, 4000]


@pytest.mark.parametrize("nth", [1, 2, 3])
def test_the_nth_allocation_fails_for_good(manager, vgpu, nth):
    kept = []
    with nothing_changes(manager):
        vgpu.fail("hipMalloc", nth=nth, error=OUT_OF_MEMORY, repeat=True)
        with pytest.raises(DeviceMemoryError, match=r"refused it twice.*hipMalloc: hipErrorOutOfMemory") as caught:
            for n in range(4):
                kept.append(manager.zeros((n + 1) * 1000))
        assert len(kept) == nth - 1
        assert caught.value.asked == nth * 4000
        kept.clear()
        vgpu.clear_failures()


def test_the_failure_is_not_left_for_other_libraries_to_find(manager, vgpu):
    from rocm.bindings import hip

    vgpu.fail("hipMalloc", error=OUT_OF_MEMORY, repeat=True)
    with pytest.raises(DeviceMemoryError):
        manager.zeros(10)
    assert hip.hipGetLastError()[0] == hip.hipError_t.hipSuccess


def test_page_locked_memory_may_run_out(manager, vgpu, monkeypatch):
    pinned = memory_module.DeviceMemory.of(manager.device).pinned
    monkeypatch.setattr(pinned, "_blocks", {size: [] for size in pinned._blocks})
    vgpu.fail("hipHostMalloc", error=OUT_OF_MEMORY, repeat=True)
    with nothing_changes(manager):
        assert manager.from_numpy(ARRAY).to_numpy()[7] == 7


def test_an_odd_error_of_an_allocation_is_no_lack_of_memory(manager, vgpu):
    with nothing_changes(manager):
        vgpu.fail("hipMalloc", error=UNKNOWN)
        with pytest.raises(DriverError, match=r"hipMalloc failed on hip:0 .*: hipErrorUnknown"):
            manager.zeros(10)


def test_another_process_takes_the_memory_between_check_and_allocation(manager, vgpu, patched):
    total = manager.memory_stats().total

    class Greedy:
        """Reads the memory, and then somebody else takes it."""

        def __call__(self):
            found = type(manager.device).memory_info(manager.device)
            vgpu.config(OTHER_BYTES=total - 8 * MIB)
            return found

    with nothing_changes(manager):
        assert manager.can_allocate(64 * MIB)
        with patched(manager.device, memory_info=Greedy()), pytest.raises(DeviceMemoryError) as caught:
            manager.zeros(64 * MIB, np.uint8)
        assert caught.value.asked == 64 * MIB
        assert caught.value.free <= 8 * MIB
        assert not manager.can_allocate(64 * MIB)
        vgpu.config(OTHER_BYTES=0)


# Copies, fills, launches


@pytest.mark.parametrize("call", ["hipMemcpyAsync", "hipEventRecord"])
def test_a_copy_to_the_device_fails(manager, vgpu, call):
    with nothing_changes(manager):
        vgpu.fail(call, error=UNKNOWN)
        with pytest.raises(DriverError, match=f"{call} failed on hip:0 .*: hipErrorUnknown"):
            manager.from_numpy(ARRAY)


@pytest.mark.parametrize("call", ["hipMemcpyAsync", "hipEventRecord", "hipEventQuery"])
def test_a_copy_to_the_host_fails(manager, vgpu, call):
    tensor = manager.from_numpy(ARRAY)
    manager.wait()
    with nothing_changes(manager):
        vgpu.fail(call, error=UNKNOWN)
        with pytest.raises(DriverError, match=f"{call} failed"):
            tensor.to_numpy()
    np.testing.assert_array_equal(tensor.to_numpy(), ARRAY)


def test_a_fill_fails(manager, vgpu):
    with nothing_changes(manager):
        vgpu.fail("hipMemsetAsync", error=UNKNOWN)
        with pytest.raises(DriverError, match="hipMemsetAsync"):
            manager.zeros(10)


def test_a_launch_fails(manager, vgpu, add_one, numba_gpu):
    tensor = manager.from_numpy(ARRAY)
    theirs, stream = numba_gpu.as_cuda_array(tensor), numba_gpu.external_stream(manager.stream)
    add_one[1, 32, stream](theirs[:0])
    with nothing_changes(manager):
        vgpu.fail("hip*Launch*", error=LAUNCH_FAILURE)
        with pytest.raises(Exception, match=r"719|LaunchFailure|launch failure"):
            add_one[8, 128, stream](theirs)
    add_one[8, 128, stream](theirs)
    np.testing.assert_array_equal(tensor.to_numpy(), ARRAY + 1)


# Waiting


@pytest.mark.parametrize("what", ["copy", "wait", "close"])
def test_a_wait_that_never_ends_names_what_is_stuck(manager, vgpu, what):
    tensor = manager.from_numpy(ARRAY)
    manager.wait()
    with nothing_changes(manager):
        vgpu.fail("hipEventQuery", error=NOT_READY, repeat=True)
        manager.track("scaled_dot")
        begin = time.monotonic()
        with pytest.raises(DeadlineError, match=r"^scaled_dot .*did not finish within 0.3 s"):
            {"copy": tensor.to_numpy, "wait": manager.wait, "close": manager.close}[what]()
        assert time.monotonic() - begin < 5
        vgpu.clear_failures()
    assert not manager.closed
    np.testing.assert_array_equal(tensor.to_numpy(), ARRAY)


def test_a_stuck_copy_does_not_write_to_an_array_that_is_gone(manager, vgpu):
    tensor = manager.from_numpy(ARRAY)
    manager.wait()
    out = np.full_like(ARRAY, -1)
    vgpu.config(ASYNC=2, ASYNC_DELAY=0)
    vgpu.fail("hipEventQuery", error=NOT_READY, repeat=True)
    with pytest.raises(DeadlineError):
        tensor.to_numpy(out)
    vgpu.clear_failures()
    manager.wait()
    assert (out == -1).all()
    vgpu.config(ASYNC=0, ASYNC_DELAY=500)


def test_memory_that_is_stuck_is_not_given_back(manager, vgpu):
    stream = manager.device.create_stream()
    tensor = manager.empty(MIB, np.uint8, uninitialized=True)
    tensor.record_stream(stream)
    vgpu.fail("hipEventQuery", error=NOT_READY, repeat=True)
    tensor.close()
    with vgpu.expect(hipFree=0), pytest.raises(DeadlineError):
        manager.trim()
    vgpu.clear_failures()
    assert manager.trim() >= MIB


# Numbers that make no sense


class TestNumbers:
    """The kernel's numbers beside the runtime's, on a file system of our own."""

    @pytest.fixture
    def root(self, tmp_path, device):
        (tmp_path / "sys/bus/pci/devices" / device.info.pci_id).mkdir(parents=True)
        return tmp_path

    @pytest.fixture
    def other(self, vgpu, root, device):
        """The same card with the kernel's numbers under `root`."""
        return type(device)(device.info, root)

    def write(self, root, device, **numbers):
        for name, value in numbers.items():
            path = root / "sys/bus/pci/devices" / device.info.pci_id / f"mem_info_vram_{name}"
            path.write_text(f"{value}\n")

    def test_the_smaller_free_memory_counts(self, other, root, device):
        before = other.memory_info().free
        assert before.source == "hipMemGetInfo"
        self.write(root, device, total=device.info.total, used=device.info.total - 100 * MIB)
        free = other.memory_info().free
        assert free.value == 100 * MIB
        assert "mem_info_vram" in free.source
        with ResourceManager(other) as manager:
            assert manager.safe_alloc_size() == 70 * MIB
            assert "mem_info_vram" in manager.memory_stats().sources["free"]
        self.write(root, device, used=0)
        assert other.memory_info().free.source == "hipMemGetInfo"

    def test_more_is_free_than_there_is(self, other, root, device):
        # An APU: the kernel knows the aperture, the runtime says what the system has.
        self.write(root, device, total=512 * MIB)
        memory = other.memory_info()
        assert memory.free.value > memory.total.value == 512 * MIB
        with ResourceManager(other) as manager:
            assert manager.safe_alloc_size() == 512 * MIB * 7 // 10
            with pytest.raises(DeviceMemoryError):
                manager.empty(512 * MIB, np.uint8)
            np.testing.assert_array_equal(manager.from_numpy(ARRAY).to_numpy(), ARRAY)

    @pytest.mark.parametrize("numbers", [{"total": 0, "used": 0}, {"total": "?", "used": 5}, {"used": 5}])
    def test_files_without_sense_are_not_believed(self, other, root, device, numbers):
        self.write(root, device, **numbers)
        assert other.memory_info().free.source == other.memory_info().total.source == "hipMemGetInfo"

    def test_the_runtime_fails_to_say(self, other, vgpu):
        vgpu.fail("hipMemGetInfo", error=UNKNOWN, repeat=True)
        memory = other.memory_info()
        assert (memory.free.value, memory.total.value) == (None, None)
        assert "unreadable: hipMemGetInfo" in memory.free.source
        with ResourceManager(other) as manager:
            with pytest.raises(DeviceMemoryError):
                manager.zeros(1)
            vgpu.clear_failures()
            assert not manager.zeros(1).to_numpy().any()

    def test_a_total_of_zero(self, vgpu, fresh_process):
        code = """
            from rocmkern.runtime.errors import DeviceMemoryError
            from rocmkern.runtime.manager import ResourceManager
            import vgpu
            manager = ResourceManager("hip")
            tensor = manager.zeros(1000)
            tensor.close()
            manager.trim()
            vgpu.config(TOTAL_BYTES=0)
            print(manager.safe_alloc_size(), manager.memory_stats().total)
            try:
                manager.zeros(1000)
            except DeviceMemoryError as error:
                print(error.allowed)
            vgpu.config(TOTAL_BYTES="1GiB")
            assert not manager.zeros(1000).to_numpy().any()
        """
        assert fresh_process(code).split() == ["0", "0", "0"]


# Whole processes


ABORTING = """
import os
def __getattr__(name):
    os.abort()
"""


def test_a_driver_that_aborts_takes_only_the_probe(vgpu, fresh_process, tmp_path):
    (tmp_path / "rocm" / "bindings").mkdir(parents=True)
    for path, text in (("__init__.py", ""), ("bindings/__init__.py", ""), ("bindings/hip.py", ABORTING)):
        (tmp_path / "rocm" / path).write_text(text)
    code = """
        import rocmkern
        from rocmkern.runtime.devices import open_device
        from rocmkern.runtime.manager import ResourceManager
        for _ in range(2):
            try:
                open_device("hip")
            except rocmkern.TargetError as error:
                print("signal 6" in str(error))
        assert not ResourceManager("host").zeros(3).to_numpy().any()
    """
    assert fresh_process(code, PYTHONPATH=str(tmp_path), VGPU_AUTO="0").split() == ["True", "True"]


def test_a_killed_process_gives_the_lock_and_the_memory_back(vgpu, device, tmp_path):
    code = """
import sys, time
from pathlib import Path
from rocmkern.runtime.devices import open_device
from rocmkern.runtime.lock import device_lock
from rocmkern.runtime.manager import ResourceManager
device = open_device("hip")
with device_lock(device.info, directory=Path(sys.argv[1])):
    tensor = ResourceManager(device).zeros(1000)
    print("locked", flush=True)
    time.sleep(60)
"""
    child = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    try:
        assert child.stdout.readline() == "locked\n"
        with (
            pytest.raises(DeadlineError, match=f"process {child.pid}"),
            device_lock(device.info, directory=tmp_path, timeout_s=0.2),
        ):
            pass
        os.kill(child.pid, signal.SIGKILL)
        with device_lock(device.info, directory=tmp_path, timeout_s=10), ResourceManager(device) as manager:
            np.testing.assert_array_equal(manager.from_numpy(ARRAY).to_numpy(), ARRAY)
    finally:
        child.kill()
        child.wait()
