"""One process at a time on a device: an advisory ``flock`` that dies with its process.

For a GPU the lock is taken on its device node where there is one that this user may open: every container that was
given the device then shares the lock. Elsewhere it is a file in a directory that all users of the machine share.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from rocmkern.runtime.device import DeviceInfo
from rocmkern.runtime.errors import LockTimeoutError, TargetError

DEFAULT_TIMEOUT_S = 600.0
_POLL_S = 0.05
# Names of the locks that this process holds.
_held: list[str] = []


def lock_directory(candidates: list[Path] | None = None) -> Path:
    """Return a directory for lock files that can be written.

    Parameters
    ----------
    candidates : list of Path, optional
        Tried in order; default: one for all users in the temporary directory, then one of this user's there, then
        one in the home directory.

    Raises
    ------
    TargetError
        If none can be written.
    """
    if candidates is None:
        temporary = Path(tempfile.gettempdir())
        user = str(os.getuid()) if hasattr(os, "getuid") else os.environ.get("USERNAME", "user")
        candidates = [
            temporary / "rocmkern-locks",
            temporary / f"rocmkern-locks-{user}",
            Path(os.path.expanduser("~")) / ".cache" / "rocmkern" / "locks",
        ]
    for directory in candidates:
        with contextlib.suppress(OSError):
            if not directory.is_dir():
                directory.mkdir(parents=True, exist_ok=True)
                # Everybody may make files there and nobody may remove another's; mkdir's mode obeys the umask.
                directory.chmod(0o1777)
            if os.access(directory, os.W_OK | os.X_OK):
                return directory
    raise TargetError(f"no directory for device locks can be written: {', '.join(map(str, candidates))}")


def lock_name(device: DeviceInfo) -> str:
    """Return the file name of a device's lock: by PCI id, which every process sees alike, else by index."""
    identity = device.pci_id or str(device.index)
    return f"{device.kind}-{identity}".replace(":", "_").replace("/", "_")


def device_node(device: DeviceInfo, filesystem_root: Path | str = "/") -> Path | None:
    """Return the device node of a GPU, found by its PCI id; None for the host or where there is none."""
    root = Path(filesystem_root)
    if device.pci_id is None:
        return None
    if device.kind == "hip":
        nodes = sorted((root / "sys/bus/pci/devices" / device.pci_id.lower() / "drm").glob("renderD*"))
        node = root / "dev/dri" / nodes[0].name if nodes else None
    elif device.kind == "cuda":
        with contextlib.suppress(OSError):
            text = (root / "proc/driver/nvidia/gpus" / device.pci_id.lower() / "information").read_text()
            for line in text.splitlines():
                name, _, value = line.partition(":")
                if name.strip() == "Device Minor" and value.strip().isdigit():
                    return _existing(root / f"dev/nvidia{value.strip()}")
        node = None
    else:
        node = None
    return _existing(node)


def _existing(node: Path | None) -> Path | None:
    return node if node is not None and node.exists() else None


@contextlib.contextmanager
def _node_lock(node: Path, wait_s: float, timeout_s: float, holder: Callable[[], str]) -> Iterator[None]:
    # Not filelock: it sets the mode of what it locks and may remove it, and this is a device.
    # deferred: platform
    import fcntl

    descriptor = os.open(node, os.O_RDONLY | os.O_CLOEXEC)
    try:
        end = time.monotonic() + wait_s
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= end:
                    raise LockTimeoutError(_timeout_message(str(node), timeout_s, holder())) from None
                time.sleep(_POLL_S)
        yield
    finally:
        # Closing the last descriptor releases the lock.
        os.close(descriptor)


@contextlib.contextmanager
def _file_lock(path: Path, wait_s: float, timeout_s: float, holder: Callable[[], str]) -> Iterator[None]:
    # deferred: start-up
    import filelock  # `import rocmkern` asks this module for names of files, and does without it

    lock = filelock.FileLock(str(path), timeout=wait_s, mode=0o666, thread_local=False)
    try:
        lock.acquire()
    except filelock.Timeout:
        raise LockTimeoutError(_timeout_message(str(path), timeout_s, holder())) from None
    try:
        yield
    finally:
        lock.release()


