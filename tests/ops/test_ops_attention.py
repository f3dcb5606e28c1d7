"""Attention operations: layouts, features, outputs and kinds of arrays, against the float64 reference."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from rocmkern import reference
from rocmkern.ops.attention.api import decode_attention, flash_attention, merge_attention

pytestmark = pytest.mark.usefixtures("launch")

DTYPES = [np.float32, np.float16, ml_dtypes.bfloat16]


def swap(x):
    """bhsd to bshd and back."""
    return x.transpose(0, 2, 1, 3)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("function", [flash_attention, decode_attention])
def test_default_call(normal, close, function, dtype):
    q, k, v = normal(2, 4, 5, 8, dtype=dtype), normal(2, 2, 7, 8, dtype=dtype), normal(2, 2, 7, 6, dtype=dtype)
    out = function(q, k, v)
    assert type(out) is np.ndarray and out.dtype == dtype
    close(out, reference.flash_attention(q, k, v))


@pytest.mark.parametrize(
    "options",
    [
        {"causal": True},
        {"causal": "bottom_right"},
        {"causal": "top_left"},
        {"window": (2, 1)},
        {"window": (0, 0)},
        {"window": [None, 1]},
        {"window": (2, None)},
        {"window": (np.int64(2), 3), "causal": True},
        {"window": (1, 2), "causal": "top_left"},
        {"window": (1 << 40, 1 << 40)},
        {"scale": 0.25},
        {"scale": np.float32(-0.25)},
        {"scale": 0},
        {"softcap": 2.0},
    ],
    ids=str,
)
@pytest.mark.parametrize(("sq", "sk"), [(6, 6), (3, 8), (8, 3)])
def test_numbers(normal, close, options, sq, sk):
    q, k, v = normal(1, 2, sq, 8), normal(1, 1, sk, 8), normal(1, 1, sk, 8)
    out, lse = flash_attention(q, k, v, return_lse=True, **options)
    expected, expected_lse = reference.flash_attention(q, k, v, return_lse=True, **options)
    close(out, expected)
    close(lse, expected_lse)
    assert lse.dtype == np.float32 and lse.shape == (1, 2, sq)


@pytest.mark.parametrize("shape", [(2, 4, 5, 7), (1, 4, 5, 7), (4, 1, 1), (5, 1), (7,), (2, 1, 5, 7), ()])
def test_bias_and_mask_are_broadcast(normal, close, shape):
    q, k, v = normal(2, 4, 5, 8), normal(2, 2, 7, 8), normal(2, 2, 7, 8)
    for options in ({"bias": normal(*shape)}, {"mask": np.asarray(normal(*shape) > -0.5)}):
        close(flash_attention(q, k, v, **options), reference.flash_attention(q, k, v, **options))


@pytest.mark.parametrize("dtype", DTYPES)
def test_small_arrays_have_any_float_dtype(normal, close, dtype):
    q, k, v = normal(2, 4, 5, 8), normal(2, 2, 7, 8), normal(2, 2, 7, 8)
    options = {
        "bias": normal(5, 7, dtype=dtype),
        "sinks": normal(4, dtype=dtype),
        "alibi_slopes": np.abs(normal(2, 4)).astype(dtype),
    }
    close(flash_attention(q, k, v, **options), reference.flash_attention(q, k, v, **options))


def test_slopes_of_all_batch_elements(normal, close):
    q, k, v, slopes = normal(2, 4, 5, 8), normal(2, 4, 7, 8), normal(2, 4, 7, 8), np.abs(normal(4))
    close(flash_attention(q, k, v, alibi_slopes=slopes), reference.flash_attention(q, k, v, alibi_slopes=slopes))


def test_bshd_layout(normal, close):
    q, k, v = normal(2, 5, 4, 8), normal(2, 7, 2, 8), normal(2, 7, 2, 6)
    out, lse = flash_attention(q, k, v, layout="bshd", causal=True, return_lse=True)
    expected, expected_lse = reference.flash_attention(swap(q), swap(k), swap(v), causal=True, return_lse=True)
    assert out.shape == (2, 5, 4, 6) and lse.shape == (2, 4, 5)
    close(out, swap(expected))
    close(lse, expected_lse)


@pytest.mark.parametrize("layout", ["bhsd", "bshd"])
def test_packed_sequences(normal, close, layout):
    cu_q, cu_k = np.array([0, 3, 3, 5, 9], np.int32), np.array([0, 5, 7, 7, 11], np.int32)
    q, k, v = normal(9, 4, 8), normal(11, 2, 8), normal(11, 2, 6)
    options = dict(
        cu_seqlens_q=cu_q,
        cu_seqlens_k=cu_k,
        causal=True,
        alibi_slopes=np.abs(normal(4, 4)),
        sinks=normal(4),
        return_lse=True,
    )
    out, lse = flash_attention(q, k, v, layout=layout, max_seqlen_q=4, max_seqlen_k=100, **options)
    expected, expected_lse = reference.flash_attention(q, k, v, **options)
    assert out.shape == (9, 4, 6) and lse.shape == (4, 9)
    close(out, expected)
    close(lse, expected_lse)


def test_cumulative_lengths_may_be_strided(normal, close):
    cu = np.array([0, -1, 3, -1, 5, -1], np.int32)[::2]
    q = normal(5, 2, 8)
    out = flash_attention(q, q, q, cu_seqlens_q=cu, cu_seqlens_k=cu)
    close(out, reference.flash_attention(q, q, q, cu_seqlens_q=cu, cu_seqlens_k=cu))


def test_packed_without_keys(normal):
    cu_q, cu_k = np.array([0, 2, 3], np.int32), np.zeros(3, np.int32)
    q, k = normal(3, 2, 8), normal(0, 2, 8)
    sinks = np.array([1.0, 2.0], np.float32)
    out, lse = flash_attention(q, k, k, cu_seqlens_q=cu_q, cu_seqlens_k=cu_k, sinks=sinks, return_lse=True)
    assert not out.any() and lse.tolist() == [[1.0] * 3, [2.0] * 3]


def test_no_sequences(normal):
    cu = np.zeros(1, np.int32)
    q = normal(0, 2, 8)
    assert flash_attention(q, q, q, cu_seqlens_q=cu, cu_seqlens_k=cu).shape == (0, 2, 8)


@pytest.mark.parametrize(
    ("q_shape", "k_shape"),
    [
        ((0, 2, 3, 4), (0, 2, 3, 4)),
        ((2, 2, 0, 4), (2, 2, 3, 4)),
        ((2, 0, 3, 4), (2, 1, 3, 4)),
        ((1, 2, 0, 4), (1, 2, 0, 4)),
    ],
)
def test_empty_results(normal, q_shape, k_shape):
    q, k = normal(*q_shape), normal(*k_shape)
    out, lse = flash_attention(q, k, k, return_lse=True)
    assert out.shape == q_shape and lse.shape == q_shape[:3]


@pytest.mark.parametrize("layout", ["bhsd", "bshd"])
def test_no_keys_give_zero(normal, layout):
    q, k = normal(2, 3, 3, 4), normal(2, 3, 3, 4)
    k = k[:, :, :0] if layout == "bhsd" else k[:, :0]
    out, lse = flash_attention(q, k, k, layout=layout, return_lse=True)
    assert not out.any() and (lse == -np.inf).all()


@pytest.mark.parametrize("num_splits", [None, 1, 3])
def test_decode_splits(normal, close, num_splits):
    q, k, v = normal(1, 4, 1, 8), normal(1, 2, 40, 8), normal(1, 2, 40, 8)
    out, lse = decode_attention(q, k, v, causal=True, window=(30, None), num_splits=num_splits, return_lse=True)
    expected, expected_lse = reference.flash_attention(q, k, v, causal=True, window=(30, None), return_lse=True)
    close(out, expected)
    close(lse, expected_lse)


# Memory layouts.


def strided_variants(x):
    """The same values in other memory layouts."""
    wide = np.zeros((*x.shape[:-1], 2 * x.shape[-1]), x.dtype)
    wide[..., ::2] = x
    yield "step", wide[..., ::2]
    offset = np.zeros(x.size + 1, x.dtype)[1:].reshape(x.shape)
    offset[...] = x
    yield "offset", offset
    yield "transposed", np.ascontiguousarray(x.transpose(3, 1, 2, 0)).transpose(3, 1, 2, 0)
    yield "negative", np.ascontiguousarray(x[:, :, ::-1, ::-1])[:, :, ::-1, ::-1]
    yield "fortran", np.asfortranarray(x)
    packed = np.zeros(x.shape, [("tag", np.uint8), ("value", x.dtype)])
    packed["value"] = x
    yield "misaligned", packed["value"]


@pytest.mark.parametrize("dtype", DTYPES)
def test_any_strides(normal, close, dtype):
    arrays = normal(2, 4, 5, 8, dtype=dtype), normal(2, 2, 7, 8, dtype=dtype), normal(2, 2, 7, 6, dtype=dtype)
    expected = reference.flash_attention(*arrays, causal=True)
    for variants in zip(*(strided_variants(x) for x in arrays), strict=True):
        names, views = zip(*variants, strict=True)
        before = [x.copy() for x in views]
        close(flash_attention(*views, causal=True), expected)
        assert all(np.array_equal(a, b) for a, b in zip(views, before, strict=True)), names


def test_broadcast_inputs(normal, close):
    q, k = np.broadcast_to(normal(1, 1, 1, 8), (2, 4, 5, 8)), np.broadcast_to(normal(2, 1, 1, 1), (2, 2, 7, 8))
    close(flash_attention(q, k, k), reference.flash_attention(q, k, k))


def test_read_only_inputs(normal, close):
    q = normal(1, 2, 3, 8)
    q.flags.writeable = False
    close(flash_attention(q, q, q), reference.flash_attention(q, q, q))


# Outputs.


@pytest.mark.parametrize("layout", ["bhsd", "bshd"])
def test_out_is_written_and_returned(normal, close, layout):
    q, k, v = normal(2, 4, 4, 8), normal(2, 4, 4, 8), normal(2, 4, 4, 6)
    wide = np.full((2, 4, 4, 12), 7.0, np.float32)
    out, lse = wide[..., 1:12:2], np.full((2, 4, 4), np.nan, np.float32)
    result = flash_attention(q, k, v, layout=layout, return_lse=True, out=(out, lse))
    expected, expected_lse = reference.flash_attention(q, k, v, layout=layout, return_lse=True)
    assert result[0] is out and result[1] is lse
    close(out, expected)
    close(lse, expected_lse)
    assert (wide[..., ::2] == 7.0).all()


def test_out_without_lse(normal, close):
    q, out = normal(1, 2, 3, 8), np.empty((1, 2, 3, 8), np.float32)
    result, lse = flash_attention(q, q, q, out=out, return_lse=True)
    expected, expected_lse = reference.flash_attention(q, q, q, return_lse=True)
    assert result is out
    close(out, expected)
    close(lse, expected_lse)


def test_calls_with_out_allocate_no_result(normal, monkeypatch):
    q = normal(1, 2, 3, 8)
    out, lse = np.empty((1, 2, 3, 8), np.float32), np.empty((1, 2, 3), np.float32)

    def refuse(*args, **kwargs):
        raise AssertionError("allocated")

    monkeypatch.setattr("rocmkern.calls.results.allocate", refuse)
    flash_attention(q, q, q, out=out)
    flash_attention(q, q, q, out=(out, lse), return_lse=True)
    merge_attention(q, lse, q, lse, out=(out, np.empty_like(lse)))


# Merging.


@pytest.mark.parametrize("dtype", DTYPES)
def test_merge(normal, close, dtype):
    o1, o2, lse1, lse2 = (
        normal(2, 3, 5, 8, dtype=dtype),
        normal(2, 3, 5, 8, dtype=dtype),
        normal(2, 3, 5),
        normal(2, 3, 5),
    )
    lse1[0, 0, 0] = lse2[0, 0, 1] = -np.inf
    lse1[1, 1, 1] = lse2[1, 1, 1] = -np.inf
    o1[0, 0, 0], o2[0, 0, 1], o1[1, 1, 1] = np.nan, np.inf, np.nan
    out, lse = merge_attention(o1, lse1, o2, lse2)
    expected, expected_lse = reference.merge_attention(o1, lse1, o2, lse2)
    assert out.dtype == dtype and lse.dtype == np.float32 and np.isfinite(expected).all()
    close(out, expected)
    close(lse, expected_lse)


@pytest.mark.parametrize("place", [0, 1])
def test_merge_in_place(normal, close, place):
    sides = [normal(2, 3, 70, 24), normal(2, 3, 70, 24)]
    lse1, lse2 = normal(2, 3, 70), normal(2, 3, 70)
    expected, expected_lse = reference.merge_attention(sides[0], lse1, sides[1], lse2)
    lse = np.empty_like(lse1)
    merge_attention(sides[0], lse1, sides[1], lse2, out=(sides[place], lse))
    close(sides[place], expected)
    close(lse, expected_lse)


def test_merge_layouts(normal, close):
    o1, o2, lse1, lse2 = normal(2, 3, 5, 8), normal(2, 3, 5, 8), normal(2, 3, 5), normal(2, 3, 5)
    expected, expected_lse = reference.merge_attention(o1, lse1, o2, lse2)
    out, lse = merge_attention(swap(o1), lse1, swap(o2), lse2, layout="bshd")
    close(out, swap(expected))
    close(lse, expected_lse)
    out, lse = merge_attention(o1[0].transpose(1, 0, 2), lse1[0], o2[0].transpose(1, 0, 2), lse2[0])
    close(out, expected[0].transpose(1, 0, 2))
    close(lse, expected_lse[0])


def test_merge_of_nothing(normal):
    o, lse = normal(1, 2, 0, 8), normal(1, 2, 0)
    out, out_lse = merge_attention(o, lse, o, lse)
    assert out.shape == (1, 2, 0, 8) and out_lse.shape == (1, 2, 0)


# Other kinds of arrays.


@pytest.fixture(scope="module")
def torch():
    return pytest.importorskip("torch", reason="PyTorch is not installed")


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_torch_in_torch_out(torch, normal, close, dtype):
    q, k, v = (torch.from_numpy(normal(1, 2, 5, 8)).to(getattr(torch, dtype)) for _ in range(3))
    mask = torch.from_numpy(normal(5, 5) > -1)
    out, lse = flash_attention(q, k, v, mask=mask, return_lse=True)
    assert isinstance(out, torch.Tensor) and out.dtype == q.dtype and lse.dtype == torch.float32
    exact = [x.double().numpy() for x in (q, k, v)]
    expected, expected_lse = reference.flash_attention(*exact, mask=mask.numpy(), return_lse=True)
    close(out.double().numpy(), expected, getattr(ml_dtypes, dtype, dtype))
    close(lse.numpy(), expected_lse)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_torch_out_is_written_in_place(torch, normal, close, dtype):
    q = torch.from_numpy(normal(1, 4, 5, 8)).to(getattr(torch, dtype))
    out = torch.empty(1, 5, 4, 8, dtype=q.dtype).transpose(1, 2)
    assert flash_attention(q, q, q, out=out) is out
    close(out.double().numpy(), reference.flash_attention(*[q.double().numpy()] * 3), getattr(ml_dtypes, dtype, dtype))


def test_torch_and_numpy_are_both_host_memory(torch, normal, close):
    q, k, v = normal(1, 2, 5, 8), normal(1, 2, 5, 8), normal(1, 2, 5, 8)
    expected = reference.flash_attention(q, k, v)
    mixed = flash_attention(q, torch.from_numpy(k), torch.from_numpy(v))
    assert type(mixed) is np.ndarray
    close(mixed, expected)
    assert isinstance(flash_attention(torch.from_numpy(q), k, v), torch.Tensor)


@pytest.fixture
def manager():
    from rocmkern.runtime.manager import ResourceManager

    with ResourceManager("host") as manager:
        yield manager


@pytest.mark.parametrize("dtype", DTYPES)
def test_device_tensors_in_and_out(manager, normal, close, dtype):
    from rocmkern.runtime.manager import DeviceTensor

    arrays = [normal(1, 5, 2, 8, dtype=dtype) for _ in range(3)]
    tensors = [manager.from_numpy(x).transpose(0, 2, 1, 3) for x in arrays]
    out, lse = flash_attention(*tensors, causal=True, return_lse=True)
    assert isinstance(out, DeviceTensor) and out.manager is manager and out.dtype == dtype
    expected, expected_lse = reference.flash_attention(*(swap(x) for x in arrays), causal=True, return_lse=True)
    close(out.to_numpy(), expected)
    close(lse.to_numpy(), expected_lse)
    given = manager.empty((1, 5, 2, 8), dtype).transpose(0, 2, 1, 3)
    assert flash_attention(*tensors, causal=True, out=given) is given
    close(given.to_numpy(), expected)


def test_lengths_of_device_tensors_may_be_on_the_host(manager, normal, close):
    q, cu = normal(5, 2, 8), np.array([0, 2, 5], np.int32)
    tensor = manager.from_numpy(q)
    expected = reference.flash_attention(q, q, q, cu_seqlens_q=cu, cu_seqlens_k=cu)
    for lengths in (cu, manager.from_numpy(cu)):
        out = flash_attention(tensor, tensor, tensor, cu_seqlens_q=lengths, cu_seqlens_k=lengths)
        close(out.to_numpy(), expected)
