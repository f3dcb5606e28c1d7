"""The float64 rotary embedding and attention over pages against complex numbers, printed values and PyTorch."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from rocmkern import reference
from rocmkern.ops.rotary import reference as rotary_reference

ROPE_LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


def normal(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape)


def turned(pairs, positions, base=10000.0):
    """Complex numbers ``[S, H, P]`` times ``exp(i p f)``."""
    f = base ** (-np.arange(pairs.shape[-1]) / pairs.shape[-1])
    return pairs * np.exp(1j * np.asarray(positions)[:, None, None] * f)


@pytest.mark.parametrize("variant", ["half", "interleaved"])
def test_pairs_are_complex_numbers(variant):
    x, positions = normal(4, 3, 10), [0, 3, 500, 131071]
    a, b = (slice(0, 5), slice(5, 10)) if variant == "half" else (slice(0, None, 2), slice(1, None, 2))
    expected = turned(x[..., a] + 1j * x[..., b], positions)
    result = reference.rope(x, np.array(positions), variant=variant)
    np.testing.assert_allclose(result[..., a], expected.real, atol=1e-9)
    np.testing.assert_allclose(result[..., b], expected.imag, atol=1e-9)
    np.testing.assert_allclose(reference.rope(result, np.array(positions), variant=variant, inverse=True), x, atol=1e-9)


def test_scores_depend_on_distance_only():
    q, k = normal(1, 1, 16), normal(1, 1, 16, seed=1)

    def score(i, j):
        return (reference.rope(q, np.array([i])) * reference.rope(k, np.array([j]))).sum()

    assert score(7, 3) == pytest.approx(score(104, 100)) and score(7, 3) != pytest.approx(score(8, 3))


def test_two_dimensional_positions_are_two_heads():
    x, token, block = normal(5, 2, 16), np.arange(5), np.array([0, 0, 1, 2, 3])
    result = reference.rope(x, token, block_positions=block)
    np.testing.assert_array_equal(result[..., :8], reference.rope(x[..., :8], token))
    np.testing.assert_array_equal(result[..., 8:], reference.rope(x[..., 8:], block))


def test_linear_scaling_divides_positions_without_a_floor():
    x = normal(3, 1, 8)
    scaled = reference.rope(x, np.array([1, 2, 3]), scaling={"rope_type": "linear", "factor": 2.0})
    angle = np.array([0.5, 1.0, 1.5])
    np.testing.assert_allclose(scaled[:, 0, 0], x[:, 0, 0] * np.cos(angle) - x[:, 0, 4] * np.sin(angle), atol=1e-12)


def test_llama3_keeps_short_and_divides_long_waves():
    plain, _ = rotary_reference.frequencies(128, 500000.0)
    scaled, factor = rotary_reference.frequencies(128, 500000.0, ROPE_LLAMA3)
    waves = 2 * np.pi / plain
    assert factor == 1.0
    np.testing.assert_array_equal(scaled[waves < 2048], plain[waves < 2048])
    np.testing.assert_array_equal(scaled[waves > 8192], plain[waves > 8192] / 8)
    between = (waves > 2048) & (waves < 8192)
    assert between.any() and ((scaled < plain) & (scaled > plain / 8))[between].all()
    assert (np.diff(scaled) < 0).all(), "the blend is monotonous"


def test_yarn_by_the_numbers_of_its_ramp():
    """dim 128, base 10000, trained on 4096: the ramp runs from dimension 20 to 46."""
    plain, _ = rotary_reference.frequencies(128)
    yarn = {"rope_type": "yarn", "factor": 16.0, "original_max_position_embeddings": 4096}
    scaled, factor = rotary_reference.frequencies(128, scaling=yarn)
    assert factor == pytest.approx(0.1 * np.log(16) + 1)
    np.testing.assert_allclose(scaled[:21], plain[:21], rtol=1e-15)
    np.testing.assert_allclose(scaled[46:], plain[46:] / 16, rtol=1e-15)
    middle = (33 - 20) / 26
    assert scaled[33] == pytest.approx(plain[33] / 16 * middle + plain[33] * (1 - middle))


def test_against_pytorch_complex_numbers():
    torch = pytest.importorskip("torch")
    x, positions = normal(6, 2, 8), np.arange(6)
    pairs = torch.view_as_complex(torch.from_numpy(x.reshape(6, 2, 4, 2).copy()))
    angle = torch.outer(torch.arange(6, dtype=torch.float64), 10000.0 ** (-torch.arange(0, 8, 2).double() / 8))
    expected = torch.view_as_real(pairs * torch.polar(torch.ones_like(angle), angle)[:, None]).numpy()
    np.testing.assert_allclose(
        reference.rope(x, positions, variant="interleaved"), expected.reshape(6, 2, 8), atol=1e-14
    )


def test_appending_puts_rows_into_slots():
    k, v = normal(3, 1, 4), normal(3, 1, 2)
    caches = normal(2, 4, 1, 4), normal(2, 4, 1, 2)
    keys, values = reference.rope_append_kv(k, v, np.arange(3), *caches, np.array([6, -1, 1]))
    np.testing.assert_array_equal(values[1, 2], v[0])
    np.testing.assert_array_equal(values[0, 1], v[2])
    np.testing.assert_array_equal(keys[1, 2], k[0])
    changed = np.zeros((2, 4), bool)
    changed[1, 2] = changed[0, 1] = True
    np.testing.assert_array_equal(keys[~changed], caches[0][~changed])


def test_pages_against_pytorch():
    torch = pytest.importorskip("torch")
    keys, values, q = normal(5, 4, 2, 8), normal(5, 4, 2, 6, seed=1), normal(3, 6, 8, seed=2)
    table, lens = np.array([[4, 0, 2, -1]]), np.array([10])
    out = reference.paged_attention(q, keys, values, table, lens, cu_seqlens_q=np.array([0, 3]))
    k, v = (np.concatenate(cache[[4, 0, 2]])[:10] for cache in (keys, values))
    visible = torch.from_numpy(np.arange(10) <= np.arange(3)[:, None] + 7)
    tensors = [torch.from_numpy(x.swapaxes(0, 1).copy())[None] for x in (q, k, v)]
    attention = torch.nn.functional.scaled_dot_product_attention
    expected = attention(*tensors, attn_mask=visible, enable_gqa=True)[0].numpy().swapaxes(0, 1)
    np.testing.assert_allclose(out, expected, atol=1e-12)


def test_scales_multiply_keys_and_values():
    keys, values, q = normal(2, 4, 2, 8), normal(2, 4, 2, 6, seed=1), normal(1, 2, 8, seed=2)
    scale, table, lens = np.array([0.5, 2.0]), np.array([[1, 0]]), np.array([7])
    given = reference.paged_attention(q, keys, values, table, lens, key_scale=scale, value_scale=scale)
    ready = reference.paged_attention(q, keys * scale[:, None], values * scale[:, None], table, lens)
    np.testing.assert_allclose(given, ready, atol=1e-14)


@pytest.mark.parametrize("name", ["int8", "float8_e4m3fn", "float8_e5m2"])
def test_codes_of_a_cache_against_pytorch(name):
    """PyTorch rounds to nearest even too; numbers are kept within the range, where its conversions differ."""
    torch = pytest.importorskip("torch")
    dtype = np.dtype(getattr(ml_dtypes, name, np.int8))
    largest = 127.0 if name == "int8" else float(ml_dtypes.finfo(dtype).max)
    v = np.clip(normal(6, 2, 40, seed=3) * largest / 3, -largest, largest)
    v[0, 0] = np.clip(np.arange(40) - 19.5, -largest, largest)
    v = v.astype(np.float32)
    cache, scale = np.zeros((2, 3, 2, 40), dtype), np.array([1.0, 0.5], np.float32)
    _, got = reference.rope_append_kv(
        v, v * scale[:, None], np.arange(6), cache, cache, np.arange(6), value_scale=scale
    )
    there = torch.from_numpy(v)
    expected = torch.round(there).to(torch.int8) if name == "int8" else there.to(getattr(torch, name))
    np.testing.assert_array_equal(got.reshape(6, 2, 40), expected.to(torch.float64).numpy())
