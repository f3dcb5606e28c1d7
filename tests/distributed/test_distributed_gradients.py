"""Gradients of attention over 1, 2 and 4 ranks are those of one process: both modes, both splits, against float64."""

import numpy as np
import pytest

pytest.importorskip("torch", reason="torch.distributed is part of PyTorch")

import rocmkern
from rocmkern import reference
from rocmkern.distributed import join_sequence, shard_sequence

CASES = {
    "full": {},
    "causal": {"causal": True},
    "window": {"causal": True, "window": (20, 0)},
    "softcap and scale": {"causal": True, "softcap": 5.0, "scale": 0.3},
}


def drawn(total, heads=(4, 2), batch=2, keys=None, dim=16, dtype=np.float32):
    """q, k, v, and the gradients of the result and of its log-sum-exps."""
    rng = np.random.default_rng(total)
    of_queries, of_keys = (batch, heads[0], total, dim), (batch, heads[1], keys or total, dim)
    shapes = [of_queries, of_keys, of_keys, of_queries]
    arrays = [rng.standard_normal(shape).astype(dtype) for shape in shapes]
    return *arrays, rng.standard_normal((batch, heads[0], total), dtype=np.float32)


def over_ranks(ranks, size, arrays, *, sinks=None, split="contiguous", axis=-2, **options):
    """dq, dk and dv of the whole sequence, and the sum of the ranks' gradients of sinks; the same bits twice."""

    def part(x, rank, axis=axis):
        return np.ascontiguousarray(shard_sequence(x, axis=axis, split=split, rank=rank, size=size))

    *rows, dlse = arrays
    arguments = []
    for rank in range(size):
        q, k, v, dout = (part(x, rank) for x in rows)
        arguments.append((q, k, v, sinks, dout, part(dlse, rank, -1), {"split": split, **options}))
    found, again, _ = zip(*ranks.call("steps:gradients", arguments, deadline=90), strict=True)
    for one, other in zip(found, again, strict=True):
        assert all(map(np.array_equal, one, other))
    whole = [join_sequence([each[i] for each in found], axis=axis, split=split) for i in range(3)]
    return whole + ([] if sinks is None else [sum(each[3] for each in found)])


def check(found, arrays, options, sinks=None, **more):
    """Within twice the error of one process, or some units in the last place."""
    q, k, v, dout, dlse = arrays
    asked = options | more | ({} if sinks is None else {"sinks": sinks})
    with rocmkern.using("cpu"):
        o, lse = rocmkern.flash_attention(q, k, v, return_lse=True, **asked)
        last = {} if sinks is None else {"return_dsinks": True}
        one = rocmkern.flash_attention_backward(dout, q, k, v, o, lse, dlse=dlse, **asked, **last)
    o, lse = reference.flash_attention(q, k, v, return_lse=True, **asked)
    exact = reference.flash_attention_backward(dout, q, k, v, o, lse, dlse=dlse, **asked, **last)
    unit = float(np.finfo(np.float32).eps)
    for got, single, wanted in zip(found, one, exact, strict=True):
        bound = max(2 * np.abs(single - wanted).max(), 8 * unit * np.abs(wanted).max())
        assert np.abs(got - wanted).max() <= bound


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("size", [1, 2, 4])
def test_a_ring_is_one_process(ranks, size, case):
    arrays = drawn(131)
    for split in ("contiguous", "zigzag"):
        check(over_ranks(ranks, size, arrays, split=split, **CASES[case]), arrays, CASES[case])


@pytest.mark.parametrize("kv_heads", [8, 4, 1])
@pytest.mark.parametrize("case", ["full", "causal"])
def test_so_is_attention_by_heads(ranks, case, kv_heads):
    arrays = drawn(53, heads=(8, kv_heads))
    for split in ("contiguous", "zigzag"):
        check(over_ranks(ranks, 4, arrays, split=split, mode="heads", **CASES[case]), arrays, CASES[case])


@pytest.mark.parametrize("mode", ["ring", "heads"])
def test_queries_and_keys_may_differ_in_number(ranks, mode):
    arrays = drawn(17, keys=70, heads=(4, 4))
    check(over_ranks(ranks, 4, arrays, mode=mode, causal=True), arrays, {"causal": True})


@pytest.mark.parametrize("mode", ["ring", "heads"])
def test_sinks(ranks, mode):
    """Keys that no query sees too: rows whose only part is the sink."""
    q, k, v, dout, dlse = drawn(40, heads=(4, 4))
    arrays, sinks = (q, k[:, :, :10], v[:, :, :10], dout, dlse), np.array([1.5, 0.0, -np.inf, 2.0], np.float32)
    found = over_ranks(ranks, 2, arrays, sinks=sinks, mode=mode, causal=True)
    check(found, arrays, {"causal": True}, sinks=sinks)


@pytest.mark.parametrize(
    ("size", "split", "mode"), [(2, "zigzag", "ring"), (4, "contiguous", "ring"), (4, "zigzag", "heads")]
)
def test_packed_sequences_cross_ranks(ranks, size, split, mode):
    cu = np.array([0, 3, 3, 60, 61, 130, 190], np.int32)
    q, k, v, dout, dlse = (x[0] for x in drawn(190, heads=(4, 4), batch=1))
    arrays = *(np.ascontiguousarray(x.swapaxes(0, 1)) for x in (q, k, v, dout)), dlse
    options = {"causal": True, "window": (20, 0)}
    found = over_ranks(ranks, size, arrays, split=split, axis=0, mode=mode, cu_seqlens=cu, **options)
    check(found, arrays, options, cu_seqlens_q=cu, cu_seqlens_k=cu)


def test_axes_in_the_other_order(ranks):
    *rows, dlse = drawn(60)
    arrays = *(np.ascontiguousarray(x.swapaxes(1, 2)) for x in rows), dlse
    for mode in ("ring", "heads"):
        options = {"layout": "bshd", "causal": True}
        found = over_ranks(ranks, 2, arrays, axis=1, split="zigzag", mode=mode, **options)
        check(found, arrays, options)


def test_a_gradient_on_some_ranks_only_is_an_error_on_all(ranks):
    found = ranks.call("steps:gradient_of_some", [(True,), (False,)], deadline=60)
    assert found == [("gradients", "true on rank 0, false on rank 1")] * 2
