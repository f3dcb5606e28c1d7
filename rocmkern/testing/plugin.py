"""The pytest plugin: matrix files become tests and benchmarks; the `gpu` fixture for tests written by hand.

Configuration of a project, in ``pyproject.toml``::

    [tool.pytest.ini_options]
    rocmkern_matrix = ["matrix.yaml"]

* ``pytest`` runs the quick rows of the matrix on every usable target, beside the project's other tests;
* ``pytest -m full`` runs the rows that take longer, ``--rocmkern-all`` both;
* ``pytest --benchmark-only`` times the benchmark rows (with pytest-benchmark);
* ``--rocmkern-target cpu,python`` chooses targets, ``--matrix FILE`` another matrix;
* ``--rocmkern-fuzz N`` draws N rows for each operation that declares a domain, and prints the smallest one that fails;
  always the same rows, until ``--rocmkern-fuzz-seed`` gives another number, or ``random``;
* ``--rocmkern-json=FILE`` writes what was measured to a file, for ``rocmkern matrix report``;
* ``--rocmkern-compare=FILE`` compares benchmark rows with those of an earlier such file; a row that became slower by a
  rank test and by 5 % fails the run (see `rocmkern.matrix.regression`);
* ``--require-gpu`` makes the lack of a GPU an error instead of skips;
* ``--rocmkern-deadline SECONDS`` is what a case on a GPU may take: it runs in a process that is killed then, and its
  device is not used again before it answers. ``--rocmkern-worker all`` runs the cases of other targets so as well.

In a project without a matrix file this module does nothing and imports nothing.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from rocmkern.testing.run import MATRIX_INI, PROPERTY, matrix_files

SEED = "rocmkern_fuzz_seed"
BASELINE = pytest.StashKey[Any]()
COMPARED = pytest.StashKey[list[str]]()
MARKERS = {
    "quick": "rows of the matrix that run in a bare pytest",
    "full": "rows of the matrix that take longer; run with -m full or --rocmkern-all",
    "benchmark_row": "rows of the matrix that are timed; run with --benchmark-only",
}
# Shown in the summary: the cases that come nearest to their bound.
CLOSEST_SHOWN = 3


def pytest_addoption(parser: pytest.Parser) -> None:
    """Options and the ini value of a project's matrix files."""
    group = parser.getgroup("rocmkern", "kernel tests from a matrix")
    group.addoption(
        "--matrix", action="append", default=[], metavar="FILE", help="matrix file to run (may be repeated)"
    )
    group.addoption(
        "--rocmkern-target",
        default=None,
        metavar="TARGETS",
        help="targets, separated by commas: hip, cuda, cpu, python (default: every usable one)",
    )
    group.addoption("--rocmkern-all", action="store_true", help="also run the full rows of the matrix")
    group.addoption("--require-gpu", action="store_true", help="no usable GPU is an error instead of skips")
    group.addoption(
        "--rocmkern-bars", action="store_true", help="a benchmark row that is slower than its bar against a peer fails"
    )
    group.addoption(
        "--rocmkern-fuzz",
        type=_count,
        default=0,
        metavar="N",
        help="draw N rows for each operation, instead of the table",
    )
    group.addoption(
        "--rocmkern-fuzz-seed",
        type=_seed,
        default=0,
        metavar="SEED",
        help="other rows for another number; random: a new one, which is printed (default: %(default)s)",
    )
    group.addoption(
        "--rocmkern-json", default=None, metavar="FILE", help="write the results to a file, for rocmkern matrix report"
    )
    group.addoption(
        "--rocmkern-compare",
        default=None,
        metavar="FILE",
        help="compare benchmark rows with an earlier --rocmkern-json file: a row regressed if a two-sided Mann-Whitney "
        "rank test of the samples has p < 0.01 and the medians differ by --rocmkern-effect; then the run fails. "
        "Other devices are compared by ratios to peers only",
    )
    group.addoption(
        "--rocmkern-effect",
        type=_positive,
        default=0.05,
        metavar="SHARE",
        help="smallest relative difference of medians that is no noise (default: %(default)s)",
    )
    group.addoption("--rocmkern-label", default="", metavar="TEXT", help="name of this run in reports")
    group.addoption(
        "--rocmkern-emulated",
        action="store_true",
        help="the GPU is emulated: nothing counts as run on a card",
    )
    group.addoption(
        "--rocmkern-order",
        type=_order,
        default=None,
        metavar="ORDER",
        help="order of the matrix's cases: file (default) or random:SEED",
    )
    group.addoption(
        "--rocmkern-worker",
        choices=("gpu", "all", "none"),
        default="gpu",
        help="cases of which targets run in a process of their own, which is killed at the deadline (default: gpu)",
    )
    group.addoption(
        "--rocmkern-deadline",
        type=_positive,
        default=None,
        metavar="SECONDS",
        help="how long a case may take there (default: deadline_s of its row, or 300)",
    )
    parser.addini(
        MATRIX_INI, "matrix files of this project, relative to the root directory", type="linelist", default=[]
    )


