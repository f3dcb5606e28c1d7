"""Is there a GPU? Every answer on machines that this one is not."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time

import pytest

from rocmkern.runtime.directories import cache_directory
from rocmkern.runtime.errors import DeviceUnavailableError
from rocmkern.runtime.probe import status as probe_module
from rocmkern.runtime.probe.driver import ChildResult, cache_key, child_command, device_nodes, run_child
from rocmkern.runtime.probe.status import GpuStatus, gpu_available, gpu_status, probe, require_gpu

RX = {"kind": "hip", "index": 0, "name": "RX 7900 XT", "pci_id": "0000:03:00.0", "integrated": False,
      "total": 20 << 30, "arch": "gfx1100"}  # fmt: skip
APU = {**RX, "index": 1, "name": "780M", "pci_id": "0000:c5:00.0", "integrated": True, "arch": "gfx1103"}
H100 = {**RX, "kind": "cuda", "name": "H100", "arch": "sm_90"}


class Machine:
    """A machine made of files, packages and a driver's answer."""

    def __init__(self, root):
        self.root, self.packages, self.environ = root, set(), {}
        self.answers: dict[str, ChildResult] = {}
        self.asked: list[str] = []
        self.time = 1e9
        self.write("proc/sys/kernel/random/boot_id", "boot-1")

    def write(self, name, text=""):
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def with_amd(self, *devices, package=True):
        self.write("dev/kfd")
        self.packages |= {"numba-hip"} if package else set()
        self.answers["hip"] = ChildResult(0, json.dumps(list(devices)) + "\n", "")
        return self

    def with_nvidia(self, *devices, package=True):
        self.write("dev/nvidia0")
        self.packages |= {"numba-cuda"} if package else set()
        self.answers["cuda"] = ChildResult(0, json.dumps(list(devices)) + "\n", "")
        return self

    def run(self, command, timeout_s):
        self.asked.append(command[-1])
        return self.answers[command[-1]]

    def probe(self, **changes):
        return probe(
            **{
                "environ": self.environ,
                "filesystem_root": self.root,
                "installed": self.packages.__contains__,
                "runner": self.run,
                "cache_dir": self.root / "cache",
                "now": lambda: self.time,
                **changes,
            }
        )


@pytest.fixture
def machine(tmp_path):
    return Machine(tmp_path)


def test_no_device_node_is_answered_without_a_driver(machine):
    status = machine.probe()
    assert not status.available
    assert "no device node" in status.reason
    assert len(status.checks) == 3
    assert machine.asked == []


@pytest.mark.parametrize("library", ["opt/rocm-6.4/lib/libhsa-runtime64.so.1", "usr/lib/wsl/lib/librocdxg.so"])
def test_an_amd_card_under_wsl_is_found_where_its_driver_is(machine, library):
    machine.write("dev/dxg")
    machine.write(library)
    machine.packages |= {"numba-hip"}
    machine.answers["hip"] = ChildResult(0, json.dumps([RX]) + "\n", "")
    assert machine.probe().available and machine.asked == ["hip"]


def test_an_nvidia_card_under_wsl_is_no_amd_card(machine):
    machine.write("dev/dxg")
    machine.write("usr/lib/wsl/lib/libcuda.so.1")
    assert device_nodes(machine.root) == {"hip": [], "cuda": [str(machine.root / "dev/dxg")]}


def test_wsl_without_a_driver_says_what_is_missing(machine):
    machine.write("dev/dxg")
    status = machine.probe()
    assert not status.available and "WSL2" in status.reason and machine.asked == []


def test_windows_is_told_what_to_do(machine):
    assert "wsl --install" in machine.probe(platform="win32").reason


def test_the_variable_says_no_without_looking(machine):
    machine.with_amd(RX).environ["ROCMKERN_NO_GPU"] = "1"

    def nothing(*arguments):
        raise AssertionError("something was touched")

    status = machine.probe(runner=nothing, installed=nothing, filesystem_root="/no/such/place")
    assert not status.available
    assert "ROCMKERN_NO_GPU=1" in status.reason
    machine.environ["ROCMKERN_NO_GPU"] = "0"
    assert machine.probe().available


def test_the_driver_is_asked_in_a_child_and_the_card_taken(machine):
    status = machine.with_amd(APU, RX).probe()
    assert status.available
    assert (status.chosen.name, len(status.devices), status.checks) == ("RX 7900 XT", 2, ())
    assert machine.asked == ["hip"]
    assert "RX 7900 XT" in status.reason


