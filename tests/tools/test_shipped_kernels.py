"""What the wheel's build is told about compiled kernels; of the build itself, which need not be here, a base class."""

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

TOOLS = Path(__file__).parents[2] / "tools"


@pytest.fixture
def told(tmp_path, monkeypatch):
    """``told(version)``: what the build of a wheel from `tmp_path` is told; the build starts from what it says here."""
    parts = ["hatchling", "builders", "hooks", "plugin", "interface"]
    for count in range(1, len(parts) + 1):
        monkeypatch.setitem(sys.modules, ".".join(parts[:count]), ModuleType(parts[count - 1]))
    sys.modules[".".join(parts)].BuildHookInterface = object
    monkeypatch.syspath_prepend(TOOLS)
    monkeypatch.delitem(sys.modules, "shipped_kernels", raising=False)
    import shipped_kernels

    def initialize(version):
        data = {"force_include": {"matrix.yaml": "rocmkern/matrix/matrix.yaml"}, "pure_python": True}
        shipped_kernels.ShippedKernels.initialize(SimpleNamespace(root=str(tmp_path)), version, data)
        return data

    return initialize


@pytest.fixture
def shipped(tmp_path):
    """The directory with two entries, and what a compilation that was killed left."""
    directory = tmp_path / "build" / "shipped"
    directory.mkdir(parents=True)
    for name in ("cpu-scale-01.entry", "cpu-scale-02.entry", "cpu-scale-03abc.tmp"):
        (directory / name).write_bytes(b"")
    return directory


def test_a_wheel_brings_the_entries_and_nothing_else(told, shipped):
    data = told("standard")
    assert data["pure_python"] is False and data["tag"] == "py3-none-manylinux_2_17_x86_64"
    assert data["force_include"] == {
        "matrix.yaml": "rocmkern/matrix/matrix.yaml",
        **{
            str(shipped / name): f"rocmkern/targets/shipped/{name}"
            for name in ("cpu-scale-01.entry", "cpu-scale-02.entry")
        },
    }


@pytest.mark.parametrize("version, there", [("editable", True), ("standard", False)])
def test_an_editable_installation_and_a_wheel_without_kernels_are_for_everybody(told, shipped, version, there):
    if not there:
        for path in shipped.glob("*.entry"):
            path.unlink()
    assert told(version) == {"force_include": {"matrix.yaml": "rocmkern/matrix/matrix.yaml"}, "pure_python": True}
