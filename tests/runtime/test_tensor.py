"""Tensors: views, copies, clones, and the end of their life."""

from __future__ import annotations

import gc
import itertools
import weakref

import ml_dtypes
import numpy as np
import pytest
from fake_device import FakeDevice

from rocmkern.runtime.errors import ArgumentError, ArgumentTypeError, ClosedError
from rocmkern.runtime.host import HostDevice
from rocmkern.runtime.manager import DeviceTensor, ResourceManager

ARRAY = np.arange(2 * 3 * 4, dtype=np.float32).reshape(2, 3, 4)


@pytest.fixture
def tensor(manager):
    return manager.from_numpy(ARRAY)


def test_attributes(manager):
    tensor = manager.zeros((2, 3), ml_dtypes.bfloat16)
    assert (tensor.shape, tensor.strides, tensor.ndim, tensor.size, tensor.nbytes) == ((2, 3), (6, 2), 2, 6, 12)
    assert tensor.dtype == ml_dtypes.bfloat16
    assert tensor.device is manager.device
    assert len(tensor) == 2
    assert "bfloat16[2, 3]" in repr(tensor)
    with pytest.raises(TypeError):
        len(tensor[0, 0])


# Views


@pytest.mark.parametrize(
    "index",
    [
        0,
        -1,
        np.int64(1),
        (1, 2, 3),
        slice(None, None, -1),
        (slice(None), slice(None, None, -2), slice(1, None, 2)),
        (..., 0),
        (None, 0, ..., None, slice(2)),
        (slice(5, 9),),
        (),
        ...,
    ],
)
def test_slices_are_views_with_numpys_meaning(tensor, index):
    view = tensor[index]
    expected = ARRAY[(*index, ...)] if isinstance(index, tuple) and ... not in index else ARRAY[index]
    np.testing.assert_array_equal(view.to_numpy(), expected)
    if expected.size:
        assert view.data_ptr - tensor.data_ptr == expected.ctypes.data - ARRAY.ctypes.data
    view.copy_(np.full(view.shape, -1, np.float32))
    changed = ARRAY.copy()
    changed[index] = -1
    np.testing.assert_array_equal(tensor.to_numpy(), changed)


def test_transposes(tensor):
    np.testing.assert_array_equal(tensor.T.to_numpy(), ARRAY.T)
    np.testing.assert_array_equal(tensor.transpose().to_numpy(), ARRAY.T)
    for axes in itertools.permutations(range(3)):
        np.testing.assert_array_equal(tensor.transpose(*axes).to_numpy(), ARRAY.transpose(axes))
    np.testing.assert_array_equal(tensor.transpose((1, 0, -1)).to_numpy(), ARRAY.transpose(1, 0, 2))
    with pytest.raises(ArgumentError, match="axes"):
        tensor.transpose(0, 0, 1)


def test_reshapes_are_views(tensor):
    for shape in ((6, 4), (-1,), (2, 1, 12), ((4, 6),), (np.int64(24),)):
        view = tensor.reshape(*shape)
        np.testing.assert_array_equal(view.to_numpy(), ARRAY.reshape(*shape))
        assert view.data_ptr == tensor.data_ptr
    with pytest.raises(ArgumentError, match="24 elements"):
        tensor.reshape(5, 5)


def test_a_reshape_that_needs_a_copy_says_so(tensor):
    with pytest.raises(ArgumentError, match=r"t\.copy\(\)\.reshape") as caught:
        tensor.T.reshape(24)
    assert caught.value.argument == "shape"
    np.testing.assert_array_equal(tensor.T.copy().reshape(24).to_numpy(), ARRAY.T.reshape(24))


def test_iteration_ends(tensor):
    assert [row.shape for row in tensor] == [(3, 4), (3, 4)]


# Copies


def test_copy_has_a_buffer_of_its_own(tensor):
    for source in (tensor, tensor.T, tensor[:, ::-2]):
        copy = source.copy()
        assert copy.is_contiguous
        np.testing.assert_array_equal(copy.to_numpy(), source.to_numpy())
        copy.copy_(np.zeros(copy.shape, np.float32))
    np.testing.assert_array_equal(tensor.to_numpy(), ARRAY)


@pytest.mark.parametrize("devices", list(itertools.product([HostDevice, FakeDevice], repeat=2)))
def test_copies_cross_devices_and_strides(devices):
    source, destination = (ResourceManager(device()) for device in devices)
    strided = source.from_numpy(ARRAY).transpose(2, 0, 1)[::-1]
    target = destination.zeros((2, 3, 4)).transpose(2, 0, 1)
    assert target.copy_(strided) is target
    np.testing.assert_array_equal(target.to_numpy(), ARRAY.transpose(2, 0, 1)[::-1])


def test_overlapping_copies_behave_as_if_buffered(tensor):
    flat = tensor.reshape(24)
    flat[1:].copy_(flat[:-1])
    np.testing.assert_array_equal(flat.to_numpy(), np.concatenate([[0], np.arange(23)]))