@pytest.mark.parametrize(
    ("with_card", "line"),
    [("with_amd", 'pip install "rocmkern[hip]"'), ("with_nvidia", 'pip install "rocmkern[cuda]"')],
)
def test_a_card_without_its_extra_gives_the_line_to_install(machine, with_card, line):
    getattr(machine, with_card)(RX, package=False)
    status = machine.probe()
    assert not status.available
    assert line in status.reason
    assert len(status.checks) == 3
    assert machine.asked == []


def test_both_extras_in_one_environment_get_an_explanation(machine):
    status = machine.with_amd(RX).with_nvidia(H100).probe()
    assert not status.available
    assert "exclude each other" in status.reason
    assert "shadows" in status.reason
    assert machine.asked == []


def test_with_both_kinds_of_card_the_installed_extra_decides(machine):
    machine.with_amd(RX, package=False).with_nvidia(H100)
    assert machine.probe().chosen.kind == "cuda"


def test_render_nodes_count_if_they_are_amds(machine):
    for name, vendor in (("renderD128", "0x8086\n"), ("renderD129", "0x1002\n"), ("renderD130", None)):
        machine.write(f"dev/dri/{name}")
        if vendor:
            machine.write(f"sys/class/drm/{name}/device/vendor", vendor)
    machine.write("dev/nvidiactl")
    nodes = device_nodes(machine.root)
    assert nodes == {"hip": [str(machine.root / "dev/dri/renderD129")], "cuda": []}


def test_a_wish_that_matches_nothing_says_what_exists(machine):
    machine.with_amd(RX).environ["ROCMKERN_DEVICE"] = "9070"
    status = machine.probe()
    assert not status.available
    assert "ROCMKERN_DEVICE: got '9070'" in status.reason
    assert "RX 7900 XT" in status.reason
    machine.environ["ROCMKERN_DEVICE"] = "7900"
    assert machine.probe().available


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (ChildResult(None, "", ""), "did not answer the probe process within 60 s"),
        (ChildResult(-6, "", "terminate called\nAborted"), "by signal 6: Aborted"),
        (ChildResult(1, "", "Traceback\nImportError: libamdhip64.so"), "status 1: ImportError: libamdhip64.so"),
        (ChildResult(0, "", ""), "printed no list of devices"),
        (ChildResult(0, "garbage", ""), "printed no list of devices"),
        (ChildResult(0, '[{"kind": "hip"}]', ""), "printed no list of devices"),
        (ChildResult(0, "a" + "b" * 200, ""), f"printed no list of devices but '{'b' * 200}'"),
        (ChildResult(0, "[]", ""), "sees no device, although"),
    ],
)
def test_every_way_to_fail_is_a_reason(machine, answer, reason):
    machine.with_amd(RX).answers["hip"] = answer
    status = machine.probe()
    assert not status.available
    assert reason in status.reason
    assert len(status.checks) == 3


def test_noise_before_the_answer_is_skipped(machine):
    machine.with_amd(RX).answers["hip"] = ChildResult(0, "amdgpu.ids: No such file\n" + json.dumps([RX]), "")
    assert machine.probe().available


def test_a_runner_that_cannot_start_is_a_reason(machine):
    def runner(command, timeout_s):
        raise PermissionError("no new processes")

    status = machine.with_amd(RX).probe(runner=runner)
    assert "could not be started: no new processes" in status.reason


# Real child processes


def test_a_driver_that_aborts_takes_only_the_child(machine):
    def runner(command, timeout_s):
        return run_child([sys.executable, "-c", "import os; os.abort()"], timeout_s)

    status = machine.with_amd(RX).probe(runner=runner)
    assert not status.available
    assert "by signal 6" in status.reason


def test_a_driver_that_hangs_is_given_up(machine):
    def runner(command, timeout_s):
        return run_child([sys.executable, "-c", "import time; time.sleep(60)"], timeout_s)

    begin = time.monotonic()
    status = machine.with_amd(RX).probe(runner=runner, timeout_s=0.3)
    assert time.monotonic() - begin < 50
    assert "within 0.3 s" in status.reason


