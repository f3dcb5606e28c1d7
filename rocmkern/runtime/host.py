"""Host memory as a device: the embedded default where there is no GPU.

Free memory is the smaller of what the operating system says (``/proc/meminfo``) and what the control groups of this
process leave (versions 1 and 2, parents included). The parsers are functions of text.
"""

from __future__ import annotations

import ctypes
import os
import platform
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path, PurePosixPath
from typing import NamedTuple

import numpy as np

from rocmkern.runtime.cap import Reading, smaller
from rocmkern.runtime.device import Device, DeviceInfo, MemoryInfo, Stream

ALIGNMENT = 256
_PAGE = 4096
# Control groups of version 1 say "no limit" with the largest multiple of the page size below 2**63.
_NO_LIMIT = 1 << 62


def parse_meminfo(text: str) -> dict[str, int]:
    """Return the fields of ``/proc/meminfo`` in bytes; lines that do not parse are left out."""
    fields = {}
    for line in text.splitlines():
        name, _, rest = line.partition(":")
        words = rest.split()
        if words and words[0].isdigit():
            fields[name.strip()] = int(words[0]) * (1024 if words[1:] == ["kB"] else 1)
    return fields


def parse_limit(text: str | None) -> int | None:
    """Return the bytes in a control group's file; None for no limit (``max``), no file or no number."""
    text = (text or "").strip()
    if not text.isdigit() or int(text) >= _NO_LIMIT:
        return None
    return int(text)


def parse_reclaimable(text: str | None) -> int:
    """Return the inactive page cache in ``memory.stat``: charged to the group, but given back under pressure."""
    fields = dict(line.split(None, 1) for line in (text or "").splitlines() if len(line.split()) == 2)
    for name in ("total_inactive_file", "inactive_file"):
        if fields.get(name, "").strip().isdigit():
            return int(fields[name])
    return 0


class CgroupMount(NamedTuple):
    """A mounted hierarchy: version (1 or 2), mount point, and the group that the mount point shows."""

    version: int
    mount_point: str
    root: str


def parse_mountinfo(text: str) -> list[CgroupMount]:
    """Return the hierarchies in ``/proc/self/mountinfo`` that can limit memory."""
    mounts = []
    for line in text.splitlines():
        before, separator, after = line.partition(" - ")
        left, right = before.split(), after.split()
        if not separator or len(left) < 5 or not right:
            continue
        if right[0] == "cgroup2":
            mounts.append(CgroupMount(2, left[4], left[3]))
        elif right[0] == "cgroup" and "memory" in right[-1].split(","):
            mounts.append(CgroupMount(1, left[4], left[3]))
    return mounts


def parse_cgroup(text: str) -> dict[int, str]:
    """Return the path of this process's memory group per version, from ``/proc/self/cgroup``."""
    paths = {}
    for line in text.splitlines():
        fields = line.split(":", 2)
        if len(fields) != 3:
            continue
        if fields[0] == "0" and not fields[1]:
            paths[2] = fields[2]
        elif "memory" in fields[1].split(","):
            paths[1] = fields[2]
    return paths


def cgroup_directories(mount: CgroupMount, path: str) -> list[str]:
    """Return the directories of a group and its parents below the mount point, the group itself first."""
    relative = PurePosixPath("/") / path
    try:
        relative = relative.relative_to(mount.root)
    except ValueError:
        # The path is that of another namespace: what is mounted is all that we can see.
        relative = PurePosixPath()
    inside = [] if ".." in relative.parts else [part for part in relative.parts if part != "/"]
    return [str(PurePosixPath(mount.mount_point).joinpath(*inside[:n])) for n in range(len(inside), -1, -1)]


def _read(path: Path | str) -> str | None:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None


class CgroupLimit(NamedTuple):
    """One group that limits memory: its directory, the limit, and what is left of it (bytes)."""

    directory: str
    limit: int
    free: int


