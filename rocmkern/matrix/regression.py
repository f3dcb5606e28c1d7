"""Benchmark rows of two runs: which became slower or faster, and which differences are noise.

A row **regressed** (or improved) when two things hold:

* a two-sided Mann-Whitney rank test of the samples of both runs has p < 0.01: exact up to 20 samples a side where no
  two are equal, else by the normal approximation with corrections for ties and continuity;
* the medians differ by at least the smallest effect that matters, 5 % unless another is asked for.

Anything else is **noise**. The rank test alone would call a difference of 0.1 % between two long runs a regression, and
the medians alone would call the chance of a few samples one. Of a hundred unchanged rows about one passes the rank test
by chance; it is noise all the same unless its medians differ that much. Samples are what counts where they were taken:
CPU time of the process on a CPU, time between device events on a card.

Runs on different cards or machines are not comparable in seconds. Their rows are compared by the ratio to a peer that
both runs timed (round by round, a peer's time over the kernel's); rows without such a peer are named and left out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

from rocmkern.matrix.results import Result, Run
from rocmkern.runtime.errors import ArgumentError, MatrixError

SIGNIFICANCE = 0.01
SMALLEST_EFFECT = 0.05
# Up to here the distribution of U is counted out.
EXACT_SAMPLES = 20
_CLOCKS = {"cpu_s": "CPU time", "wall_s": "wall-clock time"}
VERDICTS = ("regression", "improvement", "noise", "new", "missing", "not compared")


@dataclass(frozen=True)
class Change:
    """One benchmark row in two runs.

    Attributes
    ----------
    case, target : str
    verdict : str
        One of `VERDICTS`.
    by : str
        What was compared: ``"cpu_s"``, ``"wall_s"``, or ``"ratio to PEER"``; empty where nothing was.
    speedup : float
        Median of the baseline over that of this run (for ratios the other way round): above 1 this run is faster.
    p : float
        Of the rank test.
    reason : str
        Why the row was not compared.
    """

    case: str
    target: str
    verdict: str
    by: str = ""
    speedup: float = float("nan")
    p: float = float("nan")
    reason: str = ""

    def describe(self) -> str:
        """A line of text."""
        name = f"{self.verdict:<13} {self.case}[{self.target}]"
        if self.by:
            return f"{name}: {self.speedup:.3f} times the baseline's speed by {self.by}, p = {self.p:.2g}"
        return f"{name}: {self.reason}" if self.reason else name


@dataclass(frozen=True)
class Comparison:
    """Two runs: the changes, and what differs in their surroundings."""

    changes: tuple[Change, ...]
    notes: tuple[str, ...]

    @property
    def regressions(self) -> tuple[Change, ...]:
        """Rows that became slower."""
        return tuple(change for change in self.changes if change.verdict == "regression")

    def lines(self) -> list[str]:
        """The report: notes, each row that is not noise, and how many rows there are of each kind."""
        counts = {verdict: sum(change.verdict == verdict for change in self.changes) for verdict in VERDICTS}
        ordered = sorted(self.changes, key=lambda change: VERDICTS.index(change.verdict))
        shown = [change.describe() for change in ordered if change.verdict != "noise"]
        return [*self.notes, *shown, ", ".join(f"{count} {verdict}" for verdict, count in counts.items() if count)]


def compare_runs(baseline: Run, run: Run, smallest_effect: float = SMALLEST_EFFECT) -> Comparison:
    """Compare the benchmark rows of a run with those of an earlier one.

    Parameters
    ----------
    baseline, run : Run
        Files of results with benchmark rows.
    smallest_effect : float
        Relative difference of medians below which a difference is noise.

    Returns
    -------
    Comparison

    Raises
    ------
    ArgumentError
        The smallest effect is no finite number above 0: with NaN nothing would ever be a regression.
    MatrixError
        The baseline has no timed rows, or none with samples, or the two have no row that can be compared; the message
        says why the first one cannot.
    """
    check_effect(smallest_effect)
    before, after = _timed(baseline), _timed(run)
    if not any("samples" in (result.speed or {}) for result in before.values()):
        raise MatrixError("the baseline has no benchmark rows with samples; record one: pytest --benchmark-only "
                          "--rocmkern-json=FILE")  # fmt: skip
    changes, compared = [], 0
    for key in {**after, **before}:
        case, target = key
        if key not in before or key not in after:
            changes.append(Change(case, target, "missing" if key in before else "new"))
            continue
        change = _change(key, before[key], after[key], _differing(baseline, run, target), smallest_effect)
        compared += change.verdict != "not compared"
        changes.append(change)
    notes = _notes(baseline, run)
    if not compared:
        refused = next((change.reason for change in changes if change.verdict == "not compared"), "")
        names = ", ".join(sorted({case for case, _ in before})[:3])
        raise MatrixError(f"no row can be compared: {refused or f'this run has none of the baseline ({names})'}")
    return Comparison(tuple(changes), tuple(notes))


def check_effect(smallest_effect: float) -> None:
    """Raise an `ArgumentError` for a smallest effect that is no finite number above 0."""
    if not 0 < smallest_effect < math.inf:
        raise ArgumentError("effect", f"{smallest_effect:g}", "a finite number above 0, such as 0.05 for 5 %")


def _timed(run: Run) -> dict[tuple[str, str], Result]:
    return {(result.case, result.target): result for result in run.results if result.speed is not None}


def _differing(baseline: Run, run: Run, target: str) -> str:
    """How the devices of a target differ in two runs; empty where they are the same."""
    devices = [each.environment.devices.get(target) for each in (baseline, run)]
    names = [f"{device.name} ({device.arch})" if device else "an unknown device" for device in devices]
    return "" if devices[0] is not None and devices[0] == devices[1] else f"{target} was {names[0]} and is {names[1]}"


def _notes(baseline: Run, run: Run) -> list[str]:
    notes = [
        f"{difference}: only ratios to peers are compared"
        for target in run.environment.devices
        if target in baseline.environment.devices and (difference := _differing(baseline, run, target))
    ]
    old, new = baseline.environment.versions, run.environment.versions
    changed = [
        f"{name} {old.get(name)} -> {new.get(name)}" for name in {**old, **new} if old.get(name) != new.get(name)
    ]
    return notes + ([f"versions: {', '.join(changed)}"] if changed else [])


def _change(key: tuple[str, str], before: Result, after: Result, differing: str, smallest_effect: float) -> Change:
    old, new = before.speed or {}, after.speed or {}
    reasons = []
    for where, speed in (("the baseline", old), ("this run", new)):
        if "samples" not in speed:
            reasons.append(f"{where} has no samples of it")
        elif unusable := _unusable(speed["samples"]):
            reasons.append(f"the samples of {where} {unusable}")
    if not reasons and old["counts"] != new["counts"]:
        reasons.append(f"{_CLOCKS[old['counts']]} was what counts in the baseline, {_CLOCKS[new['counts']]} is now")
    if reasons:
        return Change(*key, "not compared", reason="; ".join(reasons))
    if not differing:
        return _judged(key, old["counts"], old["samples"], new["samples"], smallest_effect)
    for name, peer in new["peers"].items():
        theirs = old["peers"].get(name, {})
        if "samples" not in peer or "samples" not in theirs:
            continue
        # The kernel's time over the peer's, round by round: as with seconds, less is better.
        pairs = ((old["samples"], theirs["samples"]), (new["samples"], peer["samples"]))
        if any(len(ours) != len(others) or min(others) <= 0 for ours, others in pairs):
            reasons.append(f"the samples of {name} are no times of the same rounds")
            continue
        was, now = ([ours / other for ours, other in zip(*pair, strict=True)] for pair in pairs)
        return _judged(key, f"ratio to {name}", was, now, smallest_effect)
    return Change(*key, "not compared", reason="; ".join([f"{differing}, and both have no peer in common", *reasons]))


def _unusable(samples: Sequence[float]) -> str:
    """Why samples cannot be compared; empty where they can."""
    if not samples:
        return "are none"
    return "" if median(samples) > 0 else "are 0: the clock did not tick"


def _judged(
    key: tuple[str, str], by: str, before: Sequence[float], after: Sequence[float], smallest_effect: float
) -> Change:
    p, speedup = rank_test(before, after), median(before) / median(after)
    verdict = "noise"
    if p < SIGNIFICANCE and max(speedup, 1 / speedup) >= 1 + smallest_effect:
        verdict = "improvement" if speedup > 1 else "regression"
    return Change(*key, verdict, by, speedup, p)


def rank_test(x: Sequence[float], y: Sequence[float]) -> float:
    """Two-sided p of the Mann-Whitney U test that two samples come from one distribution.

    Parameters
    ----------
    x, y : sequence of float
        At least one each.

    Returns
    -------
    float
        Exact where both have at most `EXACT_SAMPLES` values and no two are equal, else by the normal approximation.
    """
    n, m = len(x), len(y)
    values, inverse, counts = np.unique(np.concatenate([x, y]), return_inverse=True, return_counts=True)
    # The rank of equal values is the mean of the places that they take.
    ranks = np.cumsum(counts) - (counts - 1) / 2
    u = float(ranks[inverse[:n]].sum()) - n * (n + 1) / 2
    u = min(u, n * m - u)
    if len(values) == n + m and max(n, m) <= EXACT_SAMPLES:
        ways = _ways(n, m)
        return min(1.0, 2 * sum(ways[: int(u) + 1]) / sum(ways))
    total = n + m
    ties = float((counts.astype(np.float64) ** 3 - counts).sum())
    variance = n * m / 12 * (total + 1 - ties / (total * (total - 1))) if total > 1 else 0.0
    if variance == 0:
        return 1.0
    z = max(n * m / 2 - u - 0.5, 0.0) / math.sqrt(variance)
    return math.erfc(z / math.sqrt(2))


def _ways(n: int, m: int) -> list[int]:
    """In how many orders of n and m values U has each value from 0 to n * m.

    They are the coefficients of the Gaussian binomial: the product over i of (1 - q^(m + i)) / (1 - q^i).
    """
    ways = [1] + [0] * (n * m)
    for i in range(1, n + 1):
        for u in range(n * m, m + i - 1, -1):
            ways[u] -= ways[u - m - i]
        for u in range(i, n * m + 1):
            ways[u] += ways[u - i]
    return ways
