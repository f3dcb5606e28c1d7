"""Does sending hide behind arithmetic? A ring over gloo beside the same arithmetic with keys that are there already.

    python benchmarks/ring_overlap.py                     # two processes, a thread each
    python benchmarks/ring_overlap.py --tokens 4096 --rounds 9

Both are timed in turns, in the same processes, and the shortest of each is compared: a busy machine only adds.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import numpy as np

import rocmkern
from rocmkern.distributed import LocalRanks


def rounds(group: Any, tokens: int, count: int) -> tuple[list[float], list[float]]:
    """Seconds of a ring, and of the same calls without sending, on one rank."""
    import torch.distributed as dist

    from rocmkern.distributed import ring
    from rocmkern.distributed.problem import Options, agreed_problem
    from rocmkern.distributed.ranks import ranks_of

    ranks, x = ranks_of(group), np.random.default_rng(0).standard_normal((3, 1, 8, tokens, 64), dtype=np.float32)
    options = Options("bshd", "contiguous", "ring", False, None, None, None, False)
    x = np.ascontiguousarray(x.swapaxes(2, 3))
    found: tuple[list[float], list[float]] = ([], [])
    with rocmkern.using("cpu"), ranks.call("attention", 60.0):
        problem = agreed_problem(ranks, *x, options, None, None)
        for _ in range(count + 1):
            for with_sending, times in zip((True, False), found, strict=True):
                dist.barrier(group)
                began = time.perf_counter()
                if with_sending:
                    results = ring.ring_attention(ranks, problem)
                else:
                    _without_sending(ranks, problem, *results)
                times.append(time.perf_counter() - began)
    return found[0][1:], found[1][1:]


def _without_sending(ranks: Any, problem: Any, out: Any, lse: Any) -> None:
    """What `ring_attention` does with all keys, as if this rank's were those of every other."""
    from rocmkern.distributed import ring

    every = ring.rounds_of(problem, ranks.size)
    state = ring._State(ranks.rank, every[0], out, lse)
    for some in every:
        state.begin(some)
        for rank in range(ranks.size):
            for piece in some.problem.keys.pieces(rank):
                state.see(piece, *(some.problem.rows(x, piece.all) for x in (some.problem.k, some.problem.v)))
        state.end()


def main() -> None:
    """Print the shortest times of each rank."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=2048, help="of each rank")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=7)
    given = parser.parse_args()
    with LocalRanks(given.ranks) as ranks:
        results = ranks.call("ring_overlap:rounds", [(given.tokens, given.rounds)] * given.ranks)
    for rank, (with_sending, without) in enumerate(results):
        a, b = min(with_sending), min(without)
        print(f"rank {rank}: {a * 1e3:.1f} ms with sending, {b * 1e3:.1f} ms without: {a / b:.2f}")


if __name__ == "__main__":
    main()
