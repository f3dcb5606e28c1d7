"""The roofs of a target, measured in this process: copy bandwidth, and the peak of matrix products where it is known.

What a benchmark row reaches is stated as a share of them. On a CPU they are measured again with every row, since other
programs slow them down as well; the best so far counts.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import numpy as np

from rocmkern.runtime.devices import open_device
from rocmkern.runtime.manager import default_manager
from rocmkern.testing.vector_peak import VectorPeak

COPIED_BYTES = 1 << 28
PRODUCT_SIZE = 8192
REPEATS = 7
HOST_REPEATS = 3


def roof(target: str, dtype: str) -> dict[str, Any]:
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
        ``byte_per_s``: bytes read and written by a large copy, per second. ``flop_per_s``: on a CPU of float32
        multiply-adds in the registers of as many threads as kernels use, on a GPU of PyTorch's matrix product in this
        type; ``no_peak``: why there is none.
    """
    if target == "python":
        return {}
    if target == "cpu":
        return _host().measure(dtype)
    return _device_roof(target, dtype)


class _HostRoof:
    """The roofs of this processor; the best that was measured so far."""

    def __init__(self) -> None:
        # deferred: start-up
        from rocmkern.targets.cpu import thread_count

        self.threads = thread_count()
        self.peak = VectorPeak(self.threads)
        self.byte_per_s = 0.0

    def measure(self, dtype: str) -> dict[str, Any]:
        self.byte_per_s = max(self.byte_per_s, 2 * COPIED_BYTES / self._copy())
        if dtype != "f32":
            return {"byte_per_s": self.byte_per_s, "no_peak": f"no matrix peak of {dtype} is known for a CPU"}
        return {"byte_per_s": self.byte_per_s, "flop_per_s": self.peak.measure()}

    def _copy(self) -> float:
        """Seconds of the fastest of some large copies, after one that does not count."""
        source, destination = (np.ones(COPIED_BYTES // 4, np.float32) for _ in range(2))
        parts = [np.array_split(array, self.threads) for array in (destination, source)]
        seconds = []
        with ThreadPoolExecutor(self.threads) as pool:
            for _ in range(HOST_REPEATS + 1):
                start = time.perf_counter()
                list(pool.map(np.copyto, *parts))
                seconds.append(time.perf_counter() - start)
        return min(seconds[1:])


@cache
def _host() -> _HostRoof:
    return _HostRoof()


@cache
def _device_roof(target: str, dtype: str) -> dict[str, Any]:
    return {"byte_per_s": 2 * COPIED_BYTES / _device_copy(target), **_device_product(dtype)}


def _device_copy(target: str) -> float:
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


def _device_product(dtype: str) -> dict[str, Any]:
    try:
        # deferred: optional dependency
        import torch
    except ImportError:
        return {"no_peak": "PyTorch, whose matrix product is the measure, is not installed"}
    if not torch.cuda.is_available():
        return {"no_peak": "PyTorch, whose matrix product is the measure, has no GPU"}
    n, kind = PRODUCT_SIZE, {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}[dtype]
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
