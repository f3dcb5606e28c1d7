"""The last block to arrive: there is one, it sees what the others wrote, and the counter can be used again."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from fold_kernels import Config, check_arrivals

from rocmkern import tile as T
from rocmkern.targets.cpu import CpuTarget
from rocmkern.targets.python import PythonTarget


@pytest.mark.parametrize(("blocks", "groups"), [(1, 3), (7, 4)])
def test_one_block_for_each_counter_is_the_last(launch, arch, blocks, groups):
    check_arrivals(lambda *launched: launch(*launched[:3], *launched[3]), Config(arch=arch), blocks, groups)


def test_threads_of_the_cpu_target_count_together(monkeypatch):
    monkeypatch.setenv("ROCMKERN_NUM_THREADS", "4")
    target = CpuTarget()
    check_arrivals(target.launch, Config(arch=target.arch), 6000, 4, launches=10)


@T.kernel
def count(cfg, counters: T.InOut[1], lasts: T.InOut[1]):
    if T.last_to_arrive(cfg, counters, 0, 4):
        lasts[T.block_id(cfg, 0)] = 1


def test_launches_of_several_threads_count_together_in_python():
    counters, lasts = np.zeros(1, np.int32), np.zeros((4, 1000), np.int32)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(lambda own: PythonTarget().launch(count, Config(), (1000, 1, 1), [counters, own]), lasts))
    finally:
        sys.setswitchinterval(interval)
    assert lasts.sum() == 1000 and counters[0] == 0
