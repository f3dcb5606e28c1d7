"""Plans of calls that look at values in host memory: other values, other answers, the same errors."""

from __future__ import annotations

import numpy as np
import pytest

import rocmkern
from rocmkern import reference
from rocmkern.calls.replay import HostPlan
from rocmkern.runtime.errors import ArgumentError

pytestmark = pytest.mark.usefixtures("no_plans")
RNG = np.random.default_rng(0)


def normal(*shape):
    return RNG.standard_normal(shape, dtype=np.float32)


def int32(*numbers):
    return np.array(numbers, np.int32)


TABLE, HEADS, ROWS, CACHE = normal(7, 8), normal(4, 2, 8), normal(9, 2, 8), normal(6, 4, 2, 8)
PAGES = int32(3, 1, 5, 0).reshape(2, 2)

# Name: the operation, what is fixed of a call, values that change from one call to the next, and those that are wrong.
CALLS = {
    "embedding": (
        "embedding",
        lambda indices: ((TABLE, indices), {}),
        [np.array([0, 6]), np.array([5, 5]), np.array([1, 2])],
        (np.array([0, 7]), "indices: got 7 at index"),
    ),
    "embedding int32": (
        "embedding",
        lambda indices: ((TABLE, indices), {}),
        [int32(0, 6), int32(5, 5), int32(1, 2)],
        (int32(-1, 0), "indices: got -1 at index"),
    ),
    "rope": (
        "rope",
        lambda positions: ((HEADS, positions), {"scaling": rocmkern.LinearScaling(2.0)}),
        [np.arange(4), np.array([9, 1, 70, 2]), np.array([-3, 5, 5, 5])],
        (np.array([0, 2**31, 1, 2]), "positions: got numbers from 0 to 2147483648"),
    ),
    "freq_factors": (
        "rope",
        lambda factors: ((HEADS, int32(0, 1, 2, 3)), {"freq_factors": factors}),
        [np.array([1.0, 2.0, 3.0, 4.0]), np.array([4.0, 3.0, 2.0, 1.0]), np.array([1.0, 1.0, 1.0, 1.0])],
        (np.array([1.0, 0.0, 1.0, 1.0]), "freq_factors: got 0.0 for pair 1"),
    ),
    "packed": (
        "flash_attention",
        lambda lengths: ((ROWS,) * 3, {"cu_seqlens_q": lengths, "cu_seqlens_k": lengths.copy(), "causal": True}),
        [int32(0, 5, 9), int32(0, 9, 9), int32(0, 4, 9)],  # the last two have another longest sequence than the first
        (int32(0, 5, 8), "cu_seqlens_q: got 8 as the last element"),
    ),
    "packed with a bound": (
        "flash_attention",
        lambda lengths: (
            (ROWS,) * 3,
            {"cu_seqlens_q": lengths, "cu_seqlens_k": lengths, "max_seqlen_q": 7, "max_seqlen_k": 7},
        ),
        [int32(0, 5, 9), int32(0, 7, 9), int32(0, 4, 9)],
        (int32(0, 8, 9), "max_seqlen_q: got 7;"),
    ),
    "sinks": (
        "flash_attention",
        lambda sinks: ((HEADS[None],) * 3, {"sinks": sinks}),
        [np.arange(4, dtype=np.float16), np.ones(4, np.float16), -np.ones(4, np.float16)],
        (np.ones(3, np.float16), "sinks: got shape"),
    ),
    "pages": (
        "paged_attention",
        lambda lengths: ((HEADS[:2], CACHE, CACHE, PAGES, lengths), {}),
        [int32(8, 3), int32(2, 8), int32(5, 0)],
        (int32(9, 3), "block_table: got 2 blocks for the 9 tokens"),
    ),
    "table": (
        "paged_attention",
        lambda table: ((HEADS[:2], CACHE, CACHE, table, int32(8, 3)), {}),
        [PAGES, PAGES[::-1].copy(), int32(0, 1, 2, 77).reshape(2, 2)],  # what is not needed may be wrong
        (int32(0, 6, 2, 3).reshape(2, 2), r"block_table: got block 6 at \[0, 1\]"),
    ),
    "scales": (
        "paged_attention",
        lambda scale: (
            (HEADS[:2], CACHE.astype(np.int8), CACHE.astype(np.int8), PAGES, int32(8, 3)),
            {"key_scale": scale},
        ),
        [np.float32([0.5, 1]), np.float32([2, 1]), np.float32([1, 3])],
        (np.float32([1, 0]), "key_scale: got numbers that are not finite and positive"),
    ),
}


