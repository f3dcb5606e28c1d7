"""Runs as tables: what is supported where, how exact, how fast, and what is not verified on a card of which vendor."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from rocmkern.matrix.report.coverage import Coverage, coverage_of
from rocmkern.matrix.report.place import Place
from rocmkern.matrix.results import MeasuredDevice, Result, Run
from rocmkern.targets import GPU_TARGETS

DTYPES = ("f32", "f16", "bf16")
#: For results of a target that their file says nothing about.
UNKNOWN = MeasuredDevice("", "a device that the file does not name")


@dataclass
class Cell:
    """Cases of one operation and dtype in one place."""

    passed: int = 0
    failed: list[Result] = field(default_factory=list)
    skipped: list[Result] = field(default_factory=list)
    worst: tuple[float, Result, dict[str, Any]] | None = None

    @property
    def state(self) -> str:
        """``"failed"``, ``"passed"``, ``"skipped"`` or ``"none"``."""
        if self.failed:
            return "failed"
        return "passed" if self.passed else "skipped" if self.skipped else "none"

    def add(self, result: Result) -> None:
        """Count a result, and keep the output that comes nearest to its bound."""
        if result.outcome == "failed":
            self.failed.append(result)
        elif result.outcome == "skipped":
            self.skipped.append(result)
        else:
            self.passed += 1
            for output in result.outputs:
                if self.worst is None or output["share"] > self.worst[0]:
                    self.worst = output["share"], result, output


@dataclass(frozen=True)
class Summary:
    """Everything that the page says.

    Attributes
    ----------
    runs : tuple of Run
    places : tuple of Place
        In the order of the runs; the same target, architecture and device in two runs is one place, the latest counts.
    operations : tuple of str
    cells : dict
        ``(operation, dtype, place) -> Cell`` of what is tested.
    timed : tuple of (Place, Result)
        Results with a speed; its roof is the best that their run measured of that target and dtype.
    coverage : tuple of Coverage
        For AMD's cards, and for NVIDIA's: which cases have passed on one.
    everything : tuple of (Place, Result)
    """

    runs: tuple[Run, ...]
    places: tuple[Place, ...]
    operations: tuple[str, ...]
    cells: dict[tuple[str, str, Place], Cell]
    timed: tuple[tuple[Place, Result], ...]
    coverage: tuple[Coverage, ...]
    everything: tuple[tuple[Place, Result], ...]


def summarise(runs: Sequence[Run]) -> Summary:
    """Tables of some runs; where a case has results of the same place in several of them, the latest run counts.

    Parameters
    ----------
    runs : sequence of Run
        In any order.

    Returns
    -------
    Summary
    """
    ordered = sorted(runs, key=lambda run: run.environment.time)
    places: dict[tuple[str, str, str, bool], Place] = {}
    latest: dict[tuple[Place, str], Result] = {}
    for run in ordered:
        devices = dict(run.environment.devices)
        for result in run.results:
            if result.outcome != "skipped":
                devices.setdefault(result.target, UNKNOWN)
        for target, device in devices.items():
            key = (target, device.arch, device.name, device.emulated)
            places.setdefault(key, Place(*key, run=run.environment.label))
        roofs = _best_roofs(run)
        for result in run.results:
            used = devices.get(result.target)
            if used is None:
                continue  # skipped where there is no such device
            place = places[result.target, used.arch, used.name, used.emulated]
            if result.speed is not None and (best := roofs.get((result.target, result.dtype))):
                result = replace(result, speed={**result.speed, "roof": best})
            latest[place, result.case] = result
    everything = tuple((place, result) for (place, _), result in latest.items())
    cells: defaultdict[tuple[str, str, Place], Cell] = defaultdict(Cell)
    for place, result in everything:
        if result.speed is None and result.category != "benchmark":
            cells[result.operation, result.dtype, place].add(result)
    return Summary(
        runs=tuple(ordered),
        places=tuple(places.values()),
        operations=tuple(dict.fromkeys(result.operation for _, result in everything)),
        cells=dict(cells),
        timed=tuple((place, result) for place, result in everything if result.speed is not None),
        coverage=tuple(coverage_of(target, everything) for target in GPU_TARGETS),
        everything=everything,
    )


def _best_roofs(run: Run) -> dict[tuple[str, str], dict[str, Any]]:
    """For each target and dtype of a run the best of its roofs: what slows a measurement down is no property of it."""
    best: dict[tuple[str, str], dict[str, Any]] = {}
    for result in run.results:
        for name, value in ((result.speed or {}).get("roof") or {}).items():
            roof = best.setdefault((result.target, result.dtype), {})
            roof[name] = max(roof.get(name, 0.0), value) if isinstance(value, (int, float)) else value
    return best


def dtypes_of(summary: Summary) -> list[str]:
    """The dtypes that occur, the usual ones first."""
    found = {dtype for _, dtype, _ in summary.cells}
    return [d for d in DTYPES if d in found] + sorted(found - set(DTYPES))


def counts(summary: Summary, place: Place, benchmarks: bool = True) -> dict[str, int]:
    """How many results of a place passed, failed and were skipped; on request without benchmark rows."""
    outcomes = [
        result.outcome
        for at, result in summary.everything
        if at == place and (benchmarks or result.category != "benchmark")
    ]
    return {outcome: outcomes.count(outcome) for outcome in ("passed", "failed", "skipped")}


def ratios(speed: dict[str, Any]) -> dict[str, float]:
    """Times of the peers over that of the kernel: above 1 the kernel is faster."""
    return {name: peer["ratio"] for name, peer in speed.get("peers", {}).items() if "unavailable" not in peer}


def si(value: float | None, unit: str) -> str:
    """A number with a prefix: ``187 TFLOP/s``; empty for None."""
    if value is None:
        return ""
    for prefix, size in (("T", 1e12), ("G", 1e9), ("M", 1e6)):
        if value >= size:
            return f"{value / size:.3g} {prefix}{unit}" if value < 1000 * size else f"{value / size:.0f} {prefix}{unit}"
    return f"{value:.3g} {unit}"


@dataclass(frozen=True)
class RoofShare:
    """How near a row came to the roof of its target.

    Attributes
    ----------
    share : float or None
        Of the nearer of both roofs; None where none of them limits the row, or none was measured.
    of : str
        Which roof, and why not the other one.
    """

    share: float | None
    of: str

    def text(self) -> str:
        """The share, or nothing."""
        return "" if self.share is None else f"{self.share:.0%}"


def roof_share(speed: dict[str, Any]) -> RoofShare:
    """Share of the measured roof: of the matrix peak or of the copy bandwidth, whichever is nearer.

    A row that moves its data faster than a large copy has them in a cache: then the bandwidth of memory is no roof for
    it. Where no peak is known, that is said beside the share of the bandwidth.
    """
    roof = speed.get("roof") or {}
    shares = {
        name: speed[key] / roof[key]
        for name, key in (("arithmetic", "flop_per_s"), ("memory", "byte_per_s"))
        if speed.get(key) and roof.get(key)
    }
    if not roof:
        return RoofShare(None, "")
    notes = []
    if shares.get("memory", 0.0) > 1:
        del shares["memory"]
        notes.append("data in caches")
    if not roof.get("flop_per_s"):
        notes.append(roof.get("no_peak", "no matrix peak was measured"))
    if not shares:
        return RoofShare(None, "; ".join(notes))
    nearer = max(shares, key=lambda name: shares[name])
    return RoofShare(shares[nearer], "; ".join([nearer, *notes]))
