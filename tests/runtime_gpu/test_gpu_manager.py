"""Manager and tensors on a GPU: what tests/runtime shows on host memory, through a driver."""

from __future__ import annotations

import itertools
import re
import threading
import time

import ml_dtypes
import numpy as np
import pytest

from rocmkern.runtime import dlpack
from rocmkern.runtime.errors import DeadlineError, DeviceMemoryError, GuardBandError, LeakError
from rocmkern.runtime.host import HostDevice
from rocmkern.runtime.interface import read_cuda_array_interface
from rocmkern.runtime.manager import DeviceTensor, ResourceManager, default_manager
from rocmkern.runtime.pinned import BLOCK_BYTES
from rocmkern.runtime.settings import MemorySettings

ARRAY = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
MIB = 1 << 20


# Memory


def test_ten_allocations_of_sixty_percent_do_not_succeed(manager):
    most = manager.safe_alloc_size()
    nbytes, kept = most * 6 // 7, []
    for _ in range(10):
        try:
            kept.append(manager.empty(nbytes, np.uint8, uninitialized=True))
        except DeviceMemoryError:
            continue
    assert len(kept) == 1
    assert not manager.can_allocate(most)


def test_a_refused_allocation_leaves_everything_unchanged(manager):
    kept = manager.zeros(1000)
    before = manager.memory_stats(), manager.live_buffers()
    with pytest.raises(DeviceMemoryError, match="over the cap of 70%"):
        manager.empty(1 << 45, np.uint8)
    after = manager.memory_stats(), manager.live_buffers()
    assert before[1] == after[1]
    assert (before[0].held, before[0].reserved) == (after[0].held, after[0].reserved)
    assert not kept.closed


def test_held_memory_is_missing_from_the_free_memory(manager):
    before = manager.memory_stats()
    kept = manager.zeros(64 * MIB, np.uint8)
    stats = manager.memory_stats()
    assert stats.held - before.held == kept.nbytes
    assert 0.9 * kept.nbytes <= before.free - stats.free <= 1.2 * kept.nbytes
    kept.close()
    manager.trim()
    assert abs(manager.memory_stats().free - before.free) <= 4 * MIB


def test_ten_thousand_allocations_leave_the_free_memory_where_it_was(manager, device):
    manager.trim()
    before = device.memory_info().free.value
    for i in range(10_000):
        manager.empty(1000 + i % 7, np.uint8).close()
    manager.assert_no_leak(tolerance_percent=0.1)
    assert device.memory_info().free.value == before


def test_a_leak_is_listed_with_the_line_that_made_it(manager):
    tensor = manager.zeros((2, 3), np.float16)
    with pytest.raises(LeakError, match=rf"12 bytes, float16\[2, 3\], made at {re.escape(__file__)}:\d+"):
        manager.assert_no_leak()
    tensor.close()


def test_close_returns_what_the_manager_holds(device):
    manager = ResourceManager(device)
    kept = manager.zeros(MIB)
    manager.close()
    assert kept.closed
    with ResourceManager(device) as other:
        other.assert_no_leak()


def test_threads_may_allocate_copy_and_free_at_once(manager):
    wrong = []

    def work(seed):
        generator = np.random.default_rng(seed)
        for _ in range(20):
            array = generator.random(int(generator.integers(1, 5000)))
            with manager.from_numpy(array) as tensor, tensor.copy() as copy:
                if not np.array_equal(copy.to_numpy(), array):
                    wrong.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_a_forked_child_is_told_to_stay_away(fresh_process):
    code = """
        import os, sys
        from rocmkern.runtime.devices import KINDS, open_device
        from rocmkern.runtime.errors import DeviceUnavailableError
        from rocmkern.runtime.manager import ResourceManager
        import importlib.metadata as metadata
        kind = "hip" if any(d.name == "numba-hip" for d in metadata.distributions()) else "cuda"
        manager = ResourceManager(kind)
        tensor = manager.zeros(10)
        pid = os.fork()
        if pid == 0:
            try:
                tensor.to_numpy()
            except DeviceUnavailableError:
                os._exit(7)
            os._exit(1)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        assert not tensor.to_numpy().any()
    """
    assert fresh_process(code).split() == ["7"]


