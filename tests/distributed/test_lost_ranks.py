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


def test_messages_of_a_group_do_not_count_other_groups(ranks):
    """With NCCL they have connections of their own, also where some processes are in more groups than others."""
    name = "steps:numbers_over_a_control_of_its_own"
    assert ranks.call(name, [()]) == [[0]]
    assert ranks.call(name, [()] * 3) == [[0, 1, 2]] * 3
    assert ranks.call(name, [()] * SIZE) == [[0, 1, 2, 3]] * SIZE


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


def test_what_the_backend_does_not_reach_is_named(ranks):
    (outcome,) = ranks.outcomes("steps:of_a_card", [()])
    assert isinstance(outcome, ArgumentError)
    assert str(outcome) == "q: got a tensor on cuda:0; allowed: what the backends of the group reach: host memory"


def test_processes_of_ranks_have_a_backend_and_cards():
    with pytest.raises(ArgumentError, match="backend"):
        LocalRanks(2, "mpi")
    with pytest.raises(ArgumentError, match="the cards that PyTorch sees at most"):
        LocalRanks(1000, "nccl")


def test_not_the_same_operation(ranks):
    """What a rank waits for in vain is told too, where none is missing."""
    ranks.call("steps:attention", calls())  # from then on all give signs of life
    outcomes = ranks.outcomes("steps:absent", [(rank == 2,) for rank in range(2)] + [(True,)])
    assert outcomes[2] == "absent"
    for outcome in outcomes[:2]:
        assert isinstance(outcome, PeerError)
        assert outcome.ranks == ()
        assert "rank 2 is in" in str(outcome)
    # Who gives up first; the other one may have come later, and finds that.
    assert any("did not come within 1 s" in str(outcome) for outcome in outcomes[:2])


def test_a_rank_that_has_made_no_call_is_named(start_ranks):
    with start_ranks(2) as ranks:
        outcomes = ranks.outcomes("steps:absent", [(False,), (True,)])
    assert outcomes[0].ranks == (1,)
    assert "and none before of 1: who has made no call yet" in str(outcomes[0])


@pytest.mark.parametrize(
    ("how", "victim", "timeout"), [(signal.SIGKILL, 0, 3600.0), (signal.SIGSTOP, 2, 15.0)], ids=["killed", "stopped"]
)
def test_a_rank_that_ends_or_hangs_is_named_on_all_others(own_ranks, how, victim, timeout):
    """A broken connection wakes all at once; of one that says nothing only the deadline tells."""
    ranks = own_ranks
    assert ranks.call("steps:until_it_fails", [(0, 3600.0)] * SIZE) == [(None, 0)] * SIZE
    pids = [process.pid for process in ranks.processes]
    ranks.begin("steps:until_it_fails", [(10**9, timeout)] * SIZE)
    time.sleep(1.0)
    os.kill(pids[victim], how)
    try:
        # And again at once: the group is lost.
        for again in (False, True):
            if again:
                ranks.begin("steps:until_it_fails", [(1, 3600.0)] * SIZE)
            for rank in set(range(SIZE)) - {victim}:
                error, leaked = ranks.answer(rank)
                assert isinstance(error, PeerError), error
                assert error.ranks == (victim,)
                assert f"rank {victim} of 4" in str(error)
                assert leaked == 0
    finally:
        os.kill(pids[victim], signal.SIGKILL)


@pytest.mark.parametrize("step", [1, -1], ids=["the_next_one", "the_one_before"])
def test_who_waits_for_one_that_waits_for_a_dead_one_is_told(own_ranks, step):
    """Each rank is connected to all, but hears of the dead one only by the rank that it waits for."""
    ranks, victim = own_ranks, 0
    ranks.call("steps:until_it_fails", [(0, 60.0)] * SIZE)
    pid = ranks.processes[victim].pid
    ranks.begin("steps:waits_for", [((rank + step) % SIZE, 3600.0) for rank in range(SIZE)])
    time.sleep(0.5)
    os.kill(pid, signal.SIGKILL)
    for rank in set(range(SIZE)) - {victim}:
        error = ranks.answer(rank, 120.0)
        assert isinstance(error, PeerError), error
        assert error.ranks == (victim,)


@pytest.fixture
def own_ranks(start_ranks):
    with start_ranks(SIZE) as started:
        assert isinstance(started, LocalRanks)
        yield started
