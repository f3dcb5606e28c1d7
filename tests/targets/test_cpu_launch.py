"""Launches on the cpu target: threads, fork, architectures, kernels that no module can import."""

from __future__ import annotations

import gc
import multiprocessing
import threading
import weakref
from dataclasses import dataclass

import numpy as np
import pytest
import target_kernels

from rocmkern import ArgumentError, TargetError
from rocmkern import tile as T
from rocmkern.targets import using
from rocmkern.targets.cpu import ARCHITECTURES, CpuTarget, host_architecture, thread_count
from rocmkern.targets.python import PythonTarget


def test_results_do_not_depend_on_the_number_of_threads(monkeypatch):
    results = []
    x = target_kernels.data(1001)
    for threads in ("1", "2", "5"):
        monkeypatch.setenv("ROCMKERN_NUM_THREADS", threads)
        target, out = CpuTarget(), np.full_like(x, np.nan)
        assert target.threads == int(threads)
        target.launch(target_kernels.square, target_kernels.Config(arch=target.arch), (251, 1, 1), [x, out])
        results.append(out.tobytes())
    assert results[0] == results[1] == results[2]
    assert target_kernels.is_right(np.frombuffer(results[0], np.float32).reshape(x.shape), x)


@pytest.mark.parametrize("wanted", ["0", "-1", "two", "1.5", " 2"])
def test_a_number_of_threads_that_is_none(monkeypatch, wanted):
    monkeypatch.setenv("ROCMKERN_NUM_THREADS", wanted)
    with pytest.raises(TargetError, match=f"ROCMKERN_NUM_THREADS={wanted}: allowed: a number of threads, 1 or more"):
        thread_count()


@pytest.mark.parametrize("target", [CpuTarget, PythonTarget])
def test_in_host_memory_there_are_no_streams(target):
    x, where = target_kernels.data(8), target()
    with pytest.raises(ArgumentError, match="stream: got 7; allowed: None: kernels in host memory run in no stream"):
        where.launch(target_kernels.square, target_kernels.Config(arch=where.arch), (2, 1, 1), [x, np.empty_like(x)], 7)


def test_without_a_setting_there_are_as_many_threads_as_cores():
    assert thread_count() >= 1


def test_the_architecture_can_be_chosen(monkeypatch):
    widest = host_architecture()
    possible = ARCHITECTURES[ARCHITECTURES.index(widest) :]
    assert possible[-1] == "cpu-portable"
    for arch in possible:
        monkeypatch.setenv("ROCMKERN_CPU_ARCH", arch)
        assert CpuTarget().arch == arch
    monkeypatch.setenv("ROCMKERN_CPU_ARCH", "cpu-avx1024")
    with pytest.raises(
        TargetError, match=r"ROCMKERN_CPU_ARCH=cpu-avx1024: not possible on this host; allowed: .*cpu-portable"
    ):
        host_architecture()


def test_a_process_runs_on_the_chosen_architecture(script):
    code = """
import json, rocmkern, target_kernels as k
print(json.dumps([rocmkern.target().arch, k.is_right(k.run())]))
"""
    assert script(code, ROCMKERN_CPU_ARCH="cpu-portable") == ["cpu-portable", True]


def test_launches_from_several_threads_at_once():
    inputs = [target_kernels.data(200 + i) for i in range(6)]
    results, errors = {}, []
    barrier = threading.Barrier(len(inputs))

    def work(i):
        try:
            barrier.wait(60)
            for _ in range(20):
                results[i] = target_kernels.run(inputs[i])
        except Exception as e:
            errors.append(e)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(len(inputs))]
    for t in threads:
        t.start()
    for t in threads:
        t.join(60)
    assert errors == []
    assert all(target_kernels.is_right(results[i], x) for i, x in enumerate(inputs))


def test_threads_that_compile_the_same_variant_compile_it_once():
    target = CpuTarget()
    x = target_kernels.data(8)
    outs = [np.full_like(x, np.nan) for _ in range(4)]
    cfg = target_kernels.Config(arch=target.arch, waves=7)  # a variant of its own

    threads = [
        threading.Thread(target=target.launch, args=(target_kernels.square, cfg, (2, 1, 1), [x, out])) for out in outs
    ]
    for t in threads:
        t.start()
    for t in threads:
        t.join(60)
    assert all(target_kernels.is_right(out, x) for out in outs)
    assert target.variants() == 1


