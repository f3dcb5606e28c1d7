"""What is measured around a benchmark's function, and what it is measured against."""

from __future__ import annotations

import sys
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


def test_the_first_of_a_few_copies_does_not_count(quick_roofs, monkeypatch):
    host = roofs._HostRoof()
    durations, now = [9.0, 5.0, 4.0, 3.0], [0.0]
    assert len(durations) == roofs.HOST_REPEATS + 1
    ticks = iter([tick for seconds in durations for tick in (0.0, seconds)])

    def perf_counter():
        now[0] += next(ticks)
        return now[0]

    monkeypatch.setattr(roofs.time, "perf_counter", perf_counter)
    assert host._copy() == 3.0
    monkeypatch.setattr(host, "_copy", lambda: 7.0)
    assert host.measure("f16")["byte_per_s"] == 2 * roofs.COPIED_BYTES / 7.0
    monkeypatch.setattr(host, "_copy", lambda: 8.0)
    assert host.measure("f16")["byte_per_s"] == 2 * roofs.COPIED_BYTES / 7.0, "the best so far"
    monkeypatch.setattr(host, "_copy", lambda: 0.1)
    assert host.measure("bf16")["byte_per_s"] == 2 * roofs.COPIED_BYTES / 0.1


def fake_torch(seconds, available=True):
    """PyTorch whose products take so long on its GPU, one after another."""
    now = [0.0]
    left = iter(seconds)

    class Event:
        def __init__(self, enable_timing):
            assert enable_timing

        def record(self):
            self.at = now[0]

        def synchronize(self):
            assert self.at == now[0]

        def elapsed_time(self, other):
            return (other.at - self.at) * 1e3  # milliseconds

    class Matrix:
        def __matmul__(self, other):
            now[0] += next(left)

    made = []
    cuda = SimpleNamespace(is_available=lambda: available, Event=Event)
    return made, SimpleNamespace(
        cuda=cuda,
        float32="f4",
        float16="f2",
        bfloat16="b2",
        ones=lambda *how, **more: made.append((*how, more)) or Matrix(),
    )


def test_the_roof_of_a_card_is_the_best_copy_and_the_best_product(monkeypatch):
    made, torch = fake_torch([5.0, 4.0, 2.0, 3.0, 4.0, 5.0, 6.0])
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setattr(roofs, "_device_copy", lambda target: {"cuda": 0.5}[target])
    roofs._device_roof.cache_clear()
    found = roofs.roof("cuda", "f16")
    assert found == {"byte_per_s": 4 * roofs.COPIED_BYTES, "flop_per_s": roofs.PRODUCT_SIZE**3}
    assert made == [((roofs.PRODUCT_SIZE, roofs.PRODUCT_SIZE), {"dtype": "f2", "device": "cuda"})] * 2
    assert roofs.roof("cuda", "f16") is found, "it is measured once"
    roofs._device_roof.cache_clear()


def test_a_card_without_a_product_to_measure_says_why(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", fake_torch([], available=False)[1])
    assert roofs._device_product("f16") == {"no_peak": "PyTorch, whose matrix product is the measure, has no GPU"}
    monkeypatch.setitem(sys.modules, "torch", None)
    assert roofs._device_product("f16") == {"no_peak": "PyTorch, whose matrix product is the measure, is not installed"}


def test_a_copy_on_a_card_is_between_two_halves_of_a_buffer(monkeypatch):
    card, copies = _Card(), []
    times = iter([3.0, 1.0, 2.0, 4.0, 5.0, 6.0, 7.0])

    def copy_device(destination, source, nbytes, stream):
        copies.append((destination - source, nbytes, stream))
        card.now += next(times)

    card.copy_device, card.stream = copy_device, 9
    monkeypatch.setattr("rocmkern.testing.roofs.open_device", lambda target: target)
    monkeypatch.setattr("rocmkern.testing.roofs.default_manager", lambda device: card)
    assert roofs._device_copy("cuda") == 1.0
    assert copies == [(roofs.COPIED_BYTES, roofs.COPIED_BYTES, 9)] * roofs.REPEATS


def test_the_peak_is_of_steps_that_are_really_done():
    burst, width = vector_peak._burst()
    values = np.arange(vector_peak.SUMS, dtype=np.float32)
    for _ in range(7):
        values = values * np.float32(0.5) + np.float32(1)
    assert burst(7) == pytest.approx(float(values.sum())) and width in (4, 8, 16)


ROW = """\
version: 1
registry: rocmkern.ops.catalog
groups:
  a: {why: a benchmark, operation: scale, rows: [{shape: {size: [4]}, warm: true, category: CATEGORY}]}
"""


def test_only_a_benchmark_row_may_say_warm():
    (case,) = expand(loads(ROW.replace("CATEGORY", "benchmark")))
    assert case.facts.warm
    with pytest.raises(MatrixError, match="only rows of the category benchmark are timed"):
        expand(loads(ROW.replace("CATEGORY", "quick")))


def test_what_is_written_between_two_runs_is_more_than_a_cache_holds():
    """The largest one behind all compute units of a card: 256 MiB of an MI300."""
    assert FLUSHED_BYTES >= 256 << 20 and FLUSHES >= 1