def cgroup_limits(filesystem_root: Path | str = "/") -> Iterator[CgroupLimit]:
    """Yield every control group of this process that limits memory and can be read.

    Parameters
    ----------
    filesystem_root : path
        Directory that stands for ``/``; another one is given by tests.
    """
    root = Path(filesystem_root)
    paths = parse_cgroup(_read(root / "proc/self/cgroup") or "")
    for mount in parse_mountinfo(_read(root / "proc/self/mountinfo") or ""):
        if mount.version not in paths:
            continue
        names = (
            ("memory.max", "memory.current")
            if mount.version == 2
            else (
                "memory.limit_in_bytes",
                "memory.usage_in_bytes",
            )
        )
        for directory in cgroup_directories(mount, paths[mount.version]):
            here = root / directory.lstrip("/")
            limit, usage = parse_limit(_read(here / names[0])), parse_limit(_read(here / names[1]))
            if limit is None or usage is None:
                continue
            usage = max(0, usage - parse_reclaimable(_read(here / "memory.stat")))
            yield CgroupLimit(directory, limit, max(0, limit - usage))


def host_memory_info(filesystem_root: Path | str = "/") -> MemoryInfo:
    """Read free and total memory of this machine for this process.

    Where there is no ``/proc``, the total is asked from ``sysconf`` and the free memory is unreadable (None).
    """
    root = Path(filesystem_root)
    meminfo = parse_meminfo(_read(root / "proc/meminfo") or "")
    free = [Reading(meminfo.get("MemAvailable"), "MemAvailable in /proc/meminfo")]
    total = [Reading(meminfo.get("MemTotal"), "MemTotal in /proc/meminfo")]
    if "MemTotal" not in meminfo:
        total.append(Reading(_sysconf_total(), "sysconf(SC_PHYS_PAGES)"))
    for group in cgroup_limits(root):
        free.append(Reading(group.free, f"limit minus usage of control group {group.directory}"))
        total.append(Reading(group.limit, f"limit of control group {group.directory}"))
    return MemoryInfo(smaller(free), smaller(total))


def _sysconf_total() -> int | None:
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return None


class HostDevice(Device):
    """The memory of this machine. Work is done when it is submitted, so that every event is done at once."""

    host_accessible = True
    free_memory_is_ours = False

    def __init__(self) -> None:
        total = host_memory_info().total.value or 0
        self.info: DeviceInfo = DeviceInfo("host", 0, platform.machine() or "CPU", None, True, total)
        self._arrays: dict[int, np.ndarray] = {}

    def memory_info(self) -> MemoryInfo:
        return host_memory_info()

    def allocate(self, nbytes: int) -> int:
        array = np.empty(nbytes + ALIGNMENT, np.uint8)
        # A page counts as free until it is first touched; touched here, the next look at the free memory is true.
        array[::_PAGE] = 0
        address = -(-array.ctypes.data // ALIGNMENT) * ALIGNMENT
        self._arrays[address] = array
        return address

    def free(self, address: int) -> None:
        del self._arrays[address]

    def allocated(self) -> Mapping[int, int]:
        return {address: array.nbytes - ALIGNMENT for address, array in self._arrays.items()}

    def flush(self) -> None:
        """Nothing is queued."""

    def current(self) -> AbstractContextManager[None]:
        return nullcontext()

    def create_stream(self) -> Stream:
        return 0

    def fill(self, address: int, nbytes: int, byte: int, stream: Stream) -> None:
        ctypes.memset(address, byte, nbytes)

    def copy_to_device(self, destination: int, source: int, nbytes: int, stream: Stream) -> None:
        ctypes.memmove(destination, source, nbytes)

    copy_to_host = copy_to_device
    copy_device = copy_to_device

    def record(self, stream: Stream) -> None:
        return None

    def query(self, event: None) -> bool:
        return True

    def release_event(self, event: None) -> None:
        """Events of the host are nothing."""

    def stream_wait(self, stream: Stream, event: None) -> None:
        """Program order holds."""
