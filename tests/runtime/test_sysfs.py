"""The kernel's numbers on the memory of an AMD card."""

from __future__ import annotations

import pytest

from rocmkern.runtime.sysfs import vram_info

MIB = 1 << 20


def card(root, **numbers):
    directory = root / "sys/bus/pci/devices/0000:c5:00.0"
    directory.mkdir(parents=True)
    for name, text in numbers.items():
        (directory / f"mem_info_vram_{name}").write_text(f"{text}\n")


def read(root):
    info = vram_info("0000:C5:00.0", root)
    return info.free.value, info.total.value


@pytest.mark.parametrize(
    ("total", "used", "expected"),
    [
        (512 * MIB, 100 * MIB, (412 * MIB, 512 * MIB)),
        (512 * MIB, 600 * MIB, (0, 512 * MIB)),
        (512 * MIB, "", (None, 512 * MIB)),
        (0, 0, (None, None)),
        ("no number", 5, (None, None)),
    ],
)
def test_total_minus_used(tmp_path, total, used, expected):
    card(tmp_path, total=total, used=used)
    assert read(tmp_path) == expected


def test_no_files(tmp_path):
    assert read(tmp_path) == (None, None)
    assert vram_info(None, tmp_path).free.value is None


def test_sources_name_the_files(tmp_path):
    card(tmp_path, total=2, used=1)
    info = vram_info("0000:c5:00.0", tmp_path)
    assert info.free.source == "/sys/bus/pci/devices/0000:c5:00.0/mem_info_vram_total minus _used"
    assert info.total.source == "/sys/bus/pci/devices/0000:c5:00.0/mem_info_vram_total"
