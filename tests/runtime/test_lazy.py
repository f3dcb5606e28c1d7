"""Lazy tensors: memory and data come with the first use, once, under the cap."""

from __future__ import annotations

import sys
import threading

import numpy as np
import pytest
from fake_device import FakeDevice

from rocmkern.runtime.errors import ArgumentTypeError, CheckpointError, ClosedError, DeviceMemoryError
from rocmkern.runtime.manager import DeviceTensor, ResourceManager, default_manager
from rocmkern.runtime.settings import MemorySettings


class Source:
    """Counts how often it is read; gives its elements in pieces of rows."""

    def __init__(self, array, rows=2):
        self.array, self.rows, self.reads = array, rows, 0
        self.shape, self.dtype = array.shape, array.dtype

    def pieces(self):
        self.reads += 1
        if self.array.ndim == 0:
            yield self.array
            return
        for start in range(0, len(self.array), self.rows):
            yield self.array[start : start + self.rows]


ARRAY = np.arange(5 * 3 * 4, dtype=np.float32).reshape(5, 3, 4)


def test_nothing_is_read_before_the_first_use(manager):
    source = Source(ARRAY)
    tensor = manager.lazy(source)
    assert (tensor.shape, tensor.dtype, tensor.nbytes, tensor.strides) == (ARRAY.shape, ARRAY.dtype, 240, (48, 16, 4))
    assert not tensor.loaded and not tensor.closed and "not yet" in repr(tensor)
    tensor.clone(), tensor[1:3].transpose(), tensor.reshape(15, 4)
    with tensor:
        pass
    assert source.reads == 0 and manager.live_buffers() == []


@pytest.mark.parametrize("array", [ARRAY, ARRAY[:0], np.float16(3.5).reshape(()), np.arange(7, dtype=np.uint8)])
def test_the_first_use_uploads_once(manager, array):
    source = Source(array)
    tensor = manager.lazy(source)
    np.testing.assert_array_equal(tensor.to_numpy(), array)
    assert tensor.loaded and tensor.data_ptr == tensor.data_ptr
    np.testing.assert_array_equal(tensor.copy().to_numpy(), array)
    assert source.reads == 1


def test_views_and_clones_share_the_memory_whoever_is_used_first(manager):
    source = Source(ARRAY)
    tensor = manager.lazy(source)
    view, clone, turned = tensor[1:4, ::-1], tensor.clone(), tensor[:, 1].T
    np.testing.assert_array_equal(turned.to_numpy(), ARRAY[:, 1].T)
    assert view.loaded, "loaded says whether there is memory, not who asked for it"
    later = tensor[2]
    for handle, expected in ((view, ARRAY[1:4, ::-1]), (clone, ARRAY), (later, ARRAY[2]), (tensor, ARRAY)):
        np.testing.assert_array_equal(handle.to_numpy(), expected)
    np.testing.assert_array_equal(view[1].to_numpy(), ARRAY[2, ::-1])
    assert view.data_ptr - tensor.data_ptr == 48 + 32
    assert source.reads == 1 and len(manager.live_buffers()) == 1
    tensor.copy_(ARRAY + 1)
    np.testing.assert_array_equal(later.to_numpy(), ARRAY[2] + 1)


def test_the_memory_goes_with_the_last_handle_used_or_not(manager):
    tensor = manager.lazy(Source(ARRAY))
    unused = tensor[0]
    tensor.to_numpy()
    tensor.close()
    assert len(manager.live_buffers()) == 1
    np.testing.assert_array_equal(unused.to_numpy(), ARRAY[0])
    unused.close()
    assert manager.live_buffers() == []


def test_the_ledger_names_the_line_that_made_the_tensor(manager):
    tensor = manager.lazy(Source(ARRAY))
    line = sys._getframe().f_lineno - 1
    tensor.to_numpy()
    (entry,) = manager.live_buffers()
    assert entry.where.endswith(f"test_lazy.py:{line}")


