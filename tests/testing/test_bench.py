"""What is made of times that were measured: medians, ratios, bars, the table; and whose result was timed."""

from __future__ import annotations

import os
from types import SimpleNamespace

import numpy as np
import pytest

from rocmkern.matrix import CaseFailure, MatrixError, PeerUnavailable
from rocmkern.testing import bench, clocks, jobs
from rocmkern.testing.clocks import DeviceClock, HostClock


def case(dtype="f32", bars=None, **features):
    operation = SimpleNamespace(flops=lambda case: 8.0, nbytes=lambda case: 24.0)
    return SimpleNamespace(dtype=dtype, features=features, operation=operation, facts=SimpleNamespace(bars=bars or {}))


def host_clock(cpu, wall):
    clock = HostClock(lambda: None)
    clock.cpu, clock.wall = list(cpu), list(wall)
    return clock


def device_clock(*seconds):
    clock = DeviceClock(lambda: None, None, 0, False)
    clock.seconds = list(seconds)
    return clock


def test_a_host_clock_counts_cpu_time_and_keeps_wall_time(monkeypatch):
    cpu, wall = iter([10.0, 13.0, 20.0, 21.0]), iter([100.0, 107.0, 200.0, 205.0])
    monkeypatch.setattr(clocks.time, "process_time", lambda: next(cpu))
    monkeypatch.setattr(clocks.time, "perf_counter", lambda: next(wall))
    clock = HostClock(lambda: "result")
    assert [clock(), clock()] == ["result", "result"] and clock.rounds == 2
    assert clock.medians() == {"cpu_s": 2.0, "wall_s": 6.0} and clock.samples == [3.0, 1.0]


@pytest.mark.parametrize(
    "clock", [host_clock([8, 1, 2, 7, 3, 6, 4, 5], range(8)), device_clock(8, 1, 2, 7, 3, 6, 4, 5)]
)
def test_the_spread_is_the_distance_of_the_quartiles(clock):
    assert clock.spread() == (6 - 3) / 4.5 and clock.rounds == 8


def test_samples_have_seven_digits():
    assert device_clock(1.23456789, 1e-7 / 3).samples == [1.234568, 3.333333e-08]


def test_a_speed_has_rates_and_for_each_peer_how_much_longer_it_took():
    kernel, peer = host_clock([1.0, 2.0, 3.0], [4.0, 4.0, 4.0]), host_clock([5.0], [2.0])
    speed = bench._speed(case(bars={"torch": 0.9}), kernel, {"torch": peer}, {"triton": "not here"})
    assert speed["cpu_s"] == 2.0 and speed["wall_s"] == 4.0 and speed["rounds"] == 3 and speed["counts"] == "cpu_s"
    assert speed["samples"] == [1.0, 2.0, 3.0] and speed["spread"] == 0.0 + (3.0 - 1.0) / 2.0
    assert (speed["flop_per_s"], speed["byte_per_s"]) == (8.0 / 4.0, 24.0 / 4.0)
    assert speed["peers"] == {
        "torch": {"cpu_s": 5.0, "wall_s": 2.0, "ratio": 2.5, "wall_ratio": 0.5, "bar": 0.9, "samples": [5.0]},
        "triton": {"unavailable": "not here"},
    }


def test_what_counts_on_a_card_is_the_time_between_its_events():
    speed = bench._speed(case(), device_clock(2.0), {"torch": device_clock(3.0)}, {})
    assert speed["peers"]["torch"]["ratio"] == 1.5 and "cpu_s" not in speed and speed["counts"] == "wall_s"


def test_an_operation_without_a_cost_has_no_rate():
    row = case()
    row.operation.flops = row.operation.nbytes = None
    assert not {"flop_per_s", "byte_per_s"} & set(bench._speed(row, device_clock(2.0), {}, {}))


@pytest.mark.parametrize(("seconds", "rounds"), [(1e-9, 100), (0.02, 75), (1.0, 5), (60.0, 5)])
def test_rounds_take_a_second_and_a_half_but_there_are_5_to_100(monkeypatch, seconds, rounds):
    now = iter([7.0, 7.0 + seconds])
    monkeypatch.setattr(bench.time, "perf_counter", lambda: next(now))
    ran = []
    assert bench._rounds(lambda: ran.append(1)) == rounds and ran == [1]


class Tensor:
    """What a peer returns that is no array."""

    def __init__(self, array):
        self.array = array

    def detach(self):
        return self

    float = cpu = detach

    def numpy(self):
        return self.array


