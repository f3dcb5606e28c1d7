"""Asking the driver of a kind of GPU, ``"hip"`` or ``"cuda"``, for its devices: never in this process.

A child process asks, and what it found is kept on disk for this boot, driver and environment.
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
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rocmkern.runtime.device import DeviceInfo
from rocmkern.runtime.directories import cache_directory, make_own, read_plain_file
from rocmkern.runtime.errors import DeviceUnavailableError
from rocmkern.runtime.versions import installed_version

NO_GPU_VARIABLE = "ROCMKERN_NO_GPU"
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
PACKAGES = {"hip": "numba-hip", "cuda": "numba-cuda"}
MAKERS = {"hip": "AMD", "cuda": "NVIDIA"}

EXCLUSION = (
    "numba-hip and numba-cuda are both installed, but they exclude each other: numba-hip's dependency "
    "hip-python-interop installs a package 'cuda' that shadows NVIDIA's bindings, so neither can be trusted. "
    'Use one environment for each: pip install "rocmkern[hip]" in one, pip install "rocmkern[cuda]" in the other'
)

CHECKS_ANY = (
    "is a card in this machine and its driver loaded? `lspci | grep -iE 'vga|display|3d'`, `ls /dev/kfd /dev/nvidia0`",
    "in a container: were the devices passed in? AMD `--device=/dev/kfd --device=/dev/dri`, NVIDIA `--gpus all`",
    f"is a variable hiding it? `env | grep -E '{NO_GPU_VARIABLE}|VISIBLE_DEVICES'`",
)
CHECKS = {
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
    return [sys.executable, str(Path(__file__).with_name("child.py")), kind]


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
    parts.append(installed_version(PACKAGES[kind]))
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


def driver_answer(
    kind: str,
    nodes: list[str],
    *,
    cache: Path | None,
    environ: Mapping[str, str] = os.environ,
    filesystem_root: Path | str = "/",
    runner: Callable[[list[str], float], ChildResult] = run_child,
    timeout_s: float = PROBE_TIMEOUT_S,
    refresh: bool = False,
    now: Callable[[], float] = time.time,
) -> dict[str, Any]:
    """Return ``{"devices": [...], "failure": None or a sentence}`` of a driver: what is kept, or what it says now.

    Parameters
    ----------
    kind, nodes
        ``"hip"`` or ``"cuda"``, and its device nodes.
    cache : path or None
        Where answers are kept.
    environ, filesystem_root, runner, timeout_s, refresh, now
        As of `rocmkern.runtime.probe.status.probe`.
    """
    path = _path(cache, cache_key(kind, nodes, environ, filesystem_root))
    entry = None if refresh else _load(path, now())
    if entry is None:
        entry = {**_ask_child(kind, runner, timeout_s), "time": now()}
        _store(path, entry)
    return entry


#: Kinds whose driver has answered in this process where somebody asked for it by name.
named: set[str] = set()


def check_driver(kind: str) -> None:
    """Raise `DeviceUnavailableError` unless the driver of a kind may be loaded into this process.

    Unlike `gpu_status` this asks the driver even where there is no device node: some systems give a GPU without one
    (WSL), and somebody has asked for this kind by name. A child process takes the first look; its answer is kept.
    """
    if os.environ.get(NO_GPU_VARIABLE, "") not in ("", "0"):
        raise DeviceUnavailableError(f"{NO_GPU_VARIABLE}={os.environ[NO_GPU_VARIABLE]} is set: no driver is touched")
    if all(is_installed(package) for package in PACKAGES.values()):
        raise DeviceUnavailableError(EXCLUSION)
    if not is_installed(PACKAGES[kind]):
        raise DeviceUnavailableError(
            f'{PACKAGES[kind]} is not installed, which {MAKERS[kind]} cards need: pip install "rocmkern[{kind}]"'
        )
    entry = driver_answer(kind, device_nodes()[kind], cache=cache_directory())
    reason = entry["failure"] or (None if entry["devices"] else "the driver sees no device")
    if reason:
        checks = "".join(f"\n  {number}. {check}" for number, check in enumerate(CHECKS[kind], 1))
        raise DeviceUnavailableError(f"no {MAKERS[kind]} GPU can be used: {reason}. Check:{checks}")
    named.add(kind)