def test_a_refused_upload_changes_nothing_and_can_be_tried_again():
    device = FakeDevice(total=1 << 20)
    with ResourceManager(device, settings=MemorySettings()) as manager:
        array = np.arange(1 << 17, dtype=np.float32)
        source = Source(array, rows=1 << 15)
        tensor = manager.lazy(source)
        view = tensor[5:9]
        blocker = manager.zeros(1 << 19, np.uint8)
        before = manager.memory_stats()
        for handle in (tensor, view):
            with pytest.raises(DeviceMemoryError):
                handle.to_numpy()
        assert manager.memory_stats() == before and source.reads == 0
        assert not tensor.loaded and not view.loaded and not tensor.closed
        blocker.close()
        np.testing.assert_array_equal(view.to_numpy(), array[5:9])
        np.testing.assert_array_equal(tensor.to_numpy(), array)
        assert source.reads == 1


class Unreadable(Source):
    def pieces(self):
        self.reads += 1
        yield self.array[:2]
        if self.reads == 1:
            raise OSError("the disk is gone")
        yield self.array[2:]


def test_a_read_that_fails_leaves_no_memory_and_can_be_tried_again(manager):
    tensor = manager.lazy(Unreadable(ARRAY))
    with pytest.raises(OSError, match="disk"):
        tensor.to_numpy()
    assert manager.live_buffers() == [] and not tensor.loaded
    np.testing.assert_array_equal(tensor.to_numpy(), ARRAY)


@pytest.mark.parametrize("given", [ARRAY[:4], np.concatenate([ARRAY, ARRAY]), ARRAY.astype(np.float64)])
def test_a_source_that_gives_something_else_is_an_error(manager, given):
    source = Source(given)
    source.shape, source.dtype = ARRAY.shape, ARRAY.dtype
    tensor = manager.lazy(source)
    with pytest.raises(CheckpointError, match="gave"):
        tensor.to_numpy()
    assert manager.live_buffers() == []


def test_threads_that_use_it_at_once_upload_once(manager):
    source = Source(ARRAY)
    tensor = manager.lazy(source)
    results, barrier = [], threading.Barrier(4)

    def use(handle):
        barrier.wait()
        results.append(handle[1:].to_numpy())

    threads = [threading.Thread(target=use, args=(h,)) for h in (tensor, tensor, tensor.clone(), tensor.clone())]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert source.reads == 1 and len(results) == 4
    for result in results:
        np.testing.assert_array_equal(result, ARRAY[1:])


def test_use_after_close_is_an_error(manager):
    tensor = manager.lazy(Source(ARRAY))
    clone, used = tensor.clone(), tensor.clone()
    used.to_numpy()
    tensor.close()
    assert tensor.closed
    for use in (tensor.to_numpy, tensor.clone, lambda: tensor[0]):
        with pytest.raises(ClosedError, match="the tensor"):
            use()
    manager.close()
    for handle in (clone, used):
        assert handle.closed
        with pytest.raises(ClosedError, match="manager"):
            handle.to_numpy()


def test_an_unused_tensor_of_a_closed_manager_is_closed(manager):
    tensor = manager.lazy(Source(ARRAY))
    manager.close()
    assert tensor.closed
    with pytest.raises(ClosedError):
        tensor.to_numpy()
    with pytest.raises(ClosedError):
        manager.lazy(Source(ARRAY))


def test_the_default_manager_of_a_device_makes_it():
    tensor = DeviceTensor.lazy(Source(ARRAY))
    assert tensor.manager is default_manager("host") and tensor.device.kind == "host"
    np.testing.assert_array_equal(np.asarray(tensor), ARRAY)
    np.testing.assert_array_equal(np.from_dlpack(DeviceTensor.lazy(Source(ARRAY))), ARRAY)
    np.testing.assert_array_equal(np.asarray(DeviceTensor.lazy(Source(ARRAY))[1:]), ARRAY[1:])


def test_other_sources_are_refused(manager):
    for source in (ARRAY, None, "model.safetensors"):
        with pytest.raises(ArgumentTypeError, match="source"):
            manager.lazy(source)
    strings = Source(ARRAY)
    strings.dtype = np.dtype("U3")
    with pytest.raises(ArgumentTypeError, match="source"):
        manager.lazy(strings)
