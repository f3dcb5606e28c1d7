"""`rope` and `rope_append_kv` as operations, against the float64 reference."""

from __future__ import annotations

import dataclasses

import ml_dtypes
import numpy as np
import pytest

import rocmkern
from rocmkern import reference
from rocmkern.ops.rotary import reference as rotary_reference
from rocmkern.ops.rotary.scaling import accept_scaling, attention_factor, frequencies
from rocmkern.runtime.errors import ArgumentError, ArgumentTypeError

DTYPES = [np.float32, np.float16, ml_dtypes.bfloat16]
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4096}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


@pytest.mark.usefixtures("launch")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("variant", ["half", "interleaved"])
@pytest.mark.parametrize("shape", [(5, 3, 8), (2, 5, 3, 8), (2, 2, 5, 3, 8)])
def test_rope_takes_any_leading_axes(normal, close, dtype, variant, shape):
    x = normal(*shape, dtype=dtype)
    positions = np.array([0, 7, 131071, 255, 15962], np.int32)
    expected = reference.rope(x.astype(np.float64), positions, variant=variant)
    result = rocmkern.rope(x, positions, variant=variant)
    assert result.dtype == dtype
    close(result, expected)
    swapped = np.swapaxes(x, -2, -3)
    close(rocmkern.rope(swapped, positions, variant=variant, layout="hsd"), np.swapaxes(expected, -2, -3))
    each = np.broadcast_to(positions, (*shape[:-3], 5))
    np.testing.assert_array_equal(rocmkern.rope(x, each, variant=variant), result)


@pytest.mark.usefixtures("launch")
def test_rope_in_place_and_back(normal, close):
    x = normal(2, 5, 3, 8)
    y, positions = x.copy(), np.arange(5)
    assert rocmkern.rope(y, positions, rotary_dim=4, out=y) is y
    close(y, reference.rope(x.astype(np.float64), positions, rotary_dim=4))
    np.testing.assert_array_equal(y[..., 4:], x[..., 4:])
    close(rocmkern.rope(y, positions, rotary_dim=4, inverse=True), x.astype(np.float64))


