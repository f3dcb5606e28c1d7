"""Gradients on a card beside PyTorch's: attention, rows in memory, a cross-entropy over a vocabulary.

    python benchmarks/torch_gradients.py                     # HIP or CUDA, as PyTorch calls both
    python benchmarks/torch_gradients.py --only attention    # or: rows, loss

Times are medians of device events around some calls, kernels and all launches included. Attention is the gradient
alone with ``out=``, beside PyTorch's flash backend, the same with deterministic algorithms, and cuDNN; then the forward
pass, and how much faster than the flash backend both are together. What moves rows is given as a share of the bandwidth
of a copy, in the bytes that it must read and write. The cross-entropy's memory is what a first call takes of the card's
beyond the gradients, as the driver counts it. Decides nothing.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from statistics import median
from typing import Any

import torch

import rocmkern

DEVICE = "cuda"
SHAPES = [
    ((4, 32, 2048, 128), False),
    ((4, 32, 2048, 128), True),
    ((1, 32, 16384, 128), False),
    ((1, 32, 16384, 128), True),
    ((8, 16, 2048, 64), False),
    ((4, 16, 2048, 256), False),
]
ROWS, COLUMNS = 8192, 4096
TOKENS, WIDTH, VOCABULARY = 4096, 4096, 128256
aten = torch.ops.aten


def milliseconds(call: Callable[[], object], times: int = 10) -> float:
    """Median of five rounds of some calls."""
    for _ in range(3):
        call()
    begin, end, taken = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True), []
    for _ in range(5):
        begin.record()
        for _ in range(times):
            call()
        end.record()
        end.synchronize()
        taken.append(begin.elapsed_time(end) / times)
    return median(taken)


def megabytes(call: Callable[[], tuple[torch.Tensor, ...]]) -> float:
    """Memory that a call takes beyond its results, from a cache that holds none."""
    torch.cuda.current_stream().synchronize()
    torch.cuda.empty_cache()
    before = torch.cuda.mem_get_info()[0]
    results = call()
    torch.cuda.current_stream().synchronize()
    return (before - torch.cuda.mem_get_info()[0] - sum(t.numel() * t.element_size() for t in results)) / 1e6


def ways(shape: tuple[int, ...], causal: bool, dtype: torch.dtype) -> dict[str, Callable[[], Any]]:
    """Attention there and back, ours and PyTorch's."""
    q, k, v, dout = (torch.randn(shape, device=DEVICE, dtype=dtype) for _ in range(4))
    o, lse = rocmkern.flash_attention(q, k, v, causal=causal, return_lse=True)
    out = tuple(map(torch.empty_like, (q, k, v)))
    flash = aten._scaled_dot_product_flash_attention(q, k, v, 0.0, causal)
    cudnn = aten._scaled_dot_product_cudnn_attention(q, k, v, None, True, 0.0, causal, False)
    of_flash = (dout, q, k, v, *flash[:6], 0.0, causal, *flash[6:8])
    of_cudnn = (dout, q, k, v, *cudnn[:2], *cudnn[6:8], None, *cudnn[2:6], 0.0, causal)
    return {
        "ours": lambda: rocmkern.flash_attention_backward(dout, q, k, v, o, lse, causal=causal, out=out),
        "flash": lambda: aten._scaled_dot_product_flash_attention_backward(*of_flash),
        "cudnn": lambda: aten._scaled_dot_product_cudnn_attention_backward(*of_cudnn),
        "our forward": lambda: rocmkern.flash_attention(q, k, v, causal=causal, return_lse=True),
        "flash forward": lambda: aten._scaled_dot_product_flash_attention(q, k, v, 0.0, causal),
        "cudnn forward": lambda: aten._scaled_dot_product_cudnn_attention(q, k, v, None, True, 0.0, causal, False),
    }


