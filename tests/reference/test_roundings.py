"""What roundings cost by formula: enough where terms cancel, and nothing where they do not."""

from __future__ import annotations

import numpy as np
import pytest

from rocmkern import reference
from rocmkern.matrix.tolerance import compare, ulp
from rocmkern.reference import baseline, roundings

HALVES = {"float16": 2.0**-11}


def rng(seed=0):
    return np.random.default_rng(seed)


def attention_with_rounded_weights(q, k, v, scale):
    """As a kernel with matrix instructions computes it: weights are float16 when they meet the values."""
    q, k, v = (x.astype(np.float64) for x in (q, k, v))
    scores = scale * q @ k.swapaxes(-1, -2)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    rounded = weights.astype(np.float16).astype(np.float64)
    return (rounded @ v / weights.sum(axis=-1, keepdims=True)).astype(np.float16)


def test_rounded_weights_may_meet_values_that_cancel():
    # Rows of one number, repeated along the last axis, of which some are small because the values cancel.
    failed = 0
    for seed in range(200):
        draw = rng(seed)
        q, k = (draw.standard_normal((1, 1, n, 1)).astype(np.float16) for n in (18, 12))
        v = np.broadcast_to(draw.standard_normal((1, 1, 12, 1)).astype(np.float16), (1, 1, 12, 9))
        out = attention_with_rounded_weights(q, k, v, 0.25)
        exact = reference.flash_attention(q, k, v, scale=0.25)
        straight = baseline.flash_attention(q, k, v, scale=0.25)
        failed += not compare(out, exact, straight).ok
        assert compare(out, exact, straight, roundings.flash_attention(q, k, v, scale=0.25)).ok
    assert failed > 20  # without the cost of roundings


def test_the_cost_of_weights_loosens_no_row_that_does_not_cancel():
    draw = rng(1)
    q, k, v = (draw.standard_normal((1, 2, n, 64)).astype(np.float16) for n in (40, 300, 300))
    exact = reference.flash_attention(q, k, v)
    cost = roundings.flash_attention(q, k, v)
    assert (2 * cost.max(axis=-1) <= 2 * ulp(np.abs(exact).max(axis=-1), np.float16)).all()


@pytest.mark.parametrize("layout", ["bhsd", "bshd"])
def test_squares_of_weights_come_from_doubled_scores(layout):
    draw = rng(2)
    shapes = [(2, 4, n, 8) for n in (5, 7, 7)]
    q, k, v = (draw.standard_normal(shape).astype(np.float16) for shape in shapes)
    bias, slopes = draw.standard_normal((5, 7)).astype(np.float16), np.array([0.5, 0.25, 1.0, 0.1], np.float32)
    options = dict(causal=True, softcap=3.0, bias=bias, alibi_slopes=slopes, sinks=np.zeros(4, np.float32))
    unit = np.broadcast_to(np.eye(7), (2, 4, 7, 7))
    weights = reference.flash_attention(q, k, unit, **options)
    expected = np.sqrt(weights**2 @ v.astype(np.float64) ** 2) * HALVES["float16"]
    arrays = [x.transpose(0, 2, 1, 3) for x in (q, k, v)] if layout == "bshd" else [q, k, v]
    cost, lse = roundings.flash_attention(*arrays, layout=layout, return_lse=True, **options)
    cost = cost.transpose(0, 2, 1, 3) if layout == "bshd" else cost
    np.testing.assert_allclose(cost, expected, rtol=0.02)  # the rest is float32's
    assert lse.shape == (2, 4, 5)


def test_a_sum_in_any_order_stays_within_a_few_costs():
    draw = rng(3)
    a, b = (draw.standard_normal(shape).astype(np.float32) for shape in ((50, 257), (257, 3)))
    cost, exact = roundings.matmul(a, b), reference.matmul(a, b)
    for order in (np.arange(257), draw.permutation(257), np.argsort(-np.abs(a[0]))):
        total = np.zeros((50, 3), np.float32)
        for i in order:
            total = total + a[:, i : i + 1] * b[i]
        assert (np.abs(total - exact) <= 4 * cost).all()


def test_the_hidden_numbers_of_an_mlp_are_rounded_before_the_last_product():
    draw = rng(4)
    x = draw.standard_normal((3, 8)).astype(np.float16)
    gate, up = (draw.standard_normal((16, 8)).astype(np.float16) / 4 for _ in range(2))
    row = draw.standard_normal((1, 16)).astype(np.float16)
    down = np.concatenate([row, -row], axis=1)  # both halves of the hidden numbers cancel
    gate, up = np.concatenate([gate, gate]), np.concatenate([up, up])
    hidden = reference.mlp(x, gate, up, np.eye(32))
    expected = HALVES["float16"] * np.sqrt(hidden**2 @ down.astype(np.float64).T ** 2)
    np.testing.assert_allclose(roundings.mlp(x, gate, up, down), expected, rtol=0.02)


def test_what_is_not_finite_costs_nothing():
    x = np.array([[np.inf, 1.0], [1.0, 2.0]], np.float32)
    cost = roundings.matmul(x, np.ones((2, 2), np.float32))
    assert (cost[0] == 0).all() and (cost[1] > 0).all()


def test_products_of_no_weights_and_of_no_elements_have_costs_of_their_shape():
    blocks = reference.quantize(np.zeros((0, 64), np.float32), "q4_0").astype(np.uint8)
    assert roundings.quantized_linear(np.ones((3, 64), np.float16), blocks).shape == (3, 0)
    assert roundings.matmul(np.ones((2, 0), np.float32), np.ones((0, 3), np.float32)).shape == (2, 3)
