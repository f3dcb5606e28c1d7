"""The roofs of a target, measured in this process: copy bandwidth, and the peak of matrix products where it is known.

What a benchmark row reaches is stated as a share of them.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import numpy as np

COPIED_BYTES = 1 << 28
PRODUCT_SIZE = {"cpu": 1024, "cuda": 8192}
REPEATS = 7


@cache
def roof(target: str, dtype: str) -> dict[str, float]:
    """Measured roofs of a target for an element type.

    Parameters
    ----------
    target : str
        ``"cpu"``, ``"hip"`` or ``"cuda"``; the interpreter has no roof.
    dtype : str
        ``"f32"``, ``"f16"`` or ``"bf16"``.

    Returns
    -------
    dict
        ``byte_per_s``: bytes read and written by a large copy, per second. ``flop_per_s``: of NumPy's float32 matrix
        product on a CPU, of PyTorch's in this type on a GPU; left out where there is neither.
    """
    if target == "python":
        return {}
    if target == "cpu":
        return {"byte_per_s": 2 * COPIED_BYTES / _host_copy(), **_host_product(dtype)}
    return {"byte_per_s": 2 * COPIED_BYTES / _device_copy(target), **_device_product(target, dtype)}


def _fastest(function: Callable[[], Any]) -> float:
    """Seconds of the fastest of some runs, after one that does not count."""
    function()
    seconds = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        function()
        seconds.append(time.perf_counter() - start)
    return min(seconds)


def _host_copy() -> float:
    from rocmkern.targets.cpu import thread_count

    threads = thread_count()
    source, destination = (np.ones(COPIED_BYTES // 4, np.float32) for _ in range(2))
    parts = list(zip(np.array_split(destination, threads), np.array_split(source, threads), strict=True))
    with ThreadPoolExecutor(threads) as pool:
        return _fastest(lambda: list(pool.map(lambda part: np.copyto(*part), parts)))


def _host_product(dtype: str) -> dict[str, float]:
    if dtype != "f32":
        return {}
    n = PRODUCT_SIZE["cpu"]
    a, b, c = (np.ones((n, n), np.float32) for _ in range(3))
    return {"flop_per_s": 2 * n**3 / _fastest(lambda: np.matmul(a, b, out=c))}


def _device_copy(target: str) -> float:
    from rocmkern.runtime.devices import open_device
    from rocmkern.runtime.manager import default_manager

    manager = default_manager(open_device(target))
    device, seconds = manager.device, []
    with manager.empty((2, COPIED_BYTES), np.uint8, uninitialized=True) as buffer:
        for _ in range(REPEATS):
            start = device.record_timed(manager.stream)
            device.copy_device(buffer.data_ptr + COPIED_BYTES, buffer.data_ptr, COPIED_BYTES, manager.stream)
            stop = device.record_timed(manager.stream)
            manager.wait()
            seconds.append(device.elapsed(start, stop))
    return min(seconds)


def _device_product(target: str, dtype: str) -> dict[str, float]:
    try:
        import torch
    except ImportError:
        return {}
    if not torch.cuda.is_available():
        return {}
    n, kind = PRODUCT_SIZE["cuda"], {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}[dtype]
    a, b = (torch.ones((n, n), dtype=kind, device="cuda") for _ in range(2))
    seconds = []
    for _ in range(REPEATS):
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        a @ b
        stop.record()
        stop.synchronize()
        seconds.append(start.elapsed_time(stop) / 1e3)
    return {"flop_per_s": 2 * n**3 / min(seconds)}
