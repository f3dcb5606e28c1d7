"""The lock between processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time

import pytest

from rocmkern.runtime.device import DeviceInfo
from rocmkern.runtime.errors import DeadlineError, TargetError
from rocmkern.runtime.lock import device_lock, device_node, holder_of, holds_lock, lock_directory, lock_name

HIP = DeviceInfo("hip", 0, "RX", "0000:03:00.0", False, 1)
CUDA = DeviceInfo("cuda", 0, "H100", "0000:1B:00.0", False, 1)
HOST = DeviceInfo("host", 0, "CPU", None, True, 1)


@pytest.fixture
def with_file(tmp_path):
    """Arguments of `device_lock` on a machine without a device node."""
    (tmp_path / "locks").mkdir()
    return {"directory": tmp_path / "locks", "filesystem_root": tmp_path}


@pytest.fixture
def with_node(with_file):
    """Arguments of `device_lock` on a machine whose device has a node."""
    root = with_file["filesystem_root"]
    (root / "dev/dri").mkdir(parents=True)
    (root / "dev/dri/renderD128").write_text("the device")
    (root / "sys/bus/pci/devices/0000:03:00.0/drm/renderD128").mkdir(parents=True)
    return with_file


@pytest.fixture(params=["with_file", "with_node"])
def place(request):
    return request.getfixturevalue(request.param)


def start_holder(place):
    """Start a process that takes the lock and keeps it."""
    code = f"""
        import sys, time
        from pathlib import Path
        from rocmkern.runtime.device import DeviceInfo
        from rocmkern.runtime.lock import device_lock
        sys.argv = ["holder-program", "--flag"]
        device = DeviceInfo("hip", 0, "RX", "0000:03:00.0", False, 1)
        with device_lock(device, directory=Path({str(place["directory"])!r}),
                         filesystem_root={str(place["filesystem_root"])!r}):
            print("held", flush=True)
            time.sleep(60)
    """
    process = subprocess.Popen([sys.executable, "-c", textwrap.dedent(code)], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "held\n"
    return process


def test_the_error_says_who_holds_it_and_a_killed_process_frees_it(place):
    process = start_holder(place)
    try:
        with pytest.raises(DeadlineError) as caught, device_lock(HIP, timeout_s=0.1, **place):
            raise AssertionError("two processes hold the lock")
        assert f"process {process.pid} (holder-program --flag)" in str(caught.value)
        assert "within 0.1 s" in str(caught.value)
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        process.stdout.close()
    with device_lock(HIP, timeout_s=5, **place):
        assert str(os.getpid()) in (place["directory"] / "hip-0000_03_00.0.holder").read_text()


def test_it_is_free_again_after_the_block_and_after_an_error(place):
    for _ in range(2):
        with pytest.raises(KeyError), device_lock(HIP, timeout_s=1, **place):
            raise KeyError
    assert (place["directory"] / "hip-0000_03_00.0.holder").read_text() == ""


def test_it_excludes_within_a_process_too(place):
    with device_lock(HIP, **place), pytest.raises(DeadlineError), device_lock(HIP, timeout_s=0.1, **place):
        raise AssertionError("held twice")


def test_the_holder_cannot_take_it_again_before_who_waits(place):
    # Another process waits; we release it and ask again at once, as a run of tests does from case to case.
    code = f"""
        import time
        from pathlib import Path
        from rocmkern.runtime.device import DeviceInfo
        from rocmkern.runtime.lock import device_lock
        print("waits", flush=True)
        device = DeviceInfo("hip", 0, "RX", "0000:03:00.0", False, 1)
        directory = Path({str(place["directory"])!r})
        with device_lock(device, directory=directory, filesystem_root={str(place["filesystem_root"])!r}):
            Path(directory, "had it").write_text("")
    """
    process = None
    try:
        with device_lock(HIP, **place):
            process = subprocess.Popen([sys.executable, "-c", textwrap.dedent(code)], stdout=subprocess.PIPE, text=True)
            assert process.stdout.readline() == "waits\n"
            queue = place["directory"] / "hip-0000_03_00.0.queue"
            end = time.monotonic() + 30
            while time.monotonic() < end and not _is_locked(queue):
                time.sleep(0.01)
        with device_lock(HIP, timeout_s=30, **place):
            assert (place["directory"] / "had it").exists()
    finally:
        if process is not None:
            process.kill()
            process.wait()
            process.stdout.close()


def _is_locked(path):
    import filelock

    try:
        with filelock.FileLock(str(path), timeout=0):
            return False
    except filelock.Timeout:
        return True


def test_who_holds_it_can_be_asked(place):
    assert holder_of(HIP, **place) is None and not holds_lock(HIP)
    with device_lock(HIP, **place):
        assert holds_lock(HIP) and not holds_lock(CUDA)
        assert holder_of(HIP, **place).startswith(f"process {os.getpid()} (")
    assert holder_of(HIP, **place) is None and not holds_lock(HIP)
    process = start_holder(place)
    try:
        assert holder_of(HIP, **place) == f"process {process.pid} (holder-program --flag)"
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        process.stdout.close()
    assert holder_of(HIP, **place) is None, "a name that a killed process left behind says nothing"


def test_devices_do_not_exclude_each_other(place):
    with device_lock(HIP, **place), device_lock(CUDA, timeout_s=1, **place), device_lock(HOST, timeout_s=1, **place):
        pass  # one that waits for another ends in an error


def test_a_device_node_is_left_as_it_was(with_node):
    place = with_node
    node = place["filesystem_root"] / "dev/dri/renderD128"
    before = node.stat()
    with device_lock(HIP, **place):
        assert not list(place["directory"].glob("*.lock"))
    after = node.stat()
    assert (after.st_mode, after.st_ino, after.st_size) == (before.st_mode, before.st_ino, before.st_size)


def test_nodes_are_found_by_pci_id(tmp_path):
    assert device_node(HOST) is None
    assert device_node(HIP, tmp_path) is None
    assert device_node(CUDA, tmp_path) is None
    information = tmp_path / "proc/driver/nvidia/gpus/0000:1b:00.0/information"
    information.parent.mkdir(parents=True)
    information.write_text("Model: \t NVIDIA H100\nDevice Minor: \t 3\n")
    assert device_node(CUDA, tmp_path) is None
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/nvidia3").write_text("")
    assert device_node(CUDA, tmp_path) == tmp_path / "dev/nvidia3"


def test_lock_files_are_for_everybody(tmp_path):
    previous = os.umask(0o077)
    try:
        directory = lock_directory([tmp_path / "shared"])
        with device_lock(HOST, directory=directory):
            modes = {path.suffix: path.stat().st_mode & 0o777 for path in directory.iterdir()}
    finally:
        os.umask(previous)
    assert directory.stat().st_mode & 0o7777 == 0o1777
    assert modes == {".lock": 0o666, ".holder": 0o666, ".queue": 0o666}


def test_the_next_directory_is_used_if_one_cannot_be(tmp_path):
    (tmp_path / "file").write_text("")
    assert lock_directory([tmp_path / "file" / "locks", tmp_path / "mine"]) == tmp_path / "mine"
    with pytest.raises(TargetError, match="no directory for device locks"):
        lock_directory([tmp_path / "file" / "locks"])


def test_names_are_file_names():
    assert lock_name(HIP) == "hip-0000_03_00.0"
    assert lock_name(HOST) == "host-0"
