"""What a rank holds and sends is what the formulas say."""

import sys

import numpy as np
import pytest

pytest.importorskip("torch", reason="torch.distributed is part of PyTorch")

from rocmkern.distributed.positions import PIECES, UNLIMITED, Tokens, Visibility, runs
from rocmkern.distributed.ring import ROUNDS
from rocmkern.distributed.traffic import Cluster, Workload, heads_time, ring_bytes, ring_time


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the peak of a process is read from /proc")
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("case", [{"split": "contiguous"}, {"split": "zigzag"}, {"mode": "heads"}], ids=str)
def test_a_rank_holds_its_share_and_a_block_of_keys(ranks, case, dtype):
    """At most 1.2 times its queries, keys, values and results, and a block of keys and values.

    The block is what a ring sends at a time; by heads, which sends no such blocks, it is what one rank has.
    """
    arguments = (8192, 8, 32, dtype, {"causal": True, **case})
    for resident, made, one in ranks.call("steps:peak_memory", [arguments] * 2):
        allowed = 1.2 * 4 * one + 2 * one / (1 if "mode" in case else PIECES * ROUNDS)
        assert 4 * one < made <= allowed
        # Pages that something else of the process happens to touch.
        assert resident <= allowed + 1e6


@pytest.mark.parametrize("size", [2, 3, 8])
def test_bytes_of_a_ring_in_closed_form(size):
    share, b = 600, 40
    lengths = Tokens("contiguous", (share,) * size)
    full, causal = Visibility(UNLIMITED, UNLIMITED, 0), Visibility(UNLIMITED, 0, 0)
    assert ring_bytes(lengths, lengths, full, b) == [(size - 1) * share * b] * size
    assert ring_bytes(lengths, lengths, causal, b) == [(size - 1 - r) * share * b for r in range(size)]
    zigzag = Tokens("zigzag", (share,) * size)
    assert ring_bytes(zigzag, zigzag, causal, b) == [(size - 1 + r) * share * b // 2 for r in range(size)]


@pytest.mark.parametrize("case", [{}, {"causal": True}, {"causal": True, "window": (100, 0)}])
@pytest.mark.parametrize(("mode", "split"), [("ring", "contiguous"), ("ring", "zigzag"), ("heads", "zigzag")])
def test_bytes_that_are_sent(ranks, case, mode, split):
    total, size, heads, kv_heads, dim = 403, 4, 8, 4, 16
    rng = np.random.default_rng(0)
    lengths = tuple(sum(b - a for a, b in runs(total, r, size, split)) for r in range(size))
    draw = lambda h, n: rng.standard_normal((1, h, n, dim), dtype=np.float32)  # noqa: E731
    options = {**case, "mode": mode, "split": split}
    arguments = [(draw(heads, n), draw(kv_heads, n), draw(kv_heads, n), options) for n in lengths]
    sent = [result[2] for result in ranks.call("steps:attention", arguments)]
    if mode == "ring":
        seen = Visibility(case.get("window", (UNLIMITED,))[0], 0 if "causal" in case else UNLIMITED, 0)
        tokens = Tokens(split, lengths)
        assert sent == ring_bytes(tokens, tokens, seen, 2 * kv_heads * dim * 4)
    else:
        b = (heads + 2 * kv_heads) * dim * 4 // size
        back = heads // size * (dim + 1) * 4  # the result and its lse
        assert sent == [(size - 1) * n * b + (total - n) * back for n in lengths]


def test_the_times_of_the_plot():
    work = Workload(tokens=2**20, heads=64, kv_heads=8, head_dim=128)
    fast, slow = Cluster("fast", 1e15, 1e12, 1e12, latency=0), Cluster("slow", 1e15, 1e9, 1e9, latency=0)
    assert ring_time(work, fast, 8) == pytest.approx(work.arithmetic(fast, 8))
    block = 2**20 / 8 * 2 * 8 * 128 * 2
    # Nothing hides seven messages of half a block each, and whole ones from the ranks behind.
    assert ring_time(work, slow, 8) >= 7 * block / 2 / 1e9
    assert heads_time(work, fast, 8) > work.arithmetic(fast, 8)
