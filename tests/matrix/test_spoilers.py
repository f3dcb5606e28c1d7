"""What each spoiler does to an argument."""

from __future__ import annotations

import numpy as np
import pytest

from rocmkern.matrix.spoilers import SPOILERS

GOOD = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
PREFIX = np.array([0, 2, 5], np.int32)


def spoiled(name, array=GOOD, **arrays):
    return SPOILERS[name](array, arrays)


#: Spoilers of which an array results: what it is.
RESULTS = {
    "as_complex": GOOD.astype(np.complex64),
    "as_float64": GOOD.astype(np.float64),
    "as_int32": np.zeros((2, 3, 4), np.int32),
    "as_int64": np.zeros((2, 3, 4), np.int64),
    "as_bool": np.ones((2, 3, 4), bool),
    "as_object": GOOD.astype(object),
    "other_float": GOOD.astype(np.float16),
    "drop_axis": GOOD[0],
    "extra_axis": GOOD.reshape(1, 2, 3, 4),
    "longer_first": GOOD[[0, 1, 0]],
    "longer_last": GOOD[..., [0, 1, 2, 3, 0]],
    "longer_axis_1": GOOD[:, [0, 1, 2, 0]],
    "longer_axis_2": GOOD[:, :, [0, 1, 2, 3, 0]],
    "shorter_last": GOOD[..., :3],
    "two_shorter_last": GOOD[..., :2],
    "large_numbers": np.full((2, 3, 4), 1000, np.float32),
    "negated": -GOOD,
    "decreasing": GOOD[::-1],
    "read_only": GOOD,
    "stride_zero": GOOD[[0, 0]],
    "writable_stride_zero": np.zeros((2, 3, 4), np.float32),
}


@pytest.mark.parametrize("name", RESULTS)
def test_what_becomes_of_an_array(name):
    before, result = GOOD.copy(), spoiled(name)
    np.testing.assert_array_equal(result, RESULTS[name])
    assert result.dtype == RESULTS[name].dtype
    np.testing.assert_array_equal(GOOD, before)


def test_what_becomes_of_a_prefix_sum():
    for name, expected in (("beyond_total", [0, 2, 6]), ("not_from_zero", [1, 2, 5]), ("decreasing", [5, 2, 0])):
        result = spoiled(name, PREFIX)
        assert result.tolist() == expected and result.dtype == np.int32


def test_what_is_no_array_of_numpy_any_more():
    assert spoiled("as_list") == GOOD.tolist() and spoiled("as_none") is None and spoiled("as_scalar") == 1.0
    asking = spoiled("requires_grad")
    assert asking.requires_grad is True and (asking.shape, asking.dtype) == (GOOD.shape, GOOD.dtype)
    np.testing.assert_array_equal(np.asarray(asking), GOOD)


def test_memory_and_order_of_bytes():
    swapped = spoiled("byte_swapped")
    assert not swapped.dtype.isnative and (swapped == GOOD).all()
    assert spoiled("other_float", GOOD.astype(np.float16)).dtype == np.float32
    assert not spoiled("read_only").flags.writeable
    for name, writeable in (("stride_zero", False), ("writable_stride_zero", True)):
        made = spoiled(name)
        assert made.strides[0] == 0 and made.strides[1:] == GOOD.strides[1:] and made.flags.writeable is writeable


def test_an_overlap_begins_one_element_into_the_first_input():
    memory = np.zeros(400, np.uint8)
    numbers = memory.view(np.float32)
    numbers[:] = np.arange(100)
    first = memory[40:160].view(np.float32).reshape(5, 6)
    result = spoiled("overlap", np.zeros((2, 3), np.float32), scale=2.0, x=first, y=GOOD)
    assert np.shares_memory(result, first)
    np.testing.assert_array_equal(result, numbers[11:17].reshape(2, 3))
    whole = spoiled("overlap", np.zeros(89, np.float32), x=first)
    np.testing.assert_array_equal(whole, numbers[11:])
    with pytest.raises(ValueError, match="at least as large as the output"):
        spoiled("overlap", np.zeros(90, np.float32), x=first)
    for x in (GOOD[:, ::2], np.arange(3.0)):
        with pytest.raises(ValueError, match="needs contiguous inputs"):
            spoiled("overlap", np.zeros(2, np.float32), x=x)
    assert spoiled("the_first_input", x=first, y=GOOD) is first


def test_every_spoiler_is_tested_here():
    others = {"as_list", "as_none", "as_scalar", "requires_grad", "byte_swapped", "overlap", "the_first_input"}
    assert set(SPOILERS) == {*RESULTS, *others, "beyond_total", "not_from_zero"}
