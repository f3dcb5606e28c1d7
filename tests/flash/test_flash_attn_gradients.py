"""Gradients of flash-attn's functions, against PyTorch's autograd of the formula in float64."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import rocmkern  # noqa: E402
from rocmkern import flash_attn  # noqa: E402
from rocmkern.runtime.errors import ArgumentError  # noqa: E402

OPTIONS = [
    {},
    {"causal": True},
    {"causal": True, "window_size": (3, 0), "softcap": 4.0},
    {"window_size": (2, 5), "softmax_scale": 0.4},
]
LENS_Q, LENS_K = (3, 0, 6, 5), (5, 2, 0, 9)


@pytest.fixture(autouse=True)
def interpreted():
    with rocmkern.using("python"):
        yield


def formula(q, k, v, slopes=None, *, causal=False, window_size=(-1, -1), softcap=0.0, softmax_scale=None):
    """Rows ``[Sq, H, D]`` over keys ``[Sk, Hkv, D]``, in float64, aligned at the bottom right: out, lse ``[H, Sq]``."""
    q, k, v = (x.double().transpose(0, 1) for x in (q, k, v))
    k, v = (x.repeat_interleave(len(q) // len(x), 0) for x in (k, v))
    s = q @ k.mT * (q.shape[-1] ** -0.5 if softmax_scale is None else softmax_scale)
    s = softcap * torch.tanh(s / softcap) if softcap else s
    distance = torch.arange(s.shape[1])[:, None] + s.shape[2] - s.shape[1] - torch.arange(s.shape[2])
    s = s if slopes is None else s - slopes.double()[:, None, None] * distance.abs()
    left, right = (side if side >= 0 else 10**6 for side in window_size)
    seen = (distance <= left) & (distance >= (0 if causal else -right))
    s = s.masked_fill(~seen, -torch.inf)
    weights = torch.where(seen.any(-1)[:, None], torch.softmax(s.masked_fill(~seen.any(-1)[:, None], 0.0), -1), 0.0)
    return (weights @ v).transpose(0, 1), torch.logsumexp(s, -1)


def normal(*shape, seed):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def compare(ours, exact, given):
    """The gradients of sums of results, weighted; the results are pairs of out and lse."""
    weights = [normal(*x.shape, seed=9 + i) for i, x in enumerate(ours)]
    found = torch.autograd.grad(ours, given, weights)
    seen = [torch.where(x.isfinite(), w.double(), 0.0) for x, w in zip(exact, weights, strict=True)]
    total = sum((w * x.nan_to_num(neginf=0.0)).sum() for w, x in zip(seen, exact, strict=True))
    for got, wanted, x in zip(found, torch.autograd.grad(total, given), given, strict=True):
        assert got.dtype == x.dtype
        torch.testing.assert_close(got.double(), wanted.double(), rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_dense(options):
    q, k, v = normal(2, 7, 4, 8, seed=0), normal(2, 9, 2, 8, seed=1), normal(2, 9, 2, 8, seed=2)
    given = [x.requires_grad_() for x in (q, k, v, normal(4, seed=3).abs())]
    out, lse, _ = flash_attn.flash_attn_func(*given[:3], alibi_slopes=given[3], return_attn_probs=True, **options)
    exact = [formula(a, b, c, given[3], **options) for a, b, c in zip(q, k, v, strict=True)]
    compare((out, lse), [torch.stack(parts) for parts in zip(*exact, strict=True)], given)
    assert flash_attn.flash_attn_func(*given[:3], **options).requires_grad


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_stacked(options):
    qkv, q, kv = normal(2, 7, 3, 2, 8, seed=0), normal(2, 5, 4, 8, seed=1), normal(2, 7, 2, 2, 8, seed=2)
    given = [x.requires_grad_() for x in (qkv, q, kv)]
    first, _, _ = flash_attn.flash_attn_qkvpacked_func(qkv, return_attn_probs=True, **options)
    second, _, _ = flash_attn.flash_attn_kvpacked_func(q, kv, return_attn_probs=True, **options)
    exact = [torch.stack([formula(*x.unbind(1), **options)[0] for x in qkv])]
    exact += [torch.stack([formula(a, *b.unbind(1), **options)[0] for a, b in zip(q, kv, strict=True)])]
    compare((first, second), exact, given)


@pytest.mark.parametrize("stacked", [False, True])
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_sequences_of_different_lengths(options, stacked):
    lens_k = LENS_Q if stacked else LENS_K
    cu_q, cu_k = (torch.tensor(np.cumsum([0, *lens]), dtype=torch.int32) for lens in (LENS_Q, lens_k))
    q, k, v = normal(sum(LENS_Q), 2, 8, seed=0), normal(sum(lens_k), 2, 8, seed=1), normal(sum(lens_k), 2, 8, seed=2)
    asked = {"return_attn_probs": True, **options}
    if stacked:
        given = [torch.stack([q, k, v], 1).requires_grad_()]
        q, k, v = given[0].unbind(1)
        out, lse, _ = flash_attn.flash_attn_varlen_qkvpacked_func(given[0], cu_q, max(LENS_Q), **asked)
    else:
        given = [x.requires_grad_() for x in (q, k, v)]
        out, lse, _ = flash_attn.flash_attn_varlen_func(q, k, v, cu_q, cu_k, max(LENS_Q), max(lens_k), **asked)
    parts = [x.split(lens) for x, lens in ((q, LENS_Q), (k, lens_k), (v, lens_k))]
    exact = [formula(*some, **options) for some in zip(*map(list, parts), strict=True)]
    outs, lses = zip(*exact, strict=True)
    compare((out, lse), (torch.cat(outs), torch.cat(lses, 1)), given)


def test_what_has_no_gradient_is_refused():
    q = normal(1, 1, 2, 8, seed=0).requires_grad_()
    cache = torch.zeros(1, 4, 2, 8)
    with pytest.raises(ArgumentError, match="requires a gradient"):
        flash_attn.flash_attn_with_kvcache(q, cache, cache, cache_seqlens=torch.tensor([3], dtype=torch.int32))
    pages = {"block_table": torch.zeros(1, 1, dtype=torch.int32)}
    lengths = (torch.tensor([0, 1], dtype=torch.int32), torch.tensor([0, 3], dtype=torch.int32), 1, 3)
    with pytest.raises(ArgumentError, match="requires a gradient"):
        flash_attn.flash_attn_varlen_func(q[0], cache, cache, *lengths, **pages)
