"""Ranks that die, hang or make another call are named on all others, in time; nothing leaks."""

import os
import signal
import time

import numpy as np
import pytest

pytest.importorskip("torch", reason="torch.distributed is part of PyTorch")

from rocmkern.distributed import LocalRanks
from rocmkern.runtime.errors import ArgumentError, PeerError

SIZE = 4


def calls(**of_rank_2):
    x = np.ones((1, 4, 8, 16), np.float32)
    return [(x, x, x, {"causal": True, **(of_rank_2 if rank == 2 else {})}) for rank in range(SIZE)]


@pytest.mark.parametrize(
    ("options", "argument"),
    [
        ({"causal": False}, "causal"),
        ({"window": (3, 0)}, "window"),
        ({"split": "zigzag"}, "split"),
        ({"mode": "heads"}, "mode"),
        ({"softcap": 2.0}, "softcap"),
        ({"layout": "bshd"}, "layout"),
        ({"sinks": np.ones(4, np.float32)}, "sinks"),
    ],
)
def test_another_option_is_named_on_all_ranks(ranks, options, argument):
    outcomes = ranks.outcomes("steps:attention", calls(**options))
    for outcome in outcomes:
        assert isinstance(outcome, ArgumentError)
        assert outcome.argument == argument
        assert "rank 2" in str(outcome)
        assert "ranks 0, 1, 3" in str(outcome)
    assert len(ranks.call("steps:attention", calls())) == SIZE, "the group can still be used"


def test_another_element_type_and_other_lengths(ranks):
    some = calls()
    half = [x.astype(np.float16) for x in some[2][:3]]
    outcomes = ranks.outcomes("steps:attention", [*some[:2], (*half, some[2][3]), some[3]])
    assert all("dtype" in str(outcome) and "float16" in str(outcome) for outcome in outcomes)
    short = [x[:, :, :5] for x in some[2][:3]]
    zigzag = {"causal": True, "split": "zigzag"}
    outcomes = ranks.outcomes(
        "steps:attention", [(*some[0][:3], zigzag)] * 2 + [(*short, zigzag)] + [(*some[0][:3], zigzag)]
    )
    assert all(isinstance(outcome, ArgumentError) and "8, 8, 5, 8 tokens" in str(outcome) for outcome in outcomes)


def test_a_rank_that_refuses_its_arguments_tells_the_others(ranks):
    outcomes = ranks.outcomes("steps:attention", calls(scale="large"))
    assert isinstance(outcomes.pop(2), ArgumentError)
    for outcome in outcomes:
        assert isinstance(outcome, PeerError)
        assert outcome.ranks == (2,)
        assert "scale" in str(outcome)
    assert len(ranks.call("steps:attention", calls())) == SIZE


def test_not_the_same_operation(ranks):
    """What a rank waits for in vain is told too, where none is missing."""
    outcomes = ranks.outcomes("steps:absent", [(rank == 2,) for rank in range(2)] + [(True,)])
    assert outcomes[2] == "absent"
    for outcome in outcomes[:2]:
        assert isinstance(outcome, PeerError)
        assert outcome.ranks == ()
        assert "did not come within 1 s" in str(outcome)
        assert "rank 2 is in" in str(outcome)


@pytest.mark.parametrize(("how", "victim"), [(signal.SIGKILL, 0), (signal.SIGSTOP, 2)], ids=["killed", "stopped"])
def test_a_rank_that_ends_or_hangs_is_named_on_all_others(own_ranks, how, victim):
    ranks = own_ranks
    assert [error for error, *_ in ranks.call("steps:until_it_fails", [(0,)] * SIZE)] == [None] * SIZE
    pids = [process.pid for process in ranks.processes]
    ranks.begin("steps:until_it_fails", [(10_000,)] * SIZE)
    time.sleep(1.0)
    began = time.time()
    os.kill(pids[victim], how)
    try:
        others = [rank for rank in range(SIZE) if rank != victim]
        for rank in others:
            error, when, leaked = ranks.answer(rank, 30)
            assert isinstance(error, PeerError), error
            assert error.ranks == (victim,)
            assert f"rank {victim} of 4" in str(error)
            assert when - began < 10.0
            assert leaked == 0
        # And again at once: the group is lost.
        ranks.begin("steps:until_it_fails", [(1,)] * SIZE)
        for rank in others:
            error, when, _ = ranks.answer(rank, 30)
            assert isinstance(error, PeerError)
            assert error.ranks == (victim,)
    finally:
        os.kill(pids[victim], signal.SIGKILL)


@pytest.fixture
def own_ranks(start_ranks):
    with start_ranks(SIZE) as started:
        assert isinstance(started, LocalRanks)
        yield started
