"""What runs a case, drawn rows or a benchmark: here, or in the worker process, which finds the case by its file and id.

GPU cases run in the worker, under a deadline (`rocmkern.testing.worker`); others where pytest runs, unless
``--rocmkern-worker all`` is given. On a GPU all of it holds the device's lock, and nothing may happen to a GPU outside.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rocmkern.matrix import Case, Document, MatrixError, Operation, expand, load, nearest, run_case
from rocmkern.matrix.fuzz import fuzz
from rocmkern.targets import GPU_TARGETS
from rocmkern.testing import bench
from rocmkern.testing.devices import device_lock
from rocmkern.testing.watch import DeviceWatch
from rocmkern.testing.worker import DEFAULT_DEADLINE_S, WorkerError, progress, shared_worker

if TYPE_CHECKING:  # what runs in the worker is called without pytest too
    import pytest


def in_worker(config: pytest.Config, target: str) -> bool:
    """Whether cases on a target run in the worker process."""
    choice = config.getoption("rocmkern_worker")
    return choice == "all" or (choice == "gpu" and target in GPU_TARGETS)


def deadline_of(config: pytest.Config, case: Case | None = None) -> float:
    """Seconds that a case may take in the worker: those of ``--rocmkern-deadline``, the row's, or the usual ones."""
    given = config.getoption("rocmkern_deadline")
    if given is not None:
        return given
    row = None if case is None else case.facts.deadline_s
    return DEFAULT_DEADLINE_S if row is None else row


def do_case(item: pytest.Item, case: Case, target: str) -> dict[str, Any]:
    """Run a case where it belongs; returns its record."""
    if in_worker(item.config, target):
        return _in_worker(item, "run_case_of", (str(item.path), case.id, target), case.id, target, case)
    return _run(case, target)


def do_fuzz(item: pytest.Item, document: Document, operation: Operation, target: str) -> int:
    """Run drawn rows of an operation where they belong; returns how many."""
    examples, seed = item.config.getoption("rocmkern_fuzz"), item.config.getoption("rocmkern_fuzz_seed")
    if in_worker(item.config, target):
        arguments = (str(item.path), operation.name, target, examples, seed)
        return _in_worker(item, "fuzz_operation_of", arguments, item.name, target)
    return _fuzz(document, operation, target, examples, seed)


def do_benchmark(item: pytest.Item, benchmark: Any, case: Case, target: str) -> dict[str, Any]:
    """Time a case where it belongs; returns what was measured, which `benchmark` has got too."""
    if not in_worker(item.config, target):
        return _benchmark(benchmark, case, target)
    arguments = (str(item.path), case.id, target)
    speed, rounds = _in_worker(item, "benchmark_of", arguments, case.id, target, case)
    replay = next(mark.kwargs["timer"] for mark in item.iter_markers("benchmark"))
    replay.durations = list(rounds)
    benchmark.pedantic(replay.nothing, rounds=len(rounds), iterations=1)
    benchmark.extra_info.update({"case": case.id, "target": target, **speed})
    return speed


class Replay:
    """A timer for pytest-benchmark by which a function that does nothing takes as long as rounds in the worker did.

    Attributes
    ----------
    durations : list of float
        Seconds of the rounds.
    """

    __name__ = "clock of the worker process"

    def __init__(self) -> None:
        self.durations: list[float] = []
        self._now = 0.0

    def __call__(self) -> float:
        return self._now

    def nothing(self) -> None:
        """Let the next round pass."""
        self._now += self.durations.pop(0) if self.durations else 0.0


class _Rounds:
    """Times rounds as pytest-benchmark's fixture does, which cannot be sent to another process."""

    def __init__(self) -> None:
        self.durations: list[float] = []
        self.extra_info: dict[str, Any] = {}

    def pedantic(self, function: Callable[[], Any], setup: Callable[[], None], rounds: int, iterations: int) -> None:
        for _ in range(rounds):
            progress()
            setup()
            start = time.perf_counter()
            for _ in range(iterations):
                function()
            self.durations.append((time.perf_counter() - start) / iterations)


def _in_worker(item: pytest.Item, function: str, arguments: tuple, what: str, target: str, case: Any = None) -> Any:
    worker = shared_worker()
    try:
        return worker.call(
            f"{__name__}:{function}",
            *arguments,
            deadline_s=deadline_of(item.config, case),
            what=f"{what} on {target}",
        )
    except WorkerError:
        raise  # has what was printed where that matters
    except Exception:
        printed = worker.printed()
        if printed:
            item.add_report_section("call", "worker", printed)
        raise


# In the worker


def run_case_of(path: str, case_id: str, target: str) -> dict[str, Any]:
    """Run a case of a matrix file."""
    return _run(_case(path, case_id), target)


def fuzz_operation_of(path: str, operation: str, target: str, examples: int, seed: int) -> int:
    """Run drawn rows of an operation of a matrix file's registry."""
    document, _ = _loaded(path, _stamp(path))
    return _fuzz(document, document.registry[operation], target, examples, seed)


def benchmark_of(path: str, case_id: str, target: str) -> tuple[dict[str, Any], list[float]]:
    """Time a case of a matrix file; what was measured, and the seconds of the rounds."""
    rounds = _Rounds()
    speed = _benchmark(rounds, _case(path, case_id), target)
    return speed, rounds.durations


def _case(path: str, case_id: str) -> Case:
    _, cases = _loaded(path, _stamp(path))
    if case_id not in cases:
        raise MatrixError(f"has no case {case_id!r} any more;{nearest(case_id, cases)}", file=path)
    return cases[case_id]


def _stamp(path: str) -> int:
    return Path(path).stat().st_mtime_ns


@functools.lru_cache(maxsize=8)
def _loaded(path: str, _stamp: int) -> tuple[Document, dict[str, Case]]:
    document = load(Path(path))
    return document, {case.id: case for case in expand(document)}


# In either process


@contextmanager
def on_device(target: str) -> Iterator[None]:
    """The lock of a GPU, and a look at what is done to GPUs meanwhile; nothing for other targets."""
    if target not in GPU_TARGETS:
        yield
        return
    with device_lock(target) as device, DeviceWatch(device):
        yield


def _run(case: Case, target: str) -> dict[str, Any]:
    with on_device(target):
        return run_case(case, target).record()


def _fuzz(document: Document, operation: Operation, target: str, examples: int, seed: int) -> int:
    with on_device(target):
        return fuzz(document, operation, target, examples, seed, progress)


def _benchmark(benchmark: Any, case: Case, target: str) -> dict[str, Any]:
    # Peers are other libraries, which allocate and wait as they like: the lock, but no watch.
    if target not in GPU_TARGETS:
        return bench.measure(benchmark, case, target)
    with device_lock(target):
        return bench.measure(benchmark, case, target)
