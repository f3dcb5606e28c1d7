"""Sampling: the generator's published answers, frequencies, supports, ties, and what is refused."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

import rocmkern
from rocmkern import tile as T
from rocmkern.kernels.sample import philox
from rocmkern.reference import sampling as oracle
from rocmkern.runtime.errors import ArgumentError
from rocmkern.targets import current_target, using

TARGETS = ("python", "cpu")

# Counter, key and result, from the test vectors that accompany Salmon et al. (2011).
PI = (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344), (0xA4093822, 0x299F31D0)
KNOWN_ANSWERS = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((2**32 - 1,) * 4, (2**32 - 1,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (*PI, (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1)),
]


@dataclass(frozen=True)
class Config(T.Config):
    """One row."""

    m: int = 1


@T.kernel
def random_words(
    cfg, out: T.Tensor[1], c0: T.Int, c1: T.Int, c2: T.Int, c3: T.Int, k0: T.Int, k1: T.Int
):  # fmt: skip
    row = T.row_index(cfg, cfg.m)
    r0, r1, r2, r3 = philox(c0, c1, c2, c3, k0, k1)
    # In halves, because rows are int32.
    T.store_rows(out, (0,), row + (r0 >> 16), row == 0)
    T.store_rows(out, (1,), row + (r0 & 0xFFFF), row == 0)
    T.store_rows(out, (2,), row + (r1 >> 16), row == 0)
    T.store_rows(out, (3,), row + (r1 & 0xFFFF), row == 0)
    T.store_rows(out, (4,), row + (r2 >> 16), row == 0)
    T.store_rows(out, (5,), row + (r2 & 0xFFFF), row == 0)
    T.store_rows(out, (6,), row + (r3 >> 16), row == 0)
    T.store_rows(out, (7,), row + (r3 & 0xFFFF), row == 0)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(("counter", "key", "expected"), KNOWN_ANSWERS)
def test_the_generator_gives_the_published_answers(target, counter, key, expected):
    halves = np.zeros(8, np.int32)
    with using(target):
        chosen = current_target()
        chosen.launch(random_words, Config(arch=chosen.arch), (1, 1, 1), (halves, *counter, *key))
    assert tuple((halves[::2].astype(np.int64) << 16) + halves[1::2]) == expected
    assert oracle.philox(counter, key) == expected


def draws(logits, count, **options):
    """Tokens of `count` draws from one row of logits, each row with a counter of its own."""
    rows = np.broadcast_to(np.asarray(logits, np.float32), (count, len(logits)))
    return rocmkern.sample(rows, **options)


def excess(tokens, probabilities):
    """Chi-square of observed and expected counts, in standard deviations above its mean."""
    expected = probabilities[probabilities > 0] * len(tokens)
    counts = np.bincount(tokens, minlength=len(probabilities))
    assert not counts[probabilities == 0].any()
    freedom = len(expected) - 1
    square = ((counts[probabilities > 0] - expected) ** 2 / expected).sum()
    return (square - freedom) / np.sqrt(2 * freedom)


@pytest.mark.parametrize(
    "options", [{}, {"temperature": 0.5}, {"top_k": 8}, {"top_p": 0.7}, {"top_k": 12, "top_p": 0.8, "temperature": 2.0}]
)
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_frequencies_are_the_probabilities(options, seed):
    logits = np.random.default_rng(9).standard_normal(40).astype(np.float32)
    probabilities = oracle.probabilities(logits[None], **options)[0]
    with using("cpu"):
        tokens = draws(logits, 20_000, seed=seed, **options)
    assert abs(excess(tokens, probabilities)) < 4


def test_frequencies_of_steps_are_the_probabilities():
    logits = np.random.default_rng(10).standard_normal((1, 20)).astype(np.float32)
    with using("cpu"):
        tokens = np.array([rocmkern.sample(logits, seed=5, offset=step)[0] for step in range(5000)])
    assert abs(excess(tokens, oracle.probabilities(logits)[0])) < 4


@pytest.mark.parametrize("target", TARGETS)
def test_a_row_does_not_depend_on_the_rest_of_the_batch(target):
    logits = np.random.default_rng(11).standard_normal((6, 100)).astype(np.float32)
    with using(target):
        together = rocmkern.sample(logits, seed=2**63 + 5, offset=2**40 + 1)
        shorter = rocmkern.sample(logits[:3], seed=2**63 + 5, offset=2**40 + 1)
        again = rocmkern.sample(logits, seed=2**63 + 5, offset=2**40 + 2)
    np.testing.assert_array_equal(together[:3], shorter)
    assert (together != again).any()


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("top_k", [1, 2, 3, 4, 5, 6, 7, 50])
def test_ties_with_the_kth_largest_are_kept(target, top_k):
    logits = [1.0, 3.0, 2.0, 3.0, -np.inf, 2.0, 0.0]
    ordered = sorted((x for x in logits if np.isfinite(x)), reverse=True)
    kept = {i for i, x in enumerate(logits) if x >= ordered[min(top_k, len(ordered)) - 1]}
    with using(target):
        tokens = draws(logits, 200 if target == "python" else 2000, top_k=top_k, temperature=4.0, seed=3)
    assert set(tokens) == kept


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(("top_p", "kept"), [(0.2, {1, 3}), (0.79, {1, 3}), (0.81, {0, 1, 3}), (1.0, {0, 1, 2, 3})])
def test_ties_with_the_last_of_top_p_are_kept(target, top_p, kept):
    logits = np.log([0.15, 0.4, 0.05, 0.4])
    with using(target):
        assert set(draws(logits, 300 if target == "python" else 3000, top_p=top_p, seed=4)) == kept


@pytest.mark.parametrize("target", TARGETS)
def test_extreme_logits(target):
    top = float(np.finfo(np.float32).max)
    rows = np.array(
        [[-top, -top, -np.inf], [top, -top, 0.0], [-np.inf, 1e-45, -np.inf], [-0.0, 0.0, -1e30]], np.float32
    )
    with using(target):
        for options in ({}, {"top_k": 1}, {"top_p": 0.5}, {"temperature": 1e-37}, {"temperature": 1e37}):
            tokens = rocmkern.sample(rows, seed=8, **options)
            assert tokens[0] in (0, 1) and tokens[2] == 1
            if options.get("temperature") != 1e37:
                assert tokens[1] == 0 and tokens[3] in (0, 1)
        np.testing.assert_array_equal(rocmkern.sample(rows, temperature=0, seed=0), [0, 0, 1, 0])


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(("value", "what"), [(np.nan, "NaN"), (np.inf, "plus infinity")])
@pytest.mark.parametrize("options", [{}, {"temperature": 0}, {"top_k": 2, "top_p": 0.5}])
def test_what_is_no_number_is_refused(target, value, what, options):
    logits = np.zeros((3, 70), np.float32)
    logits[1, 66] = value
    out = np.zeros(3, np.int32)
    with using(target), pytest.raises(ArgumentError, match=f"logits: got {what} in row 1"):
        rocmkern.sample(logits, seed=0, out=out, **options)
    assert (out >= 0).tolist() == [True, False, True]


@pytest.mark.parametrize("target", TARGETS)
def test_a_row_without_a_token_is_refused(target):
    logits = np.full((2, 9), -np.inf, np.float32)
    logits[0, 3] = 1
    with using(target), pytest.raises(ArgumentError, match="minus infinity only in row 1"):
        rocmkern.sample(logits, seed=0)


def test_the_result_is_of_the_kind_of_the_logits():
    logits = np.random.default_rng(12).standard_normal((4, 30)).astype(np.float16)
    tensor = rocmkern.default_manager().from_numpy(logits)
    out = np.full(4, -5, np.int32)
    with using("cpu"):
        expected = rocmkern.sample(logits, seed=6)
        given = rocmkern.sample(tensor, seed=6)
        assert rocmkern.sample(logits, seed=6, out=out) is out
    assert expected.dtype == np.int32 and isinstance(given, rocmkern.DeviceTensor)
    np.testing.assert_array_equal(given.to_numpy(), expected)
    np.testing.assert_array_equal(out, expected)


def test_a_seed_is_required():
    with pytest.raises(TypeError, match="seed"):
        rocmkern.sample(np.zeros((1, 2), np.float32))
