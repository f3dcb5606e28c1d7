"""Does a case give the same bits whatever ran before it?

Each case runs in several ways, and what it wrote is compared bit by bit:

* ``alone``: as the first thing that a process does (a forked child; on a GPU the child opens the device);
* ``file``: in the order of the file, in one process, one after another;
* ``random``: in a random order, in the same process;
* ``dirty``: once more, where every idle buffer of the pool is full of random bytes, and nothing is filled with NaN.
"""

from __future__ import annotations

import os
import pickle
import random
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rocmkern.matrix.expand import Case
from rocmkern.matrix.runner import run_case
from rocmkern.runtime.errors import ArgumentError

WAYS = ("alone", "file", "random", "dirty")

# What a case gave: digests of its outputs, or how it failed.
Outcome = tuple[str, ...] | str


@dataclass
class Isolation:
    """What was found.

    Attributes
    ----------
    target : str
    outcomes : dict
        For each way the outcome of each case: hashes of its outputs, or a text if it failed.
    """

    target: str
    outcomes: dict[str, dict[str, Outcome]] = field(default_factory=dict)

    def different(self) -> dict[str, dict[str, Outcome]]:
        """The cases whose outcomes differ between ways, with the outcome of each way."""
        found = {}
        for case in next(iter(self.outcomes.values()), {}):
            outcomes = {way: results[case] for way, results in self.outcomes.items()}
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
    holding: Callable[[str], AbstractContextManager[Any]] = lambda target: nullcontext(),
    note: Callable[[str], None] = lambda line: None,
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
        Which of `WAYS`; ``alone`` comes first in any case, so that this process has done nothing before it forks.
    holding : callable
        Makes the context in which a case runs on a target, such as the lock of a device.
    note : callable
        Is told of every way that begins.

    Raises
    ------
    ArgumentError
        For an unknown way, or ``alone`` where a process cannot be forked.
    """
    for way in ways:
        if way not in WAYS:
            raise ArgumentError("ways", way, ", ".join(WAYS))
    if "alone" in ways and not hasattr(os, "fork"):
        raise ArgumentError("ways", "alone", "what this system can do: it cannot fork processes")
    chosen = [case for case in cases if case.skip_reason(target) is None]
    found = Isolation(target)
    if "alone" in ways and target == "cpu":
        # The compiler is the same for all of them, and the largest part of a child's time.
        from rocmkern.tile.cpu import install

        install()
    orders = {"random": random.Random(seed).sample(chosen, len(chosen))}
    for way in sorted(ways, key=WAYS.index):
        note(f"{way}: {len(chosen)} cases")
        generator = np.random.default_rng(seed)
        results: dict[str, Outcome] = {}
        for case in orders.get(way, chosen):
            if way == "alone":
                results[case.id] = _alone(case, target, holding)
                continue
            with holding(target):
                if way == "dirty":
                    dirty_pools(target, generator)
                results[case.id] = _outcome(case, target, poison=way != "dirty")
        found.outcomes[way] = {case.id: results[case.id] for case in chosen}
    return found


def dirty_pools(target: str, generator: np.random.Generator) -> int:
    """Fill every idle buffer of the target's pool with random bytes; returns how many buffers there were."""
    import rocmkern
    from rocmkern.runtime.devices import open_device
    from rocmkern.runtime.manager import default_manager
    from rocmkern.runtime.memory import DeviceMemory
    from rocmkern.targets import current_target

    with rocmkern.using(target):
        device = open_device(current_target().device)
    memory, manager = DeviceMemory.of(device), default_manager(device)
    memory.settle()
    manager.wait("work on idle buffers")
    blocks = memory.pool.blocks()
    for block in blocks:
        garbage = generator.integers(0, 256, block.capacity, dtype=np.uint8)
        memory.write(block.address, garbage)
        manager.wait("filling idle buffers")
    return len(blocks)


def _outcome(case: Case, target: str, poison: bool = True) -> Outcome:
    try:
        return run_case(case, target, poison=poison).digests
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def _alone(case: Case, target: str, holding: Callable[[str], AbstractContextManager[Any]]) -> Outcome:
    """The outcome in a forked child."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        # Whatever happens, this process must not go on with what its parent does.
        try:
            os.close(reading)
            with holding(target):
                outcome = _outcome(case, target)
            with os.fdopen(writing, "wb") as file:
                pickle.dump(outcome, file)
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as file:
        data = file.read()
    _, status = os.waitpid(child, 0)
    return pickle.loads(data) if data else f"the process ended with status {status}"