def child(queue):
    x = target_kernels.data(777)
    queue.put(target_kernels.is_right(target_kernels.run(x), x))


@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="this system does not fork")
def test_a_forked_child_computes_on_threads_of_its_own(script):
    code = """
import json, os, warnings
warnings.simplefilter("ignore")
import multiprocessing
import target_kernels as k, test_cpu_launch
x = k.data(777)
before = k.is_right(k.run(x), x)  # starts the parent's pool
context = multiprocessing.get_context("fork")
queue = context.Queue()
process = context.Process(target=test_cpu_launch.child, args=(queue,))
process.start()
inside = queue.get(timeout=60)
process.join(60)
print(json.dumps([before, inside, process.exitcode, k.is_right(k.run(x), x)]))
"""
    assert script(code, ROCMKERN_NUM_THREADS="3") == [True, True, 0, True]


SCRIPT = """
import json, sys
from dataclasses import dataclass
import numpy as np
from rocmkern import tile as T
from rocmkern.targets.cpu import CpuTarget

@dataclass(frozen=True)
class Config(T.Config):
    n: int = 8

@T.device
def doubled(t):
    return t * 2.0

@T.kernel
def twice(cfg, x: T.Tensor[2]):
    row = T.row_index(cfg, 4)
    T.store_tile(x, (row,), 0, doubled(T.load_tile(cfg, x, (row,), 0, cfg.n, row < 4)), row < 4)

if __name__ == "__main__":
    x = np.ones((4, 8), np.float32)
    target = CpuTarget()
    target.launch(twice, Config(arch=target.arch), (1, 1, 1), [x])
    print(json.dumps([float(x.sum()), [m for m in sys.modules if m.startswith("rocmkern_twice")]]))
"""


def test_a_kernel_of_a_script_is_compiled_but_not_cached(script, tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    assert script(str(tmp_path / "script.py")) == [64.0, []]


def local_kernel(factor):
    @dataclass(frozen=True)
    class Config(T.Config):
        n: int = 8

    @T.kernel
    def scaled(cfg, x: T.Tensor[2]):
        row = T.row_index(cfg, 4)
        T.store_tile(x, (row,), 0, T.load_tile(cfg, x, (row,), 0, cfg.n, row < 4) * factor, row < 4)

    return scaled, Config


def test_kernels_made_in_a_function_keep_their_own_constants():
    target = CpuTarget()
    for factor in (2.0, 3.0):
        kernel, config = local_kernel(factor)
        x = np.ones((4, 8), np.float32)
        target.launch(kernel, config(arch=target.arch), (1, 1, 1), [x])
        assert (x == factor).all()
    assert target.variants() == 2


def test_compiling_leaves_nothing_that_keeps_the_arrays_of_the_caller_alive():
    target = CpuTarget()

    def launch():
        kernel, config = local_kernel(4.0)
        x = np.ones((4, 8), np.float32)
        target.launch(kernel, config(arch=target.arch), (1, 1, 1), [x])
        return weakref.ref(x)

    gc.disable()
    try:
        array = launch()
        assert array() is None and not gc.isenabled()
        gc.enable()
        array = launch()
        assert array() is None and gc.isenabled()
    finally:
        gc.enable()


def test_a_device_function_may_be_defined_after_the_first_kernel_was_compiled():
    target_kernels.run(target_kernels.data(4))

    @T.device
    def late(t):
        return t * 5.0

    @T.kernel
    def uses_late(cfg, x: T.Tensor[2]):
        row = T.row_index(cfg, 4)
        T.store_tile(x, (row,), 0, late(T.load_tile(cfg, x, (row,), 0, 8, row < 4)), row < 4)

    x = np.ones((4, 8), np.float32)
    target = CpuTarget()
    target.launch(uses_late, T.Config(arch=target.arch), (1, 1, 1), [x])
    assert (x == 5).all()


def test_both_targets_agree():
    with using("python"):
        by_python = target_kernels.run(target="python")
    assert target_kernels.is_right(by_python)
    np.testing.assert_allclose(target_kernels.run(), by_python, rtol=1e-5, atol=1e-5)
