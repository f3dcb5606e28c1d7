"""Clocks, temperature and power: read where a machine shows them, and said to be absent where it does not."""

from __future__ import annotations

import json

import pytest

from rocmkern.cli import _sensors
from rocmkern.runtime.device import DeviceInfo

AMD = DeviceInfo("hip", 1, "a card", "0000:03:00.0", False, 0, "gfx1100")
NVIDIA = DeviceInfo("cuda", 0, "a card", "0000:41:00.0", False, 0, "sm_90")


def nothing(command):
    raise OSError(f"there is no {command[0]}")


@pytest.fixture
def root(tmp_path):
    """A file system that shows an AMD card."""
    card = tmp_path / "sys/bus/pci/devices/0000:03:00.0"
    hwmon = card / "hwmon/hwmon4"
    hwmon.mkdir(parents=True)
    files = {
        "temp1_input": "47000\n", "temp1_label": "edge\n", "temp2_input": "damaged", "temp2_label": "junction\n",
        "power1_average": "88000000\n", "power1_cap": "339000000\n", "freq1_input": "2482000000\n",
        "freq1_label": "sclk\n", "fan1_input": "812\n",
    }  # fmt: skip
    for name, text in files.items():
        (hwmon / name).write_text(text)
    (card / "pp_dpm_sclk").write_text("0: 500Mhz\n1: 2482Mhz *\n2: 2526Mhz\n")
    (card / "power_dpm_force_performance_level").write_text("auto\n")
    (card / "pp_dpm_mclk").write_text("")
    return tmp_path


def test_a_card_of_amd_is_read_from_sysfs(root):
    assert _sensors.read(AMD, ask=nothing, filesystem_root=root) == {
        "source": "sysfs",
        "values": {
            "temp_edge_c": 47.0, "freq_sclk_mhz": 2482.0, "power_power1_w": 88.0, "power_power1_cap_w": 339.0,
            "fan_fan1_rpm": 812.0, "performance_level": "auto", "shader_clock": "2482Mhz",
        },
    }  # fmt: skip


def test_without_sysfs_the_tools_are_asked_one_after_another(tmp_path):
    asked = []

    def amd_smi_only(command):
        asked.append(command[0])
        if command[0] != "amd-smi":
            raise OSError("there is no rocm-smi")
        clocks = [{"gpu": 0, "uuid": "secret", "clock": {"gfx_0": {"clk": {"value": 500, "unit": "MHz"}}}}]
        return "WARNING: text\n" + json.dumps(clocks)

    assert _sensors.read(AMD, ask=amd_smi_only, filesystem_root=tmp_path) == {
        "source": "amd-smi",
        "values": {"0 clock gfx_0 clk value": 500, "0 clock gfx_0 clk unit": "MHz"},
    }
    assert asked == ["rocm-smi", "amd-smi"]


def test_what_nobody_shows_is_absent_with_all_reasons(tmp_path):
    absent = _sensors.read(AMD, ask=nothing, filesystem_root=tmp_path)
    reasons = "sysfs shows no sensors of this card; there is no rocm-smi; there is no amd-smi"
    assert absent == {"absent": reasons}
    assert _sensors.read(None, ask=nothing, filesystem_root=tmp_path) == {
        "absent": "sysfs shows no clock of the processor"
    }
    assert _sensors.read(AMD, ask=lambda _: "no JSON", filesystem_root=tmp_path).keys() == {"absent"}


def test_a_card_of_nvidia_is_asked_for_by_its_place():
    def smi(command):
        assert command[-1] == "0000:41:00.0"
        return "1980 MHz, 2619 MHz, 1980 MHz, 34, 120.10 W, 700.00 W, P0\n"

    found = _sensors.read(NVIDIA, ask=smi)
    assert found["source"] == "nvidia-smi"
    assert (found["values"]["clocks.sm"], found["values"]["power.draw"]) == ("1980 MHz", "120.10 W")
    assert "absent" in _sensors.read(NVIDIA, ask=lambda _: "1980 MHz\n")


def test_the_processor_is_read_from_sysfs(tmp_path):
    folder = tmp_path / "sys/devices/system/cpu/cpu0/cpufreq"
    folder.mkdir(parents=True)
    (folder / "scaling_cur_freq").write_text("3201000\n")
    (folder / "scaling_governor").write_text("powersave\n")
    values = _sensors.read(None, filesystem_root=tmp_path)["values"]
    assert (values["scaling_cur_freq_mhz"], values["governor"]) == (3201.0, "powersave")


@pytest.mark.parametrize("script", ["import time; time.sleep(60)", "import sys; sys.exit(3)", ""])
def test_a_tool_that_hangs_fails_or_says_nothing_is_a_reason(monkeypatch, script):
    import sys

    monkeypatch.setattr(_sensors, "_TIMEOUT_S", 0.2)
    with pytest.raises(OSError, match=r"cannot be asked|status 3|printed nothing"):
        _sensors.ask([sys.executable, "-S", "-c", script])
