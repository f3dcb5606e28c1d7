"""Values of a checkpoint's configuration: what is a size, a number, a word, and what is said of what is none."""

from __future__ import annotations

import pytest

from rocmkern.decoder.values import number, one_of, size
from rocmkern.runtime.errors import CheckpointError


@pytest.mark.parametrize("value", [1, 2, 2**31 - 1])
def test_sizes(value):
    assert size(value, "layers") == value


@pytest.mark.parametrize("value", [0, -1, 2**31, 1.0, True, "1", None])
def test_what_is_no_size(value):
    with pytest.raises(CheckpointError) as caught:
        size(value, "layers")
    assert str(caught.value) == f"layers is {value!r}, not a whole number from 1 to 2147483647"


@pytest.mark.parametrize("value", [0, -1, 0.5, 1e300, -(2**1000)])
def test_numbers(value):
    assert number(value, "eps") == value and isinstance(number(value, "eps"), float)


@pytest.mark.parametrize("value", [float("inf"), float("-inf"), float("nan"), True, False, "1", None, [1.0]])
def test_what_is_no_number(value):
    with pytest.raises(CheckpointError) as caught:
        number(value, "eps")
    assert str(caught.value) == f"eps is {value!r}, not a finite number"


def test_a_whole_number_that_no_float_is():
    with pytest.raises(CheckpointError, match=r"^eps is 1000.*\.\.\., beyond what a float is$"):
        number(10**310, "eps")


def test_words():
    assert one_of("b", "the letter", {"a": 1, "b": 2}) == "b"
    for value in ("c", None, 1, ["a"], {}):
        with pytest.raises(CheckpointError) as caught:
            one_of(value, "the letter", {"a": 1, "b": 2})
        assert str(caught.value) == f"the letter is {value!r}; known are a, b"
