"""What the copy engine is told of a tensor, by its launch words. Needs no device."""

import pytest

from rocmkern.targets.tensor_maps import axes_of

ADDRESS = 1 << 20


def words(shape, strides, address=ADDRESS):
    return (address, *shape, *strides)


def test_axes_come_innermost_first_with_their_strides():
    assert axes_of(words((2, 3, 5, 64), (1920, 640, 128, 2))) == [(5, 128), (3, 640), (2, 1920)]


def test_indexed_axes_of_stride_0_have_one_element():
    assert axes_of(words((2, 3, 5, 64), (0, 0, 128, 2))) == [(5, 128), (1, 16), (1, 16)]


def test_rows_of_stride_0_are_refused():
    # A map of one row would give zeros for the others: a product with a repeated column lost all but its first term.
    assert axes_of(words((1, 1, 5, 64), (0, 0, 0, 2))) is None


def test_one_row_may_have_any_stride():
    assert axes_of(words((1, 1, 1, 64), (0, 0, 6, 2))) == [(1, 16), (1, 16), (1, 16)]


@pytest.mark.parametrize(
    ("shape", "strides", "address"),
    [
        ((1, 1, 5, 64), (0, 0, 128, 2), ADDRESS + 2),
        ((1, 1, 5, 64), (0, 0, 128, 2), ADDRESS + 8),
        ((1, 1, 5, 64), (0, 0, 130, 2), ADDRESS),
        ((1, 1, 5, 64), (0, 0, 136, 2), ADDRESS),
        ((1, 1, 2**31, 64), (0, 0, 128, 2), ADDRESS),
        ((1, 1, 5, 64), (0, 0, -128, 2), ADDRESS),
        ((2, 1, 5, 64), (-640, 0, 128, 2), ADDRESS),
        ((1, 1, 5, 64), (0, 0, 128, 4), ADDRESS),
        ((1, 1, 5, 64), (0, 0, 128, 0), ADDRESS),
        ((1, 1, 5, 64), (0, 0, 128, -2), ADDRESS),
        ((1, 1, 0, 64), (0, 0, 128, 2), ADDRESS),
        ((1, 1, 5, 64), (0, 0, 2**40, 2), ADDRESS),
    ],
)
def test_what_the_copy_engine_does_not_take(shape, strides, address):
    assert axes_of(words(shape, strides, address)) is None
