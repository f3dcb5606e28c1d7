"""Benchmark rows of two runs: regressions are told from noise by a rank test and a smallest effect."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest

from rocmkern import cli
from rocmkern.matrix import MatrixError
from rocmkern.matrix.regression import EXACT_SAMPLES, SIGNIFICANCE, compare_runs, rank_test
from rocmkern.matrix.results import Environment, MeasuredDevice, Result, Run, read, write
from rocmkern.runtime.errors import ArgumentError

CPU = MeasuredDevice("cpu-avx2", "A processor, 2 cores")
OTHER = replace(CPU, name="Another processor, 8 cores")


def speed(samples, peers=None):
    timed = {name: {"ratio": 1.0, "samples": list(theirs)} for name, theirs in (peers or {}).items()}
    return {"wall_s": 1.0, "counts": "cpu_s", "samples": list(samples), "peers": timed}


def run(rows, device=CPU, **versions):
    """A run of ``{case: speed}``."""
    facts = ("double", "a", "benchmark", "f32", "why", {}, {}, "contiguous", "cpu", "passed")
    results = [Result(case, *facts, speed=timed) for case, timed in rows.items()]
    place = Environment("a run", "2026-01-01T00:00:00+00:00", "Linux", "3.12", versions, {"cpu": device})
    return Run(place, results, {})


def noisy(median, n=40, seed=0, spread=0.02):
    return median * (1 + spread * np.random.default_rng(seed).standard_normal(n))


def verdict(before, after, **options):
    (change,) = compare_runs(run({"row": before}), run({"row": after}), **options).changes
    return change.verdict


def by_enumeration(x, y):
    """Share of all splits of the values into two such groups whose U is as far from its middle."""
    values, n, m = [*x, *y], len(x), len(y)

    def u(chosen):
        return sum(values[i] > values[j] for i in chosen for j in range(n + m) if j not in chosen)

    every = [u(chosen) for chosen in itertools.combinations(range(n + m), n)]
    seen = u(range(n))
    return sum(abs(each - n * m / 2) >= abs(seen - n * m / 2) for each in every) / len(every)


@pytest.mark.parametrize(("n", "m"), [(1, 1), (2, 3), (5, 5), (4, 6)])
def test_the_rank_test_is_exact_for_few_samples(n, m):
    rng = np.random.default_rng(n * 10 + m)
    for shift in (0.0, 0.5, 3.0):
        x, y = rng.standard_normal(n), rng.standard_normal(m) + shift
        assert rank_test(x, y) == pytest.approx(by_enumeration(x, y))
        assert rank_test(x, y) == rank_test(y, x)


def test_the_approximation_for_many_samples_continues_the_exact_test():
    x, y = noisy(1.0, EXACT_SAMPLES, 1), noisy(1.012, EXACT_SAMPLES, 2)
    exact = rank_test(x, y)
    assert 1e-3 < exact < 0.5
    assert rank_test([*x, x[0]], [*y, y[0]]) == pytest.approx(exact, rel=0.35), "one tie: the normal approximation"
    assert rank_test([1.0] * 9, [1.0] * 9) == 1.0


def test_p_is_rarely_small_where_nothing_changed():
    small = sum(rank_test(noisy(1.0, 30, seed), noisy(1.0, 30, seed + 1000)) < SIGNIFICANCE for seed in range(300))
    assert small <= 9, "1 % of 300 and three standard deviations"


def test_five_separated_samples_are_enough_to_be_sure_and_four_are_not():
    assert verdict(speed(noisy(1.0, 5)), speed(noisy(1.5, 5))) == "regression"
    assert verdict(speed(noisy(1.0, 4)), speed(noisy(1.5, 4))) == "noise"


def test_regressions_improvements_and_noise():
    assert verdict(speed(noisy(1.0)), speed(noisy(1.1, seed=1))) == "regression"
    assert verdict(speed(noisy(1.1)), speed(noisy(1.0, seed=1))) == "improvement"
    assert verdict(speed(noisy(1.0)), speed(noisy(1.0, seed=1))) == "noise"
    assert verdict(speed(noisy(1.0, spread=0.001)), speed(noisy(1.02, seed=1, spread=0.001))) == "noise", "too small"
    assert verdict(speed(noisy(1.0, spread=0.5)), speed(noisy(1.1, seed=3, spread=0.5))) == "noise", "not significant"
    small = {"smallest_effect": 0.01}
    assert verdict(speed(noisy(1.0, spread=0.001)), speed(noisy(1.02, seed=1, spread=0.001)), **small) == "regression"


def test_an_outlier_changes_nothing():
    after = noisy(1.0, seed=1)
    after[3] = 50.0
    assert verdict(speed(noisy(1.0)), speed(after)) == "noise"


def test_rows_of_one_run_only_are_new_or_missing_and_fail_nothing():
    comparison = compare_runs(
        run({"kept": speed(noisy(1.0)), "gone": speed(noisy(1.0))}),
        run({"kept": speed(noisy(1.0, seed=1)), "added": speed(noisy(1.0))}),
    )
    assert {change.case: change.verdict for change in comparison.changes} == {
        "kept": "noise", "gone": "missing", "added": "new",
    }  # fmt: skip
    assert comparison.regressions == ()
    assert comparison.lines()[-1] == "1 noise, 1 new, 1 missing"


def test_other_devices_are_compared_by_ratios_to_peers_only():
    # The other machine is three times as fast; on it the kernel lost a fifth against the peer.
    before = run({"row": speed(noisy(3.0), {"torch": noisy(3.0, seed=1)}), "alone": speed(noisy(3.0))})
    after = run({"row": speed(noisy(1.2, seed=2), {"torch": noisy(1.0, seed=3)}), "alone": speed(noisy(1.0))}, OTHER)
    comparison = compare_runs(before, after)
    row, alone = comparison.changes
    assert (
        row.verdict == "regression" and row.by == "ratio to torch" and row.speedup == pytest.approx(1 / 1.2, rel=0.05)
    )
    assert alone.verdict == "not compared" and "no peer in common" in alone.reason
    assert "cpu was A processor, 2 cores (cpu-avx2) and is Another processor, 8 cores (cpu-avx2)" in comparison.notes[0]


def test_other_devices_without_a_common_peer_are_refused_by_name():
    with pytest.raises(MatrixError, match=r"no row can be compared: cpu was A processor.* and is Another processor"):
        compare_runs(run({"row": speed(noisy(3.0))}), run({"row": speed(noisy(1.0))}, OTHER))


def test_a_baseline_without_samples_is_refused():
    for before in (run({}), run({"row": {"wall_s": 1.0, "peers": {}}})):
        with pytest.raises(MatrixError, match="no benchmark rows with samples"):
            compare_runs(before, run({"row": speed(noisy(1.0))}))


@pytest.mark.parametrize("effect", [float("nan"), float("inf"), -1.0, 0.0])
def test_an_effect_that_would_switch_the_gate_off_is_refused(effect, tmp_path, capsys):
    slower = run({"row": speed(noisy(1.0))}), run({"row": speed(noisy(3.0))})
    with pytest.raises(ArgumentError, match=r"effect: got .*; allowed: a finite number above 0"):
        compare_runs(*slower, effect)
    files = [str(tmp_path / name) for name in ("before.json", "after.json")]
    for path, timed in zip(files, slower, strict=True):
        write(tmp_path / path, timed)
    assert cli.main(["matrix", "compare", *files, f"--effect={effect}"]) == 2
    assert "effect: got" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("before", "after", "reason"),
    [
        ({}, {"samples": []}, "the samples of this run are none"),
        ({"samples": [0.0] * 5}, {}, "the samples of the baseline are 0: the clock did not tick"),
        ({}, {"counts": "wall_s"}, "CPU time was what counts in the baseline, wall-clock time is now"),
    ],
)
def test_odd_samples_are_not_compared_and_the_reason_is_said(before, after, reason):
    """Beside a row that is sound, or nothing could be compared at all."""
    sound = {"sound": speed(noisy(1.0))}
    odd = [run({"row": {**speed(noisy(1.0)), **change}, **sound}) for change in (before, after)]
    change, other = compare_runs(*odd).changes
    assert (change.verdict, change.reason, other.verdict) == ("not compared", reason, "noise")
    assert f"not compared  row[cpu]: {reason}" in compare_runs(*odd).lines()
    with pytest.raises(MatrixError, match=f"no row can be compared: {reason}"):
        compare_runs(*(replace(each, results=each.results[:1]) for each in odd))


@pytest.mark.parametrize("theirs", [[1.0] * 3, [0.0] * 40], ids=["another length", "zeros"])
def test_odd_samples_of_a_peer_are_not_compared(theirs):
    before = run({"row": speed(noisy(3.0), {"torch": theirs})})
    after = run({"row": speed(noisy(1.2), {"torch": noisy(1.0)})}, OTHER)
    with pytest.raises(MatrixError, match="the samples of torch are no times of the same rounds"):
        compare_runs(before, after)


def test_samples_that_are_no_numbers_are_an_error_that_names_the_file_and_the_case(tmp_path, capsys):
    for name, samples in (("before", ["1"]), ("after", list(noisy(1.0)))):
        write(tmp_path / f"{name}.json", run({"row": speed(samples)}))
    assert cli.main(["matrix", "compare", str(tmp_path / "before.json"), str(tmp_path / "after.json")]) == 1
    error = capsys.readouterr().err
    assert "before.json: results[0].speed.samples[0]: input should be a valid number; got '1' (case 'row')" in error


def test_other_versions_are_said():
    before, after = (run({"row": speed(noisy(1.0))}, numba=version) for version in ("0.63", "0.68"))
    assert compare_runs(before, after).notes == ("versions: numba 0.63 -> 0.68",)


def test_the_command_compares_two_files_and_fails_for_a_regression(tmp_path, capsys):
    files = [str(tmp_path / name) for name in ("before.json", "after.json")]
    for path, median in zip(files, (1.0, 1.3), strict=True):
        write(tmp_path / path, run({"row": speed(noisy(median))}))
    assert read(tmp_path / "before.json").results[0].speed["samples"] == list(noisy(1.0))
    assert cli.main(["matrix", "compare", *files]) == 1
    out = capsys.readouterr().out
    assert "regression    row[cpu]: 0.769 times the baseline's speed by cpu_s, p = " in out
    assert cli.main(["matrix", "compare", *files, "--effect", "0.5"]) == 0
    assert cli.main(["matrix", "compare", files[1], files[0]]) == 0
    assert "improvement" in capsys.readouterr().out
