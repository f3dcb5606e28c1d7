"""Devices on which work hung: nobody uses one again before it has answered.

Whoever ends a process because its GPU did not answer marks the device, by a file that all users of the machine see: by
kind, PCI id and boot, because a restart of the machine mends it. A process that opens the device then refuses by name.
A mark is believed for as long as a failed probe; after that, or when ``rocmkern doctor`` looks, a child process
lets the device fill and copy some memory, and if that works the mark is removed.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from rocmkern.runtime.device import DeviceInfo
from rocmkern.runtime.errors import DeviceUnavailableError
from rocmkern.runtime.lock import lock_directory, lock_name

LIFETIME_S = 300.0
"""How long a mark is believed before a new look."""
EXERCISE_TIMEOUT_S = 60.0

_SUFFIX = ".suspect"
_CHILD = (
    "import sys; sys.path.insert(0, sys.argv[1])\nfrom rocmkern.runtime.probe.exercise import main; main(*sys.argv[2:])"
)


@dataclass(frozen=True)
class Suspicion:
    """A mark.

    Attributes
    ----------
    device : DeviceInfo
        Which device.
    reason : str
        What happened.
    time : float
        When, in seconds since the epoch.
    """

    device: DeviceInfo
    reason: str
    time: float

    def __str__(self) -> str:
        return (
            f"{self.device} is suspect since {time.strftime('%H:%M:%S', time.localtime(self.time))}: {self.reason}. "
            "`rocmkern doctor` looks whether it answers again, and then it can be used"
        )


def boot_id(filesystem_root: Path | str = "/") -> str:
    """Return what names this start of the machine; the same word always where the system has none."""
    with contextlib.suppress(OSError):
        return (Path(filesystem_root) / "proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return "this-boot"


def _path(device: DeviceInfo, directory: Path | None) -> Path:
    return (lock_directory() if directory is None else directory) / f"{lock_name(device)}-{boot_id()}{_SUFFIX}"


def mark(device: DeviceInfo, reason: str, *, directory: Path | None = None) -> Suspicion:
    """Mark a device, or renew its mark."""
    suspicion = Suspicion(device, reason, time.time())
    path = _path(device, directory)
    # Another user's file in a shared directory cannot be replaced: then his mark stays, which says the same.
    with contextlib.suppress(OSError):
        temporary = path.with_name(f"{path.name}.{os.getpid()}")
        temporary.write_text(json.dumps(asdict(suspicion)), encoding="utf-8")
        os.replace(temporary, path)
    return suspicion


def suspicion_of(device: DeviceInfo, *, directory: Path | None = None) -> Suspicion | None:
    """Return a device's mark of this boot, if it has one."""
    return _read(_path(device, directory))


def suspicions(*, directory: Path | None = None) -> list[Suspicion]:
    """Return all marks of this boot."""
    where = lock_directory() if directory is None else directory
    found = (_read(path) for path in sorted(where.glob(f"*-{boot_id()}{_SUFFIX}")))
    return [suspicion for suspicion in found if suspicion is not None]


def _read(path: Path) -> Suspicion | None:
    try:
        entry = json.loads(path.read_text(encoding="utf-8"))
        return Suspicion(DeviceInfo(**entry["device"]), str(entry["reason"]), float(entry["time"]))
    except (OSError, ValueError, TypeError, KeyError):
        return None


def clear(device: DeviceInfo, *, directory: Path | None = None) -> None:
    """Remove a device's mark."""
    with contextlib.suppress(OSError):
        _path(device, directory).unlink(missing_ok=True)


def exercise(device: DeviceInfo, timeout_s: float = EXERCISE_TIMEOUT_S) -> str | None:
    """Let a device fill and copy memory, in a child process; return how that failed, or None."""
    package_root = str(Path(__file__).parents[3])
    command = [sys.executable, "-c", _CHILD, package_root, json.dumps(asdict(device)), str(timeout_s / 2)]
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=timeout_s, text=True)
    except subprocess.TimeoutExpired:
        return f"it did not fill and copy memory within {timeout_s:g} s"
    except OSError as error:
        return f"the process that was to look at it could not be started: {error}"
    if not done.returncode:
        return None
    lines = done.stderr.strip().splitlines()
    return f"filling and copying memory failed with status {done.returncode}: {lines[-1] if lines else 'no message'}"


def look_again(
    suspicion: Suspicion,
    *,
    directory: Path | None = None,
    look: Callable[[DeviceInfo], str | None] = exercise,
) -> str | None:
    """Let a suspect device work; remove its mark if it does, else renew it and return how it failed."""
    failure = look(suspicion.device)
    if failure is None:
        clear(suspicion.device, directory=directory)
    else:
        mark(suspicion.device, failure, directory=directory)
    return failure


def check(
    device: DeviceInfo,
    *,
    directory: Path | None = None,
    look: Callable[[DeviceInfo], str | None] = exercise,
    now: Callable[[], float] = time.time,
) -> None:
    """Raise `DeviceUnavailableError` if a device is suspect; an old mark is looked into first."""
    suspicion = suspicion_of(device, directory=directory)
    if suspicion is None:
        return
    if not 0 <= now() - suspicion.time < LIFETIME_S:
        if look_again(suspicion, directory=directory, look=look) is None:
            return
        suspicion = suspicion_of(device, directory=directory) or suspicion
    raise DeviceUnavailableError(str(suspicion))
