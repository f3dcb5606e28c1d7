"""Some rows of matrix.yaml on some targets, with a progress bar: what ``pytest -m quick`` runs, without pytest.

The rows are always the same: those of a transformer's layer, in float32, of which many share a compiled kernel. Most of
the time of a first run is compilation, so they are spread over processes.
"""

from __future__ import annotations

import functools
import multiprocessing
import os
import sys
import time
from collections import defaultdict, deque
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

MATRIX = Path(__file__).resolve().parent.parent / "matrix.yaml"
#: Groups of rows, by the names that they have there, and their element type.
GROUPS = ("modified_scores", "softmax_values", "rotated", "swiglus", "residuals", "embeddings")
DTYPE = "f32"
ROWS_AT_ONCE = 10


@dataclass
class Result:
    """Counts of rows, and the ids and messages of those that failed."""

    passed: int = 0
    skipped: int = 0
    failures: list[str] = field(default_factory=list)
    seconds: float = 0.0


class Progress:
    """A progress bar on a terminal; elsewhere one line each tenth of the way."""

    def __init__(self, label: str, total: int, stream: TextIO = sys.stdout):
        self.label, self.total, self.stream = label, total, stream
        self.done, self._tenth, self._on_terminal = 0, 0, stream.isatty()

    def advance(self, count: int) -> None:
        """Some more rows are done."""
        self.done += count
        tenth = 10 * self.done // max(self.total, 1)
        if self._on_terminal:
            bar = "#" * (3 * tenth) + "." * (30 - 3 * tenth)
            self.stream.write(f"\r{self.label} [{bar}] {self.done}/{self.total}")
        elif tenth > self._tenth:
            self.stream.write(f"{self.label} {self.done}/{self.total}\n")
        self._tenth = tenth
        self.stream.flush()

    def close(self) -> None:
        """End the line of the bar."""
        if self._on_terminal:
            self.stream.write("\n")


@functools.cache
def _cases() -> dict:
    from rocmkern.matrix import expand, load

    cases = [case for case in expand(load(MATRIX)) if case.category == "quick" and case.dtype == DTYPE]
    return {case.id: case for case in cases if case.facts.group in GROUPS}


def run_rows(ids: Sequence[str], target: str) -> list[tuple[str, str]]:
    """``("passed" | "skipped" | "failed", message)`` of each row; called in a worker process."""
    from rocmkern.matrix import run_case

    results = []
    for case_id in ids:
        case = _cases()[case_id]
        if case.skip_reason(target):
            results.append(("skipped", ""))
            continue
        try:
            run_case(case, target)
            results.append(("passed", ""))
        except Exception as error:
            # Whatever a row raises is its result; the others still run.
            results.append(("failed", f"{case_id}[{target}]: {str(error).strip() or type(error).__name__}"))
    return results


def run_quick_rows(targets: Sequence[str], stream: TextIO = sys.stdout) -> Result:
    """Run the rows.

    Parameters
    ----------
    targets : sequence of str
        Where.
    stream : text file
        Where the progress goes.
    """
    pieces = _pieces(targets)
    total = sum(len(ids) for _, group in pieces for ids in group)
    progress, result, started = Progress("quick rows", total, stream), Result(), time.monotonic()
    running: dict[Future, tuple[str, list[list[str]]]] = {}
    # Spawned, not forked: a child of a process with threads may hang.
    workers = min(os.cpu_count() or 1, len(pieces))
    with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn")) as pool:
        while pieces or running:
            while pieces and len(running) < workers:
                target, group = pieces.popleft()
                running[pool.submit(run_rows, group[0], target)] = (target, group[1:])
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                target, rest = running.pop(future)
                if rest:
                    pieces.appendleft((target, rest))
                _count(future.result(), result)
                progress.advance(len(future.result()))
    progress.close()
    result.seconds = time.monotonic() - started
    return result


def _pieces(targets: Sequence[str]) -> deque[tuple[str, list[list[str]]]]:
    """Groups of rows that share compiled kernels, the expensive ones first, each cut into pieces.

    One piece of a group runs at a time, so that no kernel is compiled by two processes at once.
    """
    groups: dict[tuple[bool, str, str], list[str]] = defaultdict(list)
    for target in targets:
        for case in _cases().values():
            groups["attention" not in case.operation.name, target, case.operation.name].append(case.id)
    return deque(
        (target, [ids[n : n + ROWS_AT_ONCE] for n in range(0, len(ids), ROWS_AT_ONCE)])
        for (_, target, _), ids in sorted(groups.items())
    )


def _count(outcomes: Sequence[tuple[str, str]], result: Result) -> None:
    for outcome, message in outcomes:
        result.passed += outcome == "passed"
        result.skipped += outcome == "skipped"
        if outcome == "failed":
            result.failures.append(message)
