"""Results of runs as files: what was run where, how exact and how fast it was. One JSON file per run of pytest.

`write` makes a file from what pytest collected, `read` checks one and gives it back; ``rocmkern matrix report`` makes
the page from one or several of them. A file is self-contained: it repeats what a case is, because the table that it
came from may have changed since.
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from pydantic import ValidationError

import rocmkern
from rocmkern.matrix.case import Case
from rocmkern.matrix.loader import path_in_data, short
from rocmkern.matrix.result_schema import FORMAT, ResultsFile
from rocmkern.matrix.yaml_source import format_path
from rocmkern.runtime.devices import open_device
from rocmkern.runtime.errors import MatrixError
from rocmkern.runtime.versions import installed_version

_DISTRIBUTIONS = ("rocmkern", "numpy", "numba", "llvmlite", "ml_dtypes", "numba-hip", "numba-cuda", "torch", "triton")


@dataclass(frozen=True)
class MeasuredDevice:
    """What a target was on the machine of a run.

    Attributes
    ----------
    arch : str
        ``"gfx1100"``, ``"sm_90"``, ``"cpu-..."``; empty for the interpreter.
    name : str
        The card or the processor.
    emulated : bool
        The machine code ran in an emulator: right or wrong is known, that it runs on a card is not.
    """

    arch: str
    name: str
    emulated: bool = False


@dataclass(frozen=True)
class Environment:
    """Where and when a run took place."""

    label: str
    time: str
    platform: str
    python: str
    versions: dict[str, str]
    devices: dict[str, MeasuredDevice]


@dataclass(frozen=True)
class Result:
    """One case on one target.

    Attributes
    ----------
    case, operation, group, category, dtype, why : str
    dims, features : dict
    memory : str or dict
    target : str
    outcome : str
        ``"passed"``, ``"failed"`` or ``"skipped"``.
    reason : str
        Why it was skipped, or the last line of the failure.
    outputs : list of dict
        ``output``, ``error``, ``bound``, ``share``, ``parts``, ``e``, ``ulp`` of each output that was compared.
    speed : dict, optional
        What `rocmkern.testing.bench.measure` returns.
    code : list of str
        sha256 of each piece of machine code that ran, as the driver of a GPU was given it.
    """

    case: str
    operation: str
    group: str
    category: str
    dtype: str
    why: str
    dims: dict[str, Any]
    features: dict[str, Any]
    memory: Any
    target: str
    outcome: str
    reason: str = ""
    outputs: list[dict[str, Any]] = field(default_factory=list)
    speed: dict[str, Any] | None = None
    code: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Run:
    """A file of results.

    Attributes
    ----------
    environment : Environment
    results : list of Result
    labels : dict
        For each operation, the short form of each dimension: ``{"softmax": {"size": "n"}}``.
    """

    environment: Environment
    results: list[Result]
    labels: dict[str, dict[str, str]]


def result_of(case: Case, target: str, outcome: str, reason: str = "", record: dict[str, Any] | None = None) -> Result:
    """The result of a case; `record` is what was measured (``outputs``, ``speed``)."""
    table, measured = case.operation.feature_table, record or {}
    changed = {name: value for name, value in case.features.items() if value != table[name].default}
    facts = case.facts
    return Result(
        case.id, case.operation.name, facts.group, facts.category, case.dtype, facts.why, dict(case.dims), changed,
        case.memory, target, outcome, reason, list(measured.get("outputs", ())), measured.get("speed"),
        list(measured.get("code", ())),
    )  # fmt: skip


def labels_of(cases: Iterable[Case]) -> dict[str, dict[str, str]]:
    """The short forms of the dimensions of the cases' operations."""
    return {case.operation.name: {dim.name: dim.label for dim in case.operation.dims} for case in cases}


