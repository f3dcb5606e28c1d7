"""Clocks, temperature and power of a device now, from whatever this machine has to say about them.

    AMD       sysfs: the card's hwmon and its levels of performance; else rocm-smi; else amd-smi
    NVIDIA    nvidia-smi
    a CPU     sysfs: cpufreq, and the load of the machine

`read` gives ``{"source": ..., "values": {NAME: number or text}}``, or ``{"absent": why}``: nothing is guessed. Names of
values are those of the source, units behind the last underscore (mhz, c, w, rpm, percent).
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from rocmkern.runtime.device import DeviceInfo

#: hwmon's file endings, and what one unit of theirs is: (ending, suffix of our name, factor).
_HWMON = (("temp", "input", "c", 1e-3), ("freq", "input", "mhz", 1e-6), ("power", "average", "w", 1e-6),
          ("power", "input", "w", 1e-6), ("power", "cap", "w", 1e-6), ("fan", "input", "rpm", 1.0))  # fmt: skip
#: Of a card's own folder; the first line of each, or of a table of levels the one that is marked.
_FILES = {
    "gpu_busy_percent": "busy_percent", "mem_busy_percent": "memory_busy_percent",
    "power_dpm_force_performance_level": "performance_level", "pp_dpm_sclk": "shader_clock",
    "pp_dpm_mclk": "memory_clock", "current_link_speed": "link_speed", "current_link_width": "link_width",
}  # fmt: skip
_NVIDIA = ("clocks.sm", "clocks.mem", "clocks.max.sm", "temperature.gpu", "power.draw", "power.limit", "pstate")
#: Of what a tool prints, the fields with one of these in their names.
_WANTED = re.compile(r"temp|clk|clock|freq|power|volt|fan|throttl|perf", re.IGNORECASE)
_TIMEOUT_S = 20.0
_MOST_VALUES = 60

#: Runs a command and returns what it printed; raises OSError with the reason where there is nothing.
Ask = Callable[[Sequence[str]], str]


def ask(command: Sequence[str]) -> str:
    """Run a tool."""
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", timeout=_TIMEOUT_S
        )
    except FileNotFoundError:
        raise OSError(f"there is no {command[0]}") from None
    except (OSError, subprocess.TimeoutExpired) as error:
        raise OSError(f"{command[0]} cannot be asked: {error}") from None
    if done.returncode or not done.stdout.strip():
        words = (done.stderr.strip().splitlines() or ["it printed nothing"])[-1]
        raise OSError(f"{command[0]} ended with status {done.returncode}: {words}")
    return done.stdout


def read(device: DeviceInfo | None, *, ask: Ask = ask, filesystem_root: Path | str = "/") -> dict[str, Any]:
    """The readings of a device; None is the CPU.

    Parameters
    ----------
    device : DeviceInfo or None
    ask : callable
        Runs a tool; another one is given by tests.
    filesystem_root : path
        Directory that stands for ``/``.
    """
    root = Path(filesystem_root)
    if device is None or device.kind == "host":
        sources: list[Callable[[], tuple[str, dict[str, Any]]]] = [lambda: _cpu(root)]
    elif device.kind == "cuda":
        sources = [lambda: _nvidia(device, ask)]
    else:
        sources = [
            lambda: _amdgpu(device, root),
            lambda: _tool(["rocm-smi", "-d", str(device.index), "-t", "-c", "-P", "--json"], ask),
            lambda: _tool(["amd-smi", "metric", "-g", str(device.index), "-c", "-t", "-p", "--json"], ask),
        ]
    reasons = []
    for source in sources:
        try:
            name, values = source()
        except (OSError, ValueError) as error:
            reasons.append(str(error))
            continue
        return {"source": name, "values": values}
    return {"absent": "; ".join(reasons)}


def _amdgpu(device: DeviceInfo, root: Path) -> tuple[str, dict[str, Any]]:
    folder = root / "sys/bus/pci/devices" / (device.pci_id or "none").lower()
    values: dict[str, Any] = {}
    for hwmon in sorted(folder.glob("hwmon/hwmon*")):
        values |= dict(_hwmon(hwmon))
    if not values:
        raise OSError("sysfs shows no sensors of this card")
    for file, name in _FILES.items():
        with contextlib.suppress(OSError, StopIteration):
            lines = (folder / file).read_text(encoding="ascii", errors="replace").splitlines()
            line = next((line for line in lines if line.rstrip().endswith("*")), next(iter(lines)))
            values[name] = line.rstrip(" *").partition(": ")[2] or line.strip()
    return "sysfs", values


def _hwmon(folder: Path) -> Iterator[tuple[str, float]]:
    for kind, ending, unit, factor in _HWMON:
        for file in sorted(folder.glob(f"{kind}*_{ending}")):
            with contextlib.suppress(OSError, ValueError):
                value = int(file.read_text(encoding="ascii")) * factor
                number = file.name.removesuffix(f"_{ending}")
                label = folder / f"{number}_label"
                name = label.read_text(encoding="ascii").strip() if label.exists() else number
                yield f"{kind}_{name}_{'' if ending in ('input', 'average') else ending + '_'}{unit}", round(value, 3)


def _nvidia(device: DeviceInfo, ask: Ask) -> tuple[str, dict[str, Any]]:
    which = device.pci_id or str(device.index)
    printed = ask(["nvidia-smi", f"--query-gpu={','.join(_NVIDIA)}", "--format=csv,noheader", "-i", which])
    found = [word.strip() for word in printed.strip().splitlines()[0].split(",")]
    if len(found) != len(_NVIDIA):
        raise ValueError(f"nvidia-smi printed {len(found)} values instead of {len(_NVIDIA)}")
    return "nvidia-smi", dict(zip(_NVIDIA, found, strict=True))


def _tool(command: Sequence[str], ask: Ask) -> tuple[str, dict[str, Any]]:
    """Of a tool whose fields differ from version to version: what has to do with clocks, temperature and power."""
    printed = ask(command)
    start = next((i for i, letter in enumerate(printed) if letter in "[{"), len(printed))
    values = {name: value for name, value in _leaves("", json.loads(printed[start:])) if _WANTED.search(name)}
    if not values:
        raise ValueError(f"{command[0]} says nothing of clocks, temperature or power")
    return command[0], dict(list(values.items())[:_MOST_VALUES])


def _leaves(name: str, data: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(data, dict):
        for key, value in data.items():
            yield from _leaves(f"{name} {key}".strip(), value)
    elif isinstance(data, list):
        for number, value in enumerate(data):
            yield from _leaves(f"{name} {number}".strip(), value)
    elif isinstance(data, int | float | str):
        yield name, data


def _cpu(root: Path) -> tuple[str, dict[str, Any]]:
    values: dict[str, Any] = {}
    folder = root / "sys/devices/system/cpu/cpu0/cpufreq"
    for file in ("scaling_cur_freq", "cpuinfo_max_freq"):
        with contextlib.suppress(OSError, ValueError):
            values[f"{file}_mhz"] = int((folder / file).read_text(encoding="ascii")) / 1000
    with contextlib.suppress(OSError):
        values["governor"] = (folder / "scaling_governor").read_text(encoding="ascii").strip()
    if not values:
        raise OSError("sysfs shows no clock of the processor")
    if hasattr(os, "getloadavg"):
        values["load"] = round(os.getloadavg()[0], 2)
    return "sysfs", values
