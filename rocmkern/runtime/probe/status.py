"""Is there a GPU that can be used, and if not, why not? Never raises, never loads a driver into this process.

In order: ``ROCMKERN_NO_GPU=1`` says no without looking at anything; no device node says no at once; a missing extra
says which line installs it; and only then a child process asks the driver. What the child found is kept on disk for
this boot, driver and environment.

Some systems give a GPU without a device node (WSL). So the driver of a kind that somebody names is asked all the same:
by ``ROCMKERN_TARGET``, which then is the only kind that counts, or by opening such a device in this process. That way
everybody has the same answer: the target, `gpu_available`, the memory managers, tests and ``doctor``.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rocmkern.runtime import fork
from rocmkern.runtime.choice import VARIABLE as DEVICE_VARIABLE
from rocmkern.runtime.choice import choose_device
from rocmkern.runtime.device import DeviceInfo
from rocmkern.runtime.directories import cache_directory
from rocmkern.runtime.errors import DeviceUnavailableError, RocmkernError
from rocmkern.runtime.mutex import Mutex
from rocmkern.runtime.probe import suspect
from rocmkern.runtime.probe.driver import (
    CHECKS,
    CHECKS_ANY,
    EXCLUSION,
    MAKERS,
    NO_GPU_VARIABLE,
    PACKAGES,
    PROBE_TIMEOUT_S,
    ChildResult,
    device_nodes,
    driver_answer,
    is_installed,
    named,
    run_child,
)

TARGET_VARIABLE = "ROCMKERN_TARGET"

_WINDOWS = (
    "HIP kernels do not run on Windows itself: install Ubuntu under WSL2 (`wsl --install`), AMD's driver for WSL and "
    'ROCm in it, and there pip install "rocmkern[hip]"'
)


@dataclass(frozen=True)
class GpuStatus:
    """What is known about the GPUs of this machine.

    Attributes
    ----------
    available : bool
        Whether one can be used.
    reason : str
        Why, or why not, in one sentence.
    checks : tuple of str
        Three things to check when there is none; empty otherwise.
    devices : tuple of DeviceInfo
        What the driver sees.
    chosen : DeviceInfo or None
        Which of them is used.
    """

    available: bool
    reason: str
    checks: tuple[str, ...] = ()
    devices: tuple[DeviceInfo, ...] = ()
    chosen: DeviceInfo | None = None


def probe(
    *,
    environ: Mapping[str, str] = os.environ,
    filesystem_root: Path | str = "/",
    installed: Callable[[str], bool] = is_installed,
    runner: Callable[[list[str], float], ChildResult] = run_child,
    cache_dir: Path | str | None = None,
    timeout_s: float = PROBE_TIMEOUT_S,
    refresh: bool = False,
    now: Callable[[], float] = time.time,
    named: Collection[str] = (),
    platform: str = sys.platform,
) -> GpuStatus:
    """Look for a GPU; the parameters replace the machine in tests.

    Parameters
    ----------
    environ : mapping
        Environment variables.
    filesystem_root : path
        Directory that stands for ``/``.
    installed : callable
        Whether a distribution is installed.
    runner : callable
        Runs a probe child, as `run_child`.
    cache_dir : path, optional
        Where results are kept; default: `cache_directory`.
    timeout_s : float
        Seconds that a driver may take to answer.
    refresh : bool
        Ask the driver even if an answer is kept.
    now : callable
        Seconds since the epoch.
    named : collection of str
        Kinds to ask even without a device node, beside that of ``ROCMKERN_TARGET``.
    platform : str
        As `sys.platform`.

    Returns
    -------
    GpuStatus
        Never raises for anything that is wrong with a driver.
    """
    if environ.get(NO_GPU_VARIABLE, "") not in ("", "0"):
        return GpuStatus(
            False, f"{NO_GPU_VARIABLE}={environ[NO_GPU_VARIABLE]} is set: no driver was touched", CHECKS_ANY
        )
    wanted_kind = _wanted_kind(environ)
    nodes = {
        kind: found
        for kind, found in device_nodes(filesystem_root).items()
        if (found or kind in named if wanted_kind is None else kind == wanted_kind)
    }
    if not nodes:
        missing = "there is no device node of a GPU (/dev/kfd, /dev/nvidia*, an AMD /dev/dri/renderD*)"
        if (Path(filesystem_root) / "dev/dxg").exists():
            missing += "; /dev/dxg is there (WSL2), but neither ROCm for WSL nor NVIDIA's driver"
        return GpuStatus(False, _WINDOWS if platform == "win32" else missing, CHECKS_ANY)
    first = next(iter(nodes))
    if all(installed(package) for package in PACKAGES.values()):
        return GpuStatus(False, EXCLUSION, CHECKS[first])

    cache = Path(cache_dir) if cache_dir is not None else cache_directory(environ)

    def answer(kind: str, found: list[str]) -> dict[str, Any]:
        return driver_answer(
            kind,
            found,
            cache=cache,
            environ=environ,
            filesystem_root=filesystem_root,
            runner=runner,
            timeout_s=timeout_s,
            refresh=refresh,
            now=now,
        )

    devices, reasons = _ask_all(nodes, environ, installed, answer)
    if not devices:
        return GpuStatus(False, "; ".join(reasons), CHECKS[first])
    return _chosen(devices, environ, CHECKS[first])


def _ask_all(
    nodes: Mapping[str, list[str]],
    environ: Mapping[str, str],
    installed: Callable[[str], bool],
    answer: Callable[[str, list[str]], dict[str, Any]],
) -> tuple[list[DeviceInfo], list[str]]:
    """Ask the driver of each kind; return the devices, and why there is none of a kind."""
    devices: list[DeviceInfo] = []
    reasons: list[str] = []
    for kind, found in nodes.items():
        if not installed(PACKAGES[kind]):
            why = f"an {MAKERS[kind]} card is there ({found[0]})" if found else _asked_for(kind, environ)
            reasons.append(f'{why}, but {PACKAGES[kind]} is not installed: pip install "rocmkern[{kind}]"')
            continue
        entry = answer(kind, found)
        devices += [DeviceInfo(**device) for device in entry["devices"]]
        if entry["failure"]:
            reasons.append(f"{MAKERS[kind]}: {entry['failure']}")
        elif not entry["devices"]:
            why = f"although {found[0]} exists" if found else _asked_for(kind, environ)
            reasons.append(f"{MAKERS[kind]}: the driver sees no device, {why}")
    return devices, reasons


def _chosen(devices: list[DeviceInfo], environ: Mapping[str, str], checks: tuple[str, ...]) -> GpuStatus:
    # HIP is the purpose of this library: where both kinds answer, AMD's cards come first.
    preferred = [device for device in devices if device.kind == devices[0].kind]
    try:
        wanted = environ.get(DEVICE_VARIABLE) or None
        chosen = choose_device(preferred if wanted is None else devices, wanted, DEVICE_VARIABLE)
    except RocmkernError as error:
        return GpuStatus(False, str(error), checks, tuple(devices))
    return GpuStatus(True, f"using {chosen}", (), tuple(devices), chosen)


def _wanted_kind(environ: Mapping[str, str]) -> str | None:
    """The kind of GPU that ``ROCMKERN_TARGET`` names, if it names one."""
    name = environ.get(TARGET_VARIABLE, "").strip()
    return name if name in PACKAGES else None


def _asked_for(kind: str, environ: Mapping[str, str]) -> str:
    by = f" by {TARGET_VARIABLE}={kind}" if _wanted_kind(environ) == kind else ""
    return f"{MAKERS[kind]} was asked for{by}"


_found: dict[tuple[Any, ...], GpuStatus] = {}
_found_lock = Mutex()
fork.renew_locks(sys.modules[__name__], "_found_lock")


def gpu_status(*, refresh: bool = False) -> GpuStatus:
    """Return what is known about the GPUs, asking at most once in this process. Never raises.

    Parameters
    ----------
    refresh : bool
        Forget what was found, on disk too, and ask the driver again (``rocmkern doctor`` does).
    """
    variables = NO_GPU_VARIABLE, DEVICE_VARIABLE, TARGET_VARIABLE
    by_name = frozenset(named)
    key = (*(os.environ.get(name, "") for name in variables), by_name)
    with _found_lock:
        if refresh or key not in _found:
            try:
                kinds: dict[str, Any] = {"named": by_name} if by_name else {}
                _found[key] = _unless_suspect(probe(refresh=refresh, **kinds))
            except Exception as error:
                # Asked while a program starts: whatever is wrong here must not end it.
                reason = f"the probe itself failed: {type(error).__name__}: {error}"
                _found[key] = GpuStatus(False, reason, CHECKS_ANY)
        return _found[key]


def _unless_suspect(status: GpuStatus) -> GpuStatus:
    """The same, or that its device is not to be used because work hung on it."""
    if status.chosen is None:
        return status
    try:
        suspect.check(status.chosen)
    except DeviceUnavailableError as error:
        return GpuStatus(False, str(error), CHECKS[status.chosen.kind], status.devices)
    return status


def gpu_available() -> bool:
    """Return whether a GPU can be used. Never raises, never crashes the caller, asks a driver at most once."""
    return gpu_status().available


def require_gpu() -> DeviceInfo:
    """Return the GPU to use.

    Raises
    ------
    DeviceUnavailableError
        If there is none; the message gives the reason and three things to check.
    """
    status = gpu_status()
    if status.chosen is None:
        checks = "".join(f"\n  {number}. {check}" for number, check in enumerate(status.checks, 1))
        raise DeviceUnavailableError(f"no GPU can be used: {status.reason}. Check:{checks}")
    return status.chosen
