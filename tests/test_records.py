"""Records are values: what was handed out or used as a key of a cache does not change afterwards."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import pkgutil

import rocmkern

#: Notebooks that are written while something goes on, of which each belongs to one owner.
WRITTEN = {
    "calls.recording.Recorder", "cli._assembly.Block", "matrix.bounds.Bound", "matrix.bounds.Nearest",
    "matrix.faults.simulated._Event", "matrix.isolation.Isolation", "matrix.registry.Call",
    "matrix.report.summary.Cell", "matrix.yaml_source.YamlSource", "runtime.pinned._Block", "runtime.pool.Block",
    "targets.elf.Code", "tile.check._Frame", "tile.check._State",
}  # fmt: skip
#: Made a dozen times in a call, and three times as slow to make if they could not be written. Nothing does.
UNGUARDED = {"calls.arguments.Argument"}


def records():
    """The dataclasses of the modules that can be imported here, by name."""
    for info in pkgutil.walk_packages(rocmkern.__path__, "rocmkern.", onerror=lambda name: None):
        with contextlib.suppress(ImportError):
            for name, value in vars(importlib.import_module(info.name)).items():
                if isinstance(value, type) and dataclasses.is_dataclass(value) and value.__module__ == info.name:
                    yield f"{info.name.removeprefix('rocmkern.')}.{name}", value


def test_a_record_cannot_be_changed():
    found = dict(records())
    assert len(found) > 100
    changeable = {name for name, record in found.items() if not record.__dataclass_params__.frozen}
    assert changeable == (WRITTEN | UNGUARDED) & set(found)
