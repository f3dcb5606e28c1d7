"""The interpreter's own checks, and values at the ends of what a type holds."""

from __future__ import annotations

import numpy as np
import pytest
from tile_kernels import Config

from rocmkern import TileError
from rocmkern import tile as T
from rocmkern.tile.language import product

CFG, X = Config(), np.arange(32, dtype=np.float32).reshape(4, 8)


@pytest.mark.parametrize(
    ("value", "expected"), [(7, 7), (-7, -7), (2**31 - 1, 2**31 - 1), (2**40, 2**31 - 1), (-(2**40), -(2**31))]
)
def test_rows_of_an_integer_hold_the_nearest_that_they_can(value, expected):
    rows = T.full_rows(CFG, 4, value)
    assert rows.dtype == np.int32 and (rows == expected).all() and rows.shape == (4,)
    assert T.full_rows(CFG, 4, np.int64(value)).tolist() == rows.tolist()
    assert T.full_rows(CFG, 4, float(value)).dtype == np.float32


def test_two_tensors_are_read_and_written_as_one_after_the_other():
    row = T.row_index(CFG, 4)
    for x, y in ((X, -X), (np.stack([X, -X], -1)[..., 0], np.stack([X, -X], -1)[..., 1])):
        a, b = T.load_pair(CFG, x, y, (row,), 2, 4, row < 3)
        expected = np.where((row < 3)[:, None], X[:, 2:6], 0)
        np.testing.assert_array_equal(a.data, expected)
        np.testing.assert_array_equal(b.data, -expected)
    out = np.full((2, 4, 8), 99, np.float32)
    T.store_pair(out[0], out[1], (row,), 5, a, b, row < 3)
    np.testing.assert_array_equal(out[0, :3, 5:8], X[:3, 2:5])
    np.testing.assert_array_equal(out[1, :3, 5:8], -X[:3, 2:5])
    assert (out[:, 3] == 99).all() and (out[..., :5] == 99).all()


@pytest.mark.parametrize("other", [X[:, :4], X.astype(np.float16), X[:2]])
def test_two_tensors_that_differ_are_no_pair(other):
    row, tile = T.row_index(CFG, 4), T.zeros(CFG, 4, 4)
    with pytest.raises(TileError, match=r"load_pair: .*float32.* and .*float.* do not match"):
        T.load_pair(CFG, X, other, (row,), 0, 4, row < 4)
    with pytest.raises(TileError, match=r"store_pair: .*float.* and .*float32.* do not match"):
        T.store_pair(other, X, (row,), 0, tile, T.zeros(CFG, 4, 4), row < 4)


def test_tiles_of_two_shapes_have_no_products_of_rows():
    with pytest.raises(TileError, match=r"rowdot: a tile \[4, 8\] and a tile \[4, 16\] do not match"):
        T.rowdot(T.zeros(CFG, 4, 8), T.zeros(CFG, 4, 16))


def test_a_stage_is_not_what_a_tile_is_combined_with():
    stage = T.stage(CFG, X, 4, 8)
    with pytest.raises(TileError, match=r"cannot combine a tile \[4, 8\] with"):
        T.zeros(CFG, 4, 8) + stage


def test_a_stage_that_went_on_is_gone():
    stage = T.stage(CFG, X, 4, 8)
    T.fetch(stage, 0)
    with pytest.raises(TileError, match="this stage was consumed by fetch and cannot be used again"):
        T.fetch(stage, 0)


CACHE, TABLE = np.zeros((3, 2, 4, 8), np.float32), np.zeros(5, np.int32)


@pytest.mark.parametrize(
    ("cache", "table"), [(CACHE[0], TABLE), (CACHE, TABLE[:, None]), (CACHE.astype(np.float16), TABLE)]
)
def test_pages_are_of_four_axes_and_their_table_of_one(cache, table):
    stage = T.stage(CFG, X, 4, 8, None, True)
    with pytest.raises(TileError, match="paged: "):
        T.paged(stage, cache, 0, table, 4)


def test_pages_are_given_to_a_stage_that_was_made_for_them_and_not_used():
    with pytest.raises(TileError, match="paged: the stage must be made with paged=True"):
        T.paged(T.stage(CFG, X, 4, 8), CACHE, 0, TABLE, 4)
    given = T.paged(T.stage(CFG, X, 4, 8, None, True), CACHE, 0, TABLE, 4)
    with pytest.raises(TileError, match="paged: the stage has been used already"):
        T.paged(T.fetch(given, 0), CACHE, 0, TABLE, 4)


def test_bits_of_a_product_depend_on_neither_strides_nor_place():
    """What BLAS gives an element may depend on how both sides lie in memory, and on the row's number."""
    random = np.random.default_rng(0)
    for m, k, n in ((16, 2, 16), (16, 16, 16), (32, 64, 16), (5, 24, 40)):
        left, right = (random.standard_normal(shape, dtype=np.float32) for shape in ((m, k), (k, n)))
        expected = product._multiplied(left, right).tobytes()
        turned = np.asfortranarray(left), np.asfortranarray(right)
        for a, b in ((left, turned[1]), (turned[0], right), turned):
            assert product._multiplied(a, b).tobytes() == expected
        assert product._multiplied(left[::-1], right)[::-1].tobytes() == expected
        assert product._multiplied(left[3:4], right).tobytes() == expected[12 * n : 16 * n]
