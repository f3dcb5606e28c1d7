"""Into how many parts the keys of an attention are split."""

from __future__ import annotations

import time
from contextlib import contextmanager
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pytest

import rocmkern
from rocmkern.calls.view import view_of
from rocmkern.ops.attention import launch as _launch_attention
from rocmkern.ops.attention import tuning
from rocmkern.ops.attention.problem import Attention, Scores, Sequences, Tensors, Visibility


class Card(NamedTuple):
    """What the choice asks of a target."""

    arch: str
    parallelism: int


COST = tuning.Splitting()
CARDS = [Card("sm_90", 264), Card("sm_80", 216), Card("gfx1100", 84), Card("gfx942", 608), Card("cpu-avx2", 8)]


@pytest.mark.parametrize("card", CARDS, ids=lambda card: card.arch)
@pytest.mark.parametrize("blocks", [1, 3, 8, 40])
def test_few_blocks_with_many_keys_fill_the_device(card, blocks):
    splits = tuning.splits(card, COST, blocks, 2048)
    assert blocks * splits >= 0.3 * card.parallelism


@pytest.mark.parametrize("card", CARDS, ids=lambda card: card.arch)
@pytest.mark.parametrize("steps", [0, 1, 3, 7, 130, 2048])
def test_every_part_has_some_steps(card, steps):
    for blocks in (1, 8, 100, 1000):
        assert 1 <= tuning.splits(card, COST, blocks, steps) <= max(1, steps // 4)


@pytest.mark.parametrize("card", CARDS, ids=lambda card: card.arch)
def test_many_blocks_are_not_split(card):
    for steps in (8, 128):
        assert tuning.splits(card, COST, 10 * card.parallelism, steps) == 1


def test_parts_that_a_launch_joins_have_a_price_of_their_own():
    card = CARDS[0]
    costs = {}
    for itemsize in (2, 4):
        for rows in (16, 64):
            cfg = tuning.attention(card.arch, rows, 128, 128, itemsize, False)
            costs[itemsize, rows] = tuning.splitting(cfg, itemsize)
    assert costs[2, 16] == costs[4, 16] == COST
    # Prompts of 512 tokens, whose steps are 64 and 32 keys.
    assert tuning.splits(card, costs[2, 64], 64, 8) == 1
    assert tuning.splits(card, costs[4, 64], 64, 16) > 1


def test_one_worker_does_not_split():
    assert tuning.splits(Card("python", 1), COST, 1, 4096) == 1


def test_a_second_wave_of_few_blocks_is_avoided():
    # 280 of 264 blocks that run at once would take as long as two waves.
    assert tuning.splits(Card("sm_80", 264), COST, 280, 512) > 1


@pytest.mark.parametrize("head_dim", [64, 128])
def test_pages_are_read_in_longer_steps_while_no_two_blocks_share_a_multiprocessor(head_dim):
    card = CARDS[0]
    paged, dense = (
        tuning.attention(card.arch, 4, head_dim, head_dim, 2, False, paged=paged) for paged in (True, False)
    )
    assert tuning.with_splits(card, paged, card.parallelism // 4, 2).block_n > paged.block_n
    assert tuning.with_splits(card, paged, card.parallelism // 4 + 1, 2).block_n == paged.block_n
    assert tuning.with_splits(card, dense, 1, 1) == dense


def test_few_rows_without_score_modifications_are_joined_by_their_last_block():
    card = CARDS[0]
    for rows, mods, paged, joins in (
        (4, False, False, True),
        (16, False, False, True),
        (64, False, False, False),
        (4, True, False, False),
        (4, False, True, True),
    ):
        cfg = tuning.attention(card.arch, rows, 64, 64, 2, mods, paged=paged)
        assert tuning.with_splits(card, cfg, 1, 2).joins is joins
        assert not tuning.with_splits(card, cfg, 1, 1).joins


@pytest.mark.parametrize("target", ["python", "cpu"])
@pytest.mark.parametrize(("heads", "longest"), [(1, 2), (3, 1)])
def test_longer_sequences_than_said_do_not_leave_their_parts(target, monkeypatch, heads, longest):
    # Lengths in device memory are not looked at, so a bound that is too small must not lead into others' memory.
    given = []

    @contextmanager
    def fenced(shape, dtype, *_):
        band = 1 << 16
        given.append(np.full(shape[0] + 2 * band, np.nan, dtype))
        yield view_of(given[-1][band:-band])
        assert np.isnan(given[-1][:band]).all() and np.isnan(given[-1][-band:]).all()

    monkeypatch.setattr(_launch_attention, "inner_result", fenced)
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((90, n, 16)).astype(np.float32) for n in (heads, 1, 1))
    out, cumulative = np.full((1, heads, 90, 16), 99, np.float32), np.int32([0, 40, 42, 90])
    tensors = Tensors.of(q, k, v, "bhsd", packed=True)
    sequences = Sequences.packed(tensors, cumulative, cumulative, None, None)
    scores = Scores.of(tensors, sequences, scale=0.25, softcap=None, alibi_slopes=None, sinks=None)
    problem = Attention(tensors, Visibility.of(False, None), scores, replace(sequences, max_q=longest), num_splits=3)
    with rocmkern.use(target):
        _launch_attention.launch_attention(problem, view_of(out), None, None)
    assert len(given) == 1, "there was a second launch, which has no bound to keep"
    assert np.isfinite(given[0]).any()
    exact = rocmkern.reference.flash_attention(*(x[40:42][None] for x in (q, k, v)), layout="bshd")
    if longest == 2:
        np.testing.assert_allclose(out[0, :, 40:42], exact[0].transpose(1, 0, 2), atol=1e-5)


def test_more_parts_than_keys_cost_nothing():
    q, k = np.ones((1, 2, 1, 8), np.float32), np.random.default_rng(0).standard_normal((1, 2, 40, 8), dtype=np.float32)
    few = rocmkern.decode_attention(q, k, k, num_splits=40)
    started = time.process_time()
    np.testing.assert_array_equal(rocmkern.decode_attention(q, k, k, num_splits=10**6), few)
    np.testing.assert_array_equal(rocmkern.decode_attention(q, k, k, num_splits=2**62), few)
    assert time.process_time() - started < 1
