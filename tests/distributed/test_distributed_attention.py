"""Attention over 1, 2 and 4 ranks is that of one process: both modes, both splits, against float64."""

import ml_dtypes
import numpy as np
import pytest

pytest.importorskip("torch", reason="torch.distributed is part of PyTorch")

from by_ranks import check, drawn, over_ranks

from rocmkern.distributed.ring import divisor

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
CASES = {
    "full": {},
    "causal": {"causal": True},
    "top_left": {"causal": "top_left"},
    "window": {"causal": True, "window": (20, 0)},
    "window both sides": {"window": (9, 30)},
    "window within a rank": {"causal": True, "window": (3, 0)},
    "softcap and scale": {"causal": True, "softcap": 5.0, "scale": 0.3},
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("size", [1, 2, 4])
def test_a_ring_is_one_process(ranks, size, case):
    q, k, v = drawn(131, heads=(4, 2))
    for split in ("contiguous", "zigzag"):
        out, lse, _ = over_ranks(ranks, size, q, k, v, split=split, **CASES[case])
        check(ranks, out, lse, (q, k, v), **CASES[case])


@pytest.mark.parametrize("case", ["full", "causal", "window"])
@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("kv_heads", [4, 1])
def test_so_is_attention_by_heads(ranks, size, case, kv_heads):
    q, k, v = drawn(53, heads=(8, kv_heads))
    for split in ("contiguous", "zigzag"):
        out, lse, _ = over_ranks(ranks, size, q, k, v, split=split, mode="heads", **CASES[case])
        check(ranks, out, lse, (q, k, v), **CASES[case])


@pytest.mark.parametrize("kv_heads", [8, 2, 1])
def test_long_sequences_go_in_pieces_and_heads_in_rounds(ranks, kv_heads):
    """Two of each; the keys of a round are its own, or those of the next one too."""
    q, k, v = drawn(2100, heads=(8, kv_heads), batch=1, dim=16)
    options = {"causal": True, "window": (300, 0), "sinks": np.linspace(-3, 3, 8, dtype=np.float32)}
    for more in ({"mode": "heads"}, {"split": "zigzag"}):
        out, lse, _ = over_ranks(ranks, 2, q, k, v, **options, **more)
        check(ranks, out, lse, (q, k, v), **options)


@pytest.mark.parametrize(("batch", "kv_heads", "layout"), [(2, 1, "bhsd"), (4, 3, "bshd"), (2, 2, "bhsd")])
def test_where_there_are_few_heads_a_round_has_some_of_the_batch(ranks, batch, kv_heads, layout):
    q, k, v = drawn(2060, BFLOAT16, heads=(kv_heads, kv_heads), batch=batch, dim=16)
    options = {"window": (150, 40)}
    own = [x if layout == "bhsd" else np.ascontiguousarray(x.swapaxes(1, 2)) for x in (q, k, v)]
    axis = 2 if layout == "bhsd" else 1
    out, lse, _ = over_ranks(ranks, 2, *own, axis=axis, layout=layout, **options)
    check(ranks, out if layout == "bhsd" else out.swapaxes(1, 2), lse, (q, k, v), **options)


@pytest.mark.parametrize(
    ("number", "wanted", "found"), [(8, 4, 4), (5, 4, 5), (9, 4, 3), (1, 4, 1), (12, 4, 4), (11, 4, 1), (7, 1, 1)]
)
def test_rounds_are_equal(number, wanted, found):
    assert divisor(number, wanted) == found


@pytest.mark.parametrize("mode", ["ring", "heads"])
@pytest.mark.parametrize("dtype", [np.dtype(np.float16), BFLOAT16], ids=str)
def test_halves_are_rounded_once(ranks, dtype, mode):
    q, k, v = drawn(120, dtype, heads=(4, 4))
    out, lse, _ = over_ranks(ranks, 4, q, k, v, split="zigzag", mode=mode, causal=True)
    check(ranks, out, lse, (q, k, v), causal=True)


@pytest.mark.parametrize("mode", ["ring", "heads"])
@pytest.mark.parametrize("causal", [False, True, "top_left"])
def test_queries_and_keys_may_differ_in_number(ranks, mode, causal):
    q, k, v = drawn(17, keys=70)
    for swap in (False, True):
        some = (k, q, q) if swap else (q, k, v)
        out, lse, _ = over_ranks(ranks, 4, *some, mode=mode, causal=causal)
        check(ranks, out, lse, some, causal=causal)


@pytest.mark.parametrize("lengths", [(5, 0, 40, 8), (53, 0, 0, 0), (0, 0, 1, 52)])
def test_any_lengths_of_contiguous_ranks(ranks, lengths):
    q, k, v = drawn(53)
    out, lse, _ = over_ranks(ranks, 4, q, k, v, lengths=lengths, causal=True, window=(30, None))
    check(ranks, out, lse, (q, k, v), causal=True, window=(30, None))


@pytest.mark.parametrize("mode", ["ring", "heads"])
@pytest.mark.parametrize("sink", [1.5, -np.inf, 30.0])
def test_a_sink_counts_once(ranks, mode, sink):
    q, k, v = drawn(40)
    sinks = np.array([sink, 0.0, -1.0, 2.0], np.float32)
    # Keys that no query sees: rows whose only part is the sink.
    out, lse, _ = over_ranks(ranks, 2, q, k[:, :, :10], v[:, :, :10], mode=mode, causal=True, sinks=sinks)
    check(ranks, out, lse, (q, k[:, :, :10], v[:, :, :10]), causal=True, sinks=sinks)


@pytest.mark.parametrize("case", ["full", "causal", "window"])
@pytest.mark.parametrize(("size", "split", "mode"), [
    (1, "contiguous", "ring"), (2, "zigzag", "ring"), (4, "contiguous", "ring"), (4, "zigzag", "ring"),
    (4, "zigzag", "heads"),
])  # fmt: skip
def test_packed_sequences_cross_ranks(ranks, size, split, mode, case):
    cu = np.array([0, 3, 3, 60, 61, 130, 190], np.int32)
    rng = np.random.default_rng(0)
    q = rng.standard_normal((190, 4, 32), dtype=np.float32)
    k, v = rng.standard_normal((2, 190, 4, 32), dtype=np.float32)
    options = CASES[case]
    out, lse, _ = over_ranks(ranks, size, q, k, v, split=split, axis=0, mode=mode, cu_seqlens=cu, **options)
    check(ranks, out, lse, (q, k, v), **options, cu_seqlens_q=cu, cu_seqlens_k=cu)


def test_axes_in_the_other_order(ranks):
    q, k, v = drawn(60)
    turned = [np.ascontiguousarray(x.swapaxes(1, 2)) for x in (q, k, v)]
    for mode in ("ring", "heads"):
        out, lse, _ = over_ranks(ranks, 4, *turned, axis=1, split="zigzag", mode=mode, layout="bshd", causal=True)
        check(ranks, out.swapaxes(1, 2), lse, (q, k, v), causal=True)


def test_what_is_hidden_does_not_reach_the_result(ranks):
    q, k, v = drawn(64)
    expected, *_ = over_ranks(ranks, 4, q, k, v, causal=True, window=(10, 0))
    k[:, :, 40:], v[:, :, 40:] = np.nan, np.inf
    out, *_ = over_ranks(ranks, 4, q, k, v, causal=True, window=(10, 0))
    np.testing.assert_array_equal(out[:, :, :40], expected[:, :, :40])


@pytest.mark.parametrize("split", ["contiguous", "zigzag"])
def test_what_a_rank_does_not_see_is_not_sent(ranks, split):
    """Bytes that were sent, against visibility written out for every pair of tokens."""
    total, size, window = 96, 4, (15, 0)
    q, k, v = drawn(total)
    for options in ({}, {"causal": True}, {"causal": True, "window": window}):
        *_, sent = over_ranks(ranks, size, q, k, v, split=split, **options)
        i, j = np.arange(total)[:, None], np.arange(total)[None]
        visible = np.ones((total, total), bool) if not options else j <= i
        if "window" in options:
            visible &= j >= i - window[0]
        count = size if split == "contiguous" else 2 * size
        runs = np.array_split(np.arange(total), count)
        owner = lambda run: run if split == "contiguous" else min(run, 2 * size - 1 - run)  # noqa: E731
        expected = [0] * size
        for run, keys in enumerate(runs):
            for other in range(size):
                queries = np.concatenate([r for n, r in enumerate(runs) if owner(n) == other])
                if other != owner(run) and visible[np.ix_(queries, keys)].any():
                    expected[owner(run)] += len(keys) * 2 * 4 * 2 * 32 * 4  # batch, heads, k and v, D, bytes
        assert list(sent) == expected