def _timeout_message(what: str, timeout_s: float, holder: str) -> str:
    return (
        f"the lock on {what} was not free within {timeout_s:g} s: {holder} holds it. Wait for it, or end that process"
    )


class Holder:
    """A small file beside the lock that says who holds it. It is a hint for messages; the lock itself decides."""

    def __init__(self, path: Path):
        self._path = path

    def write(self) -> None:
        """Say that this process holds the lock."""
        text = json.dumps({"pid": os.getpid(), "command": " ".join(sys.argv)[:500]})
        self._replace(text)

    def clear(self) -> None:
        """Say that nobody holds it."""
        self._replace("")

    def _replace(self, text: str) -> None:
        with contextlib.suppress(OSError):
            # O_CREAT only where it is missing: in a shared directory Linux refuses it for another user's file.
            create = 0 if self._path.exists() else os.O_CREAT
            descriptor = os.open(self._path, os.O_WRONLY | os.O_TRUNC | create, 0o666)
            with open(descriptor, "w", encoding="utf-8") as file:
                if create:
                    os.chmod(self._path, 0o666)
                file.write(text)

    def describe(self) -> str:
        """Return who holds the lock, in words."""
        try:
            entry = json.loads(self._path.read_text(encoding="utf-8"))
            return f"process {entry['pid']} ({entry['command']})"
        except (OSError, ValueError, TypeError, KeyError):
            return "another process"


@contextlib.contextmanager
def device_lock(
    device: DeviceInfo,
    *,
    timeout_s: float = DEFAULT_TIMEOUT_S,
    directory: Path | None = None,
    filesystem_root: Path | str = "/",
) -> Iterator[None]:
    """Hold a device for this process while the ``with`` block runs.

    Parameters
    ----------
    device : DeviceInfo
        The device.
    timeout_s : float
        Seconds to wait for whoever holds it, default 600.
    directory : Path, optional
        Where lock files are; default: `lock_directory`.
    filesystem_root : path
        Directory that stands for ``/`` in the search for the device node.

    Raises
    ------
    LockTimeoutError
        If the lock was not free in time; the message says who holds it.
    TargetError
        If there is neither a device node nor a directory that can be written.
    """
    directory = lock_directory() if directory is None else directory
    name = lock_name(device)
    holder = Holder(directory / f"{name}.holder")
    node = device_node(device, filesystem_root)
    end = time.monotonic() + timeout_s
    with contextlib.ExitStack() as stack:
        # Who comes next waits at the device, the others behind: who has just released it cannot be first again.
        with _file_lock(directory / f"{name}.queue", timeout_s, timeout_s, holder.describe):
            rest = max(0.0, end - time.monotonic())
            if node is not None and os.access(node, os.R_OK):
                lock = _node_lock(node, rest, timeout_s, holder.describe)
            else:
                lock = _file_lock(directory / f"{name}.lock", rest, timeout_s, holder.describe)
            stack.enter_context(lock)
        holder.write()
        _held.append(name)
        try:
            yield
        finally:
            _held.remove(name)
            holder.clear()


def holds_lock(device: DeviceInfo) -> bool:
    """Return whether this process holds a device at the moment."""
    return lock_name(device) in _held


def holder_of(device: DeviceInfo, *, directory: Path | None = None, filesystem_root: Path | str = "/") -> str | None:
    """Return who holds a device now, in words; None if nobody does. The lock itself is asked, for a moment."""
    directory = lock_directory() if directory is None else directory
    try:
        with device_lock(device, timeout_s=0, directory=directory, filesystem_root=filesystem_root):
            return None
    except LockTimeoutError:
        return Holder(directory / f"{lock_name(device)}.holder").describe()
