"""The float32 peak: multiply-adds of all threads over the time of the best burst."""

from __future__ import annotations

import pytest

from rocmkern.testing import vector_peak
from rocmkern.testing.vector_peak import SUMS, VectorPeak


def test_the_best_burst_of_all_counts(monkeypatch):
    """Two multiplications or additions in each of a step's multiply-adds, as many as a vector is wide."""
    ran, width = [], 8
    monkeypatch.setattr(vector_peak, "_burst", lambda: (ran.append, width))
    times = iter([0.0, 4.0, 10.0, 12.0, 20.0, 23.0, 100.0, 101.0, 200.0, 202.0, 300.0, 303.0])
    monkeypatch.setattr(vector_peak.time, "perf_counter", lambda: next(times))
    monkeypatch.setattr(vector_peak, "BURSTS", 3)
    peak = VectorPeak(1)
    assert peak.flop_per_s == 0 and peak.measure() == 2 * SUMS * width * vector_peak.STEPS / 2.0
    assert ran == [1, *[vector_peak.STEPS] * 3], "one to compile"
    assert peak.measure() == peak.flop_per_s == 2 * SUMS * width * vector_peak.STEPS / 1.0


def test_threads_work_together(monkeypatch):
    monkeypatch.setattr(vector_peak, "_burst", lambda: (lambda steps: None, 4))
    monkeypatch.setattr(vector_peak, "BURSTS", 1)
    clock = iter([0.0, 0.5, 1.0, 7.0, 8.0, 9.0])
    monkeypatch.setattr(vector_peak.time, "perf_counter", lambda: next(clock))
    # From the first begin to the last end: six readings of three threads, in whatever order.
    assert VectorPeak(3).measure() == pytest.approx(2 * SUMS * 4 * vector_peak.STEPS * 3 / 9.0)


def test_a_burst_is_so_many_multiply_adds():
    """The sums begin at 0, 1, ...; a step halves each and adds 1."""
    burst, width = vector_peak._burst()
    for steps in (0, 1, 3):
        sums = [float(i) for i in range(SUMS)]
        for _ in range(steps):
            sums = [0.5 * x + 1 for x in sums]
        assert burst(steps) == sum(sums)
    assert width in (4, 8, 16)
