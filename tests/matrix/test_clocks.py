"""What is measured around a benchmark's function, and what it is measured against."""

from __future__ import annotations

from contextlib import contextmanager
from types import SimpleNamespace

import numpy as np
import pytest

from rocmkern.matrix import MatrixError, expand, loads
from rocmkern.testing import roofs, vector_peak
from rocmkern.testing.clocks import FLUSHED_BYTES, FLUSHES, DeviceClock, HostClock


class _Card:
    """A manager and its device that write down what they are asked for; an event is the time of its recording."""

    def __init__(self):
        self.calls, self.now, self.device = [], 0.0, self

    @contextmanager
    def empty(self, shape, dtype, uninitialized):
        yield SimpleNamespace(data_ptr=4096)

    def wait(self, stream=None):
        self.calls.append(("wait", stream))

    def fill(self, address, nbytes, byte, stream):
        self.calls.append(("fill", nbytes, stream))
        self.now += 100.0

    def record_timed(self, stream):
        self.calls.append(("record", stream))
        return self.now

    def elapsed(self, start, stop):
        return stop - start

    def work(self, seconds):
        self.calls.append("work")
        self.now += seconds
        return seconds


@pytest.mark.parametrize("warm", [False, True])
def test_a_device_clock_times_the_work_and_not_what_empties_the_cache(warm):
    card, seconds = _Card(), iter([3.0, 1.0, 2.0])
    clock = DeviceClock(lambda: card.work(next(seconds)), card, stream=7, warm=warm)
    assert [clock() for _ in range(3)] == [3.0, 1.0, 2.0]
    assert clock.medians() == {"wall_s": 2.0} and clock.rounds == 3
    flush = [] if warm else [("fill", FLUSHED_BYTES, 7)] * FLUSHES
    assert card.calls[: len(card.calls) // 3] == [
        ("wait", None), *flush, ("record", 7), "work", ("record", 7), ("wait", 7),
    ]  # fmt: skip


def test_a_host_clock_counts_the_time_of_the_process():
    clock = HostClock(lambda: sum(range(200_000)))
    assert clock() == clock() == sum(range(200_000))
    medians = clock.medians()
    assert clock.rounds == 2 and medians["cpu_s"] > 0 and medians["wall_s"] > 0 and clock.spread() >= 0


@pytest.fixture
def quick_roofs(monkeypatch):
    """Roofs that take no time, and are forgotten afterwards."""
    monkeypatch.setattr(roofs, "COPIED_BYTES", 1 << 20)
    monkeypatch.setattr(vector_peak, "STEPS", 1000)
    roofs._host.cache_clear()
    yield
    roofs._host.cache_clear()


def test_the_roof_of_a_cpu_is_the_best_that_was_measured(quick_roofs, monkeypatch):
    found = roofs.roof("cpu", "f32")
    assert found["byte_per_s"] > 0 and found["flop_per_s"] > 0
    # Whatever slows the machine down later: the same again, or better.
    monkeypatch.setattr(vector_peak, "STEPS", 1)
    again = roofs.roof("cpu", "f32")
    assert again["byte_per_s"] >= found["byte_per_s"] and again["flop_per_s"] >= found["flop_per_s"]


def test_a_type_without_a_peak_says_so(quick_roofs):
    assert roofs.roof("cpu", "bf16")["no_peak"] == "no matrix peak of bf16 is known for a CPU"
    assert "flop_per_s" not in roofs.roof("cpu", "f16") and roofs.roof("python", "f32") == {}


def test_the_peak_is_of_steps_that_are_really_done():
    burst, width = vector_peak._burst()
    values = np.arange(vector_peak.SUMS, dtype=np.float32)
    for _ in range(7):
        values = values * np.float32(0.5) + np.float32(1)
    assert burst(7) == pytest.approx(float(values.sum())) and width in (4, 8, 16)


ROW = """\
version: 1
registry: rocmkern.matrix.operations
groups:
  a: {why: a benchmark, operation: scale, rows: [{shape: {size: [4]}, warm: true, category: CATEGORY}]}
"""


def test_only_a_benchmark_row_may_say_warm():
    (case,) = expand(loads(ROW.replace("CATEGORY", "benchmark")))
    assert case.facts.warm
    with pytest.raises(MatrixError, match="only rows of the category benchmark are timed"):
        expand(loads(ROW.replace("CATEGORY", "quick")))
