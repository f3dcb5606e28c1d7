"""Views computed on integers agree with NumPy's views."""

from __future__ import annotations

import ctypes
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from rocmkern.runtime.errors import ArgumentError, ArgumentTypeError
from rocmkern.runtime.geometry import (
    byte_extent,
    check_shape,
    contiguous_runs,
    contiguous_strides,
    index_view,
    is_contiguous,
    reshape_strides,
    resolve_reshape,
    transpose_axes,
)

shapes = hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5)


def strided_arrays(draw):
    """Draw a view of a bigger array with steps, offsets, a permutation and negative strides."""
    base = np.arange(2 * 6**3, dtype=np.int32).reshape(6, 6, 6, 2)[..., 0]
    index = draw(hnp.basic_indices(base.shape, allow_newaxis=True, max_dims=5))
    view = base[index]
    if not isinstance(view, np.ndarray):
        view = base[(*index, ...)] if isinstance(index, tuple) else base[index, ...]
    return view.transpose(draw(st.permutations(range(view.ndim))))


views = st.composite(strided_arrays)()


@settings(deadline=None)
@given(st.data(), shapes)
def test_indexing_is_numpys(data, shape):
    array = np.zeros(shape, np.float32)
    index = data.draw(hnp.basic_indices(shape, allow_newaxis=True, allow_ellipsis=True))
    expected = array[(*index, ...)] if isinstance(index, tuple) and ... not in index else array[index]
    offset, new_shape, new_strides = index_view(array.shape, contiguous_strides(shape, 4), index)
    assert new_shape == np.shape(expected)
    if isinstance(expected, np.ndarray) and expected.size:
        assert offset == expected.ctypes.data - array.ctypes.data
        assert all(
            dim == 1 or ours == theirs
            for dim, ours, theirs in zip(new_shape, new_strides, expected.strides, strict=True)
        )


@pytest.mark.parametrize("index", [[0, 1], np.array([0]), True, (0, [1]), 1.0, "a"])
def test_what_is_no_view_is_refused(index):
    with pytest.raises(ArgumentTypeError, match="index"):
        index_view((3, 3), (12, 4), index)


@pytest.mark.parametrize("index", [3, -4, (0, 3), (0, 0, 0), (..., ...)])
def test_indices_out_of_range_are_index_errors(index):
    with pytest.raises(IndexError):
        index_view((3, 3), (12, 4), index)


def test_offsets_beyond_32_bits_are_exact():
    offset, _, _ = index_view((100_000, 21504), (21504 * 2, 2), (99_866, slice(5, None)))
    assert offset == 99_866 * 21504 * 2 + 10 > 2**31


@settings(max_examples=200, deadline=None)
@given(st.data(), views)
def test_reshape_is_a_view_exactly_where_numpy_makes_one(data, view):
    divisors = [d for d in range(1, view.size + 1) if view.size % d == 0] or [0]
    first = data.draw(st.sampled_from(divisors))
    rest = view.size // first if first else 0
    second = data.draw(st.sampled_from([d for d in range(1, rest + 1) if rest % d == 0] or [0]))
    new_shape = (first, second, rest // second if second else 3)
    if math.prod(new_shape) != view.size:
        return
    expected = view.reshape(new_shape)
    strides = reshape_strides(view.shape, view.strides, new_shape, 4)
    assert (strides is not None) == (np.shares_memory(expected, view) or view.size == 0)
    if strides is not None and view.size:
        assert np.array_equal(np.lib.stride_tricks.as_strided(view, new_shape, strides), expected)


@pytest.mark.parametrize(
    ("shape", "wanted", "result"), [((2, 6), (3, -1), (3, 4)), ((0, 4), (0, 7), (0, 7)), ((), (1,), (1,))]
)
def test_minus_one_is_worked_out(shape, wanted, result):
    assert resolve_reshape(shape, wanted) == result


@pytest.mark.parametrize("wanted", [(5, -1), (-1, -1), (7,), (-2, 6), (0, -1)])
def test_impossible_shapes_are_refused(wanted):
    with pytest.raises(ArgumentError, match="12 elements"):
        resolve_reshape((2, 6), wanted)


@settings(deadline=None)
@given(views)
def test_extent_and_contiguity(view):
    first, end = byte_extent(view.shape, view.strides, 4)
    offsets = np.zeros((), np.int64)
    for dim, stride in zip(view.shape, view.strides, strict=True):
        offsets = offsets[..., None] + np.arange(dim) * stride
    assert (first, end) == ((offsets.min(), offsets.max() + 4) if view.size else (0, 0))
    assert is_contiguous(view.shape, view.strides, 4) == view.flags.c_contiguous


@settings(deadline=None)
@given(views)
def test_runs_cover_every_element_once_in_order(view):
    dense = np.full(view.shape, -1, np.int32)
    run_bytes, runs = contiguous_runs(view.shape, view.strides, dense.strides, 4)
    low = byte_extent(view.shape, view.strides, 4)[0]
    positions = [(a - low + i, b + i) for a, b in runs for i in range(0, run_bytes, 4)]
    assert [b for _, b in positions] == list(range(0, dense.nbytes, 4))
    flat = view.ravel()
    for (a, _), value in zip(positions, flat, strict=True):
        assert ctypes.c_int32.from_address(view.ctypes.data + low + a).value == value


def test_runs_are_as_long_as_both_sides_allow():
    run_bytes, runs = contiguous_runs((4, 3, 5), (60, 20, 4), (120, 20, 4), 4)
    assert run_bytes == 60
    assert list(runs) == [(0, 0), (60, 120), (120, 240), (180, 360)]


@pytest.mark.parametrize("axes", [(0, 0), (0,), (0, 2), (0, 1, 2), ("a", 0)])
def test_what_is_no_permutation_is_refused(axes):
    with pytest.raises(ArgumentError, match="axes"):
        transpose_axes(2, axes)


def test_axes_default_to_reversed_and_may_be_negative():
    assert transpose_axes(3, ()) == (2, 1, 0)
    assert transpose_axes(3, (-1, 0, 1)) == (2, 0, 1)


@pytest.mark.parametrize("shape", [-1, (2, -1)])
def test_negative_dimensions_are_refused(shape):
    with pytest.raises(ArgumentError, match="shape"):
        check_shape(shape)


@pytest.mark.parametrize("shape", [1.5, "ab", None, (2, 1.0)])
def test_shapes_are_integers(shape):
    with pytest.raises(ArgumentTypeError, match="shape"):
        check_shape(shape)
