"""The cache of compiled kernels on disk: several processes, directories that cannot be used, damaged files."""

from __future__ import annotations

import os
import shutil
import stat

import pytest

from rocmkern.targets import cache

REPORT = "import target_kernels; target_kernels.report()"


def test_a_warm_process_compiles_nothing_and_computes_the_same_bits(script_with, tmp_path):
    directory = tmp_path / "made" / "when needed"
    run = script_with(directory)
    cold, warm = run(REPORT), run(REPORT)
    assert (cold["misses"], cold["hits"]) == (1, 0) and cold["cached"]
    assert (warm["misses"], warm["hits"]) == (0, 1) and warm["cached"]
    assert cold["right"] and warm["right"]
    assert cold["digest"] == warm["digest"]
    (module,) = directory.glob("*.py")
    assert module.name.startswith("rocmkern_square_")
    assert module.stat().st_mtime == cache.MODIFIED  # or a second writer would make numba drop what the first compiled
    assert not list(directory.glob("*.tmp"))


def test_processes_that_compile_the_same_variant_at_once(script_with, tmp_path):
    run = script_with(tmp_path)
    processes = [run.start(REPORT) for _ in range(3)]
    results = [run.finish(p) for p in processes]
    assert all(r["right"] for r in results)
    assert len({r["digest"] for r in results}) == 1
    warm = run(REPORT)
    assert (warm["misses"], warm["hits"]) == (0, 1) and warm["right"]
    assert len(list(tmp_path.glob("*.py"))) == 1 and not list(tmp_path.glob("*.tmp"))


def unusable(kind, tmp_path):
    """A cache directory that cannot be used, each for another reason."""
    if kind == "a file in its place":
        path = tmp_path / "file"
        path.write_text("not a directory")
    elif kind == "below a file":
        (tmp_path / "file").write_text("not a directory")
        path = tmp_path / "file" / "cache"
    elif kind == "a file in place of __pycache__":
        path = tmp_path / "cache"
        path.mkdir()
        (path / "__pycache__").write_text("not a directory")
    elif kind == "a system directory":
        path = "/proc/rocmkern"
    else:
        path = tmp_path / "locked"
        path.mkdir()
        path.chmod(stat.S_IRUSR | stat.S_IXUSR)
    return path


@pytest.mark.parametrize(
    "kind", ["a file in its place", "a file in place of __pycache__", "below a file", "a system directory", "read-only"]
)
def test_a_directory_that_cannot_be_used_costs_the_cache_only(monkeypatch, tmp_path, kind):
    if kind == "read-only" and os.geteuid() == 0:
        pytest.skip("permissions do not stop root")
    if kind == "a system directory" and not os.path.isdir("/proc/self"):
        pytest.skip("this system has no /proc")
    monkeypatch.setenv("ROCMKERN_CACHE_DIR", str(unusable(kind, tmp_path)))
    module = cache.load_module("probe", f"VALUE = 41 + 1  # {kind}\n")
    assert module.VALUE == 42 and module.CACHED is False


