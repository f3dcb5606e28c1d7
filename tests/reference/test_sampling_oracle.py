"""The float64 distributions against PyTorch's softmax and top-k."""

from __future__ import annotations

import numpy as np
import pytest

from rocmkern.ops.sampling import reference as sampling

torch = pytest.importorskip("torch")
LOGITS = np.random.default_rng(3).standard_normal((5, 40))


def test_without_limits_it_is_a_softmax():
    expected = torch.softmax(torch.from_numpy(LOGITS) / 0.7, -1)
    np.testing.assert_allclose(sampling.probabilities(LOGITS, 0.7), expected, rtol=1e-12)


def test_top_k_is_a_softmax_of_the_k_largest():
    x = torch.from_numpy(LOGITS)
    least = torch.topk(x, 6).values[:, -1:]
    expected = torch.softmax(x.masked_fill(x < least, -torch.inf), -1)
    np.testing.assert_allclose(sampling.probabilities(LOGITS, top_k=6), expected, rtol=1e-12)


def test_top_p_is_the_shortest_prefix_that_reaches_the_share():
    p = torch.softmax(torch.from_numpy(LOGITS), -1)
    ordered, index = p.sort(descending=True)
    keep = torch.zeros_like(p, dtype=torch.bool).scatter(-1, index, ordered.cumsum(-1) - ordered < np.float32(0.6))
    expected = p.where(keep, torch.zeros(())) / p.where(keep, torch.zeros(())).sum(-1, keepdim=True)
    np.testing.assert_allclose(sampling.probabilities(LOGITS, top_p=0.6), expected, rtol=1e-12)


def test_a_token_is_where_the_running_sum_passes_the_number():
    u = [sampling.uniform(7, offset) for offset in range(5)]
    p = sampling.probabilities(LOGITS)
    expected = [np.searchsorted(np.cumsum(row), x, side="right") for row, x in zip(p, u, strict=True)]
    np.testing.assert_array_equal(sampling.sample(LOGITS, seed=7, offset=np.arange(5)), expected)
    assert len(set(u)) == 5 and all(0 <= x < 1 for x in u)


def test_rows_have_numbers_of_their_own():
    numbers = {"temperature": np.array([0, 0.5, 1, 2, 1]), "top_k": np.array([1, 5, 40, 100, 3]), "seed": np.arange(5)}
    each = [
        sampling.sample(LOGITS[i : i + 1], **{name: array[i] for name, array in numbers.items()})[0] for i in range(5)
    ]
    np.testing.assert_array_equal(sampling.sample(LOGITS, **numbers), [int(token) for token in each])


@pytest.mark.parametrize("row", [[np.nan, 0], [np.inf, 0], [np.inf, np.inf], [-np.inf, -np.inf]], ids=str)
def test_what_is_no_distribution_is_an_error(row):
    with pytest.raises(ValueError, match="logits"):
        sampling.sample(np.array([[0.0, 1.0], row]), seed=0)
