"""The hip target on a device: results, one compilation per variant, threads, misuse. Skipped without one."""

import hashlib
import subprocess
import sys
import threading
from dataclasses import dataclass

import numpy as np
import pytest

import rocmkern
from rocmkern import reference
from rocmkern import tile as T
from rocmkern.ops.steps.kernels.scale import Config, scale
from rocmkern.runtime.errors import RocmkernError, TargetError, TileError
from rocmkern.targets import code_object, current_target


@pytest.fixture(scope="module")
def target():
    try:
        with rocmkern.using("hip"):
            yield current_target()
    except RocmkernError as error:
        pytest.skip(str(error))


@pytest.fixture
def fresh(target, tmp_path, monkeypatch):
    """Makes targets without variants, that share a cache directory."""
    monkeypatch.setenv("ROCMKERN_CACHE_DIR", str(tmp_path))
    return lambda: type(target)(target.device)


def launch_scale(target, x, factor):
    """Launch the scale kernel by itself on device memory, and bring its result back."""
    from rocmkern.calls.view import view_of
    from rocmkern.ops import streaming
    from rocmkern.runtime import default_manager

    manager = default_manager(target.device)
    with manager.from_numpy(x) as source, manager.empty(x.shape, x.dtype) as out:
        cfg = streaming.rows_config(Config, target.arch)
        target.launch(scale, cfg, (-(-x.shape[2] // cfg.block_m), 1, 1), [view_of(source), view_of(out), factor])
        return out.to_numpy()


def test_operations_run_on_numpy_arrays(target):
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((1, heads, n, 24)).astype(np.float16) for heads, n in ((4, 20), (2, 37), (2, 37)))
    out, lse = rocmkern.flash_attention(q, k, v, causal=True, window=(9, None), return_lse=True)
    expected, expected_lse = reference.flash_attention(q, k, v, causal=True, window=(9, None), return_lse=True)
    np.testing.assert_allclose(out, expected, atol=2e-3)
    np.testing.assert_allclose(lse, expected_lse, rtol=1e-5)
    assert rocmkern.target().name == "hip" and rocmkern.target().arch.startswith("gfx")


def test_a_variant_on_disk_is_not_compiled_again(fresh, monkeypatch):
    x = np.arange(12, dtype=np.float32).reshape(1, 1, 3, 4)
    first, second = fresh(), fresh()
    np.testing.assert_array_equal(launch_scale(first, x, 2.0), 2 * x)
    monkeypatch.setattr(type(second), "compile_entry", lambda *arguments: pytest.fail("compiled"))
    np.testing.assert_array_equal(launch_scale(second, x, 3.0), 3 * x)
    np.testing.assert_array_equal(launch_scale(second, x, 4.0), 4 * x)
    assert second.variants() == 1


def test_threads_compile_a_variant_once_and_keep_their_arguments_apart(fresh, monkeypatch):
    target, compiled, results = fresh(), [], {}
    original = type(target).compile_entry
    monkeypatch.setattr(type(target), "compile_entry", lambda *a: compiled.append(a) or original(*a))
    x = np.arange(12, dtype=np.float32).reshape(1, 1, 3, 4)
    start = threading.Barrier(4)

    def work(number):
        start.wait()
        results[number] = [launch_scale(target, x, number + i / 8) for i in range(8)]

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number in range(4):
        np.testing.assert_array_equal(results[number], [x * np.float32(number + i / 8) for i in range(8)])
    assert len(compiled) == 1


@dataclass(frozen=True)
class Line(T.Config):
    block_m: int = 64
    block_n: int = 16


def test_a_device_function_that_is_defined_after_the_first_compilation_is_known(target):
    launch_scale(target, np.ones((1, 1, 3, 4), np.float32), 2.0)

    @T.device
    def tripled(x):
        return x * 3.0

    @T.kernel
    def triple(cfg, x: T.Tensor[2], out: T.Out[2]):
        row = T.row_index(cfg, cfg.block_m)
        valid = row < x.shape[0]
        T.store_tile(out, (row,), 0, tripled(T.load_tile(cfg, x, (row,), 0, cfg.block_n, valid)), valid)

    triple.__globals__["tripled"] = tripled
    try:
        entry = target.compile_entry(triple, Line(arch=target.arch, waves=4), ("float32", "float32"))
    finally:
        del triple.__globals__["tripled"]
    assert entry.launch["words"] == 10 and entry.code.startswith(b"\x7fELF")


def test_a_consumed_tile_is_refused_before_compilation(target):
    @T.kernel
    def wrong(cfg, x: T.Tensor[2], out: T.Out[2]):
        row = T.row_index(cfg, cfg.block_m)
        s = T.load_tile(cfg, x, (row,), 0, cfg.block_n, row < x.shape[0])
        e = T.exp2(s)
        T.store_tile(out, (row,), 0, e + s, row < x.shape[0])

    with pytest.raises(TileError, match="consumed"):
        target.compile_entry(wrong, Line(arch=target.arch, waves=4), ("float32", "float32"))


def test_a_launch_with_other_arguments_than_the_kernel_has_is_an_error(target):
    from rocmkern.targets.hip import LoadedKernel, compile_kernel

    cfg = Line(arch=target.arch, waves=4)
    with target.device.current():
        loaded = LoadedKernel(compile_kernel(scale, cfg, ("float32", "float32")).executable)
        with pytest.raises(TargetError, match="kernel scale takes 19 launch words, got 2"):
            loaded.launch((1, 1, 1), [0, 0])
        with pytest.raises(TargetError, match="kernel scale: the HIP runtime reports hipError"):
            loaded.launch((1, 1, 0), [0] * 19)


@pytest.mark.parametrize("name", ["softmax", "decode_attention"])
def test_a_row_says_which_code_ran_and_it_is_what_was_loaded_and_what_isa_reads(target, name):
    vgpu = sys.modules.get("vgpu")
    if vgpu is None:
        pytest.skip("what a loader was given is known of the virtual GPU (module vgpu)")
    from rocmkern.cli import _variants, isa
    from rocmkern.matrix import load_cases, run_case
    from rocmkern.matrix.registry import resolve
    from rocmkern.targets import launching_on

    cases = load_cases("matrix.yaml")[1]
    case = next(
        c for c in cases if c.operation.name == name and c.facts.expect_error is None and not c.skip_reason("hip")
    )
    result = run_case(case, "hip")
    given = {each["sha256"]: each for each in vgpu.loaded()}
    assert result.code and all(given[code]["target"].endswith(target.arch) for code in result.code)
    assert result.record()["code"] == list(result.code)
    loaded = {variant.code_sha256: variant.kernel.code for variant in target._variants.values()}
    executed = vgpu.executed()
    for code in result.code:
        assert hashlib.sha256(loaded[code]).hexdigest() == code
        assert executed[code] == code_object.read(loaded[code]).text
        assert given[code]["code_sha256"] == code_object.read(loaded[code]).code_sha256
    recorder = _variants.Recorder(target.arch)
    with launching_on(recorder):
        resolve(case.operation.function)(**case.operation.call(_variants.ShapeDraw(case)).arguments)
    assert {isa.examine(variant).code for variant in recorder.found} == set(result.code)


COMPILE = """
import sys
from rocmkern.ops.steps.kernels.scale import Config, scale
from rocmkern.ops.steps.kernels.softmax import Config as SoftmaxConfig, softmax
from rocmkern.ops import streaming
from rocmkern.targets.hip import compile_kernel
two = [(softmax, streaming.rows_config(SoftmaxConfig, "gfx1100")), (scale, streaming.rows_config(Config, "gfx1100"))]
made = {kernel.__name__: compile_kernel(kernel, cfg, ("float32",) * 2) for kernel, cfg in two[:: int(sys.argv[1])]}
print(*[made[name].executable.code.hex() for name in ("scale", "softmax")])
"""


def test_code_is_the_same_bytes_whatever_a_process_has_compiled_before(target):
    made = [
        subprocess.run([sys.executable, "-c", COMPILE, order], capture_output=True, text=True) for order in ("1", "-1")
    ]
    assert made[0].returncode == made[1].returncode == 0, made[0].stderr + made[1].stderr
    assert made[0].stdout.splitlines()[-1] == made[1].stdout.splitlines()[-1]