def attention(dtype: torch.dtype) -> None:
    """TFLOP/s: 10 B H S S D (causal: half) count for a gradient, 4 for a forward pass; and the ratio of times."""
    print(f"{'attention: ours, flash, its same bits':38} {'and cuDNN':>23} | {'forward':>17} | both by flash")
    for shape, causal in SHAPES:
        calls = ways(shape, causal, dtype)
        taken = {name: milliseconds(call) for name, call in calls.items()}
        torch.use_deterministic_algorithms(True)
        taken["same bits"] = milliseconds(calls["flash"])
        torch.use_deterministic_algorithms(False)
        batch, heads, length, dim = shape
        pairs = batch * heads * length**2 * dim * (0.5 if causal else 1) / 1e9
        both = (taken["flash"] + taken["flash forward"]) / (taken["ours"] + taken["our forward"])
        gradient = " ".join(f"{10 * pairs / taken[each]:5.0f}" for each in ("ours", "flash", "same bits", "cudnn"))
        forward = " ".join(f"{4 * pairs / taken[f'{each} forward']:5.0f}" for each in ("our", "flash", "cudnn"))
        name = f"{str(dtype)[6:]} {shape} {'causal' if causal else 'full'}"
        print(f"{name:38} {gradient} | {forward} | {both:.2f}")


def rows(dtype: torch.dtype) -> None:
    """Shares of a copy's bandwidth."""
    x, y, dout, *out = (torch.randn(ROWS, COLUMNS, device=DEVICE, dtype=dtype) for _ in range(5))
    weight, dweight = torch.ones(COLUMNS, device=DEVICE, dtype=dtype), torch.empty(COLUMNS, device=DEVICE, dtype=dtype)
    heads, places = (t.view(1, ROWS, 32, COLUMNS // 32) for t in (x, out[0])), torch.arange(ROWS, device=DEVICE)
    given, turned = heads
    moved = {
        "copy": (2, lambda: out[0].copy_(x)),
        "rms_norm": (3, lambda: rocmkern.rms_norm_backward(dout, x, weight, out=(out[0], dweight))),
        "swiglu": (5, lambda: rocmkern.swiglu_backward(dout, x, y, out=(out[0], out[1]))),
        "rope": (2, lambda: rocmkern.rope_backward(given, places[None], out=turned)),
    }
    size, copied = x.numel() * x.element_size(), 0.0
    for name, (arrays, call) in moved.items():
        taken = milliseconds(call, 20)
        copied = copied or size * arrays / taken
        print(f"{name:38} {1e3 * taken:6.0f} us {size * arrays / taken / copied:6.0%} of a copy's bandwidth")


def loss(dtype: torch.dtype) -> None:
    """Time and memory of a linear layer and its cross-entropy, forward and gradients."""
    x = torch.randn(TOKENS, WIDTH, device=DEVICE, dtype=dtype, requires_grad=True)
    weight = (0.02 * torch.randn(VOCABULARY, WIDTH, device=DEVICE)).to(dtype).requires_grad_()
    target = torch.randint(VOCABULARY, (TOKENS,), device=DEVICE)

    def theirs() -> Any:
        logits = torch.nn.functional.linear(x, weight).float()
        return torch.autograd.grad(torch.nn.functional.cross_entropy(logits, target), (x, weight))

    def ours() -> Any:
        return torch.autograd.grad(rocmkern.linear_cross_entropy(x, weight, target)[0], (x, weight))

    calls = {"ours": ours, "PyTorch": theirs}
    memory = {name: megabytes(call) for name, call in calls.items()}
    times = {name: milliseconds(call, 3) for name, call in calls.items()}
    both = f"{times['ours'] / times['PyTorch']:.2f} of its time, {memory['ours'] / memory['PyTorch']:.1%} of its memory"
    for name in calls:
        print(f"linear_cross_entropy {str(dtype)[6:]}, {name:8} {times[name]:6.1f} ms {memory[name]:6.0f} MB")
    print(f"{'ours by that of PyTorch':38} {both}")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=("attention", "rows", "loss"))
    parser.add_argument("--dtype", choices=("float16", "bfloat16"), default="float16")
    options = parser.parse_args()
    print(torch.cuda.get_device_name())
    for part in (attention, rows, loss):
        if options.only in (None, part.__name__):
            part(getattr(torch, options.dtype))


if __name__ == "__main__":
    main()
