"""Does a case give the same bits whatever ran before it?

Each case runs in several ways, and what it wrote is compared bit by bit:

* ``alone``: as the first thing that a process does (a forked child; on a GPU the child opens the device);
* ``file``: in the order of the file, in one process, one after another;
* ``random``: in a random order, in the same process;
* ``dirty``: once more, where every idle buffer of the pool is full of random bytes, and nothing is filled with NaN.

Every process is a forked child with a deadline. A case that ends one (it crashes, exits or hangs) is reported, and left
out of what comes after; the other cases go on in a new child.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import rocmkern
from rocmkern.matrix.case import Case
from rocmkern.matrix.forked import Ended, can_fork, in_child
from rocmkern.matrix.isolation_log import Outcome
from rocmkern.matrix.runner import run_case
from rocmkern.runtime.device import DeviceInfo
from rocmkern.runtime.devices import open_device
from rocmkern.runtime.errors import ArgumentError, TargetError
from rocmkern.runtime.manager import default_manager
from rocmkern.runtime.memory import DeviceMemory
from rocmkern.targets import GPU_TARGETS, current_target

WAYS = ("alone", "file", "random", "dirty")

DEADLINE_S = 300.0


@dataclass
class Isolation:
    """What was found.

    Attributes
    ----------
    target : str
    outcomes : dict
        For each way the outcome of each case: hashes of its outputs, or a text if it failed. A case that ended its
        process has none in the ways that come after.
    """

    target: str
    outcomes: dict[str, dict[str, Outcome]] = field(default_factory=dict)

    def different(self) -> dict[str, dict[str, Outcome]]:
        """The cases whose outcomes differ between ways, with the outcome of each way."""
        found = {}
        for case in dict.fromkeys(case for results in self.outcomes.values() for case in results):
            outcomes = {way: results[case] for way, results in self.outcomes.items() if case in results}
            if len(set(outcomes.values())) > 1:
                found[case] = outcomes
        return found

    def failed(self) -> dict[str, str]:
        """The cases that fail in some way, with the first text."""
        return {
            case: outcome
            for results in reversed(self.outcomes.values())
            for case, outcome in results.items()
            if isinstance(outcome, str)
        }


def smallest(cases: Iterable[Case]) -> list[Case]:
    """For each operation and dtype the case with the fewest elements that has some, in the order of the file."""
    chosen: dict[tuple[str, str], Case] = {}
    for case in cases:
        size = _size(case)
        key = case.operation.name, case.dtype
        if size and case.facts.expect_error is None and (key not in chosen or size < _size(chosen[key])):
            chosen[key] = case
    return list(chosen.values())


def _size(case: Case) -> int:
    extents = [
        part for extent in case.dims.values() for part in (extent if isinstance(extent, (list, tuple)) else [extent])
    ]
    return int(np.prod(extents))


def isolate(
    cases: Sequence[Case],
    target: str,
    *,
    seed: int = 0,
    ways: Sequence[str] = WAYS,
    deadline_s: float | None = None,
    holding: Callable[[str], AbstractContextManager[Any]] = lambda target: nullcontext(),
    note: Callable[[str], None] = lambda line: None,
    earlier: Mapping[str, Mapping[str, Outcome]] | None = None,
    tell: Callable[[str, str, Outcome], None] = lambda way, case, outcome: None,
) -> Isolation:
    """Run cases in several ways.

    Parameters
    ----------
    cases : sequence of Case
        Those that do not run on the target are passed over.
    target : str
    seed : int
        Of the random order and the random bytes.
    ways : sequence of str
        Which of `WAYS`; ``alone`` comes first in any case.
    deadline_s : float, optional
        What a case may take, without the time that it waits in `holding`; default: its row's, or 300.
    holding : callable
        Makes the context in which a case runs on a target, such as the lock of a device.
    note : callable
        Is told of every way that begins.
    earlier : mapping, optional
        Outcomes by way and case that a stopped run had found: those are not run again.
    tell : callable
        Is told of every outcome as it comes: way, id of the case, outcome.

    Raises
    ------
    ArgumentError
        For an unknown way.
    TargetError
        Where a process cannot be forked.
    """
    _prepare(ways, target)
    chosen = [case for case in cases if case.skip_reason(target) is None]
    orders = {"random": random.Random(seed).sample(chosen, len(chosen))}
    ordered = sorted(ways, key=WAYS.index)
    known = {case.id for case in chosen}
    results: dict[str, dict[str, Outcome]] = {
        way: {case: found for case, found in (earlier or {}).get(way, {}).items() if case in known} for way in ordered
    }
    jobs = [(way, case) for way in ordered for case in orders.get(way, chosen) if case.id not in results[way]]
    numbers = {case.id: number for number, case in enumerate(chosen)}
    noted: set[str] = set()

    def announce() -> None:
        way = jobs[0][0] if jobs else None
        if way is not None and way not in noted:
            noted.add(way)
            count = sum(job[0] == way for job in jobs)
            missing = len(chosen) - count - len(results[way])
            left_out = f", {missing} left out" if missing else ""
            left_out += f", {len(results[way])} known from before" if results[way] else ""
            note(f"{way}: {count} cases{left_out}")

    def do(job: tuple[str, Case], begin: Callable[[DeviceInfo | None], None]) -> Outcome:
        way, case = job
        try:
            with holding(target):
                begin(_device(target))
                if way == "dirty":
                    dirty_pools(target, np.random.default_rng([seed, numbers[case.id]]))
                return run_case(case, target, poison=way != "dirty").digests
        except (Exception, SystemExit) as error:
            return f"{type(error).__name__}: {error}"

    def deadline_of(job: tuple[str, Case]) -> float:
        row = job[1].facts.deadline_s
        return deadline_s if deadline_s is not None else DEADLINE_S if row is None else row

    announce()
    while jobs:
        # All that is not alone shares a process, over the ways.
        for (way, case), outcome in in_child(tuple(jobs[:1] if jobs[0][0] == "alone" else jobs), do, deadline_of):
            jobs.pop(0)
            ended = isinstance(outcome, Ended)
            results[way][case.id] = outcome.text if ended else outcome
            tell(way, case.id, results[way][case.id])
            if ended:
                jobs = [job for job in jobs if job[1].id != case.id]
            announce()
            if ended:
                break
    order = [case.id for case in chosen]
    found = {way: {case: outcomes[case] for case in order if case in outcomes} for way, outcomes in results.items()}
    return Isolation(target, found)


def _prepare(ways: Sequence[str], target: str) -> None:
    """Refuse what cannot be isolated, and load here what all children need."""
    for way in ways:
        if way not in WAYS:
            raise ArgumentError("ways", way, ", ".join(WAYS))
    if not can_fork():
        raise TargetError("cases are isolated in forked processes, and this system cannot fork any")
    if target == "cpu":
        # The compiler is the same for all of them, and the largest part of a child's time.
        # deferred: start-up
        from rocmkern.tile._lowering.cpu.install import install

        install()


def _device(target: str) -> DeviceInfo | None:
    """The GPU that a target runs on, which this process opens; None for the others."""
    if target not in GPU_TARGETS:
        return None
    return open_device(target).info


def dirty_pools(target: str, generator: np.random.Generator) -> int:
    """Fill every idle buffer of the target's pool with random bytes; returns how many buffers there were."""
    with rocmkern.using(target):
        device = open_device(current_target().device)
    manager = default_manager(device)
    return DeviceMemory.of(device).overwrite_idle(
        lambda nbytes: generator.integers(0, 256, nbytes, dtype=np.uint8), manager.wait
    )