def environment_of(devices: dict[str, MeasuredDevice], label: str) -> Environment:
    """This machine, as far as it concerns these targets.

    Parameters
    ----------
    devices : dict of str to MeasuredDevice
        The targets that cases ran on, see `device_of`.
    label : str
        Name of the run in reports; empty: the devices'.
    """
    names = ", ".join(dict.fromkeys(device.name for device in devices.values()))
    return Environment(
        label=label or names or platform.node(),
        time=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        platform=f"{platform.system()} {platform.machine()}",
        python=platform.python_version(),
        versions={name: version for name in _DISTRIBUTIONS if (version := installed_version(name))},
        devices=devices,
    )


def device_of(target: str, emulated: bool) -> MeasuredDevice:
    """What a target is on this machine; a GPU is opened in this process. `emulated` is said of GPUs."""
    with rocmkern.using(target):
        arch = rocmkern.target().arch
    if target == "python":
        return MeasuredDevice("", f"Python {platform.python_version()}")
    if target == "cpu":
        return MeasuredDevice(arch, _processor())

    return MeasuredDevice(arch, open_device(target).info.name, emulated)


def _processor() -> str:
    """Model name of the processor, and its cores."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        model = next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        model = platform.processor() or platform.machine()
    return f"{model}, {cores} cores"


def as_data(run: Run) -> dict[str, Any]:
    """What stands in the file of a run."""
    return {
        "format": FORMAT,
        "environment": asdict(run.environment),
        "labels": run.labels,
        "results": [asdict(result) for result in run.results],
    }


def write(path: Path, run: Run) -> None:
    """Write a run to a file."""
    data = as_data(run)
    path.write_text(json.dumps(data, separators=(",", ":"), default=float) + "\n", encoding="utf-8")


def read(path: Path) -> Run:
    """Read a file of results, or those of a report of ``rocmkern report --card``.

    Raises
    ------
    MatrixError
        The file cannot be read, is not one of these, is of another format, or has a value that no run writes; the
        message says where.
    """
    try:
        text = path.read_text(encoding="utf-8")
        data = json.loads(text)
        if "\\ud" in text.lower():
            json.dumps(data, ensure_ascii=False).encode()  # half a character, which cannot be written anywhere
    except OSError as error:
        raise MatrixError(f"cannot be read: {error.strerror}", file=str(path)) from None
    except UnicodeEncodeError as error:
        found = ascii(error.object[error.start])
        raise MatrixError(f"has half of a character: {found} without its other half", file=str(path)) from None
    except ValueError as error:
        raise MatrixError(f"is not JSON: {error}", file=str(path)) from None
    except RecursionError:
        raise MatrixError("is not a file of results: it is nested too deep", file=str(path)) from None
    if isinstance(data, dict) and "card_report" in data:
        data = data.get("run")
    given = data.get("format") if isinstance(data, dict) else None
    if type(given) is not int or given != FORMAT:
        shown = "no format" if given is None else f"the format {short(given)}"
        raise MatrixError(f"has {shown}; allowed: {FORMAT} (pytest --rocmkern-json)", file=str(path))
    try:
        ResultsFile.model_validate(data)
    except ValidationError as error:
        raise _mistake(error, data, path) from None
    place = data["environment"]
    devices = {target: MeasuredDevice(**device) for target, device in place["devices"].items()}
    environment = Environment(**{**place, "devices": devices})
    return Run(environment, [Result(**result) for result in data["results"]], data["labels"])


def _mistake(error: ValidationError, data: dict[str, Any], path: Path) -> MatrixError:
    """The first mistake with its place and its case, and how many others there are."""
    details = error.errors(include_url=False, include_context=False)
    first, places = details[0], {path_in_data(detail["loc"], data)[0] for detail in details}
    place = path_in_data(first["loc"], data)[0]
    what = first["msg"].removeprefix("Value error, ")
    message = "must be a mapping" if first["type"] == "model_type" else f"{what[0].lower()}{what[1:]}"
    if first["type"] != "missing":
        message += f"; got {short(first['input'])}"
    if place[:1] == ("results",) and len(place) > 1:
        result = data["results"][place[1]]
        case = result.get("case") if isinstance(result, dict) else None
        message += f" (case {short(case)})" if isinstance(case, str) else ""
    if len(places) > 1:
        message += f"; and {len(places) - 1} more mistakes"
    return MatrixError(message, file=str(path), path=format_path(place))
