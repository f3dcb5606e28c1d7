"""Sampling: the generator's published answers, frequencies, supports, ties, and what is refused."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

import rocmkern
from rocmkern import tile as T
from rocmkern.ops.sampling import reference as oracle
from rocmkern.ops.sampling.kernels.sample import philox
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
    return rocmkern.sample(rows, offset=np.arange(count), **options)


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


def test_frequencies_of_seeds_are_the_probabilities():
    logits = np.random.default_rng(10).standard_normal(20).astype(np.float32)
    rows = np.broadcast_to(logits, (5000, 20))
    with using("cpu"):
        tokens = rocmkern.sample(rows, seed=np.arange(5000, dtype=np.uint64) << np.uint64(32), offset=2**33)
    assert abs(excess(tokens, oracle.probabilities(logits[None])[0])) < 4


def numbers_of_rows(count):
    """Arrays of all numbers that a row may have of its own."""
    rng = np.random.default_rng(12)
    return {
        "temperature": np.where(np.arange(count) % 4 == 1, 0, rng.uniform(0.5, 2, count)),
        "top_k": rng.integers(1, 60, count),
        "top_p": rng.uniform(0.2, 1, count).astype(np.float16),
        "seed": rng.integers(0, 2**64, count, np.uint64),
        "offset": rng.integers(0, 2**64, count, np.uint64),
    }


@pytest.mark.parametrize("target", TARGETS)
def test_a_row_does_not_depend_on_the_rest_of_the_batch(target):
    logits = np.random.default_rng(11).standard_normal((12, 100)).astype(np.float32)
    numbers, order = numbers_of_rows(12), np.random.default_rng(13).permutation(12)
    with using(target):
        for options in ({"seed": 2**63 + 5, "offset": 2**40 + 1}, numbers):

            def of(rows, options=options):
                own = {k: v[rows] if isinstance(v, np.ndarray) else v for k, v in options.items()}
                return rocmkern.sample(logits[rows], **own)

            together = of(slice(None))
            np.testing.assert_array_equal(of(order), together[order])
            np.testing.assert_array_equal(of([3, 7, 8]), together[[3, 7, 8]])
            np.testing.assert_array_equal(np.concatenate([of([row]) for row in range(12)]), together)


@pytest.mark.parametrize("target", TARGETS)
def test_forty_steps_of_a_sequence_are_the_same_beside_another_one(target):
    rng = np.random.default_rng(14)
    with using(target):
        for step in range(40):
            a, b = rng.standard_normal((2, 50)).astype(np.float32)
            alone = rocmkern.sample(b[None], seed=7, offset=step)
            assert alone[0] == rocmkern.sample(np.stack([a, b]), seed=7, offset=step)[1]


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", ["temperature", "top_k", "top_p", "seed", "offset"])
def test_an_array_of_one_number_for_each_row_is_that_number(target, name):
    logits = np.random.default_rng(15).standard_normal((5, 100)).astype(np.float32)
    common = {"temperature": 0.7, "top_k": 20, "top_p": 0.9, "seed": 2**64 - 2, "offset": 2**63 + 1}
    array = np.full(5, common[name], np.uint64 if name in ("seed", "offset") else None)
    with using(target):
        np.testing.assert_array_equal(
            rocmkern.sample(logits, **common | {name: array}), rocmkern.sample(logits, **common)
        )


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("word", [0, 2**31, 2**32 - 1, 2**32, 2**63 - 1, 2**63, 2**64 - 1])
def test_seeds_and_offsets_have_64_bits(target, word):
    logits = np.random.default_rng(17).standard_normal((4, 200)).astype(np.float32)
    with using(target):
        for options in ({"seed": word}, {"seed": 1, "offset": word}):
            np.testing.assert_array_equal(rocmkern.sample(logits, **options), oracle.sample(logits, **options))


def test_arrays_of_numbers_may_lie_anywhere():
    logits = np.random.default_rng(16).standard_normal((6, 40)).astype(np.float32)
    numbers = numbers_of_rows(6)
    backwards = {name: array[::-1].copy()[::-1] for name, array in numbers.items()}
    tensors = {name: rocmkern.default_manager().from_numpy(array) for name, array in numbers.items()}
    with using("cpu"):
        expected = rocmkern.sample(logits, **numbers)
        for other in (backwards, tensors):
            np.testing.assert_array_equal(rocmkern.sample(logits, **other), expected)
    np.testing.assert_array_equal(oracle.sample(logits, **numbers), expected)


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("temperature", np.array([1, -0.5, 1]), "-0.5 in row 1"),
        ("temperature", np.array([1, 1, np.nan]), "nan in row 2"),
        ("temperature", np.array([np.inf, 1, 1]), "inf in row 0"),
        ("temperature", np.array([1, 1, 1e-42]), "1e-42 in row 2"),
        ("top_k", np.array([5, 0, 5]), "0 in row 1"),
        ("top_p", np.array([0.5, 0.5, 0]), "0.0 in row 2"),
        ("top_p", np.array([0.5, 1.5, 0.5]), "1.5 in row 1"),
        ("seed", np.array([0, -1, 0]), "-1 in row 1"),
        ("offset", np.array([-7, 0, 0]), "-7 in row 0"),
        ("seed", np.arange(2), r"shape \(2,\); allowed: a number, or shape \(3,\)"),
        ("seed", np.arange(3)[None], r"shape \(1, 3\)"),
        ("seed", np.zeros(3), "dtype"),
        ("top_k", np.ones(3), "dtype"),
        ("temperature", np.ones(3, np.int64), "dtype"),
        ("seed", [1, 2, 3], "list"),
    ],
)
def test_a_bad_number_of_a_row_is_named(name, value, words):
    options = {"seed": 0, name: value}
    with using("python"), pytest.raises(ArgumentError, match=words) as error:
        rocmkern.sample(np.zeros((3, 4), np.float32), **options)
    assert error.value.argument == name


def test_the_result_must_not_lie_in_the_numbers():
    top_k = np.ones(3, np.int32)
    with pytest.raises(ArgumentError, match="overlaps with top_k"):
        rocmkern.sample(np.zeros((3, 4), np.float32), top_k=top_k, seed=0, out=top_k)


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
@pytest.mark.parametrize("rest", [0.0, -np.inf, np.inf])
@pytest.mark.parametrize("column", [0, 69])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_plus_infinity_is_refused_wherever_it_is_and_whatever_is_beside_it(target, rest, column, dtype):
    logits = np.zeros((2, 70), dtype)
    logits[1], logits[1, column] = rest, np.inf
    for options in ({}, {"temperature": np.array([1.0, 0.5])}):
        with using(target), pytest.raises(ArgumentError, match="logits: got plus infinity in row 1"):
            rocmkern.sample(logits, seed=0, **options)
    with pytest.raises(ValueError, match="plus infinity"):
        oracle.sample(logits, seed=0)


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
