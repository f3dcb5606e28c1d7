"""Axes joined and cut by arithmetic on strides: the same elements as NumPy's reshape gives, and nothing is copied."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from rocmkern.calls.axes import flat_rows_of, four_axes, joined_rows, rows_of
from rocmkern.calls.view import view_of

ARRAYS = {
    "dense": np.arange(120.0).reshape(2, 3, 4, 5),
    "five axes": np.arange(240.0).reshape(2, 3, 4, 5, 2),
    "ones": np.arange(30.0).reshape(1, 3, 1, 2, 1, 5),
    "only ones": np.arange(5.0).reshape(1, 1, 1, 5),
    "turned": np.arange(120.0).reshape(2, 3, 4, 5).transpose(1, 0, 2, 3),
    "turned back": np.arange(120.0).reshape(5, 4, 3, 2).T,
    "every second": np.arange(240.0).reshape(4, 3, 4, 5)[::2],
    "backwards": np.arange(120.0).reshape(2, 3, 4, 5)[:, ::-1],
    "repeated": np.broadcast_to(np.arange(20.0).reshape(4, 5), (2, 3, 4, 5)),
    "vector": np.arange(2048.0),
    "long": np.arange(3 * 1024.0).reshape(3, 1024),
    "empty": np.zeros((2, 0, 3, 5)),
}


def elements(views):
    """Those of several views, one after another."""
    return [number for view in views for number in view.numpy().ravel().tolist()]


@pytest.mark.parametrize("array", ARRAYS.values(), ids=ARRAYS)
@pytest.mark.parametrize("name", ["turned", "dense"])
def test_all_elements_are_there_in_their_order(array, name):
    """Also beside an array of the same shape whose axes join in another way."""
    other = np.empty(array.shape[::-1]).T if name == "turned" else np.empty(array.shape)
    other[...] = array
    for ways in (four_axes, rows_of, flat_rows_of):
        taken = list(ways(view_of(array), view_of(other)))
        assert all(view.ndim == 4 for views in taken for view in views)
        for which, given in enumerate((array, other)):
            assert elements(views[which] for views in taken) == given.ravel().tolist(), ways
            assert all(np.shares_memory(views[which].numpy(), given) for views in taken if views[which].size)
    if array.ndim > 1:
        for view, given in zip(joined_rows(view_of(array), view_of(other)), (array, other), strict=True):
            assert view.numpy().ravel().tolist() == given.ravel().tolist() and view.shape[-1] == given.shape[-1]


@pytest.mark.parametrize(("name", "axes"), [("dense", 2), ("five axes", 2), ("turned", 4), ("repeated", 3)])
def test_what_can_be_joined_is(name, axes):
    assert joined_rows(view_of(ARRAYS[name]))[0].ndim == axes


def test_arrays_may_differ_in_their_last_axis():
    a, b = np.arange(24.0).reshape(2, 3, 4), np.arange(30.0).reshape(2, 3, 5)
    for view, given in zip(joined_rows(view_of(a), view_of(b)), (a, b), strict=True):
        np.testing.assert_array_equal(view.numpy(), given.reshape(6, -1))
    for index, some in zip(itertools.count(), four_axes(view_of(a), view_of(b), row_axes=1), strict=False):
        assert index == 0 and some[1].shape == (1, 2, 3, 5)