@pytest.mark.parametrize(("dtype", "share"), [("f32", 1e-4), ("f16", 1e-2), ("bf16", 3e-2)])
def test_a_peer_that_computes_something_else_is_no_peer(dtype, share):
    theirs = np.array([[1.0, -4.0], [0.5, 2.0]], np.float32)
    near, far = (theirs + np.float32(4.0 * share * factor) for factor in (0.9, 1.1))
    bench._check_agreement(case(dtype), "torch", near, Tensor(theirs))
    bench._check_agreement(case(dtype), "torch", SimpleNamespace(to_numpy=lambda: near), theirs)
    with pytest.raises(CaseFailure, match=r"differs from torch by .* where values reach 4") as caught:
        bench._check_agreement(case(dtype), "torch", far, Tensor(theirs))
    assert caught.value.check == "parity"
    with pytest.raises(CaseFailure):
        bench._check_agreement(case(dtype), "torch", np.full_like(theirs, np.nan), theirs)


def test_a_result_in_the_order_of_a_row_is_compared_with_that_of_a_peer():
    theirs = np.arange(24, dtype=np.float32).reshape(1, 2, 3, 4)
    row, other = (
        case(layout="".join(letters)) for letters in (["bs", "hd"], ["bh", "sd"])
    )  # as of a file: no literals
    bench._check_agreement(row, "torch", theirs.transpose(0, 2, 1, 3), theirs)
    bench._check_agreement(other, "torch", theirs, theirs)


@pytest.mark.parametrize(("ratio", "passes"), [(0.89, False), (0.9, True), (1.5, True)])
def test_a_bar_is_met_from_its_value_on(ratio, passes):
    speed = {
        "peers": {
            "numpy": {"ratio": 0.1, "bar": None},
            "torch": {"ratio": ratio, "bar": 0.9},
            "x": {"unavailable": "-"},
        }
    }
    if passes:
        bench.check_bars(speed)
    else:
        with pytest.raises(CaseFailure, match=r"0\.89 times the speed of torch, the bar is 0\.9") as caught:
            bench.check_bars(speed)
        assert caught.value.check == "speed"
    assert ("met" if passes else "MISSED") in bench._peer_text("torch", speed["peers"]["torch"] | {"wall_ratio": 1})


def test_the_table_has_a_line_for_each_row():
    peers = {
        "torch": {"ratio": 1.25, "wall_ratio": 0.5, "bar": 1.0},
        "numpy": {"ratio": 0.5, "wall_ratio": 2.0, "bar": None},
        "triton": {"unavailable": "it compiles for GPUs"},
    }
    on_cpu = {"wall_s": 0.0012345, "cpu_s": 0.002, "spread": 0.031, "flop_per_s": 12.34e9, "byte_per_s": 5.678e9}
    on_card = {"wall_s": 0.5, "spread": 0.2}
    head, *rows = bench.table(
        [
            {"case": "softmax-a", "target": "cpu", "speed": on_cpu | {"peers": peers}},
            {"case": "softmax-long", "target": "hip", "speed": on_card | {"peers": {}}},
        ]
    )
    assert head.split()[:8] == ["case", "target", "wall", "ms", "cpu", "ms", "spread", "GFLOP/s"]
    assert rows == [
        "softmax-a        cpu     1.234     2.000      3%     12.3    5.68  "
        "torch 1.25 (wall 0.50), bar 1 met, numpy 0.50 (wall 2.00), triton: it compiles for GPUs",
        "softmax-long     hip   500.000               20%      0.0    0.00  ",
    ]
    assert head.index("spread") + len("spread") == rows[0].index("3%") + 2, "numbers stand below their names"


