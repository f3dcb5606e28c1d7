"""Faults of the lowerings: emitters of machine code that are wrong on purpose, and the rows that notice them.

A fault is put in before a target compiles anything, in a forked child of its own with a cache of its own: neither does
right code hide it, nor does wrong code stay. A row notices a fault when one of its checks fails there, when its kernel
ends the process, or when the device reports an error; such a row runs without the fault as well, and must pass. A
kernel that does not compile proves nothing, so that is an error of the fault.
"""

from __future__ import annotations

import importlib
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from rocmkern.matrix.case import Case
from rocmkern.matrix.faults.anchors import ROOTS, FaultError, changed
from rocmkern.matrix.forked import Ended, can_fork, in_child
from rocmkern.matrix.runner import CaseFailure, run_case
from rocmkern.runtime.errors import (
    ArgumentError,
    DeadlineError,
    DriverError,
    GuardBandError,
    IndexOutOfRangeError,
    TargetError,
)
from rocmkern.targets import cache, current_target, using

__all__ = ["ROWS_OF_A_FAULT", "TARGETS", "LoweringFault", "Verdict", "judge", "rows_of"]

TARGETS = tuple(ROOTS)
#: A fault that this many rows do not notice is not noticed.
ROWS_OF_A_FAULT = 6
#: What a row may take; compiling counts.
DEADLINE_S = 120.0
_CACHE = "ROCMKERN_CACHE_DIR"
#: What a wrong kernel may end in, besides wrong results: what it reports of its data, and what becomes of a GPU.
_NOTICED = (ArgumentError, DriverError, DeadlineError, GuardBandError, IndexOutOfRangeError)


@dataclass(frozen=True)
class LoweringFault:
    """A fault of the emitted code of one or several targets.

    Attributes
    ----------
    name, description : str
    rows : tuple of str
        Ids of the rows that are asked, with ``*`` and ``?``.
    changes : dict
        Anchors (`rocmkern.matrix.faults.anchors`), and functions that make the wrong emitter from the right one.
    targets : tuple of str
        Those that have what the anchors name.
    """

    name: str
    description: str
    rows: tuple[str, ...]
    changes: Mapping[str, Callable[[Any], Any]] = field(repr=False)
    targets: tuple[str, ...] = TARGETS


@dataclass(frozen=True)
class Verdict:
    """What became of a fault on a target.

    Attributes
    ----------
    fault : str
    caught : str or None
        Id of the row that noticed it.
    how : str
        Which check failed, or how the process ended; for a fault that was not noticed how many rows were asked, or
        why it could not be put in.
    """

    fault: str
    caught: str | None
    how: str


def rows_of(fault: LoweringFault, cases: Iterable[Case], target: str) -> list[Case]:
    """The rows that are asked about a fault, at most `ROWS_OF_A_FAULT`, each pattern in its turn."""
    usable = [case for case in cases if case.skip_reason(target) is None and case.known_failure(target) is None]
    groups = [[case for case in usable if fnmatch(case.id, pattern)] for pattern in fault.rows]
    for pattern, group in zip(fault.rows, groups, strict=True):
        if not group:
            raise FaultError(f"fault {fault.name}: no quick row has an id that fits {pattern!r}")
    turns = [group[i] for i in range(max(map(len, groups))) for group in groups if i < len(group)]
    return list({case.id: case for case in turns}.values())[:ROWS_OF_A_FAULT]


def judge(
    target: str, faults: Sequence[LoweringFault], cases: Sequence[Case], jobs: int = 1, deadline_s: float = DEADLINE_S
) -> Iterator[Verdict]:
    """Put faults of a target's lowering in and say which row notices each.

    Parameters
    ----------
    target : {"cpu", "hip", "cuda"}
    faults : sequence of LoweringFault
        Those of other targets are passed over.
    cases : sequence of Case
        The quick rows.
    jobs : int
        So many faults at a time.
    deadline_s : float
        For a row.

    Raises
    ------
    TargetError
        Where processes cannot be forked, or this process has compiled for the target already.
    """
    if not can_fork():
        raise TargetError("a fault of a lowering runs in a forked process, and this system cannot fork any")
    _refuse_installed(target)
    chosen = [fault for fault in faults if target in fault.targets]
    rows = {fault.name: rows_of(fault, cases, target) for fault in chosen}
    without: dict[str, str | None] = {}
    with ThreadPoolExecutor(jobs) as pool:
        yield from pool.map(lambda fault: _verdict(target, fault, rows[fault.name], without, deadline_s), chosen)


def _refuse_installed(target: str) -> None:
    """An emitter that numba knows already cannot be changed any more."""
    module = importlib.import_module(ROOTS[target])
    if module._install_operations.cache_info().currsize:
        raise TargetError(f"{target}: this process has compiled kernels; faults of the lowering need a fresh one")


def _refuse_loaded(target: str) -> None:
    """Nor does it emit what was found on disk and is in memory already."""
    with using(target):
        if current_target().variants():
            raise TargetError(f"{target}: this process has loaded kernels; faults of the lowering need a fresh one")


def _verdict(
    target: str, fault: LoweringFault, cases: list[Case], without: dict[str, str | None], deadline_s: float
) -> Verdict:
    for name, outcome in _outcomes(target, fault, cases, deadline_s):
        if outcome is None:
            continue
        if outcome.startswith(_NO_PROOF):
            return Verdict(fault.name, None, outcome)
        if name not in without:
            without.update(_outcomes(target, None, [case for case in cases if case.id == name], deadline_s))
        if without[name] is not None:
            return Verdict(fault.name, None, f"{name} fails without it too: {without[name]}")
        return Verdict(fault.name, name, outcome)
    return Verdict(fault.name, None, f"{len(cases)} rows pass")


_NO_PROOF = "it does not run: "


def _outcomes(
    target: str, fault: LoweringFault | None, cases: list[Case], deadline_s: float
) -> Iterator[tuple[str, str | None]]:
    """Ids of cases, each with None or how it fails; in one child, with a fault or without, as far as it gets."""
    with tempfile.TemporaryDirectory(prefix="rocmkern-fault-") as directory:
        prepared: list[Any] = []

        def do(case: Case, begin: Callable[[Any], None]) -> str | None:
            begin(None)
            try:
                if fault is not None and not prepared:
                    _refuse_loaded(target)
                    os.environ[_CACHE] = directory
                    cache.SHIPPED = Path(directory, "shipped")  # a wheel brings right code
                    context = changed(target, fault.changes)
                    context.__enter__()
                    prepared.append(context)
                run_case(case, target)
            except CaseFailure as error:
                return f"check {error.check}"
            except _NOTICED as error:
                return type(error).__name__
            except (Exception, SystemExit) as error:
                return f"{_NO_PROOF}{type(error).__name__}: {error}"[:500]
            return None

        for case, outcome in in_child(tuple(cases), do, lambda case: deadline_s):
            yield case.id, outcome.text if isinstance(outcome, Ended) else outcome
