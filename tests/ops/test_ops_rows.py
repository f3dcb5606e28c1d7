"""Embedding and transpose as operations."""

from __future__ import annotations

import itertools

import ml_dtypes
import numpy as np
import pytest

from rocmkern.ops.rows.api import embedding, transpose
from rocmkern.runtime.errors import ArgumentError, ArgumentTypeError

pytestmark = pytest.mark.usefixtures("launch")

DTYPES = [np.float32, np.float16, ml_dtypes.bfloat16]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (3,), (2, 5), (2, 1, 2, 2, 3)])
def test_embedding(normal, dtype, shape):
    table = normal(7, 33, dtype=dtype)
    for kind in (np.int32, np.int64):
        indices = np.random.default_rng(1).integers(0, 7, shape).astype(kind)
        result = embedding(table, np.asarray(indices))
        assert result.dtype == dtype
        np.testing.assert_array_equal(result, table[indices])
        out = np.empty((*shape, 33), dtype)
        assert embedding(table, np.asarray(indices), out=out) is out
        np.testing.assert_array_equal(out, result)


def test_embedding_of_views(normal):
    table, indices = normal(33, 7).T, np.arange(12).reshape(3, 4).T[::-1] % 7
    out = np.empty((33, 3, 4), np.float32).T
    embedding(table, indices, out=out)
    np.testing.assert_array_equal(out, table[indices])


@pytest.mark.parametrize(
    ("table", "indices", "argument", "error"),
    [
        (np.ones((3, 4), np.float32), np.array([0, 3]), "indices", ArgumentError),
        (np.ones((3, 4), np.float32), np.array([[0], [-1]]), "indices", ArgumentError),
        (np.ones((3, 4), np.float32), np.array(2**40), "indices", ArgumentError),
        (np.ones((0, 4), np.float32), np.array([0]), "indices", ArgumentError),
        (np.ones((3, 4), np.float32), np.array([0.0]), "indices", ArgumentTypeError),
        (np.ones((3, 4), np.float32), np.array([True]), "indices", ArgumentTypeError),
        (np.ones((3, 4), np.float32), [0], "indices", ArgumentTypeError),
        (np.ones(3, np.float32), np.array([0]), "table", ArgumentError),
    ],
)
def test_bad_arguments_of_embedding(table, indices, argument, error):
    with pytest.raises(error) as caught:
        embedding(table, indices)
    assert caught.value.argument == argument


def test_check_of_embedding_is_true_or_false():
    with pytest.raises(ArgumentTypeError) as caught:
        embedding(np.ones((3, 4), np.float32), np.array([0]), check="no")
    assert caught.value.argument == "check"


def test_an_index_out_of_range_is_named_with_its_place():
    with pytest.raises(ArgumentError, match=r"got 9 at index \(1, 2\); allowed: numbers from 0 to 4"):
        embedding(np.ones((5, 2), np.float32), np.array([[0, 1, 2], [3, 4, 9]]))


@pytest.mark.parametrize("dtype", DTYPES)
def test_transpose(normal, dtype):
    x = normal(2, 3, 4, 5, dtype=dtype)
    for axes in itertools.permutations(range(4)):
        result = transpose(x, axes)
        assert result.dtype == dtype and result.flags.c_contiguous
        np.testing.assert_array_equal(result, x.transpose(axes))
    np.testing.assert_array_equal(transpose(x), x.T)
    np.testing.assert_array_equal(transpose(x, (-1, 0, -2, 1)), x.transpose(3, 0, 2, 1))
    np.testing.assert_array_equal(transpose(normal(2, 2, 2, 2, 3), (4, 1, 3, 0, 2)).shape, (3, 2, 2, 2, 2))


@pytest.mark.parametrize("shape", [(130, 70), (16, 16), (1, 9), (9, 1)])
def test_transpose_of_a_matrix_and_of_views(normal, shape):
    x = normal(*shape)
    for view in (x, x[::-1], x[:, ::-1], np.repeat(x, 2, 1)[:, ::2]):
        np.testing.assert_array_equal(transpose(view), view.T)
        out = np.empty(shape, np.float32).T
        assert transpose(view, (1, 0), out=out) is out
        np.testing.assert_array_equal(out, view.T)


@pytest.mark.parametrize(
    ("axes", "error"), [((0, 0), ArgumentError), ((0,), ArgumentError), ((0, 2), ArgumentError), (1, ArgumentTypeError)]
)
def test_bad_axes(axes, error):
    with pytest.raises(error) as caught:
        transpose(np.ones((2, 3), np.float32), axes)
    assert caught.value.argument == "axes"
