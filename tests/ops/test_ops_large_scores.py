"""The gradient of attention where scores are so large that a log-sum-exp has no digits left for their differences."""

from __future__ import annotations

import numpy as np
import pytest

import rocmkern
from rocmkern import reference, targets


@pytest.fixture(params=["python", "cpu"], autouse=True)
def target(request):
    with targets.using(request.param):
        yield


@pytest.mark.parametrize("hidden", [-1e9, -1e30, np.finfo(np.float32).min])
def test_rows_of_padding_under_a_large_negative_bias(hidden):
    """Their log-sum-exps are the bias and no more; they have no gradient, and give none to others."""
    rng = np.random.default_rng(0)
    q, k, v, dout = rng.standard_normal((4, 1, 2, 20, 32), dtype=np.float32)
    bias = np.zeros((1, 1, 20, 20), np.float32)
    bias[:, :, 5] = hidden
    dout[:, :, 5] = 0.0
    o, lse = rocmkern.flash_attention(q, k, v, bias=bias, return_lse=True)
    found = rocmkern.flash_attention_backward(dout, q, k, v, o, lse, bias=bias)
    exact = reference.flash_attention_backward(dout, q, k, v, o, lse, bias=bias)
    for got, want in zip(found, exact, strict=True):
        np.testing.assert_allclose(got, want, atol=2e-6)


@pytest.mark.parametrize("size", [1e5, 1e7, 1e9, 1e12])
def test_a_weight_is_at_most_one_however_large_scores_are(size):
    one = np.ones((1, 1, 1, 32), np.float32)
    o, lse = rocmkern.flash_attention(one, size * one, one, return_lse=True)
    dv = rocmkern.flash_attention_backward(one, one, size * one, one, o, lse)[2]
    assert (dv <= 1).all() and (dv >= 0).all()
