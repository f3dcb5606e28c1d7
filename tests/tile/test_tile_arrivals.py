"""The last block to arrive: there is one, it sees what the others wrote, and the counter can be used again."""

from __future__ import annotations

import pytest
from fold_kernels import Config, check_arrivals

from rocmkern.targets.cpu import CpuTarget


@pytest.mark.parametrize(("blocks", "groups"), [(1, 3), (7, 4)])
def test_one_block_for_each_counter_is_the_last(launch, arch, blocks, groups):
    check_arrivals(lambda *launched: launch(*launched[:3], *launched[3]), Config(arch=arch), blocks, groups)


def test_threads_of_the_cpu_target_count_together(monkeypatch):
    monkeypatch.setenv("ROCMKERN_NUM_THREADS", "4")
    target = CpuTarget()
    check_arrivals(target.launch, Config(arch=target.arch), 6000, 4, launches=10)
