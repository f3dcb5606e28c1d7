"""Gradients of attention over 1, 2 and 4 ranks are those of one process: both modes, both splits, against float64."""

import numpy as np
import pytest

pytest.importorskip("torch", reason="torch.distributed is part of PyTorch")

from by_ranks import check_gradients, drawn_for_gradients, gradients_over_ranks

CASES = {
    "full": {},
    "causal": {"causal": True},
    "window": {"causal": True, "window": (20, 0)},
    "softcap and scale": {"causal": True, "softcap": 5.0, "scale": 0.3},
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("size", [1, 2, 4])
def test_a_ring_is_one_process(ranks, size, case):
    arrays = drawn_for_gradients(131)
    for split in ("contiguous", "zigzag"):
        found = gradients_over_ranks(ranks, size, arrays, split=split, **CASES[case])
        check_gradients(ranks, found, arrays, **CASES[case])


@pytest.mark.parametrize("kv_heads", [8, 4, 1])
@pytest.mark.parametrize("case", ["full", "causal"])
def test_so_is_attention_by_heads(ranks, case, kv_heads):
    arrays = drawn_for_gradients(53, heads=(8, kv_heads))
    for split in ("contiguous", "zigzag"):
        found = gradients_over_ranks(ranks, 4, arrays, split=split, mode="heads", **CASES[case])
        check_gradients(ranks, found, arrays, **CASES[case])


@pytest.mark.parametrize("kv_heads", [4, 1])
def test_long_sequences_go_in_pieces_and_heads_in_rounds(ranks, kv_heads):
    arrays = drawn_for_gradients(2100, heads=(4, kv_heads), batch=1)
    options = {"causal": True, "window": (300, 0)}
    for more in ({"mode": "heads"}, {"split": "zigzag"}):
        found = gradients_over_ranks(ranks, 2, arrays, **options, **more)
        check_gradients(ranks, found, arrays, **options)


@pytest.mark.parametrize("mode", ["ring", "heads"])
def test_queries_and_keys_may_differ_in_number(ranks, mode):
    arrays = drawn_for_gradients(17, keys=70, heads=(4, 4))
    check_gradients(ranks, gradients_over_ranks(ranks, 4, arrays, mode=mode, causal=True), arrays, causal=True)


@pytest.mark.parametrize("mode", ["ring", "heads"])
def test_sinks(ranks, mode):
    """Keys that no query sees too: rows whose only part is the sink."""
    q, k, v, dout, dlse = drawn_for_gradients(40, heads=(4, 4))
    arrays, sinks = (q, k[:, :, :10], v[:, :, :10], dout, dlse), np.array([1.5, 0.0, -np.inf, 2.0], np.float32)
    found = gradients_over_ranks(ranks, 2, arrays, sinks=sinks, mode=mode, causal=True)
    check_gradients(ranks, found, arrays, sinks, causal=True)


@pytest.mark.parametrize(
    ("size", "split", "mode"), [(2, "zigzag", "ring"), (4, "contiguous", "ring"), (4, "zigzag", "heads")]
)
def test_packed_sequences_cross_ranks(ranks, size, split, mode):
    cu = np.array([0, 3, 3, 60, 61, 130, 190], np.int32)
    q, k, v, dout, dlse = (x[0] for x in drawn_for_gradients(190, heads=(4, 4), batch=1))
    arrays = *(np.ascontiguousarray(x.swapaxes(0, 1)) for x in (q, k, v, dout)), dlse
    options = {"causal": True, "window": (20, 0)}
    found = gradients_over_ranks(ranks, size, arrays, split=split, axis=0, mode=mode, cu_seqlens=cu, **options)
    check_gradients(ranks, found, arrays, **options, cu_seqlens_q=cu, cu_seqlens_k=cu)


def test_axes_in_the_other_order(ranks):
    *rows, dlse = drawn_for_gradients(60)
    arrays = *(np.ascontiguousarray(x.swapaxes(1, 2)) for x in rows), dlse
    for mode in ("ring", "heads"):
        options = {"layout": "bshd", "causal": True}
        found = gradients_over_ranks(ranks, 2, arrays, axis=1, split="zigzag", mode=mode, **options)
        check_gradients(ranks, found, arrays, **options)


def test_a_gradient_on_some_ranks_only_is_an_error_on_all(ranks):
    found = ranks.call("steps:gradient_of_some", [(True,), (False,)])
    assert found == [("gradients", "true on rank 0, false on rank 1")] * 2


@pytest.mark.parametrize("mode", ["ring", "heads"])
def test_log_sum_exps_may_count_on_some_ranks_only(ranks, mode):
    q, k, v, dout, dlse = drawn_for_gradients(40, heads=(4, 4))
    dlse[..., 20:] = 0
    arrays = q, k, v, dout, dlse
    found = gradients_over_ranks(ranks, 2, arrays, mode=mode, causal=True, without_dlse=[1])
    check_gradients(ranks, found, arrays, causal=True)


@pytest.mark.parametrize("names", [["sinks"], ["k", "v", "sinks"]])
def test_constants_may_be_arrays_of_numpy(ranks, names):
    for same, said in ranks.call("steps:beside_numpy", [(names,)] * 2):
        assert same
        assert said.startswith("v: got a tensor that requires a gradient")


def test_autocast_is_that_of_one_process(ranks):
    assert ranks.call("steps:under_autocast", [()] * 2) == [("torch.bfloat16", "torch.float32")] * 2


@pytest.mark.parametrize("size", [1, 2])
def test_layers_over_ranks_have_none_and_say_so(ranks, size):
    for said in ranks.call("steps:trained_layer", [()] * size):
        assert said.startswith("weight: got a tensor that requires a gradient; allowed: none, as layers over ranks")


def test_the_compiler_does_not_look_into_it_and_gradients_of_gradients_are_refused(ranks):
    for difference, refused in ranks.call("steps:compiled", [()] * 2):
        assert difference == 0
        assert "no gradients of gradients" in refused
