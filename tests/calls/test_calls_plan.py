"""Plans: whether the addresses of a call allow what was recorded."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from rocmkern.calls.replay import DevicePlan


def plan(*apart, capturing=False, closed=False, graph_stream=None):
    """A plan of arrays that must lie apart: (number, first byte, end) of one and of the other."""
    made = DevicePlan.__new__(DevicePlan)
    made._apart, made._allowed, made._graph_stream = apart, [], graph_stream
    made._device, made._manager = SimpleNamespace(is_capturing=lambda stream: capturing), SimpleNamespace(closed=closed)
    return made


@pytest.mark.parametrize("first", [-8, 0, 8])
@pytest.mark.parametrize("other_first", [-4, 0, 4])
def test_arrays_that_share_a_byte_are_not_allowed(first, other_first):
    """Those of negative strides begin before their address."""
    end, other_end, at = first + 6, other_first + 10, 1000
    for other in range(960, 1040):
        bytes_of_one = set(range(at + first, at + end))
        apart = bytes_of_one.isdisjoint(range(other + other_first, other + other_end))
        assert plan((0, first, end, 1, other_first, other_end)).applies([at, other]) is apart, other


def test_addresses_that_were_allowed_are_not_looked_at_again():
    made = plan((0, 0, 8, 1, 0, 8))
    assert made.applies([0, 8]) and made._allowed == [0, 8]
    made._apart = None
    assert made.applies([0, 8])


def test_nothing_is_replayed_into_a_graph_or_after_the_end():
    assert plan(capturing=True).applies([]) and plan(graph_stream=3).applies([])
    assert not plan(graph_stream=3, capturing=True).applies([])
    assert not plan(closed=True).applies([])
