"""Ranks on cards, by NCCL or RCCL, which PyTorch calls by the same name: as close to float64 as a plain call on a card.

Each rank is a process with a card of its own. One card is enough for one rank, which has no other to send to; what
needs more cards than there are is skipped.
"""

from __future__ import annotations

import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch.distributed is part of PyTorch")
import torch.distributed as dist  # noqa: E402

# What is asked of cards is asked of the CPU there.
sys.path.append(str(Path(__file__).parents[1] / "distributed"))
from by_ranks import (  # noqa: E402
    check,
    check_decoder,
    check_gradients,
    check_linears,
    check_mlp,
    drawn,
    drawn_for_gradients,
    gradients_over_ranks,
    over_ranks,
)

from rocmkern.decoder import DecoderConfig  # noqa: E402
from rocmkern.distributed import LocalRanks  # noqa: E402
from rocmkern.distributed.positions import UNLIMITED, Tokens, Visibility, runs  # noqa: E402
from rocmkern.distributed.traffic import ring_bytes  # noqa: E402
from rocmkern.runtime.errors import ArgumentError  # noqa: E402

CARDS = torch.cuda.device_count() if dist.is_available() and dist.is_nccl_available() else 0
SIZES = [
    pytest.param(size, marks=pytest.mark.skipif(size > CARDS, reason=f"{CARDS} cards that PyTorch and NCCL can use"))
    for size in (1, 2, 4)
]
every_size = pytest.mark.parametrize("size", SIZES)
#: A causal call by heads needs as many heads as ranks; 777 tokens are no multiple of anything.
CASES = {
    "contiguous": {"causal": True},
    "zigzag": {"causal": True, "split": "zigzag"},
    "window": {"causal": True, "window": (100, 0)},
    "heads": {"causal": True, "mode": "heads"},
}
HALVES = [np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16)]


@pytest.fixture(scope="module")
def ranks():
    """As many processes as there are cards, up to four."""
    with LocalRanks(min(CARDS, 4), "nccl") as started:
        yield started


def plain(options):
    """What of the options a call without ranks has."""
    return {name: value for name, value in options.items() if name not in ("split", "mode")}


@every_size
@pytest.mark.parametrize("case", CASES)
def test_attention(ranks, size, case):
    arrays = drawn(777, heads=(8, 4), batch=1, dim=64)
    out, lse, sent = over_ranks(ranks, size, *arrays, **CASES[case])
    check(ranks, out, lse, arrays, **plain(CASES[case]))
    if case != "heads":
        split, (left, *_) = CASES[case].get("split", "contiguous"), CASES[case].get("window", (UNLIMITED,))
        lengths = tuple(sum(b - a for a, b in runs(777, rank, size, split)) for rank in range(size))
        tokens = Tokens(split, lengths)
        assert list(sent) == ring_bytes(tokens, tokens, Visibility(left, 0, 0), 2 * 4 * 64 * 4)


@every_size
@pytest.mark.parametrize("case", ["zigzag", "heads"])
@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_attention_of_halves(ranks, size, dtype, case):
    arrays = drawn(777, dtype, heads=(8, 4), batch=1, dim=64)
    out, lse, _ = over_ranks(ranks, size, *arrays, **CASES[case])
    check(ranks, out, lse, arrays, **plain(CASES[case]))


@every_size
@pytest.mark.parametrize("mode", ["ring", "heads"])
def test_packed_sequences_and_a_sink(ranks, size, mode):
    cu = np.array([0, 3, 3, 160, 161, 330, 500], np.int32)
    arrays = [x[0].swapaxes(0, 1).copy() for x in drawn(500, heads=(4, 4), batch=1, dim=64)]
    out, lse, _ = over_ranks(ranks, size, *arrays, axis=0, mode=mode, cu_seqlens=cu, causal=True)
    check(ranks, out, lse, arrays, causal=True, cu_seqlens_q=cu, cu_seqlens_k=cu)
    arrays, sinks = drawn(300, dim=64), np.array([1.5, -np.inf, 0.0, 30.0], np.float32)
    out, lse, _ = over_ranks(ranks, size, *arrays, mode=mode, causal=True, sinks=sinks)
    check(ranks, out, lse, arrays, causal=True, sinks=sinks)


@every_size
@pytest.mark.parametrize("case", CASES)
def test_gradients_of_attention(ranks, size, case):
    arrays = drawn_for_gradients(777, heads=(8, 4), batch=1, dim=64)
    found = gradients_over_ranks(ranks, size, arrays, **CASES[case])
    check_gradients(ranks, found, arrays, **plain(CASES[case]))


@every_size
@pytest.mark.parametrize("sequence", [False, True])
def test_linear_layers(ranks, size, sequence):
    check_linears(ranks, size, sequence)


@every_size
@pytest.mark.parametrize("form", [None, "q8_0"])
def test_an_mlp(ranks, size, form):
    check_mlp(ranks, size, form, sequence=True)


@every_size
@pytest.mark.parametrize("form", [None, "q8_0"])
def test_a_decoder(ranks, size, form):
    check_decoder(ranks, size, DecoderConfig(50, 64, 128, 2, 8, 4, 32, rope_base=500.0), form)


@every_size
def test_what_nccl_does_not_reach_is_refused(ranks, size):
    for outcome in ranks.outcomes("steps:of_host_memory", [()] * size):
        assert isinstance(outcome, ArgumentError)
        assert outcome.argument == "q"
        assert "cuda devices with nccl" in str(outcome)
    check_linears(ranks, size, True)