@pytest.mark.parametrize("case", CALLS.values(), ids=CALLS)
def test_a_plan_asks_again(case):
    name, call, values, (wrong, words) = case
    operation = getattr(rocmkern, name)
    with rocmkern.use("cpu"):
        for value in values * 2:
            args, kwargs = call(value)
            exact = getattr(reference, name)(*args, **kwargs)
            np.testing.assert_allclose(operation(*args, **kwargs), exact, atol=2e-5)
        plans = [plan for plan in operation.plans._young.values() if isinstance(plan, HostPlan)]
        assert plans, "no call was planned"
        args, kwargs = call(wrong)
        for way in (operation, operation.__wrapped__):
            with pytest.raises(ArgumentError, match=words):
                way(*args, **kwargs)


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize("positions", [True, False])
def test_slots_of_a_plan(dtype, positions):
    k, v = normal(3, 2, 8), normal(3, 2, 8)
    keys, values = np.zeros((2, 4, 2, 8), np.float32), np.zeros((2, 4, 2, 8), np.float32)
    expected = keys.copy(), values.copy()
    with rocmkern.use("cpu"):
        for slots in ([0, 1, 2], [7, -1, 3], [4, 6, 5]):
            slots = np.array(slots, dtype)
            where = slots + 20 if positions else None
            rocmkern.rope_append_kv(k, v, where, keys, values, slots)
            turned = reference.rope(k, where) if positions else k
            for cache, rows in zip(expected, (turned, v), strict=True):
                cache.reshape(8, 2, 8)[slots[slots >= 0]] = rows[slots >= 0]
        (plan,) = rocmkern.rope_append_kv.plans._young.values()
        assert isinstance(plan, HostPlan)
        for slots, words in (([0, 0, 1], "slot 0 more than once"), ([0, 8, 1], "slots: got 8;")):
            with pytest.raises(ArgumentError, match=words):
                rocmkern.rope_append_kv(k, v, np.arange(3, dtype=dtype), keys, values, np.array(slots, dtype))
    np.testing.assert_allclose(keys, expected[0], atol=1e-6)
    np.testing.assert_array_equal(values, expected[1])


def test_what_is_asked_of_a_part_of_an_argument_is_not_planned():
    """The question would be asked of the whole array."""
    from rocmkern.calls import plan, values
    from rocmkern.calls.arguments import accept

    def operation(x, out):
        values.look(np.ndarray.tolist, accept("x", x).view[:1])
        rocmkern.scale(x, 2.0, out=out)
        return out

    decorated = plan.planned(operation)
    with rocmkern.use("cpu"):
        for _ in range(2):
            decorated(normal(4), normal(4))
    assert set(decorated.plans._young.values()) == {None}


def test_a_call_without_arrays_is_planned():
    with rocmkern.use("cpu"):
        for _ in range(2):
            for size in (2, 3):
                np.testing.assert_array_equal(rocmkern.causal_mask(size, 4), reference.causal_mask(size, 4))
        first, second = (rocmkern.causal_mask(2, 4) for _ in range(2))
    assert first is not second and not np.shares_memory(first, second)
    assert len(plans := list(rocmkern.causal_mask.plans._young.values())) == 2
    assert all(isinstance(plan, HostPlan) for plan in plans)