def _refused(text: str, allowed: str) -> argparse.ArgumentTypeError:
    """The error for the value of an option, which argparse puts behind the option's name."""
    return argparse.ArgumentTypeError(f"got {text!r}; allowed: {allowed}")


def _order(text: str) -> int | None:
    """Seed of a random order, None for that of the file."""
    kind, _, seed = text.partition(":")
    if text == "file":
        return None
    if kind != "random" or not seed.isdecimal():
        raise _refused(text, "file, or random:SEED with a whole number")
    return int(seed)


def _count(text: str) -> int:
    if not text.isdecimal():
        raise _refused(text, "a whole number, at least 0")
    return int(text)


def _seed(text: str) -> int:
    if text == "random":
        return random.SystemRandom().randrange(2**32)
    if not text.isdecimal():
        raise _refused(text, "a whole number, at least 0, or random")
    return int(text)


def _positive(text: str) -> float:
    with contextlib.suppress(ValueError):
        if 0 < (number := float(text)) < float("inf"):
            return number
    raise _refused(text, "a finite number above 0")


def pytest_configure(config: pytest.Config) -> None:
    """Register the markers, and add the matrix files to a run that names no paths."""
    for name, text in MARKERS.items():
        config.addinivalue_line("markers", f"{name}: {text}")
    # Processes of pytest-xdist read the command line anew; a random seed is one for all of them.
    shared = getattr(config, "workerinput", {}).get(SEED)
    if shared is not None:
        config.option.rocmkern_fuzz_seed = shared
    files = matrix_files(config)
    if not files:
        _refuse_options_without_a_matrix(config)
        return
    invocation = config.invocation_params.dir
    given = {(invocation / argument.partition("::")[0]).resolve() for argument in config.args}
    named = config.getoption("matrix")
    if named or config.args_source is not pytest.Config.ArgsSource.ARGS:
        config.args.extend(str(path) for path in files if path not in given)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Tell a process of pytest-xdist the seed of drawn rows."""
    node.workerinput[SEED] = node.config.getoption("rocmkern_fuzz_seed")


def _refuse_options_without_a_matrix(config: pytest.Config) -> None:
    """Whoever gives one of our options wants a matrix: without one the run would do nothing of it and say nothing."""
    given = [
        f"--{name.replace('_', '-')}"
        for name in ("rocmkern_json", "rocmkern_compare", "rocmkern_fuzz", "rocmkern_all", "rocmkern_bars")
        if config.getoption(name)
    ]
    if given:
        raise pytest.UsageError(
            f"{', '.join(given)}: there is no matrix: {MATRIX_INI} is not set in {config.rootpath}, and no --matrix is "
            "given. If that is not your project's directory, pytest has taken the value of an option for the path of a "
            "test: write it as --option=VALUE"
        )


def pytest_sessionstart(session: pytest.Session) -> None:
    """Refuse to start without a GPU if one is required, or without the baseline of a comparison."""
    results = session.config.getoption("rocmkern_json")
    if results:
        _refuse_unwritable(Path(session.config.invocation_params.dir, results))
    if session.config.getoption("rocmkern_compare"):
        # deferred: start-up
        from rocmkern.testing.results import baseline

        session.config.stash[BASELINE] = baseline(session.config)
    if not session.config.getoption("require_gpu"):
        return
    # deferred: start-up
    from rocmkern.testing.devices import gpu_reason

    reason = gpu_reason()
    if reason is not None:
        raise pytest.UsageError(f"--require-gpu: {reason}")


def _refuse_unwritable(path: Path) -> None:
    """Find out before the run what would lose its results at the end."""
    folder = path.parent
    if path.is_dir() or not folder.is_dir() or not os.access(path if path.exists() else folder, os.W_OK):
        reason = "is a directory" if path.is_dir() else "cannot be written" if folder.is_dir() else "has no directory"
        raise pytest.UsageError(f"--rocmkern-json: {path} {reason}; allowed: a file in a directory that exists")


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Compare with the baseline: a benchmark row that became slower fails the run."""
    config = session.config
    terminalreporter = config.pluginmanager.get_plugin("terminalreporter")
    if BASELINE not in config.stash or terminalreporter is None:
        return
    # deferred: start-up
    from rocmkern.testing.results import compare

    lines, regressed = compare(terminalreporter.stats, config, config.stash[BASELINE])
    config.stash[COMPARED] = lines
    if regressed and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_unconfigure() -> None:
    """End the worker process, if there is one."""
    worker = sys.modules.get("rocmkern.testing.worker")
    if worker is not None:
        worker.close_shared_worker()


