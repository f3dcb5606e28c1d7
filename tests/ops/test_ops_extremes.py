"""Arguments at the edge of what float32 holds, and inputs that other libraries present in their own way."""

import subprocess
import sys
import time

import numpy as np
import pytest

import rocmkern
from rocmkern import ArgumentError, reference, targets


@pytest.fixture(params=["python", "cpu"], autouse=True)
def target(request):
    with targets.using(request.param):
        yield


ONES = np.ones((1, 1, 1, 4), np.float32)


@pytest.mark.parametrize("scale", [0.0, 1e-44, 1e-38, 1e-30, 3e38, -1e-38])
def test_a_scale_of_any_size(scale):
    k = np.ones((1, 1, 3, 4), np.float32)
    small = ONES * 1e-20 if scale > 1 else ONES
    out, lse = rocmkern.flash_attention(small, k, k, scale=scale, return_lse=True, sinks=np.float32([10.0]))
    expected, expected_lse = reference.flash_attention(
        small, k, k, scale=float(np.float32(scale)), return_lse=True, sinks=np.float32([10.0])
    )
    np.testing.assert_allclose(out, expected, rtol=1e-5)
    np.testing.assert_allclose(lse, expected_lse, rtol=1e-5)


@pytest.mark.parametrize("softcap", [1e-50, 1e-40, 0.0, -1.0, np.nan])
def test_a_softcap_without_a_reciprocal_is_refused(softcap):
    with pytest.raises(ArgumentError) as error:
        rocmkern.flash_attention(ONES, ONES, ONES, softcap=softcap)
    assert error.value.argument == "softcap"


@pytest.mark.parametrize("softcap", [0.5, 1e-30])
def test_a_small_softcap_counts(softcap):
    q, k, v = np.random.default_rng(0).standard_normal((3, 1, 2, 5, 8)).astype(np.float32)
    expected = reference.flash_attention(q, k, v, softcap=softcap)
    assert np.abs(expected - reference.flash_attention(q, k, v)).max() > 0.01
    np.testing.assert_allclose(rocmkern.flash_attention(q, k, v, softcap=softcap), expected, atol=1e-6)


def test_a_value_without_weight_may_be_nan():
    p, v = np.float32([[[[0.0, 1.0], [1.0, 0.0]]]]), np.float32([[[[np.nan], [2.0]]]])
    out = rocmkern.weighted_values(p, v)
    assert out[0, 0, 0, 0] == 2.0 and np.isnan(out[0, 0, 1, 0])


@pytest.mark.parametrize("key", [3, 149])  # within a tile of keys, and in the last one
@pytest.mark.parametrize("value", [np.inf, np.nan])
@pytest.mark.parametrize("score", [-np.inf, -300.0])
@pytest.mark.parametrize("bias", [None, 0.0, -np.inf])
def test_a_value_that_is_not_finite_and_has_no_weight_gives_nan_or_is_not_there(key, value, score, bias):
    k, v = np.random.default_rng(0).standard_normal((2, 1, 1, 150, 16), np.float32)
    q = np.zeros((1, 1, 20, 16), np.float32)
    q[..., 0], k[0, 0, key, 0], v[0, 0, key, 2] = 4.0, score, value
    biases = None if bias is None else np.zeros((1, 1, 1, 150), np.float32)
    if bias is not None:
        biases[..., key] = bias
    out = rocmkern.flash_attention(q, k, v, bias=biases)
    without = reference.flash_attention(q, *(np.delete(x, key, axis=2) for x in (k, v)))
    of_value = out[..., 2]
    assert bias != -np.inf or not np.isnan(of_value).any()
    out[..., 2] = np.where(np.isnan(of_value), without[..., 2], of_value)
    np.testing.assert_allclose(out, without, atol=1e-5)


@pytest.mark.parametrize("target", ["cpu"], indirect=True)
def test_heads_whose_product_with_those_of_keys_is_beyond_32_bits():
    rng = np.random.default_rng(0)
    # Seventeen queries: fewer would lie beside each other with all heads of a group.
    q = rng.standard_normal((1, 140000, 17, 1), np.float32)
    k, v = rng.standard_normal((2, 1, 70000, 1, 1), np.float32)
    expected = np.broadcast_to(np.repeat(v, 2, axis=1), q.shape)
    np.testing.assert_allclose(rocmkern.flash_attention(q, k, v), expected, rtol=1e-6)


