"""`View`: the same parts as NumPy's, and no way to an element."""

from __future__ import annotations

import copy
import ctypes
import pickle
import random

import ml_dtypes
import numpy as np
import pytest

from rocmkern.calls.view import View, absent, view_of
from rocmkern.runtime.errors import ArgumentError, ArgumentTypeError

DEVICE = type("Device", (), {"host_accessible": False, "__repr__": lambda self: "<a card>"})()


@pytest.fixture
def view():
    """Device memory, at an address that nobody may read."""
    return View(64, (3, 4), (16, 4), np.dtype(np.float32), object(), DEVICE)


TOUCHES = {
    "np.asarray": np.asarray,
    "np.array": np.array,
    "np.asarray dtype": lambda x: np.asarray(x, np.float64),
    "np.ascontiguousarray": np.ascontiguousarray,
    "np.copy": np.copy,
    "np.from_dlpack": np.from_dlpack,
    "np.frombuffer": np.frombuffer,
    "np.sort": np.sort,
    "np.save": lambda x: np.save("/dev/null", x),
    "np.copyto": lambda x: np.copyto(np.zeros((3, 4)), x),
    "np.add": lambda x: np.add(x, 1),
    "np.add reversed": lambda x: np.add(np.ones((3, 4)), x),
    "np.sum": np.sum,
    "np.concatenate": lambda x: np.concatenate([x, x]),
    "np.where": lambda x: np.where(x, 1, 0),
    "operator": lambda x: x + 1,
    "reflected operator": lambda x: np.float32(1) + x,
    "comparison": lambda x: x < 1,
    "abs": abs,
    "neg": lambda x: -x,
    "matmul": lambda x: x @ x,
    "iteration": list,
    "iter": iter,
    "in": lambda x: 1.0 in x,
    "reversed": lambda x: list(reversed(x)),
    "memoryview": memoryview,
    "bytes": bytes,
    "bytearray": bytearray,
    "ctypes": lambda x: (ctypes.c_char * 1).from_buffer(x),
    "float": lambda x: float(x[0, 0]),
    "int": lambda x: int(x[0, 0]),
    "bool": bool,
    "index": lambda x: [0][x[0, 0]],
    "item": lambda x: x.item(),
    "tolist": lambda x: x.tolist(),
    "tobytes": lambda x: x.tobytes(),
    "fill": lambda x: x.fill(0),
    "sort": lambda x: x.sort(),
    "copy": lambda x: x.copy(),
    "astype": lambda x: x.astype(np.float16),
    "view": lambda x: x.view(np.uint8),
    "data": lambda x: x.data,
    "flat": lambda x: x.flat,
    "assignment": lambda x: x.__setitem__(0, 1.0),
    "mask": lambda x: x[np.ones((3, 4), bool)],
    "gather": lambda x: x[[0, 1]],
    "interface": lambda x: x.__array_interface__,
    "struct": lambda x: x.__array_struct__,
    "cuda interface": lambda x: x.__cuda_array_interface__,
    "dlpack": lambda x: x.__dlpack__(),
    "pickle": pickle.dumps,
    "copy.copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "shuffle": random.shuffle,
    "format": lambda x: f"{x:.3f}",
    "numpy": lambda x: x.numpy(),
}


@pytest.mark.parametrize("touch", TOUCHES.values(), ids=TOUCHES)
def test_there_is_no_way_to_an_element_of_device_memory(view, touch):
    with pytest.raises((TypeError, AttributeError)):
        touch(view)


def test_a_view_is_shown_without_its_elements(view):
    assert repr(view) == str(view) == "<View float32[3, 4] in <a card>>"


def test_the_error_of_a_read_names_the_remedy(view):
    with pytest.raises(TypeError, match=r"float32\[3, 4\] in <a card>.*copy it to host memory first"):
        view.numpy()