def pytest_report_header(config: pytest.Config) -> list[str]:
    """Targets and device of a run with a matrix, and what runs."""
    files = matrix_files(config)
    if not files:
        return []
    # deferred: start-up
    from rocmkern.testing.devices import chosen_targets, device_lines

    lines = [f"rocmkern matrix: {', '.join(str(path) for path in files)}; targets: {', '.join(chosen_targets(config))}"]
    if not _wants_full(config):
        lines.append("rocmkern rows: quick (full rows: -m full or --rocmkern-all; benchmark rows: --benchmark-only)")
    lines += device_lines()
    if config.getoption("numprocesses", None):
        # Cases run in the processes of pytest-xdist, each with a worker of its own.
        pytest_unconfigure()
    if config.getoption("rocmkern_order") is not None:
        lines.append(f"rocmkern order: random:{config.getoption('rocmkern_order')}")
    if config.getoption("rocmkern_fuzz"):
        lines.append(
            f"rocmkern fuzz: {config.getoption('rocmkern_fuzz')} rows, seed {config.getoption('rocmkern_fuzz_seed')}"
        )
    return lines


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    """Collect the matrix files."""
    if file_path.suffix not in (".yaml", ".yml") or file_path.resolve() not in matrix_files(parent.config):
        return None
    # deferred: start-up
    from rocmkern.testing.items import MatrixFile

    return MatrixFile.from_parent(parent, path=file_path)


def _wants_full(config: pytest.Config) -> bool:
    return config.getoption("rocmkern_all") or "full" in config.getoption("markexpr", "")


