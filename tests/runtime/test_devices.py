"""From ``device=`` to a device, where there is no GPU or more than one HIP runtime."""

from __future__ import annotations

import pytest

from rocmkern.runtime import devices
from rocmkern.runtime.device import DeviceInfo
from rocmkern.runtime.errors import ArgumentError, DeviceUnavailableError, TargetError
from rocmkern.runtime.probe.driver import check_driver

RX = DeviceInfo("hip", 0, "RX 7900 XT", "0000:03:00.0", False, 20 << 30, "gfx1100")
MAPS = """\
7f39a38d5000-7f39a38d9000 r--p 00000000 fe:00 5458024   /opt/rocm/lib/libamdhip64.so.7
7f39a38d9000-7f39a38da000 r-xp 00004000 fe:00 5458024   /opt/rocm/lib/libamdhip64.so.7
7f39a38da000-7f39a38db000 rw-p 00000000 00:00 0
"""
SECOND = "7f3aa38d5000-7f3aa38d9000 r--p 00000000 fe:00 99   /a b/torch/lib/libamdhip64.so\n"


@pytest.fixture
def one_card(monkeypatch):
    """A machine whose HIP driver sees one card, and which has no NVIDIA driver."""

    def gpu_devices(kind):
        if kind == "hip":
            return (RX,)
        raise DeviceUnavailableError("no NVIDIA driver")

    monkeypatch.setattr(devices, "gpu_devices", gpu_devices)
    monkeypatch.setattr(devices, "_open", lambda info: info)
    devices._foreign_device.cache_clear()
    yield
    devices._foreign_device.cache_clear()


@pytest.mark.parametrize("name", ["hip", 0, "0", "03:00.0", "7900", RX])
def test_a_card_has_many_names(one_card, name):
    assert devices.open_device(name) is RX


@pytest.mark.parametrize("name", ["tpu", 1, True])
def test_what_names_no_card_is_refused(one_card, name):
    with pytest.raises(ArgumentError, match="device: got"):
        devices.open_device(name)


def test_other_things_are_refused():
    with pytest.raises(ArgumentError, match="'hip', 'cuda'"):
        devices.open_device(1.5)


def test_a_kind_without_a_driver_says_why(one_card):
    with pytest.raises(DeviceUnavailableError, match="no NVIDIA driver"):
        devices.open_device("cuda")


def test_foreign_arrays_find_their_card(one_card, monkeypatch):
    monkeypatch.setattr(devices, "_index_at", lambda kind, address: 0 if address == 256 else None)
    assert devices.device_of("host", 0) is devices.host_device()
    assert devices.device_of("hip", 0) is devices.device_of(None, None, 256) is devices.device_of(None, None) is RX
    with pytest.raises(TargetError, match=r"does not know hip device 3; it has hip:0 RX 7900 XT"):
        devices.device_of("hip", 3)
    with pytest.raises(TargetError, match=r"does not know address 0x200"):
        devices.device_of(None, None, 512)


def test_the_files_of_the_hip_runtime_are_found():
    assert devices.loaded_runtimes(MAPS) == ["/opt/rocm/lib/libamdhip64.so.7"]
    assert devices.loaded_runtimes(MAPS + SECOND) == ["/a b/torch/lib/libamdhip64.so", "/opt/rocm/lib/libamdhip64.so.7"]


def test_two_hip_runtimes_do_not_share_addresses(one_card, monkeypatch):
    monkeypatch.setattr(devices, "loaded_runtimes", lambda maps: ["/torch/libamdhip64.so", "/rocm/libamdhip64.so"])
    with pytest.raises(TargetError, match=r"/torch/libamdhip64.so, /rocm/libamdhip64.so.*ROCM_PATH"):
        devices.device_of("hip", 0)
    assert devices.open_device("hip") is RX


@pytest.mark.parametrize(
    ("packages", "words"),
    [(set(), "numba-hip is not installed"), ({"numba-hip", "numba-cuda"}, "exclude each other")],
)
def test_a_driver_is_not_touched_without_its_package(monkeypatch, packages, words):
    monkeypatch.setattr("rocmkern.runtime.probe.driver.is_installed", packages.__contains__)
    with pytest.raises(DeviceUnavailableError, match=words):
        check_driver("hip")


def test_a_driver_is_not_touched_against_the_users_word(monkeypatch):
    monkeypatch.setenv("ROCMKERN_NO_GPU", "1")
    with pytest.raises(DeviceUnavailableError, match="ROCMKERN_NO_GPU=1"):
        check_driver("hip")


@pytest.mark.parametrize(
    ("answer", "words"),
    [("import os; os.abort()", "by signal 6"), ("print([])", "sees no device"), ("raise SystemExit(3)", "status 3")],
)
def test_a_driver_is_asked_in_a_child_first_and_the_answer_kept(monkeypatch, tmp_path, answer, words):
    import sys

    asked = []

    def command(kind):
        asked.append(kind)
        return [sys.executable, "-c", answer]

    monkeypatch.setenv("ROCMKERN_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr("rocmkern.runtime.probe.driver.is_installed", "numba-hip".__eq__)
    monkeypatch.setattr("rocmkern.runtime.probe.driver.child_command", command)
    for _ in range(2):
        with pytest.raises(DeviceUnavailableError, match=rf"(?s)no AMD GPU can be used: .*{words}.*1\. .*3\. "):
            check_driver("hip")
    assert asked == ["hip"]
