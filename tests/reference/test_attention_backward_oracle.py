"""The float64 gradient of attention against differences of its forward, and against PyTorch's."""

from __future__ import annotations

import finite_differences
import numpy as np
import pytest

from rocmkern import reference

CU_Q, CU_K = np.array([0, 2, 2, 4], np.int32), np.array([0, 3, 4, 4], np.int32)


def normal(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape)


def arrays(packed=False):
    """dout, q, k and v of four heads that share two."""
    if packed:
        return [normal(4, 4, 2), normal(4, 4, 3, seed=1), normal(4, 2, 3, seed=2), normal(4, 2, 2, seed=3)]
    return [normal(2, 4, 3, 2), normal(2, 4, 3, 3, seed=1), normal(2, 2, 4, 3, seed=2), normal(2, 2, 4, 2, seed=3)]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"causal": True},
        {"causal": "top_left", "window": (1, None), "scale": 0.7},
        {"softcap": 0.8},
        {"mask": normal(2, 4, 3, 4) > -0.5},
        {"seqlens_k": np.array([3, 4], np.int32), "leftpad_k": np.array([1, 0], np.int32), "causal": True},
        {"layout": "bshd"},
        {"cu_seqlens_q": CU_Q, "cu_seqlens_k": CU_K, "causal": True},
    ],
    ids=str,
)
@pytest.mark.parametrize("extra", [{}, {"bias": (4, 1, 4), "sinks": (4,), "alibi_slopes": (4,)}], ids=str)
def test_they_are_the_slopes_of_attention(options, extra):
    packed = "cu_seqlens_q" in options
    dout, q, k, v = arrays(packed)
    if options.get("layout") == "bshd":
        dout, q, k, v = (x.swapaxes(1, 2) for x in (dout, q, k, v))
    more = {name: np.abs(normal(*shape, seed=4)) for name, shape in extra.items() if name != "bias" or not packed}

    def forward(q, k, v, *rest):
        """The result and the log-sum-exp, where that is finite, in one row."""
        given = dict(zip(more, rest, strict=True))
        o, lse = reference.flash_attention(q, k, v, return_lse=True, **given, **options)
        return np.concatenate([o.ravel(), np.where(np.isfinite(lse), lse, 0.0).ravel()])

    o, lse = reference.flash_attention(q, k, v, return_lse=True, **more, **options)
    dlse = normal(*lse.shape, seed=5)
    asked = {f"return_d{name}": True for name in more}
    gradients = reference.flash_attention_backward(dout, q, k, v, o, lse, dlse=dlse, **more, **asked, **options)
    inputs, douts = (q, k, v, *more.values()), np.concatenate([dout.ravel(), dlse.ravel()])
    finite_differences.agree(gradients, forward, inputs, douts)


def test_a_row_without_keys_and_a_key_without_rows_have_none():
    dout, q, k, v = arrays()
    options = {"causal": True, "window": (0, None)}
    o, lse = reference.flash_attention(q, k[:, :, :2], v[:, :, :2], return_lse=True, **options)
    dq, _, _ = reference.flash_attention_backward(dout, q, k[:, :, :2], v[:, :, :2], o, lse, **options)
    assert not dq[:, :, 0].any() and dq[:, :, 1:].any()
    o, lse = reference.flash_attention(q, k, v, return_lse=True, **options)
    _, dk, dv = reference.flash_attention_backward(dout, q, k, v, o, lse, **options)
    assert not dk[:, :, 0].any() and not dv[:, :, 0].any() and dv[:, :, 1:].any()


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_hidden_keys_and_values_never_reach_a_gradient(bad):
    dout, q, k, v = arrays()
    mask = np.array([True, True, True, False])
    o, lse = reference.flash_attention(q, k, v, mask=mask, return_lse=True)
    clean = reference.flash_attention_backward(dout, q, k, v, o, lse, mask=mask)
    k[:, :, 3], v[:, :, 3] = bad, bad
    dirty = reference.flash_attention_backward(dout, q, k, v, o, lse, mask=mask)
    assert all(np.array_equal(a, b) for a, b in zip(clean, dirty, strict=True))


@pytest.mark.parametrize("causal", [False, True])
def test_they_are_those_of_pytorch(causal):
    torch = pytest.importorskip("torch", reason="PyTorch is the oracle that is not ours (pip install torch)")
    dout, q, k, v = (normal(2, 4, 9, 5, seed=seed) for seed in range(4))
    o, lse = reference.flash_attention(q, k, v, causal=causal, return_lse=True)
    ours = reference.flash_attention_backward(dout, q, k, v, o, lse, causal=causal)
    inputs = [torch.from_numpy(x).requires_grad_() for x in (q, k, v)]
    result = torch.nn.functional.scaled_dot_product_attention(*inputs, is_causal=causal)
    theirs = torch.autograd.grad(result, inputs, torch.from_numpy(dout))
    for mine, other in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(mine, other.numpy(), rtol=1e-12, atol=1e-12)