def test_slopes_are_an_input_like_others():
    buffer = np.ones(8, np.float32)
    with pytest.raises(ArgumentError) as error:
        rocmkern.flash_attention(ONES, ONES, ONES, alibi_slopes=buffer[:1], out=buffer[:4].reshape(1, 1, 1, 4))
    assert error.value.argument == "out"
    two = np.ones((2, 3, 1, 4), np.float32)
    with pytest.raises(ArgumentError) as error:
        rocmkern.flash_attention(two, two, two, alibi_slopes=np.ones((1, 3), np.float32))
    assert error.value.argument == "alibi_slopes"


def test_lazy_negatives_of_torch_are_refused():
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    x = torch.complex(torch.ones(1, 3), torch.tensor([[1.0, 2.0, 3.0]])).conj().imag
    with pytest.raises(ArgumentError, match="resolve_neg") as error:
        rocmkern.scale(x, 1.0)
    assert error.value.argument == "x"
    np.testing.assert_array_equal(rocmkern.scale(x.resolve_neg(), 1.0).numpy(), [[-1.0, -2.0, -3.0]])


def test_what_another_library_raises_names_the_argument():
    class Odd:
        def __dlpack_device__(self):
            raise ValueError("no such device")

        def __dlpack__(self, **_):
            raise AssertionError("not asked")

    with pytest.raises(ArgumentError) as error:
        rocmkern.flash_attention(Odd(), ONES, ONES)
    assert error.value.argument == "q"


LATE = """
import threading, time
import numpy as np
import rocmkern
rocmkern.use("cpu")
q = np.ones((1, 8, 200, 16), np.float32)
def late():
    threading.main_thread().join()
    time.sleep(0.2)
    print(rocmkern.flash_attention(q, q, q).mean())
threading.Thread(target=late).start()
"""


def test_a_call_after_the_end_of_the_main_thread(monkeypatch):
    monkeypatch.setenv("ROCMKERN_NUM_THREADS", "2")
    done = subprocess.run([sys.executable, "-c", LATE], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and float(done.stdout) == 1.0, done.stderr


HUGE = 2**62
PACKED, LENGTHS = np.ones((7, 2, 8), np.float32), np.array([0, 3, 7], np.int32)
CACHE = np.ones((4, 16, 2, 8), np.float32)


@pytest.mark.parametrize(
    "call",
    [
        lambda n: rocmkern.flash_attention(
            PACKED, PACKED, PACKED, cu_seqlens_q=LENGTHS, cu_seqlens_k=LENGTHS, max_seqlen_q=n, max_seqlen_k=n
        ),
        lambda n: rocmkern.flash_attention(ONES, ONES, ONES, window=(n, n)),
        lambda n: rocmkern.paged_attention(
            PACKED[:1], CACHE, CACHE, np.zeros((1, 2), np.int32), np.int32([3]), num_splits=n, max_context_len=n
        ),
        lambda n: rocmkern.paged_attention(
            PACKED[:3], CACHE, CACHE, np.zeros((1, 2), np.int32), np.int32([3]),
            cu_seqlens_q=np.int32([0, 3]), max_seqlen_q=n,
        ),
    ],
    ids=["max_seqlen", "window", "num_splits", "max_seqlen of pages"],
)  # fmt: skip
def test_a_bound_of_any_size_costs_no_more_than_what_it_bounds(call):
    expected = call(64)
    started = time.process_time()
    np.testing.assert_array_equal(call(HUGE), expected)
    assert time.process_time() - started < 1


@pytest.mark.parametrize(
    "call", [lambda: rocmkern.causal_mask(HUGE, 4), lambda: rocmkern.repeat_kv(np.ones((1, 2, 3, 8), np.float32), HUGE)]
)
def test_a_result_that_no_memory_holds_is_refused_by_name(call):
    with pytest.raises(ArgumentError, match=r"out: got a result of shape .* bytes; allowed: less than"):
        call()


@pytest.mark.parametrize("n", [64, 9000])
def test_norms_of_the_largest_numbers(n):
    """An RMS norm of any finite numbers is right; sums of a layer norm leave float32, as its docstring says."""
    sign = np.where(np.arange(2 * n).reshape(2, n) % 3 > 0, 1, -1).astype(np.float32)
    x, weight = np.float32(3e38) * sign, np.ones(n, np.float32)
    np.testing.assert_allclose(rocmkern.rms_norm(x, weight), sign, rtol=1e-6)
    found, exact = (where.rms_norm_backward(sign, x, weight)[1] for where in (rocmkern, rocmkern.reference))
    np.testing.assert_allclose(found, exact, rtol=1e-6)
    fits = np.float32(1e38 / n) * sign
    exact = rocmkern.reference.layer_norm(fits, eps=1e-5)
    np.testing.assert_allclose(rocmkern.layer_norm(fits), exact, rtol=1e-5)
    assert np.isnan(rocmkern.layer_norm(np.abs(x))).all()
