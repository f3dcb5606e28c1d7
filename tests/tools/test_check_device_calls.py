"""The linter that refuses raw allocations and waiting for a whole device finds each of them, and nothing else."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tools"))

import check_device_calls  # noqa: E402

ALLOCATORS = ("hipMalloc", "hipMallocAsync", "hipMallocManaged", "hipHostMalloc", "hipExtMallocWithFlags", "hipFree",
              "cuMemAlloc", "cuMemAllocAsync", "cuMemAllocManaged", "cuMemHostAlloc", "cuMemFree", "cuMemFreeHost",
              "cudaMalloc", "cudaMallocManaged", "cudaHostAlloc", "cudaFree")  # fmt: skip
WHOLE_DEVICE = ("hipDeviceSynchronize", "hipDeviceReset", "hipCtxSynchronize", "hipDevicePrimaryCtxReset",
                "cuCtxSynchronize", "cuDevicePrimaryCtxReset", "cuCtxDestroy", "cudaDeviceSynchronize",
                "cudaDeviceReset")  # fmt: skip
OF_MODULES = ("to_device", "device_array", "device_array_like", "pinned_array", "mapped_array", "managed_array",
              "synchronize", "close")  # fmt: skip


def found(text, path="tests/test_some.py"):
    return [finding.message for finding in check_device_calls.check_text(text, Path(path))]


@pytest.mark.parametrize("name", ALLOCATORS)
@pytest.mark.parametrize("text", ["x = hip.{}(8)", "from driver import {}", "{}(8)", "getattr(driver, '{}')(8)"])
def test_raw_allocations_are_found_however_they_are_written(name, text):
    (message,) = found(text.format(name))
    assert message == f"{name} goes past cap, pool and ledger: use a ResourceManager"


@pytest.mark.parametrize("name", ALLOCATORS)
def test_only_the_device_layer_may_allocate(name):
    for module in ("hip", "cuda"):
        assert not found(f"driver.{name}(8)", f"rocmkern/runtime/{module}.py")
    assert found(f"driver.{name}(8)", "rocmkern/runtime/manager.py")
    assert found(f"driver.{name}(8)", "tests/rocmkern/runtime/hip.py")


@pytest.mark.parametrize("name", WHOLE_DEVICE)
def test_nobody_waits_for_a_whole_device_or_resets_it(name):
    for path in ("rocmkern/runtime/hip.py", "rocmkern/ops/norm/api.py", "tests/test_some.py"):
        (message,) = found(f"if wait:\n    hip.{name}()", path)
        assert message.startswith(f"{name} concerns the whole device")


@pytest.mark.parametrize("name", OF_MODULES)
def test_what_numba_and_others_do_behind_a_module_is_found(name):
    for text in (
        f"from numba import cuda\ncuda.{name}(x)",
        f"from numba import hip as h\nh.{name}(x)",
        f"import numba\nnumba.cuda.{name}(x)",
        f"from numba.cuda import {name}",
        f"def test(numba_gpu):\n    numba_gpu.{name}(x)",
    ):
        (message,) = found(text)
        assert f".{name} " in message


def test_contexts_and_torch_are_looked_at():
    assert found("cuda.current_context().synchronize()") == ["synchronize() of a context waits for the whole device"]
    assert found("hip.current_context().reset()") == ["reset() of a context resets the device"]
    for text in (
        "self._context.synchronize()",
        "ctx = cuda.current_context()\nctx.synchronize()",
        "(c := hip.get_context()).x\nc.synchronize()",
    ):
        assert found(text) == ["synchronize() of a context waits for the whole device"]
    assert found("cuda.gpus[0].reset()") == ["reset() of a context resets the device"]
    assert found("cuda.current_context().memalloc(8)") == ["memalloc() of a context allocates"]
    assert found("torch.cuda.synchronize()") == ["cuda.synchronize waits for the whole device"]


@pytest.mark.parametrize(
    "text",
    [
        "manager.zeros(3)\nstream.synchronize()\nevent.synchronize()\nfile.close()\nmanager.close()",
        "hip.hipMemcpyAsync(a, b, n, kind, stream)\nhip.hipEventQuery(event)",
        "with vgpu.expect(hipDeviceSynchronize=0, hipMalloc=3):\n    pass",
        "vgpu.fail('hipMalloc', nth=3)\nNAMES = ('cuMemAlloc',)",
        "device.copy_to_device(a, b, n, stream)",
        "x = cuda.to_device(y)  # device call: an array of Numba's own",
    ],
)
def test_other_calls_are_allowed(text):
    assert found(text) == []


def test_a_permission_needs_a_reason_and_holds_for_its_line():
    assert found("x = cuda.to_device(y)  # device call:")
    assert len(found("x = cuda.to_device(y)  # device call: theirs\nz = cuda.to_device(y)")) == 1


def test_the_command_names_file_line_and_column(tmp_path):
    (tmp_path / "wrong.py").write_text("import x\n\nx.hipDeviceReset()\n")
    script = ROOT / "tools" / "check_device_calls.py"
    done = subprocess.run([sys.executable, script, str(tmp_path)], capture_output=True, text=True)
    assert done.returncode == 1 and f"{tmp_path}/wrong.py:3:1: hipDeviceReset concerns" in done.stdout


def test_this_library_obeys():
    names = ["rocmkern", "tests", "examples", "benchmarks", "tools"]
    script = ROOT / "tools" / "check_device_calls.py"
    done = subprocess.run([sys.executable, script, *names], cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "")