def test_a_thin_column_does_not_fetch_the_whole_buffer(fake_manager, fake):
    array = np.arange(64 * 64, dtype=np.float32).reshape(64, 64)
    tensor = fake_manager.from_numpy(array)
    fetched = []
    original = fake.copy_to_host
    fake.copy_to_host = lambda d, s, nbytes, stream: (fetched.append(nbytes), original(d, s, nbytes, stream))
    np.testing.assert_array_equal(tensor[:, 7].to_numpy(), array[:, 7])
    assert sum(fetched) == 64 * 4


def test_copy_checks_its_source(tensor, manager):
    with pytest.raises(ArgumentTypeError, match="other: got list"):
        tensor.copy_([1.0])
    with pytest.raises(ArgumentTypeError, match="other: got dtype float64"):
        tensor.copy_(ARRAY.astype(np.float64))
    with pytest.raises(ArgumentError, match=r"other: got shape \(2, 3\)"):
        tensor.copy_(manager.zeros((2, 3)))
    np.testing.assert_array_equal(tensor.to_numpy(), ARRAY)


def test_to_numpy_into_a_given_array(tensor):
    for out in (
        np.empty((2, 3, 4), np.float32),
        np.empty((4, 3, 2), np.float32).T,
        np.empty((2, 3, 8), "f4")[..., ::2],
    ):
        assert tensor.to_numpy(out) is out
        np.testing.assert_array_equal(out, ARRAY)


def test_to_numpy_refuses_a_wrong_destination(tensor):
    small, read_only = np.empty((2, 3, 3), np.float32), np.empty((2, 3, 4), np.float32)
    read_only.flags.writeable = False
    with pytest.raises(ArgumentError, match=r"out: got shape \(2, 3, 3\)"):
        tensor.to_numpy(small)
    with pytest.raises(ArgumentTypeError, match="out: got dtype float16"):
        tensor.to_numpy(np.empty((2, 3, 4), np.float16))
    with pytest.raises(ArgumentTypeError, match="out: got list"):
        tensor.to_numpy([])
    with pytest.raises(ArgumentError, match="out: got a read-only array"):
        tensor.to_numpy(read_only)


# Life


@pytest.mark.parametrize("order", list(itertools.permutations(range(4))))
def test_the_memory_goes_back_once_with_the_last_handle(fake, fake_manager, order):
    tensor = fake_manager.from_numpy(ARRAY)
    handles = [tensor, tensor.clone(), tensor[0], tensor.T]
    del tensor
    for position, which in enumerate(order):
        assert fake_manager.memory_stats().held == ARRAY.nbytes
        for later in order[position:]:
            assert handles[later].to_numpy().size
        handles[which].close()
        handles[which].close()
    assert fake_manager.memory_stats().held == 0
    fake_manager.assert_no_leak(tolerance_percent=0)
    assert fake.calls.count("free") == 1


def test_views_keep_their_base_alive(manager):
    view = manager.from_numpy(ARRAY)[1, ::-1].T
    gc.collect()
    np.testing.assert_array_equal(view.to_numpy(), ARRAY[1, ::-1].T)
    del view
    manager.assert_no_leak()


def test_use_after_close_is_an_error(tensor, manager):
    clone = tensor.clone()
    with tensor as same:
        assert same is tensor
    assert tensor.closed
    assert not clone.closed
    uses = [
        tensor.to_numpy, tensor.copy, tensor.clone, lambda: tensor[0], lambda: tensor.T, lambda: tensor.reshape(-1),
        lambda: tensor.data_ptr, lambda: tensor.copy_(ARRAY), lambda: clone.copy_(tensor), tensor.__dlpack__,
        lambda: np.asarray(tensor), lambda: tensor.record_stream(1), tensor.__enter__,
    ]  # fmt: skip
    for use in uses:
        with pytest.raises(ClosedError, match="was closed"):
            use()
    assert "closed" in repr(tensor)
    np.testing.assert_array_equal(clone.to_numpy(), ARRAY)


def test_numpy_views_keep_host_memory_alive_after_close():
    manager = ResourceManager(HostDevice())
    for dtype in (np.float32, ml_dtypes.bfloat16):
        tensor = manager.from_numpy(np.arange(5).astype(dtype))
        array = np.asarray(tensor[::-1])
        tensor.close()
        manager.trim()
        assert array.tolist() == [4, 3, 2, 1, 0]
        assert len(manager.live_buffers()) == 1
        del array
        manager.assert_no_leak()


def test_numpy_views_outlive_their_manager():
    manager = ResourceManager(HostDevice())
    array = np.asarray(manager.from_numpy(ARRAY))
    manager.close()
    np.testing.assert_array_equal(array, ARRAY)


# Interfaces


def test_numpy_sees_host_memory_itself():
    manager = ResourceManager(HostDevice())
    for dtype in (np.float32, np.float16, ml_dtypes.bfloat16, bool):
        tensor = manager.zeros((2, 3), dtype)
        array = np.asarray(tensor.T)
        assert (array.shape, array.dtype, array.strides) == ((3, 2), tensor.dtype, tensor.T.strides)
        array[1, 0] = 1
        assert tensor.to_numpy().astype(int).tolist() == [[0, 1, 0], [0, 0, 0]]
        assert np.array(tensor, copy=True).ctypes.data != tensor.data_ptr
    assert np.asarray(manager.zeros((0, 3))).shape == (0, 3)
    assert np.asarray(manager.zeros(())).shape == ()