def _named(config: pytest.Config) -> bool:
    """Whether single cases were asked for by their ids."""
    return any("::" in argument and argument.partition("::")[0].endswith((".yaml", ".yml")) for argument in config.args)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the rows that this run is not about."""
    if not matrix_files(config):
        return
    if not _named(config):
        _select(config, items)
    if config.getoption("rocmkern_order") is not None:
        _shuffle(items, config.getoption("rocmkern_order"))


def _select(config: pytest.Config, items: list[pytest.Item]) -> None:
    # deferred: start-up
    from rocmkern.testing.items import category_of

    benchmarks = config.getoption("benchmark_only", False)
    wanted = {"benchmark"} if benchmarks else {"quick", "full"} if _wants_full(config) else {"quick"}
    kept: list[pytest.Item] = []
    left_out: list[pytest.Item] = []
    for item in items:
        category = category_of(item)
        # A run of benchmarks leaves out other tests as well: thousands of skips would bury its table.
        other = category is None and (not benchmarks or "benchmark" in getattr(item, "fixturenames", ()))
        (kept if other or category in wanted else left_out).append(item)
    if left_out:
        items[:] = kept
        config.hook.pytest_deselected(items=left_out)


def _shuffle(items: list[pytest.Item], seed: int) -> None:
    """Put the cases into a random order, at the places where there are cases."""
    # deferred: start-up
    from rocmkern.testing.items import category_of

    places = [place for place, item in enumerate(items) if category_of(item) is not None]
    cases = [items[place] for place in places]
    random.Random(seed).shuffle(cases)
    for place, item in zip(places, cases, strict=True):
        items[place] = item


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Skips by reason, the cases nearest to their bounds, and the benchmark table."""
    if not matrix_files(config):
        return
    _summarise_skips(terminalreporter)
    _summarise_accuracy(terminalreporter)
    _summarise_benchmarks(terminalreporter)
    if COMPARED in config.stash:
        terminalreporter.section("speed against the baseline")
        for line in config.stash[COMPARED]:
            terminalreporter.line(line)
    if config.getoption("rocmkern_json"):
        # deferred: start-up
        from rocmkern.testing.results import collect

        terminalreporter.line(collect(terminalreporter.stats, config))


def _properties(reports: list[Any]) -> list[dict[str, Any]]:
    return [value for report in reports for name, value in getattr(report, "user_properties", ()) if name == PROPERTY]


def _summarise_skips(terminalreporter: Any) -> None:
    reasons: Counter[str] = Counter()
    for report in terminalreporter.stats.get("skipped", []):
        if isinstance(report.longrepr, tuple):
            reasons[report.longrepr[2].removeprefix("Skipped: ")] += 1
    if reasons:
        terminalreporter.section("skipped, by reason")
        for reason, count in reasons.most_common():
            terminalreporter.line(f"{count:6d}  {reason}")


def _summarise_accuracy(terminalreporter: Any) -> None:
    records = _properties(terminalreporter.stats.get("passed", []))
    measured = [(output, record) for record in records for output in record.get("outputs", ())]
    if not measured:
        return
    measured.sort(key=lambda pair: pair[0]["share"], reverse=True)
    terminalreporter.section("accuracy")
    terminalreporter.line(f"{len(measured)} outputs within their bounds; nearest to its bound:")
    for output, record in measured[:CLOSEST_SHOWN]:
        terminalreporter.line(
            f"{output['share']:6.0%}  {record['case']}[{record['target']}] {output['output']}: "
            f"error {output['error']:.3g}, bound {output['bound']:.3g}"
        )


def _summarise_benchmarks(terminalreporter: Any) -> None:
    records = [record for record in _properties(terminalreporter.stats.get("passed", [])) if "speed" in record]
    records += [record for record in _properties(terminalreporter.stats.get("failed", [])) if "speed" in record]
    if not records:
        return
    # deferred: start-up
    from rocmkern.testing.bench import table

    terminalreporter.section("speed against peers")
    for line in table(records):
        terminalreporter.line(line)


@pytest.fixture
def gpu(request: pytest.FixtureRequest) -> Any:
    """The shared `ResourceManager` of the best GPU, under the lock of its device, with a leak check at the end.

    Without a usable GPU the test is skipped with the reason; ``--require-gpu`` makes that an error of the run.
    """
    # deferred: start-up
    from rocmkern.testing.devices import gpu_reason, locked_manager

    reason = gpu_reason()
    if reason is not None:
        pytest.skip(reason)
    with locked_manager() as manager:
        yield manager
