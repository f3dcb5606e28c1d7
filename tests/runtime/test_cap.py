"""The cap arithmetic and the choice between readings."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rocmkern.runtime.cap import Reading, allowed_bytes, check_cap, smaller, usable_free
from rocmkern.runtime.errors import ArgumentError, ArgumentTypeError

GIB = 1 << 30


def test_default_allows_seventy_percent_of_what_is_free():
    assert allowed_bytes(100, 0, 1000) == 70


def test_what_is_held_counts_against_the_cap():
    # o + n <= 0.7 * (f + o): 60 held of 100.
    assert allowed_bytes(40, 60, 100, 0.70) == 10


@settings(deadline=None)
@given(free=st.integers(0, 2**50), held=st.integers(0, 2**50), cap=st.sampled_from([0.1, 0.3, 0.7, 0.9]))
def test_it_is_the_largest_number_that_the_rule_allows(free, held, cap):
    allowed = allowed_bytes(free, held, None, cap)
    tenths = round(cap * 10)
    assert allowed == 0 or 10 * (held + allowed) <= tenths * (free + held)
    assert 10 * (held + allowed + 1) > tenths * (free + held)


@settings(deadline=None)
@given(total=st.integers(1, 2**40), parts=st.lists(st.floats(0.01, 1.0), max_size=20), cap=st.floats(0.01, 0.9))
def test_no_sequence_of_allocations_gets_beyond_the_cap(total, parts, cap):
    held = 0
    for part in parts:
        wanted = math.ceil(part * total)
        if wanted <= allowed_bytes(total - held, held, total, cap):
            held += wanted
    assert held <= cap * total + 1


def test_decimal_caps_are_exact():
    # In floats 0.7 * 90 is 62.999...
    assert allowed_bytes(90, 0, 90, 0.7) == 63


@pytest.mark.parametrize("cap", [0, -0.1, 0.91, 1, 2.0, math.nan, math.inf])
def test_caps_out_of_range_are_refused(cap):
    with pytest.raises(ArgumentError, match=r"0 < cap <= 0\.90") as caught:
        check_cap(cap)
    assert caught.value.argument == "cap"


@pytest.mark.parametrize("cap", ["0.7", None, True, 1j])
def test_caps_of_other_types_are_refused(cap):
    with pytest.raises(ArgumentTypeError):
        check_cap(cap)


def test_negative_held_is_refused():
    with pytest.raises(ArgumentError, match="held"):
        allowed_bytes(1, -1, 1)


@pytest.mark.parametrize(
    ("free", "held", "total", "usable"),
    [
        (8 * GIB, 0, GIB // 2, GIB // 2),  # an APU: system memory free, a small aperture as total
        (100, 60, 100, 40),  # pages that were never touched still count as free
        (100, 200, 100, 0),
        (100, 0, 0, 100),  # total 0 is unknown, not small
        (100, 0, -5, 100),
        (100, 0, None, 100),
        (-1, 0, 100, 0),
        (None, 30, 100, 70),
        (None, 30, None, 0),
        (None, 0, 0, 0),
    ],
)
def test_odd_readings_are_cleaned(free, held, total, usable):
    assert usable_free(free, held, total) == usable
    assert 0 <= allowed_bytes(free, held, total) <= usable


def test_the_smaller_reading_wins_and_is_named():
    readings = [Reading(5, "driver"), Reading(3, "kernel"), Reading(None, "broken"), Reading(-1, "absurd")]
    assert smaller(readings) == Reading(3, "kernel")


def test_no_readable_source_names_what_was_tried():
    assert smaller([Reading(None, "driver"), Reading(None, "kernel")]) == Reading(None, "unreadable: driver, kernel")
    assert smaller([]).value is None
