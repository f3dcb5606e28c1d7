"""The first look at a driver, with bindings that answer as those of HIP and CUDA do; and the exercise of a suspect."""

from __future__ import annotations

import json
import runpy
import sys
import types
from types import SimpleNamespace

import pytest
from fake_device import FakeDevice

from rocmkern.runtime import devices
from rocmkern.runtime.device import DeviceInfo
from rocmkern.runtime.errors import DeviceUnavailableError
from rocmkern.runtime.probe import child as probe_child
from rocmkern.runtime.probe import exercise


def binding(monkeypatch, package, name, **functions):
    """``from PACKAGE.bindings import NAME`` gives these functions."""
    module = SimpleNamespace(**functions)
    bindings = types.ModuleType(f"{package}.bindings")
    setattr(bindings, name, module)
    monkeypatch.setitem(sys.modules, package, types.ModuleType(package))
    monkeypatch.setitem(sys.modules, f"{package}.bindings", bindings)
    return module


CARDS = [
    SimpleNamespace(
        name=b"RX 7900 XT\0rest", pciDomainID=0, pciBusID=3, pciDeviceID=0, integrated=0, totalGlobalMem=20 << 30,
        gcnArchName=b"gfx1100\0",
    ),
    SimpleNamespace(
        name="MI210", pciDomainID=1, pciBusID=0xC1, pciDeviceID=0x1F, integrated=1, totalGlobalMem=64 << 30,
        gcnArchName="gfx90a:sramecc+:xnack-",
    ),
]  # fmt: skip
FOUND = [
    {"kind": "hip", "index": 0, "name": "RX 7900 XT", "pci_id": "0000:03:00.0", "integrated": False,
     "total": 20 << 30, "arch": "gfx1100"},
    {"kind": "hip", "index": 1, "name": "MI210", "pci_id": "0001:c1:1f.0", "integrated": True, "total": 64 << 30,
     "arch": "gfx90a"},
]  # fmt: skip


@pytest.fixture
def hip(monkeypatch):
    return binding(
        monkeypatch, "rocm", "hip", hipGetDeviceCount=lambda: (0, len(CARDS)),
        hipGetDeviceProperties=lambda index: (0, CARDS[index]),
    )  # fmt: skip


@pytest.fixture
def cuda(monkeypatch):
    attributes = {
        "PCI_DOMAIN_ID": 0, "PCI_BUS_ID": 0xA, "PCI_DEVICE_ID": 2, "INTEGRATED": 0, "COMPUTE_CAPABILITY_MAJOR": 9,
        "COMPUTE_CAPABILITY_MINOR": 0,
    }  # fmt: skip
    begun = []

    def name(size, device):
        assert size == 128 and device == "device 0"
        return 0, b"NVIDIA H200\0\0"

    return binding(
        monkeypatch, "cuda", "driver", cuInit=lambda flags: begun.append(flags) or (0,),
        cuDeviceGetCount=lambda: (0, 1 if begun == [0] else 0), cuDeviceGet=lambda index: (0, f"device {index}"),
        CUdevice_attribute=SimpleNamespace(**{f"CU_DEVICE_ATTRIBUTE_{key}": key for key in attributes}),
        cuDeviceGetAttribute=lambda key, device: (0, attributes[key]), cuDeviceGetName=name,
        cuDeviceTotalMem=lambda device: (0, 141 << 30),
    )  # fmt: skip


def test_what_the_hip_runtime_says(hip):
    assert probe_child.hip_devices() == FOUND


def test_what_the_cuda_driver_says(cuda):
    assert probe_child.cuda_devices() == [
        {"kind": "cuda", "index": 0, "name": "NVIDIA H200", "pci_id": "0000:0a:02.0", "integrated": False,
         "total": 141 << 30, "arch": "sm_90"}
    ]  # fmt: skip


def test_the_program_prints_one_line(hip, monkeypatch, capsys):
    path = probe_child.__file__
    monkeypatch.setattr(sys, "argv", [path, "hip"])
    monkeypatch.setattr(sys, "path", [*sys.path, path.rpartition("/")[0]])
    runpy.run_path(path, run_name="__main__")
    assert json.loads(capsys.readouterr().out) == FOUND
    assert path.rpartition("/")[0] not in sys.path


def test_an_error_of_a_driver_ends_the_look(hip):
    hip.hipGetDeviceProperties = lambda index: (101, None)
    with pytest.raises(RuntimeError, match="101"):
        probe_child.hip_devices()
    assert probe_child._check((0,)) == [] and probe_child._check((0, 1, 2)) == [1, 2]


@pytest.mark.parametrize("kind", ["hip", "cuda"])
def test_devices_are_listed_as_the_driver_counts_them(kind, hip, cuda, monkeypatch):
    asked = []
    monkeypatch.setattr(devices, "check_driver", asked.append)
    found = devices.gpu_devices.__wrapped__(kind)
    assert asked == [kind] and [info.kind for info in found] == [kind] * (2 if kind == "hip" else 1)
    assert isinstance(found, tuple) and all(isinstance(info, DeviceInfo) for info in found)


def test_a_device_that_copies_what_it_was_filled_with_is_well(monkeypatch):
    device = FakeDevice()
    monkeypatch.setattr("rocmkern.runtime.probe.exercise.make_device", lambda info: device)
    exercise.fill_and_copy(device.info, 30)
    assert device.driver_bytes == 0 and device.live_events <= 1


def test_a_device_that_copies_something_else_is_not(monkeypatch):
    device = FakeDevice()
    monkeypatch.setattr("rocmkern.runtime.probe.exercise.make_device", lambda info: device)
    fill = device.fill
    monkeypatch.setattr(device, "fill", lambda address, nbytes, byte, stream: fill(address, nbytes, byte ^ 1, stream))
    with pytest.raises(DeviceUnavailableError, match="copied something else than it was filled with"):
        exercise.fill_and_copy(device.info, 30)