def test_the_array_interface_names_address_and_strides():
    tensor = ResourceManager(HostDevice()).zeros((2, 3))
    interface = tensor[:, ::-1].__array_interface__
    assert (interface["shape"], interface["strides"], interface["typestr"]) == ((2, 3), (12, -4), "<f4")
    assert interface["version"] == 3
    assert not hasattr(tensor, "__cuda_array_interface__")


def test_numpy_gets_a_copy_of_gpu_memory_only_if_it_may(fake_manager):
    tensor = fake_manager.from_numpy(ARRAY)
    assert not hasattr(tensor, "__array_interface__")
    np.testing.assert_array_equal(np.asarray(tensor), ARRAY)
    assert tensor.__array__(np.float64).dtype == np.float64
    with pytest.raises(ValueError, match="without a copy"):
        tensor.__array__(copy=False)
    with pytest.raises(ArgumentError, match="use to_numpy"):
        tensor.numpy_view()


def test_the_cuda_array_interface(fake_manager):
    tensor = fake_manager.zeros((2, 3), np.float16)
    assert tensor.__cuda_array_interface__ == {
        "version": 3,
        "shape": (2, 3),
        "typestr": "<f2",
        "data": (tensor.data_ptr, False),
        "strides": None,
        "stream": fake_manager.stream,
    }
    assert tensor.T.__cuda_array_interface__["strides"] == (2, 6)
    assert fake_manager.zeros(2, ml_dtypes.bfloat16).__cuda_array_interface__["typestr"] == "<V2"
    assert fake_manager.zeros(0).__cuda_array_interface__["data"] == (0, False)


# Foreign memory


def test_foreign_memory_is_used_in_place_and_kept_alive():
    class Owner:
        def __init__(self):
            self.array = ARRAY.copy()

    owner = Owner()
    tensor = DeviceTensor.from_foreign(owner, owner.array.ctypes.data, (2, 3, 4), np.float32, device="host")
    held_before = tensor.manager.memory_stats().held
    np.testing.assert_array_equal(tensor.to_numpy(), ARRAY)
    tensor[0].copy_(np.zeros((3, 4), np.float32))
    assert not owner.array[0].any()
    assert tensor.manager.memory_stats().held == held_before
    alive = weakref.ref(owner)
    view = tensor[1]
    del owner, tensor
    assert alive() is not None
    np.testing.assert_array_equal(view.to_numpy(), ARRAY[1])
    view.close()
    assert alive() is None


def test_read_only_foreign_memory_is_not_written():
    array = ARRAY.copy()
    tensor = DeviceTensor.from_foreign(
        array, array.ctypes.data, array.shape, array.dtype, array.strides, read_only=True
    )
    with pytest.raises(ArgumentError, match="read-only"):
        tensor[0].copy_(np.zeros((3, 4), np.float32))
    assert not np.asarray(tensor).flags.writeable
    assert not tensor.numpy_view().flags.writeable
    np.testing.assert_array_equal(array, ARRAY)


def test_a_broadcast_destination_is_refused_and_a_broadcast_source_is_read():
    array = np.float32([7, 8])
    tensor = DeviceTensor.from_foreign(array, array.ctypes.data, (3, 2), np.float32, (0, 4))
    np.testing.assert_array_equal(tensor.to_numpy(), [[7, 8]] * 3)
    with pytest.raises(ArgumentError, match="stride 0"):
        tensor.copy_(np.zeros((3, 2), np.float32))


def test_foreign_strides_are_checked_and_its_stream_is_waited_for(fake):
    with pytest.raises(ArgumentError, match="strides"):
        DeviceTensor.from_foreign(None, 1, (2, 3), np.float32, (4,))
    tensor = DeviceTensor.from_foreign("owner", 256, (2,), np.float32, device=fake, stream=0x7)
    assert fake.calls == [f"stream {tensor.manager.stream:#x} waits for 0x7"]


def test_a_mask_of_numpys_is_refused_rather_than_lost(manager):
    masked = np.ma.masked_array(np.ones((2, 3), np.float32), mask=np.eye(2, 3) > 0)
    tensor = manager.zeros((2, 3), np.float32)
    for argument, call in (
        ("a", lambda: manager.from_numpy(masked)),
        ("other", lambda: tensor.copy_(masked)),
        ("out", lambda: tensor.to_numpy(out=masked)),
    ):
        with pytest.raises(ArgumentTypeError) as refusal:
            call()
        assert str(refusal.value).startswith(f"{argument}: got a masked array") and f"{argument}.filled()" in str(
            refusal.value
        )
    assert not tensor.to_numpy().any(), "nothing was written"


@pytest.mark.parametrize("shape", ["a", 6.0, (6.0,), None, (2, "3")])
def test_a_shape_of_something_else_than_integers_is_refused(tensor, shape):
    with pytest.raises(ArgumentTypeError, match=r"shape: got .*; allowed: a shape of"):
        tensor.reshape(shape)
