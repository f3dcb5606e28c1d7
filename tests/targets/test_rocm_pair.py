"""Which ROCm goes together, told of machines that stand-ins make: every fault has its sentence and its remedy."""

from __future__ import annotations

import subprocess
import sys

import pytest

from rocmkern.runtime.errors import TargetError
from rocmkern.targets import linkers, rocm_pair
from rocmkern.targets import numba_hip as numba_hip_file
from rocmkern.targets.numba_hip import numba_hip

OWN = "/opt/rocm/lib/libamdhip64.so"
NO_COMGR = "comgr cannot be loaded: libamd_comgr.so: cannot open shared object file"
NO_LLD = "no ld.lld was found; code object version 5 needs LLD 15 or newer"


def raising(words):
    def ask(*_):
        raise TargetError(words)

    return ask


def look(**changes):
    """A machine on which everything is there."""
    machine = {
        "installed": lambda name: {"numba-hip": "0.2.1"}.get(name, "10.0"),
        "llvm_version": lambda: "23.0.0",
        "found": lambda container: [linkers.Comgr(None, (3, 0)), NO_LLD],
        "compiler": lambda: None,
        "runtime": lambda: (OWN, (7, 15)),
        "others": list,
        "platform": "linux",
    }
    return rocm_pair.look(**{**machine, **changes})


def test_a_pair_that_goes_together_has_nothing_to_mend():
    pair = look()
    assert pair.usable and pair.problems == ()
    assert pair.lines() == [
        "runtime   HIP 7.15 (/opt/rocm/lib/libamdhip64.so)",
        "bindings  numba-hip 0.2.1, rocm-bindings-hip 10.0, rocm-bindings-compiler 10.0",
        "llvm      LLVM 23.0.0",
        "linker    comgr 3.0",
    ]


@pytest.mark.parametrize("version", [(2, 4), (2, 6), (3, 0)])
def test_every_generation_of_comgr_serves(version):
    pair = look(found=lambda container: [linkers.Comgr(None, version), linkers.Lld(("/usr/bin/ld.lld",), 19)])
    assert pair.usable
    assert pair.linkers == ("comgr {}.{}".format(*version), "LLD 19 (/usr/bin/ld.lld)")


def test_an_lld_serves_without_comgr():
    pair = look(found=lambda container: [NO_COMGR, linkers.Lld(("/usr/bin/ld.lld",), 19)])
    assert pair.usable and pair.linkers == ("LLD 19 (/usr/bin/ld.lld)",)


def problem(**changes):
    pair = look(**changes)
    assert not pair.usable
    (found,) = pair.problems
    assert pair.lines()[-1] == f"mend      {found}"
    return found


def test_without_any_linker_the_line_that_installs_one_is_said():
    words = problem(found=lambda container: [NO_COMGR, NO_LLD])
    assert words.startswith("there is nothing to link machine code with: comgr cannot be loaded")
    assert "libamd-comgr-dev" in words and 'pip install "rocmkern[lld]"' in words and "ROCMKERN_LLD" in words


def no_comgr(name):
    raise RuntimeError("failed to dlopen libamd_comgr.so")


def test_a_compiler_that_does_not_start_is_said_though_there_is_a_linker():
    lld = linkers.Lld(("/usr/bin/ld.lld",), 19)
    words = problem(compiler=lambda: numba_hip(no_comgr), found=lambda container: [NO_COMGR, lld])
    assert words.startswith("numba-hip, which compiles the kernels, does not start (RuntimeError: failed to dlopen lib")


@pytest.mark.parametrize(
    ("version", "remedy"), [("0.2.1", "export ROCM_PATH=/opt/rocm"), (None, 'Remedy: pip install "rocmkern[hip]"')]
)
def test_what_mends_the_compiler_depends_on_whether_it_is_installed(monkeypatch, version, remedy):
    monkeypatch.setattr(numba_hip_file, "installed_version", lambda name: version)
    with pytest.raises(TargetError) as caught:
        numba_hip(no_comgr)
    assert str(caught.value).endswith(remedy)


def test_a_hip_runtime_beside_the_own_one_is_named_with_the_way_to_have_one():
    torch = "/venv/lib/python3.12/site-packages/torch/lib/libamdhip64.so"
    words = problem(others=lambda: [OWN, torch])
    assert words.startswith(f"{torch} is a HIP runtime beside {OWN}")
    assert words.endswith("export ROCM_PATH=/venv/lib/python3.12/site-packages/torch")


def test_the_own_runtime_under_another_name_is_not_foreign(tmp_path):
    real, link = tmp_path / "libamdhip64.so.7.15", tmp_path / "libamdhip64.so"
    real.touch()
    link.symlink_to(real)
    assert look(runtime=lambda: (str(link), (7, 15)), others=lambda: [str(real)]).usable


def test_a_runtime_that_cannot_be_loaded_or_is_too_old_is_said():
    assert problem(runtime=raising("the HIP runtime cannot be loaded: install ROCm")).endswith("install ROCm")
    assert "HIP 5.2 does not load code objects of version 5: install ROCm 5.5" in problem(runtime=lambda: (OWN, (5, 2)))


def test_missing_bindings_are_named_with_the_line_that_installs_them():
    words = problem(installed=lambda name: None)
    assert words == 'not installed: numba-hip, rocm-bindings-hip, rocm-bindings-compiler. pip install "rocmkern[hip]"'


def test_an_llvm_that_cannot_be_loaded_is_said():
    assert problem(llvm_version=raising("LLVM of the bindings cannot be loaded: pip install")).endswith("pip install")


def test_windows_is_told_what_to_do():
    words = problem(platform="win32")
    assert "wsl --install" in words and 'pip install "rocmkern[hip]"' in words


def test_a_library_that_ends_the_process_is_said_and_ends_only_the_child(monkeypatch):
    crash = [sys.executable, "-c", "import os; os.abort()"]
    run = subprocess.run
    monkeypatch.setattr(rocm_pair.subprocess, "run", lambda command, **options: run(crash, **options))
    (line,) = rocm_pair.lines_of_child()
    assert line.startswith("mend      ROCm's libraries ended the process that looked at them (-6)")


def test_this_machine_is_looked_at():
    lines = rocm_pair.lines_of_child()
    assert [line.split()[0] for line in lines[:4]] == ["runtime", "bindings", "llvm", "linker"]