@pytest.mark.parametrize(("kind", "module"), [("hip", "rocm"), ("cuda", "cuda")])
def test_the_child_fails_cleanly_where_the_binding_is_missing(kind, module, tmp_path):
    # An empty package of that name first on the path: the binding cannot be imported on any machine.
    (tmp_path / module).mkdir()
    (tmp_path / module / "__init__.py").write_text("")
    result = subprocess.run(
        child_command(kind), capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(tmp_path)}
    )
    assert result.returncode == 1
    assert "ImportError" in result.stderr or "ModuleNotFoundError" in result.stderr


HIP_BINDING = """
import types
def hipGetDeviceCount(): return 0, 2
def hipGetDeviceProperties(index):
    return 0, types.SimpleNamespace(name=f"Radeon {index}", pciDomainID=0, pciBusID=0xc5, pciDeviceID=index,
                                    integrated=index, totalGlobalMem=1 << 34, gcnArchName="gfx1100:sramecc+")
"""

CUDA_BINDING = """
import types
CUdevice_attribute = types.SimpleNamespace(**{"CU_DEVICE_ATTRIBUTE_" + name: value for name, value in dict(
    PCI_DOMAIN_ID=0, PCI_BUS_ID=0x1b, PCI_DEVICE_ID=0, INTEGRATED=0, COMPUTE_CAPABILITY_MAJOR=9,
    COMPUTE_CAPABILITY_MINOR=0).items()})
def cuInit(flags): return (0,)
def cuDeviceGetCount(): return 0, 1
def cuDeviceGet(index): return 0, index
def cuDeviceGetAttribute(attribute, device): return 0, attribute
def cuDeviceGetName(length, device): return 0, b"H100" + b"\\0" * 20
def cuDeviceTotalMem(device): return 0, 80 << 30
"""


def run_with_binding(tmp_path, kind, path, text):
    file = tmp_path / path
    file.parent.mkdir(parents=True)
    for directory in (file.parent, file.parent.parent):
        if directory != tmp_path:
            (directory / "__init__.py").write_text("")
    file.write_text(text)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    result = subprocess.run(child_command(kind), capture_output=True, text=True, env=environment)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


def test_the_child_reads_hip_properties(tmp_path):
    devices = run_with_binding(tmp_path, "hip", "rocm/bindings/hip.py", HIP_BINDING)
    assert [device["name"] for device in devices] == ["Radeon 0", "Radeon 1"]
    assert devices[1] == {"kind": "hip", "index": 1, "name": "Radeon 1", "pci_id": "0000:c5:01.0", "integrated": True,
                          "total": 1 << 34, "arch": "gfx1100"}  # fmt: skip


def test_the_child_reads_cuda_properties(tmp_path):
    devices = run_with_binding(tmp_path, "cuda", "cuda/bindings/driver.py", CUDA_BINDING)
    assert devices == [{"kind": "cuda", "index": 0, "name": "H100", "pci_id": "0000:1b:00.0", "integrated": False,
                        "total": 80 << 30, "arch": "sm_90"}]  # fmt: skip


def test_the_child_reports_an_error_of_the_driver(tmp_path):
    text = HIP_BINDING.replace("return 0, 2", "return 100, 0")
    with pytest.raises(AssertionError, match="RuntimeError: 100"):
        run_with_binding(tmp_path, "hip", "rocm/bindings/hip.py", text)


# Cache


def test_the_answer_is_kept_for_this_boot_and_environment(machine):
    machine.with_amd(RX)
    assert machine.probe() == machine.probe()
    assert machine.asked == ["hip"]
    machine.environ["HIP_VISIBLE_DEVICES"] = "1"
    machine.probe()
    assert len(machine.asked) == 2
    machine.write("proc/sys/kernel/random/boot_id", "boot-2")
    machine.probe()
    assert len(machine.asked) == 3
    machine.write("sys/module/amdgpu/version", "6.12")
    machine.probe()
    assert len(machine.asked) == 4
    machine.probe(refresh=True)
    assert len(machine.asked) == 5


def test_a_failure_is_believed_for_a_few_minutes(machine):
    machine.with_amd(RX).answers["hip"] = ChildResult(-6, "", "")
    machine.probe()
    machine.time += 100
    assert not machine.probe().available
    assert len(machine.asked) == 1
    machine.with_amd(RX)
    machine.time += 1000
    assert machine.probe().available


def test_a_cache_that_cannot_be_written_or_read_costs_nothing_but_time(machine):
    machine.with_amd(RX).write("cache", "a file where a directory is wanted")
    assert machine.probe().available
    assert machine.probe().available
    assert len(machine.asked) == 2