def test_a_read_only_directory_that_root_could_write(monkeypatch, tmp_path):
    monkeypatch.setenv("ROCMKERN_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(cache.os, "access", lambda path, mode: not mode & os.W_OK)
    module = cache.load_module("probe", "VALUE = 'read-only'\n")
    assert module.VALUE == "read-only" and module.CACHED is False
    assert not list(tmp_path.glob("*.py"))


def test_a_kernel_runs_without_any_cache_directory(script_with, tmp_path):
    (tmp_path / "file").write_text("not a directory")
    result = script_with(tmp_path / "file")(REPORT)
    assert result["right"] and not result["cached"]
    assert (tmp_path / "file").read_text() == "not a directory"


@pytest.mark.parametrize("damage", ["index", "code"])
def test_damaged_files_are_compiled_again(script_with, warm_cache, tmp_path, damage):
    directory = tmp_path / "cache"
    shutil.copytree(warm_cache, directory)
    index, code = (list((directory / "__pycache__").glob(f"rocmkern_square_*.{end}")) for end in ("nbi", "nbc"))
    assert index and code
    for path in index + code:
        if path in (index if damage == "index" else code):
            path.write_bytes(b"\x80\x04garbage" + path.read_bytes()[9:100])
    run = script_with(directory)
    assert run(REPORT)["right"]
    # What was damaged is gone: the next process writes it anew, the one after that finds it.
    assert run(REPORT)["right"]
    last = run(REPORT)
    assert last["right"] and (last["misses"], last["hits"]) == (0, 1)


def test_a_module_whose_text_was_changed_is_written_again(monkeypatch, tmp_path):
    monkeypatch.setenv("ROCMKERN_CACHE_DIR", str(tmp_path))
    text = "VALUE = 1\n"
    name = cache.load_module("probe", text).__name__
    path = tmp_path / f"{name}.py"
    path.write_text("VALUE = 2\n")
    monkeypatch.delitem(cache.sys.modules, name)
    assert cache.load_module("probe", text).VALUE == 1
    assert path.read_text() == text


def test_files_appear_whole_or_not_at_all(monkeypatch, tmp_path):
    path = tmp_path / "module.py"
    cache.write_atomically(path, "first")

    def fail(*arguments):
        raise OSError("no space left")

    monkeypatch.setattr(cache.os, "replace", fail)
    with pytest.raises(OSError, match="no space"):
        cache.write_atomically(path, "second")
    assert path.read_text() == "first" and list(tmp_path.iterdir()) == [path]


def test_where_the_directory_is(monkeypatch, tmp_path):
    monkeypatch.setenv("ROCMKERN_CACHE_DIR", str(tmp_path / "own"))
    assert cache.cache_directory() == tmp_path / "own"
    monkeypatch.delenv("ROCMKERN_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache.cache_directory() == tmp_path / "rocmkern"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert cache.cache_directory() == tmp_path / "home" / ".cache" / "rocmkern"


KERNEL = """
from rocmkern import tile as T
{imports}

@T.kernel
def square(cfg, x: T.Tensor[2], out: T.Tensor[2]):
    row = T.row_index(cfg, 4)
    valid = row < 3
    t = T.load_tile(cfg, x, (row,), 0, 32, valid)
    T.store_tile(out, (row,), 0, {expression}, valid)
"""
DEVICE = """
from rocmkern import tile as T
FACTOR = {factor}

@T.device
def times(t):
    return t * {by}
"""
LAUNCH = """
import json, sys
import numpy as np
from rocmkern import tile as T
from rocmkern.targets.cpu import CpuTarget
sys.path.insert(0, sys.argv[1])
import mykernel, target_kernels
x, out = np.ones((3, 32), np.float32), np.zeros((3, 32), np.float32)
t = CpuTarget()
t.launch(mykernel.square, T.Config(arch=t.arch), (1, 1, 1), [x, out])
print(json.dumps([float(out[0, 0]), target_kernels.compilations()]))
"""


def test_a_change_in_what_a_kernel_reaches_makes_a_new_variant(script_with, tmp_path):
    """The kernel's own file, a device function of another file, and a constant of another file."""
    run = script_with(tmp_path / "cache")
    (tmp_path / "mydevice.py").write_text(DEVICE.format(factor=1.0, by="2.0"))
    both = "from mydevice import FACTOR, times"

    def value(kernel):
        (tmp_path / "mykernel.py").write_text(kernel)
        return run(LAUNCH, str(tmp_path), PYTHONDONTWRITEBYTECODE="1")

    first = KERNEL.format(imports=both, expression="times(t) * FACTOR")
    assert value(first)[0] == 2
    assert value(first) == [2, {"modules": 1, "misses": 0, "hits": 1, "cached": True}]
    (tmp_path / "mydevice.py").write_text(DEVICE.format(factor=1.0, by="3.0"))
    assert value(first)[0] == 3
    (tmp_path / "mydevice.py").write_text(DEVICE.format(factor=5.0, by="3.0"))
    assert value(first)[0] == 15
    by_module = KERNEL.format(imports="import mydevice", expression="mydevice.times(t) * mydevice.FACTOR")
    assert value(by_module)[0] == 15
    (tmp_path / "mydevice.py").write_text(DEVICE.format(factor=5.0, by="4.0"))
    assert value(by_module)[0] == 20


PART = """
from dataclasses import dataclass
from rocmkern import tile as T

@dataclass(frozen=True)
class Part(T.Config):
    name: str = ""
"""
WHOLE = """
from dataclasses import dataclass, field
from rocmkern import tile as T
from mypart import Part

@dataclass(frozen=True)
class Whole(T.Config):
    m: int = 4
    part: Part = field(default_factory=Part)

@T.kernel
def square(cfg, x: T.Tensor[2], out: T.Tensor[2]):
    row = T.row_index(cfg.part, cfg.m)
    t = T.load_tile(cfg.part, x, (row,), 0, 32, row < 3)
    if cfg.part.name == "half":
        t = t * 0.5
    T.store_tile(out, (row,), 0, t, row < 3)
"""
LAUNCH_WHOLE = LAUNCH.replace("T.Config(arch=t.arch)", "mykernel.Whole(t.arch, part=mypart.Part(t.arch, name=NAME))")


def test_a_configuration_within_another_one_is_found_by_a_second_process(script_with, tmp_path):
    """The generated module names the modules of both."""
    (tmp_path / "mypart.py").write_text(PART)
    (tmp_path / "mykernel.py").write_text(WHOLE)
    run = script_with(tmp_path / "cache")
    program = LAUNCH_WHOLE.replace("import mykernel,", "import mykernel, mypart,")
    counts = {"modules": 1, "misses": 1, "hits": 0, "cached": True}
    for name, value in (("half", 0.5), ("whole", 1)):
        assert run(program.replace("NAME", repr(name)), str(tmp_path)) == [value, counts]
    for name, value in (("half", 0.5), ("whole", 1)):
        assert run(program.replace("NAME", repr(name)), str(tmp_path)) == [value, counts | {"misses": 0, "hits": 1}]
