"""Streams of calls: which work comes before, and which after."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from rocmkern.calls import streams
from rocmkern.calls.streams import ordered


@pytest.mark.parametrize(("asked", "others"), [(None, set()), (5, set()), (7, {7}), (0, {0})])
def test_a_stream_that_another_stands_for_is_waited_for(monkeypatch, asked, others):
    """Beside the origins of arrays; none is where nothing was asked for, or the stream itself."""
    seen = []
    monkeypatch.setattr(streams, "Origin", lambda handle: handle)
    monkeypatch.setattr(streams, "_buffers", lambda views: ["buffers", *views])
    monkeypatch.setattr(streams, "between_uses", lambda *given: seen.append(given) or "result")
    views = [SimpleNamespace(origin=None), SimpleNamespace(origin=3), SimpleNamespace(origin=3)]
    manager = SimpleNamespace(check_process=lambda: None)
    assert ordered("submit", manager, views, 5, "name", asked) == "result"
    assert seen == [("submit", manager, {3} | others, ["buffers", *views], 5, "name")]