def test_a_view_does_not_change(view):
    with pytest.raises(AttributeError):
        view.address = 0
    with pytest.raises((AttributeError, TypeError)):
        view.more = 0


PARTS = {
    "integer": lambda x: x[1],
    "all integers": lambda x: x[1, 2, -1],
    "slices": lambda x: x[1:, ::-2, :0:-1],
    "new axes": lambda x: x[None, ..., None, 2],
    "empty": lambda x: x[5:],
    "transpose": lambda x: x.transpose(2, 0, 1),
    "transpose of a tuple": lambda x: x.transpose((1, 0, 2)),
    "T": lambda x: x.T,
    "swapaxes": lambda x: x.swapaxes(-1, 0),
    "reshape": lambda x: x.reshape(2, -1),
    "split": lambda x: x.reshape(2, 3, 2, 2),
}


@pytest.mark.parametrize("part", PARTS.values(), ids=PARTS)
@pytest.mark.parametrize("dtype", [np.float32, np.int64, ml_dtypes.bfloat16])
def test_parts_are_those_of_numpy(part, dtype):
    array = np.arange(24).astype(dtype).reshape(2, 3, 4)
    of_view, expected = part(view_of(array)), part(array)
    assert (of_view.shape, of_view.dtype, of_view.ndim) == (expected.shape, expected.dtype, expected.ndim)
    assert (of_view.size, of_view.nbytes, of_view.itemsize) == (expected.size, expected.nbytes, expected.itemsize)
    np.testing.assert_array_equal(of_view.numpy(), expected)
    assert not expected.size or np.shares_memory(of_view.numpy(), array)


@pytest.mark.parametrize(("shape", "wanted"), [((3, 1), (2, 3, 4)), ((), (2, 2)), ((4,), (4,)), ((1, 4), (0, 4))])
def test_broadcast(shape, wanted):
    array = np.arange(float(np.prod(shape))).reshape(shape)
    view = view_of(array).broadcast_to(wanted)
    np.testing.assert_array_equal(view.numpy(), np.broadcast_to(array, wanted))
    assert view.read_only


@pytest.mark.parametrize(("shape", "wanted"), [((3,), (2,)), ((2, 3), (3,)), ((2, 1), (3, 3)), ((0,), (2,))])
def test_what_does_not_broadcast(shape, wanted):
    with pytest.raises(ValueError, match="does not broadcast"):
        view_of(np.zeros(shape)).broadcast_to(wanted)


def test_reshape_never_copies():
    with pytest.raises(ArgumentError, match="view of these strides"):
        view_of(np.zeros((3, 4))).T.reshape(12)


def test_an_index_that_is_no_view():
    view = view_of(np.zeros((3, 4)))
    for index in ([0], np.array([0]), True, 1.0):
        with pytest.raises(ArgumentTypeError):
            view[index]
    with pytest.raises(IndexError):
        view[3]


def test_alignment():
    memory = np.zeros(64, np.uint8)
    assert view_of(memory[:16].view(np.float32)).is_aligned
    assert not view_of(memory[1:17].view(np.float32)).is_aligned
    assert not view_of(np.ndarray((2,), np.float32, memory, 0, (6,))).is_aligned
    assert view_of(np.ndarray((1,), np.float32, memory, 0, (6,))).is_aligned
    assert view_of(np.ndarray((0,), np.float32, memory, 0, (6,))).is_aligned


def test_a_view_keeps_host_memory_alive_and_knows_what_may_be_written():
    view = view_of(np.full(1000, 5.0))
    np.full(1000, 9.0)
    assert (view.numpy() == 5).all()
    frozen = np.zeros(3)
    frozen.flags.writeable = False
    assert view_of(frozen).read_only and not view_of(frozen).numpy().flags.writeable


def test_a_tensor_that_is_absent_has_no_elements():
    view = absent(3, np.dtype(np.float16))
    assert (view.shape, view.address, view.size) == ((0, 0, 0), 0, 0)
    assert view.numpy().dtype == np.float16