@pytest.mark.parametrize("text", ["", "{", "[]", '{"devices": [], "time": 0}', '{"devices": [{}], "failure": null}'])
def test_a_broken_cache_entry_is_ignored(machine, text):
    machine.with_amd(RX).probe()
    (entry,) = (machine.root / "cache/probe").glob("*.json")
    entry.write_text(text)
    assert machine.probe().available
    assert len(machine.asked) == 2


def test_no_temporary_files_are_left(machine):
    machine.with_amd(RX).probe()
    assert [path.suffix for path in (machine.root / "cache/probe").iterdir()] == [".json"]


def test_cache_directory():
    assert str(cache_directory({"ROCMKERN_CACHE_DIR": "/x"})) == "/x"
    assert str(cache_directory({"XDG_CACHE_HOME": "/y"})) == "/y/rocmkern"
    assert cache_directory({}).parts[-2:] == (".cache", "rocmkern")


def test_an_answer_is_not_read_from_a_fifo(machine):
    """It would be waited for; the driver is asked again."""
    machine.with_amd(RX).probe()
    (kept,) = (machine.root / "cache/probe").iterdir()
    kept.unlink()
    os.mkfifo(kept)
    assert machine.probe().available
    assert len(machine.asked) == 2 and kept.is_file()


def test_the_key_depends_on_the_right_to_open_the_device(machine, monkeypatch):
    node = str(machine.root / "dev/kfd")
    allowed = cache_key("hip", [node], {}, machine.root)
    monkeypatch.setattr(os, "access", lambda *arguments: True)
    assert cache_key("hip", [node], {}, machine.root) != allowed


# What a program calls


@pytest.fixture
def fresh(monkeypatch):
    """Forget what this process knows."""
    monkeypatch.setattr(probe_module, "_found", {})
    return monkeypatch


def test_the_answer_is_asked_for_once(fresh):
    asked = []
    fresh.setattr(probe_module, "probe", lambda refresh=False: asked.append(refresh) or GpuStatus(True, "yes"))
    assert gpu_available()
    assert gpu_available()
    assert asked == [False]
    gpu_status(refresh=True)
    assert asked == [False, True]
    fresh.setenv("ROCMKERN_NO_GPU", "1")
    gpu_available()
    assert asked == [False, True, False]


def test_it_never_raises(fresh):
    def broken(refresh=False):
        raise RuntimeError("anything")

    fresh.setattr(probe_module, "probe", broken)
    assert gpu_available() is False
    assert "RuntimeError: anything" in gpu_status().reason


def test_requiring_a_gpu_gives_the_reason_and_three_checks(fresh):
    fresh.setenv("ROCMKERN_NO_GPU", "1")
    with pytest.raises(DeviceUnavailableError, match=r"ROCMKERN_NO_GPU=1(.|\n)*1\. (.|\n)*2\. (.|\n)*3\. "):
        require_gpu()


def test_requiring_a_gpu_returns_it(fresh, machine):
    status = machine.with_amd(RX).probe()
    fresh.setattr(probe_module, "probe", lambda refresh=False: status)
    assert require_gpu() == status.chosen


# A kind that somebody has named is asked without a device node too: not every system has them.


def without_nodes(machine, *devices):
    """A machine whose AMD cards have no device node, as under WSL."""
    machine.with_amd(*devices)
    (machine.root / "dev/kfd").unlink()
    shutil.rmtree(machine.root / "dev/dri", ignore_errors=True)
    return machine


def test_the_kind_of_the_target_s_variable_is_asked_without_a_node(machine):
    without_nodes(machine, APU, RX)
    assert not machine.probe().available and machine.asked == []
    machine.environ["ROCMKERN_TARGET"] = "hip"
    status = machine.probe()
    assert (status.available, status.chosen.name, machine.asked) == (True, "RX 7900 XT", ["hip"])


def test_a_kind_whose_device_was_opened_is_asked_without_a_node(machine):
    assert without_nodes(machine, RX).probe(named={"hip"}).available


def test_the_variable_says_which_kind_counts(machine):
    machine.with_amd(RX).environ["ROCMKERN_TARGET"] = "cuda"
    status = machine.probe()
    assert not status.available and machine.asked == []
    assert "ROCMKERN_TARGET=cuda" in status.reason and 'pip install "rocmkern[cuda]"' in status.reason
    machine.environ["ROCMKERN_TARGET"] = "cpu"
    assert machine.probe().available, "the machine has one, whatever this process uses"
