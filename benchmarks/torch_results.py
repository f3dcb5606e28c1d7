"""Host time of calls on PyTorch's tensors that allocate their result, beside PyTorch's own.

    python benchmarks/torch_results.py                # host memory, cpu target
    python benchmarks/torch_results.py --device cuda  # a card: HIP or CUDA, as PyTorch calls both

Prints medians in microseconds. On a card that is the time until a call returns: calls are made in short rounds, between
which the card is waited for, so that no queue is full. Decides nothing.
"""

from __future__ import annotations

import argparse
import itertools
import time
from collections.abc import Callable
from statistics import median

import torch

import rocmkern

ROUNDS, CALLS = 51, 20


def microseconds(calls: dict[str, Callable[[], object]], wait: Callable[[], object]) -> dict[str, float]:
    """Median time of each call; their rounds alternate."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(ROUNDS):
        for name, call in calls.items():
            call()
            wait()
            begin = time.perf_counter()
            for _ in range(CALLS):
                call()
            times[name].append((time.perf_counter() - begin) / CALLS * 1e6)
            wait()
    return {name: median(taken) for name, taken in times.items()}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    device = parser.parse_args().device
    wait = (lambda: None) if device == "cpu" else torch.cuda.current_stream().synchronize
    if device == "cpu":
        rocmkern.use("cpu")
    functional = torch.nn.functional
    print(f"{'':36} {'rocmkern':>9} {'torch':>9} {'ratio':>6}")
    with torch.no_grad():
        for rows, columns in ((4, 64), (16, 512), (64, 1024)):
            x, weight = torch.randn(rows, columns, device=device), torch.ones(columns, device=device)
            pair = {
                "rocmkern": lambda x=x, w=weight: rocmkern.rms_norm(x, w),
                "torch": lambda x=x, w=weight: functional.rms_norm(x, w.shape, w, 1e-6),
            }
            show(f"rms_norm {rows} x {columns}", microseconds(pair, wait))
        dtypes = (torch.float32,) if device == "cpu" else (torch.float32, torch.float16)
        for dtype, length in itertools.product(dtypes, (16, 64, 256)):
            q, k, v = (torch.randn(1, 8, length, 64, device=device, dtype=dtype) for _ in range(3))
            pair = {
                "rocmkern": lambda q=q, k=k, v=v: rocmkern.flash_attention(q, k, v, causal=True),
                "torch": lambda q=q, k=k, v=v: functional.scaled_dot_product_attention(q, k, v, is_causal=True),
            }
            show(f"flash_attention 8 x {length} x 64 {str(dtype)[6:]}", microseconds(pair, wait))


def show(name: str, taken: dict[str, float]) -> None:
    """Print a line."""
    ours, theirs = taken.values()
    print(f"{name:36} {ours:9.1f} {theirs:9.1f} {ours / theirs:6.2f}")


if __name__ == "__main__":
    main()
