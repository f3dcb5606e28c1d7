"""Is there a GPU that can be used, and if not, why not? Never raises, never loads a driver into this process.

In order: ``ROCMKERN_NO_GPU=1`` says no without looking at anything; no device node says no at once; a missing extra
says which line installs it; and only then a child process asks the driver. What the child found is kept on disk for
this boot, driver and environment.

Some systems give a GPU without a device node (WSL). So the driver of a kind that somebody names is asked all the same:
by ``ROCMKERN_TARGET``, which then is the only kind that counts, or by opening such a device in this process. That way
everybody has the same answer: the target, `gpu_available`, the memory managers, tests and ``doctor``.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rocmkern.runtime import fork, suspect
from rocmkern.runtime.choice import VARIABLE as DEVICE_VARIABLE
from rocmkern.runtime.choice import choose_device
from rocmkern.runtime.device import DeviceInfo
from rocmkern.runtime.directories import cache_directory, make_own, read_plain_file
from rocmkern.runtime.errors import DeviceUnavailableError, RocmkernError
from rocmkern.runtime.mutex import Mutex
from rocmkern.runtime.versions import installed_version

NO_GPU_VARIABLE = "ROCMKERN_NO_GPU"
TARGET_VARIABLE = "ROCMKERN_TARGET"
PROBE_TIMEOUT_S = 60.0
FAILURE_LIFETIME_S = 300.0
"""How long a failed probe is believed: somebody may be mending the driver."""

_LARGEST_ANSWER = 2**20  # bytes of a file; a driver has few devices
_VISIBILITY = ("HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES", "HSA_OVERRIDE_GFX_VERSION")
_DRIVER_FILES = (
    "sys/module/amdgpu/version",
    "sys/module/amdgpu/srcversion",
    "sys/module/nvidia/version",
    "opt/rocm/.info/version",
    "opt/rocm/lib/libamdhip64.so",
    "usr/lib/x86_64-linux-gnu/libcuda.so.1",
    "usr/lib64/libcuda.so.1",
    "usr/lib/wsl/lib/libcuda.so.1",
)
_WSL_ROCM = ("opt/rocm*/lib/libhsa-runtime64.so*", "usr/lib/wsl/lib/librocdxg.so*", "opt/rocm*/lib/librocdxg.so*")
_WINDOWS = (
    "HIP kernels do not run on Windows itself: install Ubuntu under WSL2 (`wsl --install`), AMD's driver for WSL and "
    'ROCm in it, and there pip install "rocmkern[hip]"'
)
_PACKAGES = {"hip": "numba-hip", "cuda": "numba-cuda"}
_MAKERS = {"hip": "AMD", "cuda": "NVIDIA"}

EXCLUSION = (
    "numba-hip and numba-cuda are both installed, but they exclude each other: numba-hip's dependency "
    "hip-python-interop installs a package 'cuda' that shadows NVIDIA's bindings, so neither can be trusted. "
    'Use one environment for each: pip install "rocmkern[hip]" in one, pip install "rocmkern[cuda]" in the other'
)

_CHECKS_ANY = (
    "is a card in this machine and its driver loaded? `lspci | grep -iE 'vga|display|3d'`, `ls /dev/kfd /dev/nvidia0`",
    "in a container: were the devices passed in? AMD `--device=/dev/kfd --device=/dev/dri`, NVIDIA `--gpus all`",
    f"is a variable hiding it? `env | grep -E '{NO_GPU_VARIABLE}|VISIBLE_DEVICES'`",
)
_CHECKS = {
    "hip": (
        "may this user open the devices? `ls -l /dev/kfd /dev/dri/renderD*`; the groups are render and video",
        "does ROCm see the card? `rocminfo | grep -i gfx`",
        'is the extra installed, and does it import? pip install "rocmkern[hip]"; '
        'python -c "from rocm.bindings import hip"',
    ),
    "cuda": (
        "does the driver see the card? `nvidia-smi`",
        "may this user open the devices? `ls -l /dev/nvidia*`",
        'is the extra installed, and does it import? pip install "rocmkern[cuda]"; '
        'python -c "from cuda.bindings import driver"',
    ),
}


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


@dataclass(frozen=True)
class ChildResult:
    """What a probe child left behind: exit status (None: it ran into the timeout), output and errors."""

    status: int | None
    output: str
    errors: str


def run_child(command: list[str], timeout_s: float) -> ChildResult:
    """Run a probe child and return what it left behind; it is killed at the timeout. Raises only OSError."""
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=timeout_s, text=True, errors="replace"
        )
    except subprocess.TimeoutExpired:
        return ChildResult(None, "", "")
    return ChildResult(done.returncode, done.stdout, done.stderr)


def child_command(kind: str) -> list[str]:
    """Return the command that asks the driver of a kind (``"hip"`` or ``"cuda"``) for its devices."""
    return [sys.executable, str(Path(__file__).with_name("probe_child.py")), kind]


def is_installed(distribution: str) -> bool:
    """Return whether a distribution is installed here; nothing is imported."""
    return installed_version(distribution) is not None


def device_nodes(filesystem_root: Path | str = "/") -> dict[str, list[str]]:
    """Return the device nodes of GPUs per kind, ``{"hip": [...], "cuda": [...]}``; reads directories only."""
    root = Path(filesystem_root)
    hip = [root / "dev/kfd"] if (root / "dev/kfd").exists() else []
    # Under WSL2 one node stands for every maker's cards; whose driver is there says whose they are.
    wsl = [root / "dev/dxg"] if (root / "dev/dxg").exists() else []
    if wsl and any(next(root.glob(pattern), None) for pattern in _WSL_ROCM):
        hip += wsl
    for node in sorted((root / "dev/dri").glob("renderD*")):
        vendor = _read(root / "sys/class/drm" / node.name / "device/vendor")
        if vendor is not None and vendor.strip() == "0x1002":
            hip.append(node)
    # /dev/nvidiactl alone is a driver without a card.
    cuda = sorted((root / "dev").glob("nvidia[0-9]*"))
    if wsl and (root / "usr/lib/wsl/lib/libcuda.so.1").exists():
        cuda += wsl
    return {"hip": [str(node) for node in hip], "cuda": [str(node) for node in cuda]}


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None


def cache_key(kind: str, nodes: list[str], environ: Mapping[str, str], filesystem_root: Path | str = "/") -> str:
    """Return the name under which a probe is kept: this boot, driver, interpreter, rights and environment."""
    root = Path(filesystem_root)
    parts: list[Any] = [kind, sys.executable, _read(root / "proc/sys/kernel/random/boot_id")]
    for name in _DRIVER_FILES:
        path = root / name
        with contextlib.suppress(OSError):
            stat = path.stat()
            # Files of /sys are made when they are looked at: what they say identifies the driver, not their times.
            identity = _read(path) if name.startswith("sys/") else [stat.st_ino, stat.st_size, stat.st_mtime_ns]
            parts.append([name, identity])
    parts.append([[node, os.access(node, os.R_OK | os.W_OK)] for node in nodes])
    parts.append([environ.get(name) for name in _VISIBILITY])
    parts.append(installed_version(_PACKAGES[kind]))
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]


def _path(cache: Path | None, key: str) -> Path | None:
    """Where an answer is kept; None where nothing can be."""
    return None if cache is None else cache / "probe" / f"{key}.json"


def _load(path: Path | None, now: float) -> dict[str, Any] | None:
    if path is None:
        return None
    try:
        entry = json.loads(read_plain_file(path, _LARGEST_ANSWER))
        fresh = entry["failure"] is None or 0 <= now - entry["time"] < FAILURE_LIFETIME_S
        [DeviceInfo(**device) for device in entry["devices"]]
    except (OSError, ValueError, TypeError, KeyError):
        return None
    return entry if fresh else None


def _store(path: Path | None, entry: dict[str, Any]) -> None:
    if path is None:
        return
    try:
        make_own(path.parent.parent)
        make_own(path.parent)
        with tempfile.NamedTemporaryFile("w", dir=path.parent, suffix=".tmp", delete=False, encoding="utf-8") as file:
            json.dump(entry, file)
        os.replace(file.name, path)
    except OSError:
        # A cache that cannot be written costs a second probe in the next process, nothing else.
        return


def _ask_child(kind: str, runner: Callable[[list[str], float], ChildResult], timeout_s: float) -> dict[str, Any]:
    """Return ``{"devices": [...], "failure": None or a sentence}``."""
    try:
        result = runner(child_command(kind), timeout_s)
    except OSError as error:
        return {"devices": [], "failure": f"the probe process could not be started: {error}"}
    tail = result.errors.strip().splitlines()[-1:]
    detail = f": {tail[0]}" if tail else ""
    if result.status is None:
        failure = f"the driver did not answer the probe process within {timeout_s:g} s"
    elif result.status < 0:
        failure = f"the driver ended the probe process by signal {-result.status}{detail}"
    elif result.status:
        failure = f"the probe process failed with status {result.status}{detail}"
    else:
        try:
            # A driver may print to the same output before us.
            devices = json.loads(result.output.strip().splitlines()[-1])
            [DeviceInfo(**device) for device in devices]
            return {"devices": devices, "failure": None}
        except (ValueError, TypeError, IndexError):
            failure = f"the probe process printed no list of devices but {result.output[-200:]!r}"
    return {"devices": [], "failure": failure}


def _ask_and_store(
    kind: str,
    path: Path | None,
    runner: Callable[[list[str], float], ChildResult],
    timeout_s: float,
    now: Callable[[], float],
) -> dict[str, Any]:
    entry = {**_ask_child(kind, runner, timeout_s), "time": now()}
    _store(path, entry)
    return entry


def check_driver(kind: str) -> None:
    """Raise `DeviceUnavailableError` unless the driver of a kind may be loaded into this process.

    Unlike `gpu_status` this asks the driver even where there is no device node: some systems give a GPU without one
    (WSL), and somebody has asked for this kind by name. A child process takes the first look; its answer is kept.
    """
    if os.environ.get(NO_GPU_VARIABLE, "") not in ("", "0"):
        raise DeviceUnavailableError(f"{NO_GPU_VARIABLE}={os.environ[NO_GPU_VARIABLE]} is set: no driver is touched")
    if all(is_installed(package) for package in _PACKAGES.values()):
        raise DeviceUnavailableError(EXCLUSION)
    if not is_installed(_PACKAGES[kind]):
        raise DeviceUnavailableError(
            f'{_PACKAGES[kind]} is not installed, which {_MAKERS[kind]} cards need: pip install "rocmkern[{kind}]"'
        )
    path = _path(cache_directory(), cache_key(kind, device_nodes()[kind], os.environ))
    entry = _load(path, time.time()) or _ask_and_store(kind, path, run_child, PROBE_TIMEOUT_S, time.time)
    reason = entry["failure"] or (None if entry["devices"] else "the driver sees no device")
    if reason:
        checks = "".join(f"\n  {number}. {check}" for number, check in enumerate(_CHECKS[kind], 1))
        raise DeviceUnavailableError(f"no {_MAKERS[kind]} GPU can be used: {reason}. Check:{checks}")
    _named.add(kind)


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
            False, f"{NO_GPU_VARIABLE}={environ[NO_GPU_VARIABLE]} is set: no driver was touched", _CHECKS_ANY
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
        return GpuStatus(False, _WINDOWS if platform == "win32" else missing, _CHECKS_ANY)
    first = next(iter(nodes))
    if all(installed(package) for package in _PACKAGES.values()):
        return GpuStatus(False, EXCLUSION, _CHECKS[first])

    cache = Path(cache_dir) if cache_dir is not None else cache_directory(environ)
    devices: list[DeviceInfo] = []
    reasons: list[str] = []
    for kind, found in nodes.items():
        if not installed(_PACKAGES[kind]):
            why = f"an {_MAKERS[kind]} card is there ({found[0]})" if found else _asked_for(kind, environ)
            reasons.append(f'{why}, but {_PACKAGES[kind]} is not installed: pip install "rocmkern[{kind}]"')
            continue
        path = _path(cache, cache_key(kind, found, environ, filesystem_root))
        entry = None if refresh else _load(path, now())
        if entry is None:
            entry = _ask_and_store(kind, path, runner, timeout_s, now)
        devices += [DeviceInfo(**device) for device in entry["devices"]]
        if entry["failure"]:
            reasons.append(f"{_MAKERS[kind]}: {entry['failure']}")
        elif not entry["devices"]:
            why = f"although {found[0]} exists" if found else _asked_for(kind, environ)
            reasons.append(f"{_MAKERS[kind]}: the driver sees no device, {why}")
    if not devices:
        return GpuStatus(False, "; ".join(reasons), _CHECKS[first])
    # HIP is the purpose of this library: where both kinds answer, AMD's cards come first.
    preferred = [device for device in devices if device.kind == devices[0].kind]
    try:
        wanted = environ.get(DEVICE_VARIABLE) or None
        chosen = choose_device(preferred if wanted is None else devices, wanted, DEVICE_VARIABLE)
    except RocmkernError as error:
        return GpuStatus(False, str(error), _CHECKS[first], tuple(devices))
    return GpuStatus(True, f"using {chosen}", (), tuple(devices), chosen)


def _wanted_kind(environ: Mapping[str, str]) -> str | None:
    """The kind of GPU that ``ROCMKERN_TARGET`` names, if it names one."""
    name = environ.get(TARGET_VARIABLE, "").strip()
    return name if name in _PACKAGES else None


def _asked_for(kind: str, environ: Mapping[str, str]) -> str:
    by = f" by {TARGET_VARIABLE}={kind}" if _wanted_kind(environ) == kind else ""
    return f"{_MAKERS[kind]} was asked for{by}"


#: Kinds whose driver has answered in this process where somebody asked for it by name.
_named: set[str] = set()
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
    named = frozenset(_named)
    key = (*(os.environ.get(name, "") for name in variables), named)
    with _found_lock:
        if refresh or key not in _found:
            try:
                kinds: dict[str, Any] = {"named": named} if named else {}
                _found[key] = _unless_suspect(probe(refresh=refresh, **kinds))
            except Exception as error:
                # Asked while a program starts: whatever is wrong here must not end it.
                reason = f"the probe itself failed: {type(error).__name__}: {error}"
                _found[key] = GpuStatus(False, reason, _CHECKS_ANY)
        return _found[key]


def _unless_suspect(status: GpuStatus) -> GpuStatus:
    """The same, or that its device is not to be used because work hung on it."""
    if status.chosen is None:
        return status
    try:
        suspect.check(status.chosen)
    except DeviceUnavailableError as error:
        return GpuStatus(False, str(error), _CHECKS[status.chosen.kind], status.devices)
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
