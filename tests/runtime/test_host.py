"""Reading the free memory of a machine from text."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

import pytest

from rocmkern.runtime.devices import host_device, open_device
from rocmkern.runtime.errors import ArgumentError
from rocmkern.runtime.host import (
    CgroupMount,
    cgroup_directories,
    cgroup_limits,
    host_memory_info,
    parse_cgroup,
    parse_limit,
    parse_meminfo,
    parse_mountinfo,
    parse_reclaimable,
)

MIB = 1 << 20
MEMINFO = (
    "MemTotal:       16384 kB\nMemFree:         1024 kB\nMemAvailable:    8192 kB\nHugePages_Total:       3\nodd line\n"
)
V2_MOUNT = "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw\n"
V1_MOUNT = "35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n"


def machine(tmp_path, files):
    """Write a tree that stands for a machine's root."""
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


def test_meminfo_is_in_kibibytes_and_odd_lines_are_skipped():
    fields = parse_meminfo(MEMINFO)
    assert fields == {"MemTotal": 16 * MIB, "MemFree": MIB, "MemAvailable": 8 * MIB, "HugePages_Total": 3}


@pytest.mark.parametrize(
    ("text", "limit"),
    [("max\n", None), ("", None), (None, None), ("9223372036854771712\n", None), ("junk", None), ("4096\n", 4096)],
)
def test_limits(text, limit):
    assert parse_limit(text) == limit


def test_inactive_page_cache_is_reclaimable():
    assert parse_reclaimable("anon 5\ninactive_file 4096\n") == 4096
    assert parse_reclaimable("inactive_file 1\ntotal_inactive_file 7\n") == 7
    assert parse_reclaimable(None) == 0


def test_groups_of_both_versions_are_found():
    assert parse_cgroup("5:cpu,memory:/a/b\n0::/c\nbroken\n") == {1: "/a/b", 2: "/c"}
    assert parse_mountinfo(V2_MOUNT + V1_MOUNT + "1 2 0:3 / /proc rw - proc proc rw\nbroken\n") == [
        CgroupMount(2, "/sys/fs/cgroup", "/"),
        CgroupMount(1, "/sys/fs/cgroup/memory", "/"),
    ]


@pytest.mark.parametrize(
    ("root", "path", "directories"),
    [
        ("/", "/", ["/m"]),
        ("/", "/a/b", ["/m/a/b", "/m/a", "/m"]),
        ("/docker/x", "/docker/x/inner", ["/m/inner", "/m"]),
        ("/docker/x", "/elsewhere", ["/m"]),
        ("/", "/../other", ["/m"]),
    ],
)
def test_directories_of_a_group_and_its_parents(root, path, directories):
    assert cgroup_directories(CgroupMount(2, "/m", root), path) == directories


def test_without_limits_the_operating_system_decides(tmp_path):
    root = machine(
        tmp_path,
        {
            "proc/meminfo": MEMINFO,
            "proc/self/cgroup": "0::/a\n",
            "proc/self/mountinfo": V2_MOUNT,
            "sys/fs/cgroup/a/memory.max": "max\n",
            "sys/fs/cgroup/a/memory.current": "4096\n",
        },
    )
    info = host_memory_info(root)
    assert (info.free.value, info.total.value) == (8 * MIB, 16 * MIB)
    assert info.free.source == "MemAvailable in /proc/meminfo"


def test_the_tightest_group_decides_parents_included(tmp_path):
    root = machine(
        tmp_path,
        {
            "proc/meminfo": MEMINFO,
            "proc/self/cgroup": "0::/a/b\n",
            "proc/self/mountinfo": V2_MOUNT,
            "sys/fs/cgroup/a/b/memory.max": str(6 * MIB),
            "sys/fs/cgroup/a/b/memory.current": str(1 * MIB),
            "sys/fs/cgroup/a/memory.max": str(5 * MIB),
            "sys/fs/cgroup/a/memory.current": str(3 * MIB),
            "sys/fs/cgroup/a/memory.stat": f"inactive_file {MIB}\n",
        },
    )
    info = host_memory_info(root)
    assert (info.free.value, info.total.value) == (3 * MIB, 5 * MIB)
    assert info.free.source.endswith("control group /sys/fs/cgroup/a")


def test_a_group_without_a_limit_leaves_those_of_its_parents(tmp_path):
    root = machine(
        tmp_path,
        {
            "proc/self/cgroup": "0::/a/b\n",
            "proc/self/mountinfo": V2_MOUNT,
            "sys/fs/cgroup/a/b/memory.max": "max",
            "sys/fs/cgroup/a/b/memory.current": str(1 * MIB),
            "sys/fs/cgroup/a/memory.max": str(5 * MIB),
            "sys/fs/cgroup/a/memory.current": str(3 * MIB),
        },
    )
    assert [*cgroup_limits(root)] == [("/sys/fs/cgroup/a", 5 * MIB, 2 * MIB)]


def test_version_one_and_usage_above_the_limit(tmp_path):
    root = machine(
        tmp_path,
        {
            "proc/meminfo": MEMINFO,
            "proc/self/cgroup": "4:memory:/job\n",
            "proc/self/mountinfo": V1_MOUNT,
            "sys/fs/cgroup/memory/job/memory.limit_in_bytes": str(2 * MIB),
            "sys/fs/cgroup/memory/job/memory.usage_in_bytes": str(3 * MIB),
        },
    )
    assert [limit.free for limit in cgroup_limits(root)] == [0]
    assert host_memory_info(root).free.value == 0


def test_a_machine_without_proc_still_has_a_total(tmp_path):
    info = host_memory_info(tmp_path)
    assert info.free.value is None
    assert info.free.source == "unreadable: MemAvailable in /proc/meminfo"
    assert info.total.value is None or info.total.value > 0


def test_this_machine_can_be_read():
    info = host_device().memory_info()
    assert 0 < info.free.value <= info.total.value


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="this platform has no /proc")
def test_reserved_memory_counts_as_used_before_it_is_written():
    device, nbytes, page = host_device(), 64 * MIB, os.sysconf("SC_PAGE_SIZE")
    address = device.allocate(nbytes)
    first = -(-address // page) * page
    pages = (ctypes.c_ubyte * ((address + nbytes - first) // page))()
    status = ctypes.CDLL(None).mincore(ctypes.c_void_p(first), ctypes.c_size_t(len(pages) * page), pages)
    device.free(address)
    assert status == 0
    assert sum(p & 1 for p in pages) * page > 0.9 * nbytes


def test_what_is_allocated_is_known_by_address_and_size():
    device = host_device()
    before = dict(device.allocated())
    sizes = {device.allocate(nbytes): nbytes for nbytes in (1, 255, 4096, 100_000)}
    assert dict(device.allocated()) == before | sizes and all(address % 256 == 0 for address in sizes)
    for address, nbytes in sizes.items():
        device.fill(address, nbytes, 0xA5, 0)
        assert ctypes.string_at(address, nbytes) == b"\xa5" * nbytes
        device.free(address)
    assert dict(device.allocated()) == before


def test_device_argument():
    assert open_device(None) is open_device("host") is host_device()
    assert open_device(host_device()) is host_device()
    with pytest.raises(ArgumentError, match="device"):
        open_device("tpu")