# Tensors


@pytest.mark.parametrize("shape", [(), 0, (2, 0, 3), (2, 3, 4)])
@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16, np.int64, bool])
def test_new_tensors_are_zero(manager, shape, dtype):
    for tensor in (manager.zeros(shape, dtype), manager.empty(shape, dtype)):
        array = tensor.to_numpy()
        assert array.dtype == tensor.dtype == np.dtype(dtype)
        assert array.shape == tensor.shape
        assert not array.astype(np.float32).any()


@pytest.mark.parametrize(
    "array",
    [
        ARRAY.transpose(2, 0, 1),
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


def test_the_source_may_change_after_the_copy(manager):
    array = np.arange(1000.0)
    tensor = manager.from_numpy(array)
    array[:] = -1
    np.testing.assert_array_equal(tensor.to_numpy(), np.arange(1000.0))


def test_arrays_larger_than_a_page_locked_block(manager):
    n = 2 * BLOCK_BYTES // 8 + 12345
    array = np.random.default_rng(0).random(n)
    tensor = manager.from_numpy(array)
    np.testing.assert_array_equal(tensor.to_numpy(), array)
    np.testing.assert_array_equal(tensor[::2].to_numpy(), array[::2])
    rows = array[: 1000 * 2000].reshape(1000, 2000)
    wide = tensor[: 1000 * 2000].reshape(1000, 2000)
    np.testing.assert_array_equal(wide[:, 7:300].to_numpy(), rows[:, 7:300])
    wide[:, 5:1500].copy_(rows[:, 500:1995])
    rows[:, 5:1500] = rows[:, 500:1995].copy()
    np.testing.assert_array_equal(wide.to_numpy(), rows)


def test_views_are_numpys(manager):
    tensor = manager.from_numpy(ARRAY)
    for index in (0, (..., 1), (slice(None), slice(None, None, -1)), (1, slice(1, 3), None)):
        np.testing.assert_array_equal(tensor[index].to_numpy(), ARRAY[index])
    for axes in itertools.permutations(range(3)):
        np.testing.assert_array_equal(tensor.transpose(*axes).to_numpy(), ARRAY.transpose(axes))
    np.testing.assert_array_equal(tensor.reshape(4, 6).to_numpy(), ARRAY.reshape(4, 6))


def test_copies_cross_devices_and_strides(manager):
    with ResourceManager(HostDevice()) as host:
        for source, destination in itertools.product([manager, host], repeat=2):
            strided = source.from_numpy(ARRAY).transpose(2, 0, 1)[::-1]
            target = destination.zeros((2, 3, 4)).transpose(2, 0, 1)
            target.copy_(strided)
            np.testing.assert_array_equal(target.to_numpy(), ARRAY.transpose(2, 0, 1)[::-1])


def test_overlapping_copies_behave_as_if_buffered(manager):
    flat = manager.from_numpy(np.arange(24.0))
    flat[1:].copy_(flat[:-1])
    np.testing.assert_array_equal(flat.to_numpy(), np.concatenate([[0], np.arange(23)]))


def test_a_buffer_made_for_another_stream_is_copied_in_its_order(manager, device):
    stream = device.create_stream()
    for value in range(1, 20):
        tensor = manager.empty(100_000, np.uint8, uninitialized=True, stream=stream)
        device.fill(tensor.data_ptr, tensor.nbytes, value, stream)
        assert (tensor.to_numpy() == value).all()
        tensor.close()


# Guards and poison


def test_a_write_outside_is_found(device):
    with ResourceManager(device, settings=MemorySettings(guard=True)) as manager:
        tensor = manager.zeros(100, np.uint8)
        manager.check_guards("nothing")
        device.fill(tensor.data_ptr + 100, 3, 1, manager.stream)
        with pytest.raises(GuardBandError, match=r"scribble wrote outside a buffer: changed 3 bytes behind it"):
            manager.check_guards("scribble")
        manager.check_guards("nothing")
        tensor.close()
        manager.assert_no_leak()


def test_poisoned_memory_is_nan(device):
    with ResourceManager(device, settings=MemorySettings(poison=True)) as manager:
        assert np.isnan(manager.empty(100).to_numpy()).all()
        assert not manager.zeros(100).to_numpy().any()


# Other libraries


def test_numba_works_on_our_memory(manager, add_one, numba_gpu):
    tensor = manager.from_numpy(np.arange(100, dtype=np.float32))
    # The stream in the interface is ours: numba waits for it on its default stream.
    theirs = numba_gpu.as_cuda_array(tensor) if hasattr(numba_gpu, "as_cuda_array") else numba_gpu.as_hip_array(tensor)
    stream = numba_gpu.external_stream(manager.stream)
    add_one[1, 128, stream](theirs)
    np.testing.assert_array_equal(tensor.to_numpy(), np.arange(1, 101))
    del theirs


def test_we_work_on_numbas_memory(device, numba_gpu, manager):
    theirs = numba_gpu.to_device(np.arange(10, dtype=np.float32))  # device call: an array of Numba's own
    foreign = read_cuda_array_interface(theirs.__cuda_array_interface__, theirs)
    held = default_manager(device).memory_stats().held
    tensor = DeviceTensor.from_foreign(
        theirs, foreign.address, foreign.shape, foreign.dtype, foreign.strides, device, stream=foreign.stream
    )
    np.testing.assert_array_equal(tensor.to_numpy(), np.arange(10))
    tensor[2:5].copy_(np.zeros(3, np.float32))
    tensor.manager.wait()
    assert theirs.copy_to_host().tolist() == [0, 1, 0, 0, 0, 5, 6, 7, 8, 9]
    assert default_manager(device).memory_stats().held == held
    tensor.close()
    del theirs, foreign
    # numba-hip and numba-cuda only queue what they free.
    manager.assert_no_leak(tolerance_percent=0.1)


def test_numbas_pending_frees_do_not_look_like_a_leak(device, numba_gpu, manager):
    pending = numba_gpu.to_device(np.zeros(MIB, np.uint8))  # device call: an array of Numba's own
    del pending
    device.flush()
    free = device.memory_info().free.value
    device.flush()
    assert device.memory_info().free.value == free
    manager.assert_no_leak()


def test_dlpack_names_the_card(manager, device):
    tensor = manager.from_numpy(ARRAY)
    foreign = dlpack.read_capsule(tensor.T.__dlpack__(stream=-1))
    assert (foreign.device_kind, foreign.device_index) == (device.kind, device.info.index)
    assert (foreign.address, foreign.shape, foreign.strides) == (tensor.data_ptr, (4, 3, 2), tensor.T.strides)
    tensor.close()
    assert len(manager.live_buffers()) == 1
    del foreign
    assert manager.live_buffers() == []


def test_torch_takes_our_memory_without_a_copy(manager, device):
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("torch sees no GPU")
    tensor = manager.from_numpy(ARRAY)
    theirs = torch.from_dlpack(tensor)
    assert theirs.data_ptr() == tensor.data_ptr
    theirs += 1
    torch.cuda.current_stream().synchronize()
    np.testing.assert_array_equal(tensor.to_numpy(), ARRAY + 1)


def test_a_copy_behind_a_long_kernel_meets_the_deadline(device):
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("torch sees no GPU")
    with ResourceManager(device, deadline_s=0.2) as manager:
        tensor = manager.from_numpy(ARRAY)
        manager.wait()
        with torch.cuda.stream(torch.cuda.ExternalStream(manager.stream)):
            # About two seconds.
            torch.cuda._sleep(4_000_000_000)
        begin = time.monotonic()
        with pytest.raises(DeadlineError, match="the copy of float32"):
            tensor.to_numpy()
        assert time.monotonic() - begin < 1
        # Its memory is idle, but work on our stream may still be on it.
        manager.zeros(1).close()
        with pytest.raises(DeadlineError):
            manager.trim()
        time.sleep(3)
        np.testing.assert_array_equal(tensor.to_numpy(), ARRAY)
