"""Names from a file: what is allowed, and how what is not is shown."""

from __future__ import annotations

import pytest

from rocmkern.checkpoint.names import checked_name, short, shown
from rocmkern.runtime.errors import CheckpointError


@pytest.mark.parametrize("name", ["x" * 1024, "\u00e4" * 512, "model.layers.0", " "])
def test_names_that_are_allowed(name):
    assert checked_name(name, "file", "a key") == checked_name(name.encode(), "file", "a key") == name


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("", "file: a key is empty"),
        (b"", "file: a key is empty"),
        ("x" * 1025, f"file: a key '{'x' * 79}... has 1025 bytes; at most 1024 are allowed"),
        ("\u00e4" * 512 + "x", "file: a key '" + "\u00e4" * 79 + "... has 1025 bytes; at most 1024 are allowed"),
        ("a\nb", r"file: a key 'a\nb' has characters that cannot be printed"),
        (b"a\xff", r"file: a key b'a\xff' is not UTF-8"),
        ("\ud800", r"file: a key '\ud800' is not UTF-8"),
    ],
)
def test_names_that_are_not(name, message):
    with pytest.raises(CheckpointError) as caught:
        checked_name(name, "file", "a key")
    assert str(caught.value) == message


def test_of_a_long_text_the_beginning_is_shown():
    for most in (1, 5, 80):
        assert short("x" * most, most) == "x" * most
        assert short("x" * most + "y", most) == "x" * most + "..."
    assert (short("x" * 80), short("x" * 81)) == ("x" * 80, "x" * 80 + "...")
    # With both quotation marks, 78 letters are a text of 80.
    assert (shown("x" * 78), shown("x" * 79)) == (repr("x" * 78), "'" + "x" * 79 + "...")
    assert (shown(7), shown(["a"])) == ("7", "['a']")


def test_what_is_nested_too_deeply_to_be_shown():
    nested = []
    for _ in range(10**5):
        nested = [nested]
    assert shown(nested) == "something nested"
    while nested:  # otherwise freed by a recursion
        nested = nested[0]