@pytest.mark.parametrize("results", [1, 2])
def test_a_row_is_timed_beside_its_peers_and_its_first_result_is_held_against_theirs(monkeypatch, results):
    x = np.arange(6, dtype=np.float32)
    ran = []

    def operation(x, *, out):
        ran.append("ours")
        for each, factor in zip(out if results > 1 else (out,), (2, 5), strict=False):
            np.multiply(x, np.float32(factor), out=each)
        return out

    def peer(factor):
        return SimpleNamespace(prepare=lambda call, case, target: lambda: ran.append("theirs") or x * factor)

    def none(call, case, target):
        raise PeerUnavailable("not here")

    declared = SimpleNamespace(
        function=operation, out=True, on_device=True, flops=None, nbytes=lambda case: 48.0,
        outputs=[SimpleNamespace(dtype="f32")] * results,
        peer_table={"right": peer(2), "wrong": peer(3), "none": SimpleNamespace(prepare=none)},
    )  # fmt: skip
    facts = SimpleNamespace(peers=["right", "none"], bars={"right": 0.5}, warm=False)
    row = SimpleNamespace(id="double-a", dtype="f32", operation=declared, facts=facts, features={})
    call = SimpleNamespace(arguments={"x": x}, out_shapes=[x.shape] * results)
    monkeypatch.setattr(bench, "make_call", lambda case: call)
    monkeypatch.setattr(bench, "output_dtype", lambda case, index: np.float32)
    monkeypatch.setattr(bench, "_rounds", lambda function: 3)
    monkeypatch.setattr(bench, "roof", lambda target, dtype: {"of": (target, dtype)})
    benchmark = jobs._Rounds()
    speed = bench.measure(benchmark, row, "python")
    assert ran == ["ours", "theirs", *["theirs", "ours"] * 3], "once each to compare, then in turns"
    assert speed["rounds"] == 3 and speed["roof"] == {"of": ("python", "f32")} and "flop_per_s" not in speed
    assert set(speed["peers"]) == {"right", "none"} and speed["peers"]["right"]["bar"] == 0.5
    assert benchmark.extra_info == {"case": "double-a", "target": "python", **speed} and len(benchmark.durations) == 3
    facts.peers = ["wrong"]
    with pytest.raises(CaseFailure, match="differs from wrong"):
        bench.measure(jobs._Rounds(), row, "python")


# ---------------------------------------------------------------------------------------------------------------- jobs


class Config:
    """A run's options."""

    def __init__(self, **options):
        self.options = {"rocmkern_worker": "gpu", "rocmkern_deadline": None} | options

    def getoption(self, name):
        return self.options[name]


@pytest.mark.parametrize(
    ("choice", "expected"), [("gpu", [True, True, False, False]), ("all", [True] * 4), ("none", [False] * 4)]
)
def test_which_cases_run_in_the_worker(choice, expected):
    config = Config(rocmkern_worker=choice)
    assert [jobs.in_worker(config, target) for target in ("hip", "cuda", "cpu", "python")] == expected


def test_a_deadline_is_that_of_the_command_line_or_of_the_row_or_the_usual_one():
    row = SimpleNamespace(facts=SimpleNamespace(deadline_s=7.0))
    usual = SimpleNamespace(facts=SimpleNamespace(deadline_s=None))
    assert jobs.deadline_of(Config(rocmkern_deadline=2.0), row) == 2.0
    assert jobs.deadline_of(Config(), row) == 7.0
    assert jobs.deadline_of(Config(), usual) == jobs.deadline_of(Config()) == 300.0


def test_rounds_of_the_worker_are_replayed_as_they_were(monkeypatch):
    now = iter([1.0, 3.0, 10.0, 16.0])
    monkeypatch.setattr(jobs.time, "perf_counter", lambda: next(now))
    done = []
    rounds = jobs._Rounds()
    rounds.pedantic(lambda: done.append("run"), setup=lambda: done.append("setup"), rounds=2, iterations=2)
    assert done == ["setup", "run", "run"] * 2 and rounds.durations == [1.0, 3.0]
    replay = jobs.Replay()
    replay.durations = rounds.durations
    times = [replay()]
    for _ in range(3):
        replay.nothing()
        times.append(replay())
    assert times == [0.0, 1.0, 4.0, 4.0]


def test_a_case_that_went_from_the_file_is_named_and_a_changed_file_is_read_again(tmp_path):
    path = tmp_path / "matrix.yaml"
    text = (
        "version: 1\nregistry: rocmkern.ops.catalog\ngroups:\n  a:\n    why: an example of this test\n"
        "    operation: scale\n    rows:\n      - {shape: {size: [4]}}\n"
    )
    path.write_text(text)
    assert jobs._case(str(path), "scale-a-n4-f32").dims == {"size": [4]}
    with pytest.raises(MatrixError, match=r"has no case 'scale-a-n5-f32' any more; .*scale-a-n4-f32") as caught:
        jobs._case(str(path), "scale-a-n5-f32")
    assert str(path) in str(caught.value)
    path.write_text(text.replace("4", "5"))
    os.utime(path, ns=(0, 0))
    assert jobs._case(str(path), "scale-a-n5-f32").dims == {"size": [5]}
