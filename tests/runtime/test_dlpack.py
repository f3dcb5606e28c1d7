"""DLPack capsules: what is read, what is written, and who frees what when."""

from __future__ import annotations

import ctypes
import gc
import sys
import weakref

import ml_dtypes
import numpy as np
import pytest
from fake_device import FakeDevice

from rocmkern.runtime import dlpack
from rocmkern.runtime.errors import ArgumentError, ArgumentTypeError
from rocmkern.runtime.host import HostDevice
from rocmkern.runtime.manager import DeviceTensor, ResourceManager
from rocmkern.runtime.views import memory_view

ARRAY = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
VERSIONS = [None, (1, 0), (1, 3)]

# Before 2.1 NumPy's own objects speak only the old kind.
numpy_is_versioned = np.lib.NumpyVersion(np.__version__) >= "2.1.0"


@pytest.fixture
def host():
    with ResourceManager(HostDevice()) as manager:
        yield manager


class Tracked(np.ndarray):
    """An array that can be watched: `numpy.ndarray` itself has no weak references."""


def tracked(array):
    copy = array.copy().view(Tracked)
    return copy, weakref.ref(copy)


def capsule_of(array, version=None):
    return array.__dlpack__(max_version=version) if version and numpy_is_versioned else array.__dlpack__()


def managed_of(capsule):
    return dlpack._open(capsule)[2]


# Reading


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    "view",
    [
        ARRAY,
        ARRAY.T,
        ARRAY[:, ::-2, 1:],
        ARRAY[0, 0, 0, ...],
        ARRAY[:0],
        np.lib.stride_tricks.as_strided(ARRAY, (5, 3), (0, 4)),
    ],
)
def test_reading_numpys_capsules(view, version):
    foreign = dlpack.read_capsule(capsule_of(view, version))
    assert (foreign.shape, foreign.dtype, foreign.device_kind) == (view.shape, view.dtype, "host")
    assert not foreign.read_only
    if view.size:
        assert foreign.address == view.ctypes.data
        again = memory_view(foreign.address, foreign.shape, foreign.strides, foreign.dtype, foreign.owner)
        np.testing.assert_array_equal(again, view)


@pytest.mark.parametrize("dtype", ["?", "i1", "u2", "i4", "u8", "f2", "f4", "f8", "c8", "c16"])
def test_every_plain_dtype_is_read(dtype):
    assert dlpack.read_dlpack(np.zeros(3, dtype)).dtype == np.dtype(dtype)


@pytest.mark.parametrize("version", VERSIONS)
def test_the_producer_is_released_once_when_the_owner_goes(version):
    array, alive = tracked(ARRAY)
    references = sys.getrefcount(array)
    foreign = dlpack.read_capsule(capsule_of(array, version))
    assert sys.getrefcount(array) == references + 1
    owner = foreign.owner
    del foreign
    assert sys.getrefcount(array) == references + 1
    del owner
    assert sys.getrefcount(array) == references
    del array
    assert alive() is None


def test_a_consumed_capsule_cannot_be_read_again():
    capsule = ARRAY.copy().__dlpack__()
    foreign = dlpack.read_capsule(capsule)
    with pytest.raises(ArgumentTypeError, match="nobody has consumed"):
        dlpack.read_capsule(capsule, "q")
    with pytest.raises((ValueError, BufferError)):
        np.from_dlpack(Holder(capsule))
    del capsule
    assert foreign.shape == (2, 3, 4)


class Holder:
    """An object with a given capsule."""

    def __init__(self, capsule, device=(1, 0)):
        self.capsule, self.device = capsule, device

    def __dlpack__(self, **keywords):
        return self.capsule

    def __dlpack_device__(self):
        return self.device


@pytest.mark.parametrize("thing", [None, 3, ARRAY, object()])
def test_what_is_no_capsule_is_refused(thing):
    with pytest.raises(ArgumentTypeError, match=r"^k: got"):
        dlpack.read_capsule(thing, "k")


@pytest.mark.parametrize("version", VERSIONS)
def test_missing_strides_mean_contiguous_and_byte_offset_counts(version):
    array, alive = tracked(ARRAY)
    capsule = capsule_of(array, version)
    tensor = managed_of(capsule).tensor
    tensor.strides = ctypes.POINTER(ctypes.c_int64)()
    tensor.byte_offset = 16
    tensor.shape[0] = 1
    foreign = dlpack.read_capsule(capsule)
    assert foreign.strides == (48, 16, 4)
    assert foreign.address == array.ctypes.data + 16
    del foreign, capsule, array
    assert alive() is None


@pytest.mark.skipif(not numpy_is_versioned, reason="NumPy before 2.1 writes no versioned capsules")
def test_the_read_only_flag_is_read():
    array = ARRAY.copy()
    array.flags.writeable = False
    assert dlpack.read_dlpack(array).read_only


@pytest.mark.parametrize(("device_type", "kind"), [(1, "host"), (2, "cuda"), (3, "host"), (10, "hip"), (11, "host")])
def test_device_types(device_type, kind):
    capsule = ARRAY.copy().__dlpack__()
    tensor = managed_of(capsule).tensor
    tensor.device_type, tensor.device_id = device_type, 3
    foreign = dlpack.read_dlpack(Holder(capsule, (device_type, 3)))
    assert (foreign.device_kind, foreign.device_index) == (kind, 3)


