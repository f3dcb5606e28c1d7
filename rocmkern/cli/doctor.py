"""Say what works on this machine, what does not, and which line mends it.

Prints the versions, the chosen target and why, every target and what it lacks, the memory, and the state of the kernel
cache. A target counts as usable if a small attention was compiled and run on it, in a child process, and is right. The
exit status is 0 if that is so for the cpu target and for the chosen one.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import tempfile
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rocmkern.cli._trial import Trial, run_in_child, words
from rocmkern.runtime.versions import installed_version
from rocmkern.targets import NAMES, TargetName, target, using

SUMMARY = "what works on this machine, what does not, and what to do about it"

_DISTRIBUTIONS = ("rocmkern", "numba", "llvmlite", "numpy", "ml_dtypes", "numba-hip", "numba-cuda", "torch")
_EXTRAS = {"hip": "numba-hip", "cuda": "numba-cuda"}


@dataclass(frozen=True)
class TargetReport:
    """One target: whether it runs operations here, and if not, why not and what to do.

    ``trial`` is None where there was nothing to try: the target cannot be opened.
    """

    name: str
    available: bool
    detail: str
    install: str = ""
    trial: Trial | None = None


@dataclass(frozen=True)
class MemoryReport:
    """Bytes of a device's memory as the resource manager counts them; an error instead where they cannot be read."""

    device: str
    free: int = 0
    total: int = 0
    allowed: int = 0
    source: str = ""
    error: str = ""


@dataclass(frozen=True)
class CacheReport:
    """The directory of compiled kernels."""

    directory: str
    exists: bool
    writable: bool
    kernels: int
    nbytes: int


@dataclass(frozen=True)
class SuspectReport:
    """A device on which work hung, and how it failed to answer now; no failure: it can be used again."""

    device: str
    since: str
    failure: str = ""


@dataclass(frozen=True)
class Report:
    """Everything that ``rocmkern doctor`` says."""

    python: str
    platform: str
    versions: dict[str, str | None]
    target: str
    reason: str
    targets: tuple[TargetReport, ...]
    gpu: dict[str, Any]
    suspects: tuple[SuspectReport, ...]
    locks: dict[str, str]
    conflict: str
    memory: tuple[MemoryReport, ...]
    cache: CacheReport
    cpu: Trial
    environment: dict[str, str] = field(default_factory=dict)
    rocm: tuple[str, ...] = ()


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of text")


def run(arguments: argparse.Namespace) -> int:
    """Look, print, and return 0 if the cpu target and the chosen one work, else 1."""
    report = examine()
    print(json.dumps(asdict(report), indent=2) if arguments.json else "\n".join(describe(report)))
    works = {each.name: each.available for each in report.targets}
    return 0 if report.cpu.works and works.get(report.target, True) else 1


def examine() -> Report:
    """Collect the report; asks the GPU drivers again. What is broken becomes part of the report."""
    # deferred: start-up
    from rocmkern.runtime import gpu_status

    suspects = examine_suspects()
    gpu = gpu_status(refresh=True)
    targets = tuple(examine_target(each) for each in NAMES)
    cpu = next(each for each in targets if each.name == "cpu")
    try:
        chosen = target()
        name, reason = str(chosen.name), chosen.reason
    except Exception as error:
        name, reason = "none", words(error)
    return Report(
        python=platform.python_version(),
        platform=f"{platform.system()} {platform.machine()}",
        versions={distribution: installed_version(distribution) for distribution in _DISTRIBUTIONS},
        target=name,
        reason=reason,
        targets=targets,
        gpu={
            "available": gpu.available,
            "reason": gpu.reason,
            "checks": list(gpu.checks),
            "devices": [asdict(device) for device in gpu.devices],
        },
        suspects=suspects,
        locks=examine_locks(gpu.devices),
        conflict=_conflict(),
        memory=tuple(examine_memory(device) for device in ("host", gpu.chosen) if device is not None),
        cache=examine_cache(),
        cpu=cpu.trial or Trial(False, problem=cpu.detail),
        environment={key: value for key, value in sorted(os.environ.items()) if key.startswith("ROCMKERN_")},
        rocm=examine_rocm(),
    )


def examine_target(name: TargetName) -> TargetReport:
    """Whether a target works here; where a package is missing, the line that installs it."""
    package = _EXTRAS.get(name)
    install = f'pip install "rocmkern[{name}]"' if package and installed_version(package) is None else ""
    try:
        with using(name):
            arch = target().arch
    except Exception as error:
        return TargetReport(name, False, words(error), install)
    trial = run_in_child(name)
    return TargetReport(name, trial.works, arch if trial.works else f"{arch}: {trial.problem}", install, trial)


def examine_rocm() -> tuple[str, ...]:
    """Which ROCm runtime, bindings, LLVM and linker go together, where there are bindings; asked in a child."""
    # deferred: start-up
    from rocmkern.targets.rocm_pair import lines_of_child

    return tuple(lines_of_child()) if installed_version(_EXTRAS["hip"]) else ()


