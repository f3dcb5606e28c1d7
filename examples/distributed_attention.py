"""Attention over the processes of torchrun, each with its part of a sequence; checked against float64.

torchrun --nproc-per-node 2 examples/distributed_attention.py
torchrun --nproc-per-node 8 examples/distributed_attention.py --backend nccl     # one card a process, AMD's too
"""

from __future__ import annotations

import argparse
import os
import time

import numpy as np
import torch
import torch.distributed as dist

import rocmkern
from rocmkern.distributed import attention, shard_sequence
from rocmkern.distributed.ranks import ranks_of


def main() -> None:
    """Cut a sequence, attend, compare this rank's rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", default="gloo", choices=["gloo", "nccl"])
    parser.add_argument("--tokens", type=int, default=1000)
    parser.add_argument("--split", default="zigzag", choices=["contiguous", "zigzag"])
    parser.add_argument("--mode", default="ring", choices=["ring", "heads"])
    options = parser.parse_args()

    device = "cpu"
    if options.backend == "nccl":
        device = f"cuda:{os.environ['LOCAL_RANK']}"
        torch.cuda.set_device(device)
    dist.init_process_group(options.backend)
    rank, size = dist.get_rank(), dist.get_world_size()
    if device == "cpu":
        rocmkern.use("cpu")
        torch.set_num_threads(1)

    rng = np.random.default_rng(0)  # a program has only its own tokens; here every rank draws all, to compare
    q = rng.standard_normal((1, 8, options.tokens, 64), dtype=np.float32)
    k, v = rng.standard_normal((2, 1, 8, options.tokens, 64), dtype=np.float32)
    own = [torch.from_numpy(shard_sequence(x, split=options.split)).to(device) for x in (q, k, v)]
    began = time.perf_counter()
    out = attention(*own, split=options.split, mode=options.mode, causal=True).cpu().numpy()
    seconds = time.perf_counter() - began

    exact = shard_sequence(rocmkern.reference.flash_attention(q, k, v, causal=True), split=options.split)
    error = np.abs(out - exact).max()
    sent = ranks_of().sent
    print(f"rank {rank} of {size}: {out.shape[2]} tokens, {sent} bytes sent, {seconds:.2f} s, error {error:.1e}")
    assert error < 1e-5
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