@pytest.mark.parametrize(("device_type", "name"), [(8, "Metal"), (14, "oneAPI"), (99, "unknown")])
def test_other_devices_are_refused_by_name_and_left_alone(device_type, name):
    array, alive = tracked(ARRAY)
    capsule = array.__dlpack__()
    with pytest.raises(ArgumentTypeError, match=rf"v: got DLPack device type {device_type} \({name}\)"):
        dlpack.read_dlpack(Holder(capsule, (device_type, 0)), argument="v")
    managed_of(capsule).tensor.device_type = device_type
    with pytest.raises(ArgumentTypeError, match=name):
        dlpack.read_capsule(capsule)
    del capsule, array
    assert alive() is None


@pytest.mark.parametrize(("code", "bits", "lanes"), [(2, 8, 1), (3, 64, 1), (2, 32, 4), (0, 4, 1), (4, 32, 1)])
def test_other_dtypes_are_refused(code, bits, lanes):
    capsule = ARRAY.copy().__dlpack__()
    tensor = managed_of(capsule).tensor
    tensor.code, tensor.bits, tensor.lanes = code, bits, lanes
    with pytest.raises(ArgumentTypeError, match=f"type code {code} with {bits} bits and {lanes} lanes"):
        dlpack.read_capsule(capsule)


@pytest.mark.skipif(not numpy_is_versioned, reason="NumPy before 2.1 writes no versioned capsules")
def test_a_newer_major_version_is_refused():
    capsule = capsule_of(ARRAY.copy(), (1, 0))
    managed_of(capsule).major = 2
    with pytest.raises(ArgumentTypeError, match=r"DLPack version 2\."):
        dlpack.read_capsule(capsule)


def test_producers_without_max_version_are_asked_again():
    class Old:
        asked = 0

        def __dlpack__(self, stream=None):
            Old.asked += 1
            return ARRAY.copy().__dlpack__()

        def __dlpack_device__(self):
            return (1, 0)

    assert dlpack.read_dlpack(Old()).shape == (2, 3, 4)
    assert Old.asked == 1


def test_a_stream_is_passed_to_gpu_producers_only():
    asked = []

    class Producer:
        def __init__(self, device_type):
            self.device_type = device_type

        def __dlpack__(self, **keywords):
            asked.append(keywords)
            capsule = ARRAY.copy().__dlpack__()
            managed_of(capsule).tensor.device_type = self.device_type
            return capsule

        def __dlpack_device__(self):
            return (self.device_type, 0)

    dlpack.read_dlpack(Producer(1), stream=5)
    dlpack.read_dlpack(Producer(10), stream=5)
    assert asked == [{"max_version": (1, 0)}, {"max_version": (1, 0), "stream": 5}]


# Writing


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.int8, bool, np.complex64])
@pytest.mark.parametrize("change", [lambda t: t, lambda t: t.T, lambda t: t[::-1, 1:]])
def test_numpy_reads_our_tensors_in_place(host, dtype, change):
    tensor = change(host.from_numpy(ARRAY[0].astype(dtype)))
    array = np.from_dlpack(tensor)
    assert array.ctypes.data == tensor.data_ptr
    np.testing.assert_array_equal(array, tensor.to_numpy())


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16])
def test_we_read_our_own_capsules(host, dtype, version):
    tensor = host.from_numpy(ARRAY.astype(dtype)).T
    foreign = dlpack.read_capsule(tensor.__dlpack__(max_version=version))
    assert (foreign.address, foreign.shape, foreign.strides) == (tensor.data_ptr, tensor.shape, tensor.strides)
    assert foreign.dtype == tensor.dtype
    wrapped = DeviceTensor.from_foreign(foreign.owner, foreign.address, foreign.shape, foreign.dtype, foreign.strides)
    np.testing.assert_array_equal(wrapped.to_numpy(), ARRAY.T.astype(dtype))


@pytest.mark.skipif(not numpy_is_versioned, reason="NumPy before 2.1 writes no versioned capsules")
def test_the_kind_of_capsule_is_what_the_consumer_asked_for(host):
    tensor = host.zeros(3)
    assert 'dltensor_versioned"' in repr(tensor.__dlpack__(max_version=(1, 0)))
    assert '"dltensor"' in repr(tensor.__dlpack__())
    assert '"dltensor"' in repr(tensor.__dlpack__(max_version=(0, 8)))


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16])
def test_a_capsule_keeps_the_memory_until_it_or_its_consumer_goes(host, dtype, version):
    tensor = host.zeros(1000, dtype)
    unused, consumed = tensor.__dlpack__(max_version=version), tensor.__dlpack__(max_version=version)
    foreign = dlpack.read_capsule(consumed)
    tensor.close()
    del unused, consumed
    assert len(host.live_buffers()) == 1
    del foreign
    host.assert_no_leak()


