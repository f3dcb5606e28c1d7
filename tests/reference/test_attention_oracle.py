"""The float64 attention against hand-computed cases and against PyTorch, an oracle that is not ours."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from rocmkern import reference

LN3 = np.log(3.0)


def normal(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape)


def visible_pattern(sq, sk, **options):
    """Which keys each query uses: one-hot values show the weights."""
    q, k = np.zeros((1, 1, sq, 1)), np.zeros((1, 1, sk, 1))
    v = np.eye(sk)[None, None]
    weights = reference.flash_attention(q, k, v, **options)[0, 0]
    return [" ".join("1" if w > 0 else "0" for w in row).replace(" ", "") for row in weights]


# Patterns of SEMANTICS.md, written out by hand.


@pytest.mark.parametrize("causal", [True, "bottom_right"])
def test_bottom_right_with_more_keys_than_queries(causal):
    assert visible_pattern(2, 5, causal=causal) == ["11110", "11111"]


def test_bottom_right_with_more_queries_than_keys():
    assert visible_pattern(5, 2, causal=True) == ["00", "00", "00", "10", "11"]


def test_top_left():
    assert visible_pattern(2, 5, causal="top_left") == ["10000", "11000"]
    assert visible_pattern(3, 2, causal="top_left") == ["10", "11", "11"]


def test_window_counts_exclude_the_diagonal():
    assert visible_pattern(5, 5, window=(2, 0)) == ["10000", "11000", "11100", "01110", "00111"]
    assert visible_pattern(4, 4, window=(0, 0)) == ["1000", "0100", "0010", "0001"]
    assert visible_pattern(3, 3, window=(None, 1)) == ["110", "111", "111"]
    assert visible_pattern(3, 3, window=(1, None)) == ["111", "111", "011"]


def test_window_follows_the_alignment():
    assert visible_pattern(2, 5, window=(1, 1)) == ["00111", "00011"]
    assert visible_pattern(2, 5, window=(1, 1), causal="top_left") == ["10000", "11000"]


def test_window_and_causal_are_combined():
    assert visible_pattern(4, 4, window=(1, 2), causal=True) == ["1000", "1100", "0110", "0011"]


def test_rows_without_keys_are_zero():
    out, lse = reference.flash_attention(
        normal(1, 1, 5, 3), normal(1, 1, 2, 3), normal(1, 1, 2, 3), causal=True, return_lse=True
    )
    assert not out[0, 0, :3].any() and np.isfinite(out).all()
    assert (lse[0, 0, :3] == -np.inf).all() and np.isfinite(lse[0, 0, 3:]).all()


def test_no_keys_at_all():
    out, lse = reference.flash_attention(
        normal(1, 2, 3, 4), normal(1, 2, 0, 4), normal(1, 2, 0, 5), return_lse=True, sinks=np.array([1.0, -np.inf])
    )
    assert out.shape == (1, 2, 3, 5) and not out.any()
    assert lse.tolist() == [[[1.0] * 3, [-np.inf] * 3]]


# Features, by hand.


def uniform_attention(sk, value_of_key, **options):
    """Zero queries and keys: the softmax sees only what `options` add. Returns (output, lse) of one row."""
    v = np.asarray(value_of_key, float)[None, None, :, None]
    zero = np.zeros((1, 1, sk, 1))
    out, lse = reference.flash_attention(np.zeros((1, 1, 1, 1)), zero, v, return_lse=True, **options)
    return out.item(), lse.item()


def test_plain_softmax_and_lse():
    out, lse = uniform_attention(3, [1, 2, 6])
    assert out == pytest.approx(3.0) and lse == pytest.approx(LN3)


def test_a_sink_is_in_the_denominator_only():
    out, lse = uniform_attention(2, [3, 6], sinks=np.array([0.0]))
    assert out == pytest.approx(3.0) and lse == pytest.approx(LN3)


def test_a_sink_alone_gives_zero_and_its_logit():
    assert uniform_attention(2, [3, 6], sinks=np.array([2.5]), mask=np.array([False, False])) == (0.0, 2.5)


def test_alibi_uses_the_offset_of_the_alignment():
    slopes = np.array([np.log(2.0)])
    # One query at the bottom right of three keys: distances 2, 1, 0, weights 1/4, 1/2, 1.
    out, _ = uniform_attention(3, [1, 1, 0], alibi_slopes=slopes)
    assert out == pytest.approx(0.75 / 1.75)
    # At the top left: distances 0, 1, 2.
    out, _ = uniform_attention(3, [1, 0, 0], alibi_slopes=slopes, causal="top_left")
    assert out == pytest.approx(1.0)


def test_alibi_is_symmetric_to_the_right():
    q, k, v = np.zeros((1, 1, 3, 1)), np.zeros((1, 1, 3, 1)), np.eye(3)[None, None]
    weights = reference.flash_attention(q, k, v, alibi_slopes=np.array([np.log(2.0)]))[0, 0]
    assert weights[1] == pytest.approx([0.25, 0.5, 0.25])


def test_alibi_slopes_of_each_batch_element():
    q, k, v = normal(2, 3, 4, 5), normal(2, 3, 4, 5, seed=1), normal(2, 3, 4, 5, seed=2)
    slopes = np.abs(normal(2, 3))
    both = reference.flash_attention(q, k, v, alibi_slopes=slopes)
    second = reference.flash_attention(q[1:], k[1:], v[1:], alibi_slopes=slopes[1])
    assert np.array_equal(both[1:], second)


@pytest.mark.parametrize("score", [5000.0, -5000.0])
def test_softcap_of_extreme_scores(score):
    q = np.array([[[[score]]]])
    _, lse = reference.flash_attention(q, np.ones((1, 1, 1, 1)), np.ones((1, 1, 1, 1)), softcap=30.0, return_lse=True)
    assert lse.item() == pytest.approx(np.copysign(30.0, score))


def test_softcap_comes_before_bias_and_mask():
    q, k, v = np.array([[[[1e4]]]]), np.array([[[[1.0], [1.0]]]]), np.array([[[[1.0], [0.0]]]])
    out = reference.flash_attention(q, k, v, softcap=10.0, bias=np.array([np.log(3.0), 0.0]))
    assert out.item() == pytest.approx(0.75)
    out = reference.flash_attention(q, k, v, softcap=10.0, mask=np.array([False, True]))
    assert out.item() == 0.0


def test_a_bias_of_minus_infinity_takes_the_weight_away_and_a_small_one_is_data():
    assert uniform_attention(2, [np.nan, 4.0], bias=np.array([-np.inf, 0.0])) == (4.0, 0.0)
    smallest = float(np.finfo(np.float16).min)
    out, _ = uniform_attention(2, [2.0, 4.0], bias=np.array([smallest, smallest]))
    assert out == pytest.approx(3.0)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("options", [{"mask": np.array([True, True, False])}, {"window": (None, 0)}])
def test_hidden_keys_and_values_never_reach_the_output(bad, options):
    q, k, v = normal(1, 1, 3, 4), normal(1, 1, 3, 4, seed=1), normal(1, 1, 3, 2, seed=2)
    clean = reference.flash_attention(q, k, v, **options)
    k[0, 0, 2], v[0, 0, 2] = bad, bad
    dirty = reference.flash_attention(q, k, v, **options)
    assert np.array_equal(dirty[0, 0, :2], clean[0, 0, :2])
    assert "mask" not in options or np.isfinite(dirty).all()


def test_visible_nan_makes_the_row_nan():
    q, k, v = normal(1, 1, 2, 4), normal(1, 1, 2, 4), normal(1, 1, 2, 3)
    v[0, 0, 1] = np.nan
    out = reference.flash_attention(q, k, v, causal=True)
    assert np.isfinite(out[0, 0, 0]).all() and np.isnan(out[0, 0, 1]).all()


def test_heads_are_shared_in_groups():
    q, k, v = np.zeros((1, 6, 1, 1)), np.zeros((1, 2, 1, 1)), np.array([1.0, 2.0]).reshape(1, 2, 1, 1)
    assert reference.flash_attention(q, k, v).ravel().tolist() == [1, 1, 1, 2, 2, 2]


def test_packed_sequences_equal_each_on_its_own():
    lengths_q, lengths_k = [3, 0, 2, 4], [5, 2, 0, 4]
    cu_q, cu_k = (np.cumsum([0, *n]).astype(np.int32) for n in (lengths_q, lengths_k))
    q, k, v = normal(9, 4, 8), normal(11, 2, 8, seed=1), normal(11, 2, 6, seed=2)
    slopes = np.abs(normal(4, 4, seed=3))
    options = dict(causal=True, window=(2, None), sinks=normal(4, seed=4), return_lse=True)
    out, lse = reference.flash_attention(q, k, v, cu_seqlens_q=cu_q, cu_seqlens_k=cu_k, alibi_slopes=slopes, **options)
    assert out.shape == (9, 4, 6) and lse.shape == (4, 9)
    for n in range(4):
        rows, keys = slice(cu_q[n], cu_q[n + 1]), slice(cu_k[n], cu_k[n + 1])
        one = [x.transpose(1, 0, 2)[None] for x in (q[rows], k[keys], v[keys])]
        alone, alone_lse = reference.flash_attention(*one, alibi_slopes=slopes[n], **options)
        assert np.array_equal(out[rows].transpose(1, 0, 2)[None], alone)
        assert np.array_equal(lse[:, rows][None], alone_lse)


def test_layouts_agree():
    q, k, v = normal(2, 4, 3, 8), normal(2, 2, 5, 8, seed=1), normal(2, 2, 5, 6, seed=2)
    swapped = [x.transpose(0, 2, 1, 3) for x in (q, k, v)]
    out, lse = reference.flash_attention(q, k, v, causal=True, return_lse=True)
    other, other_lse = reference.flash_attention(*swapped, layout="bshd", causal=True, return_lse=True)
    assert np.array_equal(out, other.transpose(0, 2, 1, 3)) and np.array_equal(lse, other_lse)


def test_long_problems_are_computed_in_blocks_of_rows(monkeypatch):
    q, k, v = normal(1, 1, 37, 8), normal(1, 1, 41, 8, seed=1), normal(1, 1, 41, 8, seed=2)
    options = dict(causal=True, bias=normal(37, 41, seed=3), return_lse=True)
    whole = reference.flash_attention(q, k, v, **options)
    monkeypatch.setattr("rocmkern.ops.attention.reference._BLOCK_ELEMENTS", 100)
    parts = reference.flash_attention(q, k, v, **options)
    assert all(np.allclose(a, b, rtol=1e-13, atol=1e-13) for a, b in zip(whole, parts, strict=True))


@pytest.mark.parametrize("dtype", [np.float16, np.float32, ml_dtypes.bfloat16])
def test_any_float_dtype_gives_float64(dtype):
    q, k, v = (normal(1, 1, 3, 4, seed=s).astype(dtype) for s in range(3))
    out = reference.flash_attention(q, k, v)
    assert out.dtype == np.float64
    assert np.array_equal(out, reference.flash_attention(*(x.astype(np.float64) for x in (q, k, v))))


# Merging.


def test_merging_two_halves_of_the_keys():
    q, k, v = normal(1, 4, 6, 8), normal(1, 2, 10, 8, seed=1), normal(1, 2, 10, 5, seed=2)
    first = reference.flash_attention(q, k[:, :, :3], v[:, :, :3], return_lse=True)
    second = reference.flash_attention(q, k[:, :, 3:], v[:, :, 3:], return_lse=True)
    whole = reference.flash_attention(q, k, v, return_lse=True)
    for got, expected in zip(reference.merge_attention(*first, *second), whole, strict=True):
        assert np.allclose(got, expected, rtol=1e-13, atol=1e-13)


def test_merging_does_not_look_at_a_part_without_keys():
    o1, o2 = np.full((1, 1, 2, 3), np.nan), np.ones((1, 1, 2, 3))
    out, lse = reference.merge_attention(o1, np.full((1, 1, 2), -np.inf), o2, np.array([[[0.5, -np.inf]]]))
    assert out[0, 0].tolist() == [[1.0] * 3, [0.0] * 3] and lse.tolist() == [[[0.5, -np.inf]]]


def test_merging_other_layouts():
    o1, o2, lse1, lse2 = normal(2, 3, 5, 4), normal(2, 3, 5, 4, seed=1), normal(2, 3, 5), normal(2, 3, 5, seed=1)
    out, lse = reference.merge_attention(o1, lse1, o2, lse2)
    swapped, _ = reference.merge_attention(
        o1.transpose(0, 2, 1, 3), lse1, o2.transpose(0, 2, 1, 3), lse2, layout="bshd"
    )
    assert np.array_equal(swapped.transpose(0, 2, 1, 3), out)
    packed, packed_lse = reference.merge_attention(o1[0].transpose(1, 0, 2), lse1[0], o2[0].transpose(1, 0, 2), lse2[0])
    assert np.array_equal(packed.transpose(1, 0, 2), out[0]) and np.array_equal(packed_lse, lse[0])


# The baseline.


def test_baseline_is_the_same_in_float64():
    q, k, v = normal(1, 4, 6, 8), normal(1, 2, 10, 8, seed=1), normal(1, 2, 10, 5, seed=2)
    options = dict(causal=True, softcap=5.0, bias=normal(6, 10, seed=3), sinks=normal(4), return_lse=True)
    straight = reference.baseline.flash_attention(q, k, v, **options)
    for a, b in zip(straight, reference.flash_attention(q, k, v, **options), strict=True):
        assert np.array_equal(a, b)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, ml_dtypes.bfloat16])
def test_baseline_is_close_and_rounded_once(dtype):
    q, k, v = (normal(1, 2, 16, 8, seed=s).astype(dtype) for s in range(3))
    out, lse = reference.baseline.flash_attention(q, k, v, causal=True, return_lse=True)
    exact = reference.flash_attention(q, k, v, causal=True)
    assert out.dtype == dtype and lse.dtype == np.float32
    error = np.abs(out.astype(np.float64) - exact).max()
    half_ulp = float(ml_dtypes.finfo(dtype).eps) / 2 * np.abs(exact).max()
    assert 0 < error < (20 if dtype == np.float32 else 1.1) * half_ulp


@pytest.mark.parametrize(("dtype", "value"), [(np.float16, 200.0), (ml_dtypes.bfloat16, 133120.0)])
def test_large_constant_logits_are_finite(dtype, value):
    x = np.full((1, 1, 4, 64), value, dtype)
    out, lse = reference.baseline.flash_attention(x, x, np.ones_like(x), return_lse=True)
    assert np.array_equal(out, np.ones_like(x)) and np.isfinite(lse).all()


# PyTorch.


@pytest.fixture(scope="module")
def torch():
    return pytest.importorskip("torch", reason="PyTorch, the outside oracle, is not installed")


def sdpa(torch, q, k, v, additive=None, **options):
    q, k, v = (torch.from_numpy(x) for x in (q, k, v))
    additive = None if additive is None else torch.from_numpy(additive)
    function = torch.nn.functional.scaled_dot_product_attention
    return function(q, k, v, attn_mask=additive, **options).numpy()


def additive_mask(sq, sk, offset, left=None, right=None):
    """Additive mask from loops over the definition, sharing nothing with the reference."""
    result = np.full((sq, sk), -np.inf)
    for i in range(sq):
        for j in range(sk):
            if (left is None or i + offset - left <= j) and (right is None or j <= i + offset + right):
                result[i, j] = 0.0
    return result


@pytest.mark.parametrize(("hq", "hkv"), [(6, 6), (6, 2), (6, 3), (28, 4), (48, 2), (4, 1)])
def test_grouped_heads_equal_torch(torch, hq, hkv):
    q, k, v = normal(2, hq, 5, 8), normal(2, hkv, 7, 8, seed=1), normal(2, hkv, 7, 6, seed=2)
    assert np.allclose(reference.flash_attention(q, k, v), sdpa(torch, q, k, v, enable_gqa=True), atol=1e-12)


@pytest.mark.parametrize(("sq", "sk"), [(1, 1), (7, 7), (3, 9), (1, 16)])
@pytest.mark.parametrize(
    ("options", "band"),
    [
        ({"causal": True}, (None, 0)),
        ({"window": (2, 1)}, (2, 1)),
        ({"causal": True, "window": (3, None)}, (3, 0)),
    ],
)
def test_masks_equal_torch(torch, sq, sk, options, band):
    q, k, v = normal(1, 2, sq, 8), normal(1, 2, sk, 8, seed=1), normal(1, 2, sk, 8, seed=2)
    expected = sdpa(torch, q, k, v, additive_mask(sq, sk, sk - sq, *band))
    assert np.allclose(reference.flash_attention(q, k, v, **options), expected, atol=1e-12)


@pytest.mark.parametrize(("sq", "sk"), [(5, 5), (3, 9), (9, 3)])
def test_top_left_equals_torch_is_causal(torch, sq, sk):
    q, k, v = normal(1, 2, sq, 8), normal(1, 2, sk, 8, seed=1), normal(1, 2, sk, 8, seed=2)
    expected = sdpa(torch, q, k, v, is_causal=True)
    assert np.allclose(reference.flash_attention(q, k, v, causal="top_left"), expected, atol=1e-12)


def test_bias_mask_and_scale_equal_torch(torch):
    q, k, v = normal(2, 4, 5, 8), normal(2, 4, 7, 8, seed=1), normal(2, 4, 7, 8, seed=2)
    bias, mask = normal(2, 1, 5, 7, seed=3), normal(1, 4, 5, 7, seed=4) > -1
    additive = np.where(mask, bias, -np.inf)
    expected = sdpa(torch, q, k, v, additive, scale=0.3)
    assert np.allclose(reference.flash_attention(q, k, v, bias=bias, mask=mask, scale=0.3), expected, atol=1e-12)


def test_lse_and_sinks_equal_torch(torch):
    q, k, v = normal(1, 3, 5, 8), normal(1, 3, 7, 8, seed=1), normal(1, 3, 7, 8, seed=2)
    sinks = normal(3, seed=5)
    scores = torch.from_numpy(q @ k.swapaxes(-1, -2) / np.sqrt(8))
    column = torch.from_numpy(sinks)[None, :, None, None].expand(1, 3, 5, 1)
    with_sink = torch.cat([scores, column], dim=-1)
    out, lse = reference.flash_attention(q, k, v, sinks=sinks, return_lse=True)
    assert np.allclose(lse, torch.logsumexp(with_sink, -1).numpy(), atol=1e-12)
    weights = torch.softmax(with_sink, -1)[..., :-1]
    assert np.allclose(out, (weights @ torch.from_numpy(v)).numpy(), atol=1e-12)
