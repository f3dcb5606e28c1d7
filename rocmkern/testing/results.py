"""What a run of pytest measured, as a file for ``rocmkern matrix report``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from rocmkern.matrix import MatrixError, load_cases
from rocmkern.matrix.regression import compare_runs
from rocmkern.matrix.results import (
    MeasuredDevice,
    Result,
    Run,
    device_of,
    environment_of,
    labels_of,
    read,
    result_of,
    write,
)
from rocmkern.runtime.errors import RocmkernError
from rocmkern.targets import GPU_TARGETS
from rocmkern.testing.devices import chosen_targets, target_reason
from rocmkern.testing.run import CASE_PROPERTY, PROPERTY, matrix_files
from rocmkern.testing.worker import shared_worker

#: pytest's own words for outcomes, and ours; a worse one counts where a case has several reports.
_OUTCOMES = {"passed": "passed", "skipped": "skipped", "xfailed": "failed", "failed": "failed", "error": "failed"}


def collect(stats: Mapping[str, list[Any]], config: pytest.Config) -> str:
    """Write the file of ``--rocmkern-json`` from the reports of a run; returns a line that says so."""
    run = run_of(stats, config)
    path = Path(config.invocation_params.dir, config.getoption("rocmkern_json"))
    write(path, run)
    return f"results of {len(run.results)} cases: {path}"


def baseline(config: pytest.Config) -> Run:
    """The run of ``--rocmkern-compare``; what is wrong with the file is a usage error."""
    try:
        return read(Path(config.invocation_params.dir, config.getoption("rocmkern_compare")))
    except MatrixError as error:
        raise pytest.UsageError(f"--rocmkern-compare: {error}") from None


def compare(stats: Mapping[str, list[Any]], config: pytest.Config, before: Run) -> tuple[list[str], bool]:
    """Lines on what changed since the baseline, and whether something became slower or nothing could be compared."""
    try:
        comparison = compare_runs(before, run_of(stats, config), config.getoption("rocmkern_effect"))
    except MatrixError as error:
        return [f"--rocmkern-compare: {error}"], True
    return comparison.lines(), bool(comparison.regressions)


def run_of(stats: Mapping[str, list[Any]], config: pytest.Config) -> Run:
    """What a run of pytest measured, from its reports."""
    cases = {case.id: case for path in matrix_files(config) for case in load_cases(path)[1]}
    results: dict[tuple[str, str], Result] = {}
    for kind, outcome in _OUTCOMES.items():
        for report in stats.get(kind, ()):
            properties = getattr(report, "user_properties", ())
            named = next((value for name, value in properties if name == CASE_PROPERTY), None)
            if named is None or named["case"] not in cases:
                continue
            record: dict[str, Any] = {}
            for name, value in properties:
                if name == PROPERTY:
                    record.update(value)
            case, target = cases[named["case"]], named["target"]
            results[case.id, target] = result_of(case, target, outcome, _reason(report), record)
    targets = [target for target in chosen_targets(config) if target_reason(target) is None]
    devices = {target: _device(target, config.getoption("rocmkern_emulated")) for target in targets}
    environment = environment_of(devices, config.getoption("rocmkern_label"))
    return Run(environment, list(results.values()), labels_of(cases.values()))


def _device(target: str, emulated: bool) -> MeasuredDevice:
    if target not in GPU_TARGETS:
        return device_of(target, emulated)
    try:
        return shared_worker().call("rocmkern.matrix.results:device_of", target, emulated, what=f"opening {target}")
    except RocmkernError:
        # It hung or was lost in the meantime; the results of the run are worth more than its name.
        return MeasuredDevice("", target, emulated)


def _reason(report: Any) -> str:
    """Why a case was skipped, or how it failed, in a line; empty where it passed."""
    if hasattr(report, "wasxfail"):
        return report.wasxfail.removeprefix("reason: ")
    if report.outcome == "skipped" and isinstance(report.longrepr, tuple):
        return report.longrepr[2].removeprefix("Skipped: ")
    if report.outcome != "failed":
        return ""
    lines = [line for line in str(report.longrepr).splitlines() if line.strip()]
    return next((line for line in lines if line.startswith("check ")), lines[-1] if lines else "failed")