def test_capsules_that_die_while_an_error_is_on_its_way_do_not_lose_it(host):
    def fail():
        capsule = host.zeros(3).__dlpack__()
        raise KeyError("the real one", repr(capsule))

    with pytest.raises(KeyError, match="the real one"):
        fail()
    gc.collect()
    host.assert_no_leak()


def test_gpu_memory_is_exported_with_its_device_and_ordered(fake, fake_manager):
    tensor = fake_manager.zeros((2, 3), ml_dtypes.bfloat16)
    assert tensor.__dlpack_device__() == (10, 0)
    foreign = dlpack.read_capsule(tensor.__dlpack__(stream=0x7))
    assert (foreign.device_kind, foreign.dtype, foreign.address) == ("hip", tensor.dtype, tensor.data_ptr)
    assert fake.calls[-1] == f"stream 0x7 waits for {fake_manager.stream:#x}"
    fake.calls.clear()
    tensor.__dlpack__(stream=-1)
    assert fake.calls == []
    tensor.__dlpack__()
    # The first consumer may have written it.
    own = f"{fake_manager.stream:#x}"
    assert fake.calls == [f"stream {own} waits for 0x7", f"stream 0x0 waits for {own}"]
    assert ResourceManager(FakeDevice(kind="cuda")).zeros(1).__dlpack_device__() == (2, 0)


def test_gpu_memory_goes_to_the_host_only_as_a_copy(fake_manager, monkeypatch):
    tensor = fake_manager.from_numpy(ARRAY)
    asked, write = [], dlpack.write_capsule
    monkeypatch.setattr(dlpack, "write_capsule", lambda *given, **named: asked.append(named) or write(*given, **named))
    foreign = dlpack.read_capsule(tensor.__dlpack__(dl_device=(1, 0)))
    assert foreign.device_kind == "host"
    assert (asked[0]["device_type"], asked[0]["device_index"]) == (1, 0)
    assert foreign.address != tensor.data_ptr
    with pytest.raises(BufferError, match="cannot export"):
        tensor.__dlpack__(dl_device=(1, 0), copy=False)
    with pytest.raises(BufferError, match="cannot export"):
        tensor.__dlpack__(dl_device=(2, 1))


def test_a_copy_on_request(host):
    tensor = host.from_numpy(ARRAY)
    assert dlpack.read_capsule(tensor.__dlpack__(copy=True)).address != tensor.data_ptr
    assert dlpack.read_capsule(tensor.__dlpack__(copy=False)).address == tensor.data_ptr


def test_host_memory_has_no_streams(host):
    with pytest.raises(ArgumentError, match="stream"):
        host.zeros(1).__dlpack__(stream=1)


def test_read_only_memory_is_exported_only_with_its_flag():
    array = ARRAY.copy()
    tensor = DeviceTensor.from_foreign(array, array.ctypes.data, array.shape, array.dtype, read_only=True)
    with pytest.raises(BufferError):
        tensor.__dlpack__()
    if numpy_is_versioned:
        assert dlpack.read_capsule(tensor.__dlpack__(max_version=(1, 0))).read_only


# PyTorch


@pytest.fixture(scope="module")
def torch():
    return pytest.importorskip("torch", reason="PyTorch is not installed")


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "int64", "bool"])
def test_round_trip_with_torch(torch, host, dtype):
    numpy_dtype = ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype
    tensor = host.from_numpy(ARRAY.astype(numpy_dtype)).transpose(1, 0, 2)
    theirs = torch.from_dlpack(tensor)
    assert theirs.dtype == getattr(torch, dtype)
    assert theirs.data_ptr() == tensor.data_ptr
    np.testing.assert_array_equal(theirs.float().numpy(), tensor.to_numpy().astype(np.float32))
    tensor.close()
    again = dlpack.read_dlpack(theirs)
    assert (again.address, again.shape, again.dtype) == (theirs.data_ptr(), (3, 2, 4), np.dtype(numpy_dtype))
    del theirs
    view = memory_view(again.address, again.shape, again.strides, again.dtype, again.owner)
    np.testing.assert_array_equal(
        view.astype(np.float32), ARRAY.astype(numpy_dtype).astype(np.float32).transpose(1, 0, 2)
    )
    assert len(host.live_buffers()) == 1
    del again, view
    host.assert_no_leak()


def test_torchs_storage_is_released(torch):
    theirs = torch.arange(6.0).reshape(2, 3).T
    alive = weakref.ref(theirs.untyped_storage())
    foreign = dlpack.read_dlpack(theirs)
    assert foreign.strides == (4, 12)
    expected = theirs.data_ptr()
    del theirs
    gc.collect()
    assert foreign.address == expected
    assert memory_view(foreign.address, foreign.shape, foreign.strides, foreign.dtype, foreign.owner)[1, 1] == 4.0
    del foreign
    assert alive() is None


def test_gradient_mode_decides_about_a_tensor_that_requires_a_gradient(torch):
    x = torch.ones(3, requires_grad=True)
    with pytest.raises(ArgumentError, match="array: got a tensor that requires a gradient"):
        dlpack.read_dlpack(x)
    with torch.no_grad():
        assert dlpack.read_dlpack(x).address == x.data_ptr()
