"""Batch-invariant calls: a row is the same bits whatever else is in its batch."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import random_batches

import rocmkern
from rocmkern.calls import invariance
from rocmkern.ops.attention import tuning
from rocmkern.ops.linear import tuning as linear_tuning
from rocmkern.runtime.errors import ArgumentTypeError

SEED, HALF = 20, np.dtype(np.float16)


@pytest.mark.parametrize("number", range(60))
def test_rows_of_random_batches_are_the_bits_that_they_are_alone_on_the_cpu(number):
    with rocmkern.using("cpu"):
        random_batches.batch(SEED, number, most=300, dtypes=(np.dtype(np.float32), HALF)[: 1 + (number % 4 == 0)])


@pytest.mark.parametrize("number", range(20))
def test_rows_of_random_batches_are_the_bits_that_they_are_alone_in_the_interpreter(number):
    with rocmkern.using("python"):
        random_batches.batch(SEED, number, most=60, dtypes=(np.dtype(np.float32),))


def test_a_difference_of_one_bit_is_found():
    x = np.ones((2, 3), np.float32)
    random_batches.same(x, x.copy(), "equal")
    y = x.copy()
    y[1, 2] = np.nextafter(np.float32(1), np.float32(2))
    with pytest.raises(random_batches.Difference, match=r"1 of 6 elements differ, the first at \(1, 2\)"):
        random_batches.same(x, y, "rows")
    with pytest.raises(random_batches.Difference):
        random_batches.same(np.float32([0.0]), np.float32([-0.0]), "signs")


def test_without_it_few_rows_and_many_are_other_bits(normal):
    """Else these tests would show nothing."""
    x, weight = normal(100, 515), normal(300, 515)
    with rocmkern.using("cpu"):
        plain = rocmkern.linear(x, weight)
        assert (rocmkern.linear(x[:1], weight) != plain[:1]).any()
        with rocmkern.batch_invariant():
            assert (rocmkern.linear(x[:1], weight) == rocmkern.linear(x, weight)[:1]).all()
        # A plan of a call within the block is none for one outside of it.
        assert (rocmkern.linear(x[:1], weight) != plain[:1]).any()


def test_it_is_nested_and_ends_with_an_error():
    assert not invariance.active()
    with rocmkern.batch_invariant():
        with pytest.raises(ZeroDivisionError), rocmkern.batch_invariant():
            1 / 0  # noqa: B018
        assert invariance.active()
    assert not invariance.active()


def test_it_decorates_functions():
    @rocmkern.batch_invariant()
    def inside():
        return invariance.active()

    assert [inside(), inside(), invariance.active()] == [True, True, False]


def test_one_object_may_be_entered_again_and_decorate_several_functions():
    block = rocmkern.batch_invariant()
    for _ in range(2):
        with block, block:
            assert invariance.active()
        assert not invariance.active()
    first, second = block(invariance.active), block(lambda: first())
    assert second() and not invariance.active()


async def waiting():
    return invariance.active()


def yielding():
    yield invariance.active()


async def both():
    yield invariance.active()


@pytest.mark.parametrize("function", [waiting, yielding, both])
def test_what_pauses_is_not_decorated(function):
    with pytest.raises(ArgumentTypeError, match=f"{function.__name__}.*with rocmkern.batch_invariant"):
        rocmkern.batch_invariant()(function)


def test_another_thread_does_not_have_it():
    seen = []
    with rocmkern.batch_invariant():
        thread = threading.Thread(target=lambda: seen.append(invariance.active()))
        thread.start()
        thread.join()
    assert seen == [False]


def test_parts_of_the_keys_are_refused(normal):
    q, k = normal(1, 2, 1, 8), normal(1, 2, 40, 8)
    cache, table, lens = normal(3, 16, 2, 8), np.int32([[0, 1, 2]]), np.int32([40])
    with rocmkern.batch_invariant():
        for parts in (None, 1):
            assert rocmkern.decode_attention(q, k, k, num_splits=parts).shape == q.shape
        for call in (
            lambda: rocmkern.decode_attention(q, k, k, num_splits=2),
            lambda: rocmkern.paged_attention(q[:, :, 0], cache, cache, table, lens, num_splits=2),
        ):
            with pytest.raises(rocmkern.ArgumentError, match="2 within batch_invariant") as error:
                call()
            assert error.value.argument == "num_splits"


@pytest.mark.parametrize("arch", ["cpu-avx2", "gfx942", "gfx1030", "gfx1100", "sm_80", "sm_90"])
def test_variants_do_not_depend_on_rows(arch):
    """On GPUs there is one for all rows; on a CPU those that have lanes over rows."""
    sizes = tuning.blocks_of(arch).alike
    assert (len(sizes) == 1) == (not arch.startswith("cpu"))
    for itemsize in (2, 4):
        for dim in (64, 128, 256):
            chosen = {tuning.attention(arch, n, dim, dim, itemsize, False, invariant=True) for n in (1, 4, 17, 5000)}
            assert {cfg.block_m for cfg in chosen} == set(sizes)
            assert len({(cfg.block_n, cfg.wave_rows, cfg.split_kv) for cfg in chosen}) == 1
        target = type("Card", (), {"arch": arch, "parallelism": 264})
        shapes = [(products, rows, 4096) for products in (1, 9) for rows in (1, 16, 130, 4096)]
        products = {linear_tuning.product(target, s, itemsize, True, True, invariant=True) for s in shapes}
        assert len({(cfg.block_n, cfg.block_k, cfg.waves) for cfg in products}) == 1


@pytest.mark.parametrize("target", ["python", "cpu"])
def test_a_sequence_without_keys_has_its_sink_for_a_log_sum_exp(normal, target):
    """Alone, and among sequences with keys: not computed in another way because nothing is to be done."""
    q, cache, sinks = normal(2, 8, 8), normal(2, 16, 8, 8), normal(8)
    table, lens = np.int32([[0], [1]]), np.int32([0, 5])
    with rocmkern.batch_invariant(), rocmkern.using(target):
        out, lse = rocmkern.paged_attention(q, cache, cache, table, lens, sinks=sinks, return_lse=True)
        alone, of_alone = rocmkern.paged_attention(
            q[:1], cache, cache, table[:1], lens[:1], sinks=sinks, return_lse=True
        )
        none = cache[:1, :0].swapaxes(1, 2)
        _, dense = rocmkern.flash_attention(q[:1, :, None], none, none, sinks=sinks, return_lse=True)
    np.testing.assert_array_equal(alone, out[:1])
    np.testing.assert_array_equal(of_alone, lse[:, :1])
    np.testing.assert_array_equal(dense[:, :, 0].T, lse[:, :1])
