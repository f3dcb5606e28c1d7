"""Runs as tables: what is supported where, how exact, how fast, and what never ran on a card."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from rocmkern.matrix.results import Result, Run
from rocmkern.targets import GPU_TARGETS

DTYPES = ("f32", "f16", "bf16")


@dataclass(frozen=True)
class Place:
    """Where results come from: a target and what it was.

    Attributes
    ----------
    target, arch, name : str
    emulated : bool
    run : str
        Label of the run.
    """

    target: str
    arch: str
    name: str
    emulated: bool
    run: str

    @property
    def title(self) -> str:
        """Heading of a column."""
        return self.arch if self.arch.startswith(self.target) else f"{self.target} {self.arch}".strip()

    @property
    def is_card(self) -> bool:
        """Whether the machine code ran on a graphics card."""
        return self.target in GPU_TARGETS and not self.emulated


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
        Results with a speed.
    unverified : dict
        Operation -> ids of cases that no graphics card has passed.
    everything : tuple of (Place, Result)
    """

    runs: tuple[Run, ...]
    places: tuple[Place, ...]
    operations: tuple[str, ...]
    cells: dict[tuple[str, str, Place], Cell]
    timed: tuple[tuple[Place, Result], ...]
    unverified: dict[str, list[str]]
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
        for target, device in run.environment.devices.items():
            key = (target, device.arch, device.name, device.emulated)
            places.setdefault(key, Place(*key, run=run.environment.label))
        for result in run.results:
            used = run.environment.devices.get(result.target)
            if used is not None:
                place = places[result.target, used.arch, used.name, used.emulated]
                latest[place, result.case] = result
    everything = tuple((place, result) for (place, _), result in latest.items())
    cells: defaultdict[tuple[str, str, Place], Cell] = defaultdict(Cell)
    on_cards, known = set(), {}
    for place, result in everything:
        known[result.case] = result
        if place.is_card and result.outcome == "passed":
            on_cards.add(result.case)
        if result.speed is None and result.category != "benchmark":
            cells[result.operation, result.dtype, place].add(result)
    unverified: defaultdict[str, list[str]] = defaultdict(list)
    for case, result in known.items():
        if case not in on_cards and result.category != "benchmark":
            unverified[result.operation].append(case)
    return Summary(
        runs=tuple(ordered),
        places=tuple(places.values()),
        operations=tuple(dict.fromkeys(result.operation for _, result in everything)),
        cells=dict(cells),
        timed=tuple((place, result) for place, result in everything if result.speed is not None),
        unverified=dict(unverified),
        everything=everything,
    )


def dtypes_of(summary: Summary) -> list[str]:
    """The dtypes that occur, the usual ones first."""
    found = {dtype for _, dtype, _ in summary.cells}
    return [d for d in DTYPES if d in found] + sorted(found - set(DTYPES))


def counts(summary: Summary, place: Place) -> dict[str, int]:
    """How many results of a place passed, failed and were skipped."""
    outcomes = [result.outcome for at, result in summary.everything if at == place]
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


def roof_share(speed: dict[str, Any]) -> float | None:
    """Share of the measured roof (the nearer of matrix peak and copy bandwidth); None where none was measured."""
    roof = speed.get("roof")
    if not roof:
        return None
    shares = [speed[name] / roof[name] for name in ("flop_per_s", "byte_per_s") if speed.get(name) and roof.get(name)]
    return max(shares, default=None)