@pytest.mark.parametrize("target", ["python", "cpu"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("inverse", [False, True])
def test_position_0_changes_no_bit(target, dtype, inverse):
    special = [0.0, -0.0, 1.0, -2.5, np.inf, -np.inf, np.nan, float(ml_dtypes.finfo(dtype).smallest_subnormal)]
    x = np.array(special * 2, np.float64).astype(dtype).reshape(1, 1, 16)
    with rocmkern.using(target):
        result = rocmkern.rope(x, np.zeros(1, np.int32), inverse=inverse)
    np.testing.assert_array_equal(result.view(np.uint8), x.view(np.uint8))


@pytest.mark.parametrize("target", ["python", "cpu"])
@pytest.mark.parametrize("position", [255, 257, 4095, 15962, 131071])
def test_cosine_and_sine_are_within_a_millionth(target, position):
    x = np.zeros((1, 1, 128), np.float32)
    x[..., :64] = 1
    with rocmkern.using(target):
        result = rocmkern.rope(x, np.array([position]))[0, 0]
    angle = position * 10000.0 ** (-np.arange(64) / 64)
    assert abs(result[:64] - np.cos(angle)).max() < 1e-6
    assert abs(result[64:] - np.sin(angle)).max() < 1e-6


def test_scaling_as_a_dict_or_as_an_object_is_the_same():
    assert accept_scaling(YARN) == rocmkern.YarnScaling(4.0, 4096)
    assert accept_scaling(LLAMA3) == rocmkern.Llama3Scaling(8.0, 1.0, 4.0, 8192)
    assert accept_scaling({"type": "linear", "factor": 2}) == rocmkern.LinearScaling(2)
    assert accept_scaling({"rope_type": "default"}) is None
    assert attention_factor(accept_scaling(YARN)) == pytest.approx(0.1 * np.log(4.0) + 1)
    assert attention_factor(rocmkern.YarnScaling(4.0, 4096, attention_factor=1.5)) == 1.5
    assert attention_factor(rocmkern.LinearScaling(4.0)) == 1.0


@pytest.mark.parametrize("scaling", [None, {"rope_type": "linear", "factor": 3.0}, YARN, LLAMA3], ids=str)
@pytest.mark.parametrize("base", [10000.0, 500000.0])
def test_frequencies_are_those_of_the_reference(scaling, base):
    turns = frequencies(128, base, accept_scaling(scaling))
    radians, _ = rotary_reference.frequencies(128, base, scaling)
    np.testing.assert_allclose(turns * (2 * np.pi / 2.0**64), radians, rtol=1e-15, atol=1e-18)
    assert turns.dtype == np.int64 and not turns.flags.writeable


@pytest.mark.parametrize(
    ("scaling", "words"),
    [
        ({"factor": 2.0}, "rope_type"),
        ({"rope_type": "dynamic", "factor": 2.0}, "'dynamic'"),
        ({"rope_type": "linear"}, "factor"),
        ({"rope_type": "default", "factor": 2.0}, "'factor' in a dict of type 'default'; allowed: rope_theta$"),
        ({"rope_type": "linear", "type": "yarn", "factor": 2.0}, "that differ"),
        ({"rope_type": "default", "rope_theta": 1.0}, "rope_theta=1.0; allowed: a number above 1"),
        ({"rope_type": "default", "rope_theta": "1e6"}, "rope_theta='1e6'"),
        ({"rope_type": "linear", "factor": 2.0, "rope_theta": True}, "rope_theta=True"),
        ({"rope_type": "linear", "factor": 2.0, "beta_fast": 1.0}, "'beta_fast'"),
        ({"rope_type": "linear", "factor": -2.0}, "factor=-2.0"),
        (rocmkern.LinearScaling(float("nan")), "factor=nan"),
        (rocmkern.Llama3Scaling(8.0, 4.0, 1.0, 8192), "high_freq_factor above"),
        (rocmkern.YarnScaling(8.0, 4096, beta_fast=1.0, beta_slow=2.0), "beta_slow"),
        (rocmkern.YarnScaling(8.0, 4096, truncate=1), "truncate"),
    ],
)
def test_bad_scaling_is_refused_by_name(normal, scaling, words):
    with pytest.raises(ArgumentError, match=words) as error:
        rocmkern.rope(normal(1, 1, 8), np.arange(1), scaling=scaling)
    assert error.value.argument == "scaling"


@pytest.mark.parametrize("kind", [{"rope_type": "default"}, {"type": "linear", "factor": 3.0}, YARN, LLAMA3], ids=str)
def test_the_base_in_a_dict_is_the_base(normal, kind):
    x, positions = normal(4, 2, 16), np.array([0, 1, 100, 5000])
    expected = rocmkern.rope(x, positions, base=1e6, scaling=kind)
    assert np.abs(expected - rocmkern.rope(x, positions, scaling=kind)).max() > 0.1
    within = {**kind, "rope_theta": 1e6}
    np.testing.assert_array_equal(rocmkern.rope(x, positions, scaling=within), expected)
    np.testing.assert_array_equal(rocmkern.rope(x, positions, scaling=within, base=1000000), expected)
    with pytest.raises(ArgumentError, match=r"base: got 10000\.0; allowed: 1000000\.0, the rope_theta") as error:
        rocmkern.rope(x, positions, scaling=within, base=10000.0)
    assert error.value.argument == "base"


@pytest.mark.usefixtures("launch")
@pytest.mark.parametrize("variant", ["half", "interleaved"])
def test_factors_divide_the_frequencies(normal, close, variant):
    x, positions, factors = normal(5, 3, 12), np.array([0, 1, 77, 8191, 131071]), np.linspace(0.5, 8, 6)
    expected = reference.rope(x.astype(np.float64), positions, variant=variant, freq_factors=factors)
    result = rocmkern.rope(x, positions, variant=variant, freq_factors=factors)
    close(result, expected)
    assert np.abs(result - rocmkern.rope(x, positions, variant=variant)).max() > 0.1
    for same in (tuple(factors.tolist()), factors[::-1].copy()[::-1], rocmkern.default_manager().from_numpy(factors)):
        np.testing.assert_array_equal(rocmkern.rope(x, positions, variant=variant, freq_factors=same), result)
    for other in ({}, {"scaling": {"rope_type": "linear", "factor": 1.0}}):
        ones = rocmkern.rope(x, positions, freq_factors=np.ones(6, np.float32), **other)
        np.testing.assert_array_equal(ones, rocmkern.rope(x, positions))


def test_factors_of_llama3_are_its_scaling(normal, close):
    x, positions = normal(3, 2, 128), np.array([1, 9000, 131071])
    plain, scaled = (rotary_reference.frequencies(128, 500000.0, kind)[0] for kind in (None, LLAMA3))
    expected = rocmkern.rope(x, positions, base=500000.0, scaling=LLAMA3)
    close(rocmkern.rope(x, positions, base=500000.0, freq_factors=plain / scaled), expected.astype(np.float64))


@pytest.mark.parametrize(
    ("factors", "words"),
    [
        (np.ones(3), r"shape \(3,\); allowed: shape \(4,\)"),
        (np.ones((1, 4)), r"shape \(1, 4\)"),
        ((1.0, 2.0), r"shape \(2,\)"),
        ((1.0, 2.0, "3", 4.0), "'3' for pair 2"),
        (np.array([1, 1, 0, 1.0]), "0.0 for pair 2"),
        (np.array([1, -1, 1, 1.0]), "-1.0 for pair 1"),
        (np.array([np.nan, 1, 1, 1]), "nan for pair 0"),
        (np.array([1, 1, 1, np.inf]), "inf for pair 3"),
        (np.ones(4, np.int32), "int32 array"),
        ([1.0, 1.0, 1.0, 1.0], "list"),
        (2.0, "float"),
    ],
)
def test_bad_factors_are_refused_by_name(normal, factors, words):
    k, cache = normal(2, 1, 8), np.zeros((2, 1, 2, 1, 8), np.float32)
    for call in (
        lambda: rocmkern.rope(k, np.arange(2), freq_factors=factors),
        lambda: rocmkern.rope_append_kv(k, k, np.arange(2), *cache, np.arange(2), freq_factors=factors),
    ):
        with pytest.raises(ArgumentError, match=words) as error:
            call()
        assert error.value.argument == "freq_factors"
    assert not cache.any()


def test_frequencies_are_not_scaled_twice(normal):
    with pytest.raises(ArgumentError, match="either freq_factors or a Llama3Scaling") as error:
        rocmkern.rope(normal(2, 1, 8), np.arange(2), freq_factors=np.ones(4), scaling=LLAMA3)
    assert error.value.argument == "freq_factors"


def test_positions_that_32_bits_do_not_hold_are_refused(normal):
    with pytest.raises(ArgumentError, match="32 bits") as error:
        rocmkern.rope(normal(1, 1, 8), np.array([2**31]))
    assert error.value.argument == "positions"
    with pytest.raises(ArgumentError, match=r"shape \(3,\)"):
        rocmkern.rope(normal(2, 3, 1, 8), np.arange(2))
    with pytest.raises(ArgumentError, match="3 axes or more"):
        rocmkern.rope(normal(3, 8), np.arange(3))


@pytest.mark.usefixtures("launch")
@pytest.mark.parametrize("dtype", DTYPES)
def test_appending_writes_its_slots_and_nothing_else(normal, close, dtype):
    k, v = normal(5, 2, 8, dtype=dtype), normal(5, 2, 6, dtype=dtype)
    keys, values = normal(4, 3, 2, 8, dtype=dtype), normal(4, 3, 2, 6, dtype=dtype)
    before = keys.copy(), values.copy()
    slots, positions = np.array([11, -1, 0, 4, 3]), np.array([5, 6, 7, 8, 9])
    result = rocmkern.rope_append_kv(k, v, positions, keys, values, slots)
    assert result[0] is keys and result[1] is values
    expected = reference.rope_append_kv(k, v, positions, *before, slots)
    close(keys, expected[0])
    np.testing.assert_array_equal(values, expected[1].astype(dtype))
    untouched = np.setdiff1d(np.arange(12), slots)
    for now, then in zip((keys, values), before, strict=True):
        np.testing.assert_array_equal(
            now.reshape(12, -1)[untouched].view(np.uint8), then.reshape(12, -1)[untouched].view(np.uint8)
        )


@pytest.mark.usefixtures("launch")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("head_dim", [1, 59, 64])
@pytest.mark.parametrize("options", [{"positions": None}, {"positions": np.arange(5), "rotary_dim": 0}], ids=str)
def test_keys_that_are_not_rotated_are_appended_as_they_are(normal, dtype, head_dim, options):
    k, v = normal(5, 2, head_dim, dtype=dtype), normal(5, 2, 6, dtype=dtype)
    keys, values = np.zeros((4, 3, 2, head_dim), dtype), np.zeros((4, 3, 2, 6), dtype)
    slots = np.array([11, -1, 0, 4, 3])
    rocmkern.rope_append_kv(k, v, key_cache=keys, value_cache=values, slots=slots, **options)
    for cache, given in ((keys, k), (values, v)):
        rows = cache.reshape(12, 2, -1)
        np.testing.assert_array_equal(rows[slots[slots >= 0]], given[slots >= 0])
        assert not rows[np.setdiff1d(np.arange(12), slots)].any()


def test_an_odd_head_says_how_it_is_appended(normal):
    k, cache = normal(2, 1, 59), np.zeros((2, 1, 2, 1, 59), np.float32)
    with pytest.raises(ArgumentError, match=r"k: got head dimension 59; .*rotary_dim= .*0 for none") as error:
        rocmkern.rope_append_kv(k, k, np.arange(2), *cache, np.arange(2))
    assert error.value.argument == "k"
    with pytest.raises(ArgumentTypeError, match="rotary_dim=58 asks for a rotation") as error:
        rocmkern.rope_append_kv(k, k, None, *cache, np.arange(2), rotary_dim=58)
    assert error.value.argument == "positions" and not cache.any()


@pytest.mark.parametrize("slots", [[0, 0], [12, 1], [-2, 1]], ids=str)
def test_slots_are_checked_before_anything_is_written(normal, slots):
    keys, values = np.zeros((4, 3, 2, 8), np.float32), np.zeros((4, 3, 2, 8), np.float32)
    with pytest.raises(ArgumentError) as error:
        rocmkern.rope_append_kv(normal(2, 2, 8), normal(2, 2, 8), np.arange(2), keys, values, np.array(slots))
    assert error.value.argument == "slots" and not keys.any() and not values.any()


def test_caches_must_be_two_that_can_be_written(normal):
    k, slots, cache = normal(2, 2, 8), np.arange(2), normal(4, 3, 2, 8)
    with pytest.raises(ArgumentError, match="overlaps") as error:
        rocmkern.rope_append_kv(k, k, slots, cache, cache, slots)
    assert error.value.argument == "value_cache"
    frozen = cache.copy()
    frozen.flags.writeable = False
    with pytest.raises(ArgumentError, match="read-only") as error:
        rocmkern.rope_append_kv(k, k, slots, frozen, cache, slots)
    assert error.value.argument == "key_cache"
    with pytest.raises(ArgumentTypeError, match="float16"):
        rocmkern.rope_append_kv(k, k, slots, cache.astype(np.float16), cache, slots)


CODES = {"int8": np.int8, "float8_e4m3fn": ml_dtypes.float8_e4m3fn, "float8_e5m2": ml_dtypes.float8_e5m2}


@pytest.mark.parametrize("name", CODES)
@pytest.mark.parametrize("dense", [False, True])
def test_what_is_appended_as_codes_is_what_attention_reads(normal, name, dense):
    """Against the same attention over what the codes stand for, in float32 caches."""
    dtype, lens = np.dtype(CODES[name]), np.array([7, 5], np.int32)
    room, table = (8, np.array([[1], [0]])) if dense else (4, np.array([[3, 1], [0, 2]]))
    keys, values = np.zeros((4, room, 2, 16), dtype), np.zeros((4, room, 2, 8), dtype)
    token = np.concatenate([np.arange(n) for n in lens])
    slots = table[np.repeat([0, 1], lens), token // room] * room + token % room
    k, v, q = normal(12, 2, 16), normal(12, 2, 8), normal(2, 4, 16)
    scales = {"key_scale": np.array([0.03, 0.05], np.float32), "value_scale": np.array([0.04, 0.02], np.float32)}
    for some in (slice(0, 9), slice(9, 12)):
        rocmkern.rope_append_kv(k[some], v[some], token[some], keys, values, slots[some], **scales)
    meant = [x.astype(np.float32) * scale[:, None] for x, scale in zip((keys, values), scales.values(), strict=True)]
    got = rocmkern.paged_attention(q, keys, values, table.astype(np.int32), lens, **scales)
    expected = rocmkern.paged_attention(q, *meant, table.astype(np.int32), lens)
    np.testing.assert_allclose(got, expected, rtol=2e-5, atol=2e-5)
    written = rocmkern.rope(k, token)
    assert np.abs(meant[0].reshape(-1, 2, 16)[slots] - written).max() <= 0.05 * (0.5 if name == "int8" else 8)


def test_scales_are_for_caches_of_8_bits_and_both_are_alike(normal):
    k, slots, cache = normal(2, 2, 8), np.arange(2), normal(4, 3, 2, 8)
    codes, scale = cache.astype(np.int8), np.ones(2, np.float32)
    with pytest.raises(ArgumentError, match="None where the caches are float32") as error:
        rocmkern.rope_append_kv(k, k, slots, cache, cache.copy(), slots, value_scale=scale)
    assert error.value.argument == "value_scale"
    with pytest.raises(ArgumentTypeError, match="int8, the dtype of key_cache") as error:
        rocmkern.rope_append_kv(k, k, slots, codes, cache, slots)
    assert error.value.argument == "value_cache"
    with pytest.raises(ArgumentError, match="finite positive") as error:
        rocmkern.rope_append_kv(k, k, slots, codes, codes.copy(), slots, key_scale=np.array([1, np.inf], np.float32))
    assert error.value.argument == "key_scale"


@pytest.mark.parametrize(
    ("kind", "changes", "words"),
    [
        ("llama3", {"low_freq_factor": 4.0}, "low_freq_factor=4.0, high_freq_factor=4.0; allowed: a high_freq_factor"),
        ("llama3", {"low_freq_factor": 5.0}, "low_freq_factor=5.0, high_freq_factor=4.0; allowed: a high_freq_factor"),
        ("yarn", {"beta_slow": 33.0}, "beta_fast=32.0, beta_slow=33.0; allowed: a beta_fast of at least beta_slow"),
    ],
)
def test_the_two_ends_of_a_blend_are_in_order(kind, changes, words):
    from rocmkern.ops.rotary.scaling import Llama3Scaling, YarnScaling, accept_scaling

    sound = {
        "llama3": Llama3Scaling(8.0, 3.99, 4.0, 8192),
        "yarn": YarnScaling(4.0, 2048, beta_fast=32.0, beta_slow=32.0),
    }[kind]
    assert accept_scaling(sound) is sound
    with pytest.raises(ValueError, match=f"scaling: got {words}"):
        accept_scaling(dataclasses.replace(sound, **changes))
