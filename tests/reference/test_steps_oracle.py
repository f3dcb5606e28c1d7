"""The float64 steps against hand-computed cases, NumPy and the fused reference."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from rocmkern import reference


def normal(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape)


def test_qk_scores_contracts_the_head_dimension():
    q, k = normal(2, 4, 3, 8), normal(2, 2, 5, 8, seed=1)
    expected = np.einsum("bhid,bhjd->bhij", q, np.repeat(k, 2, axis=1))
    assert np.allclose(reference.qk_scores(q, k, scale=0.5), 0.5 * expected, atol=1e-13)
    assert np.allclose(reference.qk_scores(q, k), expected / np.sqrt(8), atol=1e-13)
    swapped = [x.transpose(0, 2, 1, 3) for x in (q, k)]
    assert np.array_equal(reference.qk_scores(*swapped, layout="bshd"), reference.qk_scores(q, k))


def test_causal_mask_patterns():
    inf = np.inf
    assert reference.causal_mask(2, 3).tolist() == [[0, 0, -inf], [0, 0, 0]]
    assert reference.causal_mask(2, 3, causal="top_left").tolist() == [[0, -inf, -inf], [0, 0, -inf]]
    assert reference.causal_mask(3, 3, window=(1, None)).tolist() == [[0, -inf, -inf], [0, 0, -inf], [-inf, 0, 0]]
    assert not reference.causal_mask(2, 3, causal=False).any()


def test_apply_mask_boolean_and_additive():
    scores = np.array([[1.0, 2.0, np.nan]])
    assert reference.apply_mask(scores, np.array([True, False, False])).tolist() == [[1.0, -np.inf, -np.inf]]
    added = reference.apply_mask(scores, np.array([0.5, -np.inf, -np.inf]))
    assert added[0, :2].tolist() == [1.5, -np.inf] and np.isnan(added[0, 2])


@pytest.mark.parametrize("n", [1, 31, 32, 33, 1025])
def test_softmax_of_any_length(n):
    x = normal(3, n)
    e = np.exp(x)
    assert np.allclose(reference.softmax(x), e / e.sum(-1, keepdims=True), rtol=1e-13)


def test_softmax_of_special_rows():
    x = np.array([[-np.inf, -np.inf], [1000.0, 1001.0], [np.nan, 0.0], [-np.inf, 5.0]])
    out = reference.softmax(x)
    assert out[0].tolist() == [0, 0] and out[3].tolist() == [0, 1] and np.isnan(out[2]).all()
    assert np.allclose(out[1], [1 / (1 + np.e), np.e / (1 + np.e)])


def test_softmax_equals_torch():
    torch = pytest.importorskip("torch", reason="PyTorch, the outside oracle, is not installed")
    x = 30 * normal(2, 3, 4, 65)
    assert np.allclose(reference.softmax(x), torch.softmax(torch.from_numpy(x), -1).numpy(), rtol=1e-12)


def test_weighted_values_and_layout():
    p, v = normal(1, 4, 3, 5), normal(1, 2, 5, 6, seed=1)
    expected = np.einsum("bhij,bhjd->bhid", p, np.repeat(v, 2, axis=1))
    assert np.allclose(reference.weighted_values(p, v), expected, atol=1e-13)
    swapped = reference.weighted_values(p, v.transpose(0, 2, 1, 3), layout="bshd")
    assert np.allclose(swapped, expected.transpose(0, 2, 1, 3), atol=1e-13)


def test_scale_and_repeat_kv():
    x = np.array([1.0, 2.0]).reshape(1, 2, 1, 1).astype(ml_dtypes.bfloat16)
    assert reference.scale(x, 0.5).ravel().tolist() == [0.5, 1.0]
    assert reference.repeat_kv(x, 3).ravel().tolist() == [1, 1, 1, 2, 2, 2]
    assert reference.repeat_kv(x.transpose(0, 2, 1, 3), 2, layout="bshd").shape == (1, 1, 4, 1)


@pytest.mark.parametrize(("sq", "sk"), [(4, 4), (3, 9), (9, 3)])
def test_the_composition_of_the_steps_is_attention(sq, sk):
    q, k, v = normal(2, 6, sq, 8), normal(2, 3, sk, 8, seed=1), normal(2, 3, sk, 5, seed=2)
    scores = reference.apply_mask(reference.qk_scores(q, k), reference.causal_mask(sq, sk))
    composed = reference.weighted_values(reference.softmax(scores), v)
    assert np.allclose(composed, reference.flash_attention(q, k, v, causal=True), atol=1e-13)


def test_baseline_rounds_to_the_dtype_of_the_first_argument():
    x = normal(2, 3, 4, 5).astype(np.float16)
    y = normal(2, 3, 6, 5, seed=1).astype(np.float16)
    base = reference.baseline
    p = base.softmax(base.qk_scores(x, y))
    results = [p, base.weighted_values(p, y), base.scale(x, 0.3), base.repeat_kv(x, 2), base.apply_mask(x, x > 0)]
    assert {r.dtype for r in results} == {np.dtype(np.float16)}
    exact = reference.scale(x, 0.3)
    assert np.array_equal(base.scale(x, 0.3), (x.astype(np.float32) * np.float32(0.3)).astype(np.float16))
    assert np.allclose(base.scale(x, 0.3).astype(float), exact, rtol=1e-3)
    assert base.causal_mask(2, 2, dtype=np.float16).dtype == np.float16


def test_reference_does_not_import_the_kernels():
    import subprocess
    import sys

    code = (
        "import rocmkern.reference, sys; others = 'rocmkern.calls', 'rocmkern.tile', 'numba'; "
        "print(sorted(m for m in sys.modules if '.kernels' in m or m.startswith(others)))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"