def examine_suspects() -> tuple[SuspectReport, ...]:
    """Let every suspect device of this machine work; one that answers may be used again."""
    # deferred: start-up
    from rocmkern.runtime.probe.suspect import look_again, suspicions

    try:
        return tuple(SuspectReport(str(s.device), s.reason, look_again(s) or "") for s in suspicions())
    except Exception as error:
        return (SuspectReport("unknown", "the marks cannot be read", words(error)),)


def examine_locks(devices: Iterable[Any]) -> dict[str, str]:
    """Who holds which of these devices (`DeviceInfo`) now."""
    # deferred: start-up
    from rocmkern.runtime.lock import holder_of

    holders = {}
    for device in devices:
        try:
            holder = holder_of(device)
        except Exception as error:
            holder = words(error)
        if holder is not None:
            holders[str(device)] = holder
    return holders


def examine_memory(device: Any) -> MemoryReport:
    """Memory of ``"host"`` or of a GPU (its `DeviceInfo`) through the resource manager."""
    # deferred: start-up
    from rocmkern.runtime import ResourceManager

    try:
        with ResourceManager(device) as manager:
            stats = manager.memory_stats()
    except Exception as error:
        return MemoryReport(str(device), error=words(error))
    return MemoryReport(str(device), stats.free, stats.total, stats.allowed, stats.sources["free"])


def examine_cache() -> CacheReport:
    """State of the directory of compiled kernels; nothing is created."""
    # deferred: start-up
    from rocmkern.runtime.directories import cache_directory, shared_with
    from rocmkern.targets.cache import SUFFIX

    directory = cache_directory()
    if directory is None:
        return CacheReport("there is no home directory: set ROCMKERN_CACHE_DIR", False, False, 0, 0)
    files = [path for path in directory.rglob("*") if path.is_file()] if directory.is_dir() else []
    nearest = next(path for path in (directory, *directory.parents) if path.exists())
    return CacheReport(
        directory=str(directory),
        exists=directory.is_dir(),
        writable=_can_be_written(nearest) and (nearest != directory or shared_with(directory.stat()) is None),
        kernels=sum(path.suffix == SUFFIX for path in files),
        nbytes=sum(_size(path) for path in files),
    )


def describe(report: Report) -> list[str]:
    """The report as lines of text."""
    versions = ", ".join(f"{name} {version}" for name, version in report.versions.items() if version)
    lines = [
        f"python    {report.python} on {report.platform}",
        f"packages  {versions}",
        f"target    {report.target} ({report.reason})",
        "",
        "targets",
    ]
    for each in report.targets:
        lines.append(f"  {each.name:<7} {'yes' if each.available else 'no ':<4} {each.detail}")
        if each.install and each.install not in each.detail:
            lines.append(f"{'':<14} needs: {each.install}")
    lines += ["", f"gpu       {report.gpu['reason']}"]
    lines += [
        f"  found   {each['name']} ({each['kind']}, {_size_text(each['total'])})" for each in report.gpu["devices"]
    ]
    lines += [f"  check   {check}" for check in report.gpu["checks"]]
    lines += report.rocm
    for suspect in report.suspects:
        verdict = f"does not answer: {suspect.failure}" if suspect.failure else "answers again, and can be used"
        lines += [f"suspect   {suspect.device}: {suspect.since}", f"  now     it {verdict}"]
    lines += [f"lock      {device}: {holder} holds it" for device, holder in report.locks.items()]
    if report.conflict:
        lines.append(f"conflict  {report.conflict}")
    for memory in report.memory:
        lines.append(
            f"memory    {memory.device}: {memory.error}"
            if memory.error
            else f"memory    {memory.device}: {_size_text(memory.free)} free of {_size_text(memory.total)} "
            f"({memory.source}); {_size_text(memory.allowed)} may be allocated"
        )
    cache, cpu = report.cache, report.cpu
    state = "can be written" if cache.writable else "cannot be written: kernels are compiled again in each process"
    lines.append(f"cache     {cache.directory}: {cache.kernels} kernels, {_size_text(cache.nbytes)}, {state}")
    lines += [f"variable  {name}={value}" for name, value in report.environment.items()]
    lines.append(
        f"cpu       works: {cpu.arch}, {cpu.threads} threads, attention within {cpu.error:.1g} of float64, "
        f"first call {cpu.seconds:.2f} s"
        if cpu.works
        else f"cpu       DOES NOT WORK: {cpu.problem}"
    )
    return lines


def _conflict() -> str:
    # deferred: start-up
    from rocmkern.runtime.probe.driver import EXCLUSION

    return EXCLUSION if all(installed_version(package) for package in _EXTRAS.values()) else ""


def _can_be_written(directory: Path) -> bool:
    """Whether a file can be made there, which rights alone do not say: of a full disk, or of one that is read only."""
    try:
        with tempfile.NamedTemporaryFile(dir=directory) as file:
            file.write(bytes(1))
            file.flush()
    except OSError:
        return False
    return True


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0  # another process replaced it


def _size_text(nbytes: int) -> str:
    return f"{nbytes / 2**30:.1f} GiB" if nbytes >= 2**30 else f"{nbytes / 2**20:.1f} MiB"
