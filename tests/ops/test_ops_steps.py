"""The steps as operations, against the float64 reference."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from rocmkern import reference
from rocmkern.ops.attention.api import flash_attention
from rocmkern.ops.steps import api as steps

pytestmark = pytest.mark.usefixtures("launch")

DTYPES = [np.float32, np.float16, ml_dtypes.bfloat16]


def swap(x):
    return x.transpose(0, 2, 1, 3)


@pytest.mark.parametrize("dtype", DTYPES)
def test_qk_scores(normal, close, dtype):
    q, k = normal(2, 4, 5, 8, dtype=dtype), normal(2, 2, 7, 8, dtype=dtype)
    expected = reference.qk_scores(q, k)
    result = steps.qk_scores(q, k)
    assert result.dtype == dtype
    close(result, expected)
    close(steps.qk_scores(swap(q), swap(k), layout="bshd"), expected)
    close(steps.qk_scores(q, k, scale=0.5), reference.qk_scores(q, k, scale=0.5))
    out = np.empty((2, 4, 7, 5), dtype).swapaxes(2, 3)
    assert steps.qk_scores(q, k, out=out) is out
    close(out, expected)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"causal": True},
        {"causal": "top_left"},
        {"causal": False},
        {"window": (1, 1), "causal": False},
        {"window": (2, 0)},
    ],
    ids=str,
)
@pytest.mark.parametrize(("sq", "sk"), [(4, 4), (1, 6), (6, 3)])
def test_causal_mask(dtype, options, sq, sk):
    result = steps.causal_mask(sq, sk, dtype=dtype, **options)
    assert result.dtype == dtype
    assert np.array_equal(result.astype(float), reference.causal_mask(sq, sk, **options))
    out = np.ones((sq, sk), dtype)
    assert steps.causal_mask(sq, sk, dtype=dtype, out=out, **options) is out
    assert np.array_equal(out, result)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(3,), (4, 3), (2, 4, 3), (2, 3, 4, 3), (2, 2, 3, 4, 3)])
def test_apply_mask(normal, close, dtype, shape):
    scores = normal(*shape, dtype=dtype)
    additive = normal(3, dtype=dtype)
    additive[1] = -np.inf
    for mask in (additive, np.array([True, False, True]), normal(*shape) > 0):
        expected = reference.apply_mask(scores, mask)
        close(steps.apply_mask(scores, mask), expected)
        in_place = scores.copy()
        assert steps.apply_mask(in_place, mask, out=in_place) is in_place
        close(in_place, expected)


def test_apply_mask_writes_over_the_mask(normal, close):
    scores, mask = normal(3, 4), normal(3, 4)
    expected = reference.apply_mask(scores, mask)
    close(steps.apply_mask(scores, mask, out=mask), expected)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(5,), (4, 33), (2, 4, 1), (2, 3, 4, 65), (2, 1, 3, 2, 3, 4)])
def test_softmax(normal, close, dtype, shape):
    x = normal(*shape, dtype=dtype)
    expected = reference.softmax(x)
    close(steps.softmax(x), expected)
    out = np.empty(shape[::-1], dtype).T
    assert steps.softmax(x, out=out) is out
    close(out, expected)


def test_softmax_of_a_masked_row(close):
    x = np.array([[-np.inf, -np.inf], [-np.inf, 3.0]], np.float32)
    assert steps.softmax(x).tolist() == [[0.0, 0.0], [0.0, 1.0]]


@pytest.mark.parametrize("dtype", DTYPES)
def test_weighted_values(normal, close, dtype):
    p, v = np.abs(normal(2, 4, 5, 7)).astype(dtype), normal(2, 2, 7, 6, dtype=dtype)
    expected = reference.weighted_values(p, v)
    close(steps.weighted_values(p, v), expected)
    result = steps.weighted_values(p, swap(v), layout="bshd")
    assert result.shape == (2, 5, 4, 6) and result.dtype == dtype
    close(swap(result), expected)


def test_weighted_values_without_keys(normal):
    assert not steps.weighted_values(normal(1, 2, 3, 0), normal(1, 2, 0, 4)).any()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(5,), (4, 33), (2, 3, 4, 65), (2, 1, 3, 2, 3, 4)])
def test_scale(normal, close, dtype, shape):
    x = normal(*shape, dtype=dtype)
    expected = reference.scale(x, 0.3)
    close(steps.scale(x, 0.3), expected)
    assert steps.scale(x, np.float32(0.3), out=x) is x
    close(x, expected)


@pytest.mark.parametrize("dtype", DTYPES)
def test_repeat_kv(normal, dtype):
    x = normal(2, 3, 4, 5, dtype=dtype)
    assert np.array_equal(steps.repeat_kv(x, 2), np.repeat(x, 2, axis=1))
    assert np.array_equal(steps.repeat_kv(x, 3, layout="bshd"), np.repeat(x, 3, axis=2))


def test_views_with_more_than_four_axes_are_written_in_place(normal, close):
    x = normal(2, 3, 4, 5, 6)
    for transposed in (x.transpose(2, 0, 3, 1, 4), x[:, ::-1, :, ::2], x.transpose(4, 3, 2, 1, 0)):
        wide = np.full((*transposed.shape[:-1], 2 * transposed.shape[-1]), 7.0, np.float32)
        close(steps.softmax(transposed, out=wide[..., ::2]), reference.softmax(transposed))
        close(steps.scale(transposed, 2.0, out=wide[..., ::2]), reference.scale(transposed, 2.0))
        assert (wide[..., 1::2] == 7.0).all()


@pytest.mark.parametrize("shape", [(0,), (3, 0), (0, 3), (2, 0, 3, 2, 2)])
def test_empty_arrays(normal, shape):
    x = normal(*shape)
    assert steps.softmax(x).shape == steps.scale(x, 2.0).shape == steps.apply_mask(x, x).shape == shape


def test_empty_products(normal):
    assert steps.qk_scores(normal(1, 2, 3, 4), normal(1, 2, 0, 4)).shape == (1, 2, 3, 0)
    assert steps.weighted_values(normal(0, 2, 3, 4), normal(0, 1, 4, 5)).shape == (0, 2, 3, 5)
    assert steps.repeat_kv(normal(1, 2, 0, 4), 3).shape == (1, 6, 0, 4)
    assert steps.causal_mask(0, 3).shape == (0, 3) and steps.causal_mask(3, 0).shape == (3, 0)


@pytest.mark.parametrize(("sq", "sk"), [(4, 4), (3, 9), (9, 3)])
def test_the_composition_of_the_steps_is_attention(normal, sq, sk):
    q, k, v = normal(2, 6, sq, 8), normal(2, 3, sk, 8), normal(2, 3, sk, 5)
    scores = steps.apply_mask(steps.qk_scores(q, k), steps.causal_mask(sq, sk))
    composed = steps.weighted_values(steps.softmax(scores), v)
    assert np.allclose(composed, flash_attention(q, k, v, causal=True), rtol=1e-5, atol=1e-6)


def test_torch_in_torch_out(normal, close):
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    x = torch.from_numpy(normal(2, 3, 4, 5)).to(torch.bfloat16)
    exact = x.double().numpy()
    for result, expected in (
        (steps.softmax(x), reference.softmax(exact)),
        (steps.scale(x, 0.5), reference.scale(exact, 0.5)),
        (steps.repeat_kv(x, 2), reference.repeat_kv(exact, 2)),
        (steps.qk_scores(x, x), reference.qk_scores(exact, exact)),
        (steps.apply_mask(x, x > 0), reference.apply_mask(exact, exact > 0)),
    ):
        assert isinstance(result, torch.Tensor) and result.dtype == torch.bfloat16
        close(result.double().numpy(), expected, ml_dtypes.bfloat16)
